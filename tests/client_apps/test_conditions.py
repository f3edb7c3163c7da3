"""Training on documents after conditions: what a node finds out, tells, and refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.clientapp import ClientApp

from flower_privsyn.client_apps.guard import NodeGuard, find_policy, model_digest, simulated
from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.training import LocalTraining
from flower_privsyn.data import Chunking, Users
from flower_privsyn.errors import NotAllowedError
from flower_privsyn.messages import wire
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy.mechanisms import from_grid
from flower_privsyn.queries import ConditionalDelta, ModelDelta, NearestNeighborHistogram
from flower_privsyn.queries.model_delta import pack_conditions
from flower_privsyn.testing import HashEmbedder, hash_embedder
from flower_privsyn.training.local import LocalModel
from tests.support.answering import prepare, put, read_answer, where
from tests.support.questions import DATA, plain_ask

QUESTION = ConditionalDelta(clip_to=0.05, learning_rate=0.5, batch_size=1)
CONDITIONS = ["Keywords: river\nDocument:\n", "Keywords: doctor\nDocument:\n"]


@pytest.fixture(scope="module")
def model(llama: Path) -> LocalModel:
    return LocalModel(TrainableModel(name=str(llama)))


@pytest.fixture
def data(llama: Path) -> wire.DataRequest:
    trained = TrainableModel(name=str(llama))
    return replace(
        DATA, trains=trained, max_tokens=32, held_out_fraction=0.0, max_samples=5, conditioned=True
    )


def broadcast(model: LocalModel, **changes: Any) -> dict[str, Any]:
    centres = HashEmbedder().embed(["river river", "doctor doctor"])
    values = {
        "parameters": model.parameters,
        "centres": centres,
        "conditions": pack_conditions(CONDITIONS),
    }
    return {name: array for name, array in {**values, **changes}.items() if array is not None}


def answer(
    app: ClientApp, data: wire.DataRequest, arrays: dict[str, Any], query: Any = QUESTION
) -> np.ndarray | str:
    reply = put(app, plain_ask(query=query, broadcast=arrays, data=data, num_rounds=9))
    if reply.has_error():
        return wire.ClientErrorCode(reply.error.code).name
    return from_grid(read_answer(reply).total)


def app_of(rows: list[tuple[str, str]], tmp_path: Path) -> ClientApp:
    users = Users.from_rows(rows)
    cache = tmp_path / "cache"
    return create_client_app(
        lambda context: users,
        embedder=hash_embedder,
        cache_directory=cache,
        trainer=LocalTraining(),
    )


def test_every_document_stands_after_the_condition_that_is_nearest_to_it(
    data: wire.DataRequest, model: LocalModel, tmp_path: Path
) -> None:
    rows = [("a", "the river waits"), ("a", "my doctor reads"), ("b", "a doctor sings")]
    conditions = model.encode(CONDITIONS)
    expected = np.zeros(model.dimension)
    for user, documents in (("a", [(rows[0][1], 0), (rows[1][1], 1)]), ("b", [(rows[2][1], 1)])):
        samples = model.encode([text for text, _ in documents])
        pairs = [(conditions[t], own) for (_, t), own in zip(documents, samples, strict=True)]
        update = model.update(
            [model.after_condition(before, own) for before, own in pairs],
            given=[len(before) for before, _ in pairs],
            learning_rate=0.5,
            epochs=1,
            batch_size=1,
            seed=[data.seed, 1, *user.encode()],
        )
        assert update is not None
        expected += update * min(1.0, 0.05 / np.linalg.norm(update)) / 0.05
    found = answer(app_of(rows, tmp_path), data, broadcast(model))
    assert isinstance(found, np.ndarray)
    assert np.allclose(found, expected, atol=1e-6)
    # The order of the topics decides what is trained on, and nothing else of the broadcast.
    turned = answer(
        app_of(rows, tmp_path), data, broadcast(model, conditions=pack_conditions(CONDITIONS[::-1]))
    )
    assert not np.allclose(found, turned, atol=1e-4)


@pytest.mark.parametrize("train_on_eos", ["documents", "samples"])
def test_an_end_is_learnt_where_a_document_ends(
    data: wire.DataRequest, model: LocalModel, tmp_path: Path, train_on_eos: Any
) -> None:
    """And after every sample, cut off or not, where that is asked for."""
    data = replace(data, max_tokens=8, max_samples=9)
    rows = [("a", "the river waits and the river sings and the river reads and waits")]
    asked = Chunking(max_tokens=8, max_samples=9, seed=data.seed)
    samples = asked.samples(Users.from_rows(rows), tokenizer=model.tokenizer)
    assert samples.ends is not None
    assert len(samples) > 2
    assert samples.ends.sum() <= 1
    (condition, _) = model.encode(CONDITIONS)
    ends = samples.ends.tolist() if train_on_eos == "documents" else [True] * len(samples)
    update = model.update(
        [
            model.after_condition(condition, own, ends=end)
            for own, end in zip(model.encode(samples.texts), ends, strict=True)
        ],
        given=[len(condition)] * len(samples),
        learning_rate=0.5,
        epochs=1,
        batch_size=1,
        seed=[data.seed, 1, *b"a"],
    )
    assert update is not None
    question = replace(QUESTION, train_on_eos=train_on_eos)
    found = answer(app_of(rows, tmp_path), data, broadcast(model), question)
    assert isinstance(found, np.ndarray)
    length = np.linalg.norm(update)
    assert np.allclose(found, update * min(1.0, 0.05 / length) / 0.05, atol=1e-6)


def test_a_document_that_the_tokenizer_fails_on_teaches_no_end_either(
    data: wire.DataRequest, model: LocalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("a", "the river waits"), ("b", "a doctor sings")]
    encode = LocalModel.encode

    def broken(self: LocalModel, texts: list[str]) -> list[list[int]]:
        if rows[1][1] in texts:
            raise ValueError
        return encode(self, texts)

    alone = answer(app_of([rows[0], ("b", "")], tmp_path), data, broadcast(model))
    monkeypatch.setattr(LocalModel, "encode", broken)
    assert np.array_equal(answer(app_of(rows, tmp_path), data, broadcast(model)), alone)


def test_a_user_s_update_is_bounded_whatever_the_conditions(
    data: wire.DataRequest, model: LocalModel, tmp_path: Path
) -> None:
    for conditions in (CONDITIONS, ["", ""], ["river " * 500] * 2):
        arrays = broadcast(model, conditions=pack_conditions(conditions))
        found = answer(app_of([("a", "the river waits")], tmp_path), data, arrays)
        assert isinstance(found, np.ndarray)
        assert np.linalg.norm(found) <= QUESTION.clip_norm
    # A condition that fills the model leaves nothing to predict.
    assert not found.any()


def test_questions_with_and_without_conditions_are_not_each_other_s(
    data: wire.DataRequest, model: LocalModel, tmp_path: Path
) -> None:
    app = app_of([("a", "the river waits")], tmp_path)
    plain = ModelDelta(clip_to=0.05, learning_rate=0.5, batch_size=1)
    only = {"parameters": model.parameters}
    assert answer(app, data, only, plain) == "BAD_REQUEST"
    assert answer(app, replace(data, conditioned=False), broadcast(model)) == "BAD_REQUEST"
    votes = NearestNeighborHistogram(max_samples=5)
    assert answer(app, data, {"candidates": broadcast(model)["centres"]}, votes) == "BAD_REQUEST"
    assert isinstance(answer(app, replace(data, conditioned=False), only, plain), np.ndarray)


def test_the_owner_allows_both_models(data: wire.DataRequest, llama: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        'queries = ["conditional_delta"]\nmax-epsilon = 9.0\n'
        f'[trained-models]\n"{llama}" = "{model_digest(llama)}"\n'
        '[embedding-models]\n"another" = ""\n'
    )
    app = app_of([("a", "the river waits")], tmp_path)
    node = {"policy": str(policy)}
    with simulated(False):
        with pytest.raises(
            NotAllowedError, match='The server names the embedding model "all-MiniLM'
        ):
            NodeGuard(find_policy(node), node).check_model("embedding", data.embedding_model)
        reply = prepare(app, data, where(node, run_id=2**40))
    assert wire.ClientErrorCode(reply.error.code).name == "NOT_ALLOWED"
