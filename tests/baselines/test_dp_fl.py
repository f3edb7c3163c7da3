"""The app that trains on the devices: its settings against the papers', and both strategies."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.catalogue import configuration_of
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.privacy import Correlation, release_epsilon
from flower_privsyn.privacy.accounting import Release
from flower_privsyn.privacy.sampling import FullParticipation
from flower_privsyn.strategies import DPFedAvgConfig, DPFTRLConfig

APP = Path(__file__).parents[2] / "baselines" / "dp-fl"
NAMES = sorted(file.stem for file in (APP / "conf").glob("*.toml"))
USERS = {"biorxiv": 72_000, "congress": 133_000}
POPRI = [name for name in NAMES if name.startswith("popri-")]
#: What PrE-Text searched for its baseline (Hou et al. 2024, appendix).
PRE_TEXT_GRID = ((0.1, 0.01, 0.001), (10, 20, 100), (1.0, 0.1, 0.01, 0.001))


def settings(name: str | None = None, *changes: str) -> Any:
    return configuration_of(resolve_config(load_app(APP), config_name=name, settings=changes))


def test_every_reported_setting_has_a_file() -> None:
    wanted = {"cpu", "cpu-ftrl", "pre-text-eps-1.29", "pre-text-eps-7.58"}
    wanted |= {"public-llm-eps-1.77", "public-llm-eps-18.71"}
    for data in USERS:
        for epsilon in ("1", "7"):
            for part in ("full", "1000"):
                wanted |= {
                    f"popri-fedavg-{data}-{part}-eps-{epsilon}",
                    f"popri-fedavg-{data}-{part}-eps-{epsilon}-as-printed",
                }
            wanted.add(f"popri-ftrl-{data}-full-eps-{epsilon}")
            wanted |= {
                f"popri-ftrl-{data}-1000-eps-{epsilon}-20-{unit}" for unit in ("epochs", "rounds")
            }
    assert set(NAMES) == wanted


def spent(config: Any) -> float:
    """Epsilon of a whole run with these settings, by their accountant."""
    sampling = config.sampling_of(config.num_users)
    if isinstance(config, DPFTRLConfig):
        apart = sampling.min_separation
        matrix = config.factorisation(config.num_rounds, apart)
        correlation = Correlation(factorisation=matrix, min_separation=apart)
        whole = Release(
            noise_multiplier=correlation.noise_multiplier(config.noise_multiplier or 0.0),
            sampling=FullParticipation(),
        )
        return release_epsilon([whole], delta=config.delta, accountant=config.accountant)
    release = Release(noise_multiplier=config.noise_multiplier or 0.0, sampling=sampling)
    return release_epsilon(
        {release: config.num_rounds}, delta=config.delta, accountant=config.accountant
    )


@pytest.mark.parametrize("name", POPRI)
def test_popris_settings(name: str) -> None:
    _, kind, data, part, _, epsilon, *reading = name.split("-")
    config = settings(name)
    users = USERS[data]
    per_round = users if part == "full" else 1_000
    assert (config.num_users, config.model, config.delta) == (
        users,
        "distilbert/distilgpt2",
        3e-6,
    )
    assert config.local_learning_rate == 0.03
    assert config.clip_norm == 0.1
    if kind == "ftrl":
        twenty = reading[-1] if reading else "epochs"
        passes = users // per_round
        assert config.num_rounds == (20 * passes if twenty == "epochs" else 20)
        assert (config.min_separation, config.correlation) == (passes, "tree")
        assert (config.accountant, config.local_batch_size) == ("rdp", 2)
        assert (config.max_samples, config.local_steps) == (0, 0)
        assert config.server_learning_rate == 1.0
        # The printed epsilon, to 3 %, is that of 20 epochs; of the 20 rounds only with everybody.
        reached = spent(config) / float(epsilon)
        assert 0.97 <= reached <= 1.003 if twenty == "epochs" else reached < 0.7
        return
    assert isinstance(config, DPFedAvgConfig)
    assert (config.num_rounds, config.local_batch_size) == (20, 2)
    assert config.server_learning_rate == 1.0
    assert config.sampling_of(users).expected_users == pytest.approx(per_round)
    if reading:
        # Rounded up for print.
        assert 0.929 * float(epsilon) <= spent(config) <= float(epsilon)
    else:
        assert (config.epsilon, config.accountant) == (float(epsilon), "pld")


@pytest.mark.parametrize("epsilon", ["1.77", "18.71"])
def test_the_tree_of_wang_et_al(epsilon: Any) -> None:
    config = settings(f"public-llm-eps-{epsilon}")
    assert (config.num_rounds, config.min_separation, config.correlation) == (1600, 3420, "tree")
    assert (config.delta, config.accountant, config.server_learning_rate) == (1e-6, "rdp", 1.0)
    assert (config.local_batch_size, config.max_samples, config.max_tokens) == (16, 256, 20)
    assert (config.local_epochs, config.local_steps) == (1, 0)
    assert spent(config) == pytest.approx(float(epsilon), abs=5e-3)


@pytest.mark.parametrize("epsilon", ["1.29", "7.58"])
def test_pre_texts_grid(epsilon: str) -> None:
    name = f"pre-text-eps-{epsilon}"
    config = settings(name)
    assert (config.epsilon, config.delta, config.sampling) == (float(epsilon), 3e-6, "full")
    assert (config.num_users, config.max_samples, config.local_batch_size) == (1250, 8, 4)
    cell = (config.local_learning_rate, config.num_rounds, config.clip_norm)
    assert (*cell, config.server_learning_rate) == (0.1, 20, 0.1, 1.0)


def test_the_readme_walks_the_whole_grid() -> None:
    """The loops of the README, run as a shell would, with the command replaced by an echo."""
    import subprocess

    text = (APP / "README.md").read_text()
    (block,) = [part for part in text.split("```") if "for rate in" in part]
    script = 'privsyn() { echo "$@"; }\n' + block
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    seen = set()
    for line in done.stdout.splitlines():
        words = line.split()
        changes = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        config = settings(words[words.index("--config") + 1], *changes)
        seen.add((config.epsilon, config.local_learning_rate, config.num_rounds, config.clip_norm))
    assert seen == {
        (epsilon, rate, rounds, clip)
        for epsilon in (1.29, 7.58)
        for rate, rounds, clip in itertools.product(*PRE_TEXT_GRID)
    }
