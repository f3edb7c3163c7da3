"""Run directories that flower-privsyn 0.1 wrote (commit 0cfbed1), and what becomes of them."""

from __future__ import annotations

import io
import json
import re
import shutil
import stat
import tarfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from flower_privsyn.cli import main
from flower_privsyn.cli.inspect import inspect_run
from flower_privsyn.errors import LedgerError, RunDirectoryError
from flower_privsyn.files import read_json_lines
from flower_privsyn.host import launch
from flower_privsyn.privacy import PrivacyLedger
from flower_privsyn.report import write_run_page
from flower_privsyn.runs import RunDirectory, migrate
from flower_privsyn.runs.migrate import on_grid
from flower_privsyn.runs.owner import TIMES_STAMP
from flower_privsyn.runs.run_format import MIGRATED_STAMP, stamp_of
from flower_privsyn.strategies import DPFTRLConfig
from tests.support.ledgers import write_chain
from tests.support.probe import CorrelatedProbe
from tests.support.run_files import contents, released_files, times_in

FIXTURES = Path(__file__).parents[1] / "data" / "runs-0.1"
pytestmark = pytest.mark.old_runs
Builder = Callable[..., Any]
NAMES = ("finished", "unfinished", "sketch", "correlated")


@pytest.fixture
def old(tmp_path: Path) -> Callable[[str], Path]:
    """Unpack a run directory of 0.1."""

    def unpack(name: str) -> Path:
        with tarfile.open(fileobj=io.BytesIO((FIXTURES / f"{name}.tar.xz").read_bytes())) as tar:
            # Python knows filters from 3.11.4 on; the archives are this repository's own.
            filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(tmp_path, **filters)  # type: ignore[arg-type]
        return tmp_path / name

    return unpack


@pytest.mark.parametrize("command", ["inspect", "report", "evaluate", "resume"])
def test_is_refused_and_the_way_out_is_named(
    old: Builder, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = old("unfinished")
    before = contents(path)
    rest = ["--held-out", "none.jsonl"] if command == "evaluate" else []
    assert main([command, str(path), *rest]) == 2
    said = capsys.readouterr().err
    assert f"The run in {path} was written by flower-privsyn 0.1 (format 1)" in said
    assert f"`privsyn migrate {path}`" in said
    assert contents(path) == before


def test_figures_that_follow_from_one_released_number_are_rounded(old: Builder) -> None:
    path = old("finished")
    figures = {"fraction_within": 0.123456789123456, "next_clip_norm": 0.1}
    (path / "rounds/0001/server.json").write_text(json.dumps(figures))
    migrate.migrate(path)
    kept = json.loads((path / "rounds/0001/server.json").read_text())
    assert kept["next_clip_norm"] == 0.1
    assert kept["fraction_within"] != figures["fraction_within"]
    assert kept["fraction_within"] == float(on_grid(np.float64(0.123456789123456)))


def test_a_ledger_of_version_1_is_refused_on_its_own(old: Builder) -> None:
    path = old("finished")
    with pytest.raises(LedgerError, match=f"version 1 .* `privsyn migrate {path}`"):
        PrivacyLedger.open(path / "ledger.jsonl")
    with pytest.raises(LedgerError, match="version 1"):
        PrivacyLedger.read(path / "ledger.jsonl")


@pytest.mark.parametrize("name", NAMES)
def test_is_converted(old: Builder, name: str) -> None:
    path = old(name)
    created = json.loads((path / "config.json").read_text())["created"]
    before = {file: np.load(file) for file in released_files(path)}
    header = [line for line in read_json_lines(path / "ledger.jsonl") if line["event"] == "release"]
    assert any((values != on_grid(values)).any() for values in before.values())
    assert migrate.migrate(path)

    run = RunDirectory.open(path)
    assert run.document["format"] == 2
    # Rounded, for their owner, and the numbers beside the sum are as they were.
    assert before
    for file, values in before.items():
        assert np.array_equal(np.load(file), np.rint(values * 2**30) / 2**30)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for table in path.rglob("*.parquet"):
        for column in {"votes", "score"} & set(pq.read_schema(table).names):
            numbers = pq.read_table(table).column(column).to_numpy()
            assert np.array_equal(numbers, on_grid(numbers)), table
    # No time but that of the creation, in files or on them.
    assert times_in(path) == {"config.json": {created}}
    # The ledger is a chain again and says what it said, and its lines are stated.
    ledger = PrivacyLedger.read(run.ledger_file)
    assert [line["epsilon_release"] for line in ledger.releases] == [
        line["epsilon_release"] for line in header
    ]
    assert [line["epsilon_known_cohorts"] for line in ledger.releases] == [
        line["epsilon_server"] for line in header
    ]
    assert "epsilon_server" not in (path / "metrics.jsonl").read_text()
    stated = run.stated_digests()
    assert run.state["ledger"] == run.last_digest()
    assert "rounds/0000/state.json" in stated.values()
    assert len(stated) >= len(header) + 1
    assert len(run.ledger_lines()) == len(ledger.releases) * 2 + 1 + len(ledger.rounds_started)


def test_times_and_logs_are_the_owner_s(old: Builder) -> None:
    path = old("finished")
    waited = [line["seconds_feedback"] for line in read_json_lines(path / "metrics.jsonl")]
    log = (path / "flower.log").read_text()
    migrate.migrate(path)
    owner = RunDirectory.open(path).owner
    assert stat.S_IMODE(owner.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in owner.path.iterdir()} == {0o600}
    first = json.loads(owner.times_file.read_text().splitlines()[0])
    assert first == {"stamp": TIMES_STAMP}
    rounds = [line for line in owner.times() if line["event"] == "round"]
    assert [line["seconds_feedback"] for line in rounds] == waited
    assert owner.log_file.read_text() == log
    assert not (path / "flower.log").exists()


def test_twice_is_once(old: Builder, capsys: pytest.CaptureFixture[str]) -> None:
    path = old("finished")
    assert main(["migrate", str(path)]) == 0
    assert "rounded to multiples of 2^-30" in capsys.readouterr().out
    before = contents(path)
    assert main(["migrate", str(path)]) == 0
    assert "needs no conversion" in capsys.readouterr().out
    assert contents(path) == before


class Killed(BaseException):
    """A process that dies: nothing may catch it."""


def test_killed_anywhere_it_is_finished_by_the_next(
    old: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old("finished")
    owner = RunDirectory(path).owner
    shutil.copytree(path, tmp_path / "untouched")
    migrate.migrate(path)
    expected, times = contents(path), owner.times_file.read_bytes()
    replace, steps = Path.replace, [0]
    for last in range(1, 100):
        shutil.rmtree(path)
        shutil.rmtree(owner.path)
        shutil.copytree(tmp_path / "untouched", path)
        steps[0] = 0

        def dies(self: Path, target: Path, last: int = last) -> Path:
            steps[0] += 1
            if steps[0] == last:
                raise Killed
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", dies)
        try:
            migrate.migrate(path)
        except Killed:
            with pytest.raises(RunDirectoryError, match="privsyn migrate"):
                RunDirectory.open(path)
            monkeypatch.setattr(Path, "replace", replace)
            migrate.migrate(path)
        else:
            break
        finally:
            monkeypatch.setattr(Path, "replace", replace)
        assert contents(path) == expected, last
        assert owner.times_file.read_bytes() == times
    assert last > 12


def test_an_unfinished_run_goes_on(
    old: Builder,
    federation: Builder,
    settings: Builder,
    evolution: Builder,
    public_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = old("unfinished")
    monkeypatch.setenv("PRIVSYN_WORKING_DIRECTORY", str(public_file.parent))
    migrate.migrate(path)
    first = np.load(path / "rounds" / "0001" / "release.npy")
    # 0.1 had no default for min-users, and a resumed run keeps its settings.
    changes: dict[str, Any] = {"num_candidates": 8, "expand_samples": 4, "min_users": 0}
    changes["public_text"] = "public.jsonl"
    strategy = evolution(settings(run_dir=str(path), resume=True, **changes))
    strategy.start(federation())
    lines = strategy.run.ledger_lines()
    charged = [line for line in lines if line["event"] == "release"]
    # The round it died in is charged and lost, as it would have been under 0.1.
    assert [(line["round"], line["interrupted"]) for line in charged] == [
        (1, False),
        (2, True),
        (3, False),
    ]
    assert charged[-1]["epsilon_release"] <= 8.0
    assert np.array_equal(np.load(path / "rounds" / "0001" / "release.npy"), first)
    assert strategy.run.status == "finished"
    created = strategy.run.document["created"]
    assert times_in(path) == {"config.json": {created}}


def test_an_unfinished_run_of_correlated_noise_goes_on(old: Builder, federation: Builder) -> None:
    path = old("correlated")
    migrate.migrate(path)
    config = DPFTRLConfig(
        num_rounds=4,
        min_separation=2,
        max_samples=3,
        local_steps=0,
        min_users=0,
        accept_noise=True,
        noise_multiplier=1.5,
        server_learning_rate=1.0,
        server_momentum=0.0,
        run_dir=str(path),
        resume=True,
        node_timeout=0.2,
    )
    strategy = CorrelatedProbe(config, candidates=8)
    strategy.start(federation())
    assert [one.round_number for one in strategy.released] == [4]
    assert strategy.run.status == "finished"
    charged = [line for line in strategy.run.ledger_lines() if line["event"] == "release"]
    assert [line["covered_by"] for line in charged] == [None, 1, 1, 1]


def test_a_report_can_be_made_again(old: Builder) -> None:
    path = old("finished")
    migrate.migrate(path)
    assert not (path / "report.html").exists()
    run = RunDirectory.open(path)
    page = write_run_page(run).read_text()
    assert "3 of 3 rounds finished" in page
    # Rounding does not make the old noise what it was accounted as.
    assert f"<strong>{MIGRATED_STAMP}</strong><p>Its releases were made by version 0.1" in page
    assert stamp_of(run.document) == inspect_run(path)["stamp"] == MIGRATED_STAMP
    assert not re.search(r"Waiting|wall time", page)


@pytest.mark.parametrize("damage", ["cut", "edited", "removed"])
def test_a_damaged_ledger_is_not_made_sound(old: Builder, damage: str) -> None:
    path = old("finished")
    file = path / "ledger.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    if damage == "removed":
        file.unlink()
    elif damage == "cut":
        file.write_text("".join(lines[:3]))
    else:
        file.write_text("".join([*lines[:2], lines[2].replace(": 12,", ": 13,"), *lines[3:]]))
    before = contents(path)
    sentence = "line 4 is damaged" if damage == "edited" else "has no line for round"
    with pytest.raises(LedgerError, match=sentence):
        migrate.migrate(path)
    before.pop(".lock"), before.pop(".flower/lock")
    after = contents(path)
    assert {name: after[name] for name in before} == before


def test_a_torn_line_is_counted_and_gone(old: Builder) -> None:
    path = old("unfinished")
    with (path / "ledger.jsonl").open("a") as file:
        file.write('{"event": "release", "time": "2026-11-22T02:55')
    migrate.migrate(path)
    assert RunDirectory.open(path).ledger_lines()[-1]["torn_bytes"] == 46
    assert "02:55" not in (path / "ledger.jsonl").read_text()


def test_what_is_no_old_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no config.json"):
        migrate.migrate(tmp_path)
    run = RunDirectory.create(tmp_path / "run", config={})
    run.unlock()
    assert migrate.migrate(run.path) == []
    document: dict[str, Any] = {**run.document, "format": 3}
    run.config_file.write_text(json.dumps(document))
    for look in (migrate.migrate, RunDirectory.open):
        with pytest.raises(RunDirectoryError, match=r"format 3.*newer"):
            look(run.path)


def test_a_run_at_work_is_not_converted(old: Builder) -> None:
    path = old("unfinished")
    at_work = RunDirectory(path)
    at_work.lock()
    with pytest.raises(RunDirectoryError, match="is in use"):
        migrate.migrate(path)
    at_work.unlock()


def test_a_command_killed_before_its_run_began_needs_no_conversion(
    old: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old("unfinished")
    (path / "config.json").unlink()
    launched: list[Any] = []
    monkeypatch.setattr(launch, "load_app", lambda app: launched.append(app) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        launch.resume_run(path)
    assert launched == ["/home/owner/app"]


def test_rounding_is_to_the_nearest_and_leaves_multiples() -> None:
    values = np.array([0.0, 1.0, -3.25, 2.0**-31 * 1.5, 123456.789, -1e9 + 2.0**-23])
    rounded = on_grid(values)
    assert np.abs(rounded - values).max() <= 2.0**-31
    assert np.array_equal(rounded * 2**30, np.rint(rounded * 2**30))
    assert np.array_equal(on_grid(rounded), rounded)


def test_dates_are_those_of_the_creation(old: Builder) -> None:
    path = old("finished")
    migrate.migrate(path)
    moment = datetime.fromisoformat(RunDirectory.open(path).document["created"]).timestamp()
    assert {entry.stat().st_mtime for entry in [path, *path.rglob("*")]} == {moment}


def test_a_ledger_of_a_newer_version_is_named(tmp_path: Path) -> None:
    write_chain(tmp_path / "ledger.jsonl", {"event": "opened"}, version=3)
    with pytest.raises(LedgerError, match="has version 3 where this package reads 2"):
        PrivacyLedger.read(tmp_path / "ledger.jsonl")
