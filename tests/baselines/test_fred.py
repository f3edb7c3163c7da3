"""The FreD app: its settings, and a file for every table of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.catalogue import configuration_of
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.environment import WORKING_DIRECTORY
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.privacy import FullParticipation, Release, release_epsilon
from flower_privsyn.run import RunDirectory
from flower_privsyn.strategies.fred import candidate_names, candidate_parts, read_sets

APP = Path(__file__).parents[2] / "baselines" / "fred"
NAMES = sorted(file.stem for file in (APP / "conf").glob("*.toml"))


def settings(name: str) -> Any:
    return configuration_of(resolve_config(load_app(APP), config_name=name))


def test_every_table_has_its_files_and_the_readme_names_them() -> None:
    ways = ("", "-by-user")
    tables = [f"table-{number}{way}" for number in (1, 2) for way in ways]
    assert sorted([*tables, "cpu", "cpu-two-rounds"]) == NAMES
    readme = (APP / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in readme for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_named_settings_are_accepted(name: str) -> None:
    config = settings(name)
    names = candidate_names(config.candidates)
    sets = [candidate_parts(one) for one in names]
    if name.startswith("table-1"):
        assert list(names) == ["stackoverflow-train.jsonl", "wikitext-train.jsonl"]
    if name.startswith("table-2"):
        shares = [round(100 * one[0][1]) for one in sets]
        assert shares == [10, 40, 70, 95, 99, 100]
        assert config.candidate_texts == 150_000
    if name.startswith("cpu"):
        assert config.num_users == 0
        for one in sets:
            files = [source.replace("sample/", "fred_app/sample/") for source, _ in one]
            assert all(file == "bundled" or (APP / file).is_file() for file in files)


@pytest.mark.parametrize(("name", "delta"), [("table-1", 1e-6), ("table-2", 2e-6)])
def test_a_record_has_the_epsilon_of_the_paper(name: str, delta: float) -> None:
    config = settings(name)
    assert (config.estimator, config.unit, config.moment_dimensions) == ("two-rounds", "record", 0)
    of_a_record = Release(
        noise_multiplier=config.noise_multiplier * config.max_samples,
        sampling=FullParticipation(),
    )
    found = release_epsilon({of_a_record: 2}, delta=config.delta)
    assert found == pytest.approx(0.6, rel=1e-3)
    assert config.delta == delta
    by_user = settings(f"{name}-by-user")
    assert (by_user.epsilon, by_user.delta, by_user.unit) == (0.6, delta, "user")
    assert by_user.moment_dimensions == 16


def test_a_candidate_is_found_from_where_the_command_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ServerApp runs in another folder."""
    run = RunDirectory.create(tmp_path / "runs" / "a", config={})
    run.write_synthetic(
        [{"text": f"Text {n}.", "round": 1, "parent": None, "source": "x"} for n in range(3)]
    )
    run.unlock()
    monkeypatch.setenv(WORKING_DIRECTORY, str(tmp_path))
    tokenizer = load_tokenizer("privsyn-tiny")[0]
    found = read_sets(["runs/a"], tokenizer=tokenizer, max_tokens=64, most=0, seed=0)
    assert found["runs/a"] == ["Text 0.", "Text 1.", "Text 2."]
