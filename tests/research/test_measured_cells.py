"""Measured cells: how those of several comparisons are put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from flower_privsyn.cli.advise import VARIANTS
from flower_privsyn.comparison import APP
from research.measured_cells import collect


def record(
    method: str, epsilon: float | None, accuracy: float, *, seed: int = 0, up: int = 0
) -> dict[str, Any]:
    return {
        "method": method,
        "epsilon": epsilon,
        "seed": seed,
        "status": "finished",
        "quality": {"next_token_accuracy": accuracy, "bits_per_byte": 2.0 - accuracy},
        "costs": {"bytes_up": up, "bytes_down": 10, "client_cpu_seconds": 0.5},
    }


def place(users: int, *records: Mapping[str, Any]) -> list[tuple[str, int, Mapping[str, Any]]]:
    return [("letters", users, one) for one in records]


FLOOR = record("public-only", 0.0, 0.2)


def test_a_line_is_a_method_over_its_seeds_beside_floor_and_ceiling() -> None:
    sketch, *_, elsewhere = collect(
        place(
            1_000,
            FLOOR,
            record("finetune-private", None, 0.3),
            record("joint-sketch", 1.0, 0.23, up=98_000),
            record("joint-sketch", 1.0, 0.25, seed=1, up=98_000),
            record("dp-ftrl", 1.0, 0.21, up=1_300_000),
        )
        + place(10_000, record("dp-ftrl", 1.0, 0.28, up=1_300_000))
    )
    assert (sketch.method, sketch.seeds) == ("joint-sketch", 2)
    assert sketch.accuracy == pytest.approx(0.24)
    assert sketch.accuracy_error == pytest.approx(0.01)
    assert (sketch.floor, sketch.ceiling) == (0.2, 0.3)
    # The floor is of everybody's text, the ceiling of these users alone.
    assert (elsewhere.floor, elsewhere.ceiling) == (0.2, None)


def test_what_is_no_method_or_not_finished_or_without_a_floor_is_left_out() -> None:
    lost = record("dp-ftrl", 1.0, 0.2) | {"status": "failed"}
    assert collect(place(5, FLOOR, record("without-pairs", 1.0, 0.3), lost)) == []
    assert collect(place(5, record("dp-ftrl", 1.0, 0.3))) == []
    # The first of two cells of one seed counts.
    (only,) = collect(place(5, FLOOR, record("popri", 1, 0.3), record("popri", 1, 0.9)))
    assert (only.accuracy, only.seeds) == (0.3, 1)


def test_settings_of_variants_are_there() -> None:
    for config in VARIANTS.values():
        assert (APP / "conf" / f"{config}.toml").is_file()
