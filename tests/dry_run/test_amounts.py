"""What a run computes and sends, by its settings alone."""

from __future__ import annotations

import os

import pytest

from flower_privsyn.dry_run import ModelIndex
from flower_privsyn.errors import ModelError


def test_sizes_are_read_from_files() -> None:
    from flower_privsyn.queries import TrainableModel

    index = ModelIndex()
    assert index.dimension("all-MiniLM-L6-v2") == 384
    assert index.vocabulary("privsyn-tiny") == 8192
    assert index.parameters(TrainableModel(name="privsyn-tiny")) == 1_901_696
    with pytest.raises(ModelError, match="does not exist"):
        index.dimension("./no")
    assert os.environ["HF_HUB_OFFLINE"] == "1"
