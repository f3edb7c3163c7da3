"""Encoder-decoders on nodes: what the encoder reads, and what the decoder learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flower_privsyn.models.pretrained import decoder_start_token, load_pretrained
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.training.local import LocalModel

CONDITIONS = ["Keywords: river, mountain\n", "Keywords: doctor\n", "Keywords: music, letter, tea\n"]
DOCUMENTS = ["The river sings under the old street.", "A doctor reads.", "My sister waits today."]
HOW: dict[str, Any] = {"learning_rate": 0.002, "epochs": 1, "batch_size": 3}


@pytest.fixture(params=["bart", "t5"])
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def pairs(model: LocalModel) -> tuple[list[list[int]], list[int]]:
    """The documents after their conditions, and how many tokens of each are given."""
    before = model.encode(CONDITIONS)
    rows = zip(before, model.encode(DOCUMENTS), strict=True)
    return [model.after_condition(given, own) for given, own in rows], list(map(len, before))


def library(folder: Path) -> tuple[Any, Any]:
    return load_pretrained(folder, kind="causal or encoder-decoder", dtype="float32", device="cpu")


class TestTraining:
    def test_the_decoder_learns_documents_after_conditions_that_the_encoder_reads(
        self, folder: Path
    ) -> None:
        """Of several in one batch, padded, against the library's loss of each by itself."""
        model = LocalModel(TrainableModel(name=str(folder)))
        rows, given = pairs(model)
        network, tokenizer = library(folder)
        total, tokens = 0.0, 0
        for row, count in zip(rows, given, strict=True):
            read, labels = torch.tensor([[*row[:count], 2]]), torch.tensor([row[count:]])
            assert labels[0, -1] == 2  # the token that ends a text is learnt as well
            before = torch.tensor([[decoder_start_token(network, tokenizer), *row[count:-1]]])
            with torch.no_grad():
                loss = network(input_ids=read, decoder_input_ids=before, labels=labels).loss
            total, tokens = total + float(loss) * labels.shape[1], tokens + labels.shape[1]
        found = float(model._loss(list(zip(rows, given, strict=True))).detach())
        assert found == pytest.approx(total / tokens, rel=1e-4)

    @pytest.mark.parametrize("trainable", ["full", "lora"])
    def test_an_update_is_a_step_down_and_leaves_no_trace(
        self, folder: Path, trainable: str
    ) -> None:
        model = LocalModel(TrainableModel(name=str(folder), trainable=trainable))  # type: ignore[arg-type]
        rows, given = pairs(model)
        first = model.update(rows, given=given, **HOW)
        assert first is not None
        assert first.any()
        assert model.update(rows[:1], given=given[:1], **HOW) is not None
        again = model.update(rows, given=given, **HOW)
        assert np.array_equal(first, again)  # whole layers are left out of none of them
        loss = float(model._loss(list(zip(rows, given, strict=True))).detach())
        model._begin_anew()
        assert loss < float(model._loss(list(zip(rows, given, strict=True))).detach())
        # A condition that fills a row leaves nothing to predict.
        assert model.update([rows[0]], given=[len(rows[0])], **HOW) is None
