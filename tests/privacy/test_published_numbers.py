"""Noise multipliers that papers print, and the epsilons they print for them.

Tolerances are stated where they are used: "recomputed" columns were computed independently and
agree to the digits of the file; "printed" epsilons belong to noise multipliers that were rounded
for print, so they agree as far as the rounding allows.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.privacy import (
    FullParticipation,
    PoissonSampling,
    Release,
    Sampling,
    TreeAggregation,
    release_epsilon,
)

REFERENCE = json.loads((Path(__file__).parents[1] / "data" / "noise_reference.json").read_text())
ROWS: list[dict[str, Any]] = REFERENCE["gaussian_rows"]


def name(row: dict[str, Any]) -> str:
    parts = [row["paper"], row.get("dataset", ""), row.get("setting", "")[:7]]
    parts += [f"{row.get('clients_per_round', '')}of{row.get('total_clients', '')}"]
    return "-".join([*parts, f"{row['sigma_printed']:.4g}"])


def epsilon(row: dict[str, Any], accountant: str) -> float:
    sampling: Sampling = FullParticipation() if row["q"] == 1 else PoissonSampling(row["q"])
    releases = {Release(noise_multiplier=row["sigma_printed"], sampling=sampling): row["T"]}
    if "histogram_noise_multiplier" in row:
        histogram = Release(
            noise_multiplier=row["histogram_noise_multiplier"], sampling=FullParticipation()
        )
        releases[histogram] = 1
    return release_epsilon(releases, delta=row["delta"], accountant=accountant)


#: Of the rows whose users are drawn, which take seconds, every tenth; `pytest -m slow` has all.
DRAWN = [row for row in ROWS if row["q"] != 1]
YELP_LARGE = ("Yelp", "GPT2-XL batch 256")


@pytest.mark.parametrize(
    "row",
    [
        *(row for row in ROWS if row["q"] == 1),
        *(
            pytest.param(row, marks=[pytest.mark.slow] * (number % 10 > 0))
            for number, row in enumerate(DRAWN)
        ),
    ],
    ids=name,
)
def test_recomputed_by_both_accountants(row: dict[str, Any]) -> None:
    """The file has 6 digits; 1e-4 leaves room for fractional orders replaced by their bound.

    CTCL prints what loss distributions say: within 1.4 %; Yelp, with two digits of the multiplier,
    5.4 %, and the cells that do not reproduce err on the safe side.
    """
    by_loss = epsilon(row, "pld")
    by_renyi = epsilon(row, "rdp")
    assert by_loss == pytest.approx(row["eps_dp_accounting_pld"], rel=1e-5)
    assert by_renyi == pytest.approx(row["eps_dp_accounting_rdp"], rel=1.5e-4)
    if "eps_exact_gaussian" in row and "histogram_noise_multiplier" not in row and row["q"] == 1:
        assert by_loss == pytest.approx(row["eps_exact_gaussian"], rel=1e-5)
    assert 0.0 < by_loss <= by_renyi * (1.0 + 1e-9)
    if row["paper"] != "CTCL":
        return
    if (row["dataset"], row["setting"]) == YELP_LARGE:
        assert by_loss < 0.7 * row["eps_claimed"]
    else:
        tolerance = 0.054 if row["dataset"] == "Yelp" else 0.014
        assert by_loss == pytest.approx(row["eps_claimed"], rel=tolerance)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["table"] == "README noise / App. D.1"], ids=name
)
def test_pre_text_as_printed(row: dict[str, Any]) -> None:
    """Printed with two decimals, by Renyi divergence; the exact cost is 7 % lower."""
    assert epsilon(row, "rdp") == pytest.approx(row["eps_claimed"], abs=5e-3)
    assert epsilon(row, "pld") == pytest.approx(
        {11.3: 1.189, 2.31: 7.080}[row["sigma_printed"]], abs=1e-3
    )


def test_popri_pubmed_as_printed() -> None:
    """Two decimals of the multiplier, with delta = 1 / (N log10 N): within 0.3 %."""
    rows = [r for r in ROWS if r["table"] == "App. B.1 PubMed" and r["delta_log"] == "log10"]
    assert len(rows) == 2
    for row in rows:
        assert epsilon(row, "rdp") == pytest.approx(row["eps_claimed"], rel=3e-3)


@pytest.mark.parametrize(
    "row", REFERENCE["aug_pe_rows"], ids=lambda row: f"{row['dataset']}-{row['eps_claimed']}"
)
def test_aug_pe_as_printed(row: dict[str, Any]) -> None:
    """The exact Gaussian at delta = 1 / (N ln N): within 0.5 %, the rounding of the multiplier."""
    release = Release(noise_multiplier=row["sigma_printed"], sampling=FullParticipation())
    delta = 1.0 / (row["N"] * math.log(row["N"]))
    assert release_epsilon({release: row["T"]}, delta=delta) == pytest.approx(
        row["eps_claimed"], rel=5e-3
    )


DP_FTRL = REFERENCE["dp_ftrl_rows"]
POPRI_TREES = [row for row in DP_FTRL if row["paper"] == "POPri"]
#: "A number of rounds, each with a restart": what twenty may mean.
READINGS = {
    "twenty_epochs_restart_each": lambda turns: (20 * turns, turns),
    "twenty_rounds_single_tree": lambda turns: (20, None),
    "twenty_rounds_restart_each_pass": lambda turns: (20, turns),
}


def tree_release(
    row: dict[str, Any], *, rounds: int, restart: int | None, turns: int
) -> tuple[float, Release]:
    """The squared sensitivity of a tree over users who take turns, and the one release it is."""
    sensitivity = TreeAggregation(rounds=rounds, restart_every=restart).sensitivity(turns)
    release = Release(
        noise_multiplier=row["sigma_printed"] / sensitivity, sampling=FullParticipation()
    )
    return sensitivity**2, release


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("row", POPRI_TREES, ids=name)
def test_popri_trees_recomputed(row: dict[str, Any], reading: str) -> None:
    """Squared sensitivity and both epsilons.

    Our Renyi orders jump from 63 to 128, theirs run on to 199.9: at epsilons of 0.2, where the
    best order is in between, ours is up to 6 % larger.
    """
    turns = row["total_clients"] // row["clients_per_round"]
    rounds, restart = READINGS[reading](turns)
    expected = row[reading]
    squared, release = tree_release(row, rounds=rounds, restart=restart, turns=turns)
    assert squared == pytest.approx(expected["sens_sq"])
    exact = release_epsilon([release], delta=row["delta"])
    renyi = release_epsilon([release], delta=row["delta"], accountant="rdp")
    assert exact == pytest.approx(expected["eps_exact"], rel=1e-5)
    assert exact < renyi
    assert 0.999 <= renyi / expected["eps_renyi"] <= (1.002 if renyi > 0.3 else 1.06)
