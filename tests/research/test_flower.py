"""The proposal for Flower: its code runs as it stands and prints what the page prints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

PAGE = (Path(__file__).parents[2] / "research" / "flower.md").read_text("utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PRINTED = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    made: dict[str, Any] = {}
    exec(compile(CODE[0], "research/flower.md", "exec"), made)
    return made


def test_the_page_prints_its_figures(
    names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for block, printed in zip(CODE[1:], PRINTED, strict=True):
        exec(compile(block, "research/flower.md", "exec"), names)
        assert capsys.readouterr().out == printed


def test_the_accountant_keeps_flowers_protocol(names: dict[str, Any]) -> None:
    config = PrivacyConfig(
        1e-5, 100, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION, 4.0
    )
    accountant: PrivacyAccountant = names["PldAccountant"](config)
    wrapper = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), 2.0, clipping_norm=1.0, num_sampled_clients=10, accountant=accountant
    )
    event = GaussianPrivacyEvent(2.0, 10, 100)
    assert accountant.get_epsilon(1e-5) == accountant.get_delta(1.0) == 0.0
    assert not accountant.would_exceed(event)
    assert accountant.would_exceed(event, count=8)
    accountant.compose(event, 2)
    spent = wrapper.privacy_spent()
    assert spent is not None
    assert (spent.num_releases, spent.accounting_method) == (2, "pld")
    # Two releases are one at 1 / sqrt(2) of the noise multiplier.
    assert accountant.get_delta(spent.epsilon) == pytest.approx(1e-5, rel=1e-3)
    restored = names["PldAccountant"](config)
    restored.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert restored.get_privacy_spent() == spent
    with pytest.raises(ValueError, match="another population"):
        accountant.compose(GaussianPrivacyEvent(2.0, 10, 99))
