"""What a run computes and sends, by its settings alone."""

from __future__ import annotations

import os
from typing import Any

import pytest

from flower_privsyn.dry_run import Shelf
from flower_privsyn.errors import ModelError


def test_sizes_are_read_from_files() -> None:
    from flower_privsyn.queries import TrainableModel

    shelf = Shelf()
    assert shelf.dimension("all-MiniLM-L6-v2") == 384
    assert shelf.vocabulary("privsyn-tiny") == 8192
    assert shelf.weights("privsyn-tiny") // 2 < shelf.parameters(
        TrainableModel(name="privsyn-tiny")
    )
    with pytest.raises(ModelError, match="does not exist"):
        shelf.dimension("./no")
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def _amount(**changes: Any) -> Any:
    from flower_privsyn.dry_run.cpu_time import Amount

    values = {"records": 100.0, "tokens": 40.0, "users": 10.0, "users_a_round": 10.0}
    return Amount(shelf=Shelf(), **{**values, **changes})


def test_cpu_time_grows_with_what_is_computed() -> None:
    from flower_privsyn.dry_run.cpu_time import cpu_seconds, work_of
    from flower_privsyn.private_path.settings import PrivateSumConfig
    from flower_privsyn.strategies import PrivateEvolutionConfig

    def seconds(amount: Any, **changes: Any) -> dict[Any, float]:
        config = PrivateEvolutionConfig(epsilon=1.0, **changes)
        return cpu_seconds(work_of(config, amount), speed=1e11)

    one, two = seconds(_amount()), seconds(_amount(records=200.0))
    assert two["nodes"] == pytest.approx(2 * one["nodes"])
    assert two["server"] == one["server"]
    more = seconds(_amount(), expand_samples=4000)["server"]
    assert more > one["server"]
    # What a server of its own writes costs nothing here.
    elsewhere = "http://127.0.0.1:9/v1#m"
    far = seconds(_amount(), generator=elsewhere, expand_samples=4000)["server"]
    assert far == seconds(_amount(), generator=elsewhere)["server"] < one["server"]
    with pytest.raises(NotImplementedError):
        work_of(PrivateSumConfig(epsilon=1.0), _amount())
