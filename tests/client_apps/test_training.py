"""The client app that trains: what it answers, what it keeps, and what it refuses."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.clientapp import ClientApp

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.training import LocalTraining
from flower_privsyn.data import Users
from flower_privsyn.messages import wire
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy.mechanisms import from_grid
from flower_privsyn.queries import ModelDelta, Query
from flower_privsyn.testing import hash_embedder
from flower_privsyn.training.local import LocalModel
from tests.support.answering import prepare, put, read_answer
from tests.support.questions import DATA, plain_ask

QUESTION = ModelDelta(clip_to=0.05, learning_rate=0.5, batch_size=1)


@pytest.fixture
def model(lstm: Path) -> TrainableModel:
    return TrainableModel(name=str(lstm))


@pytest.fixture
def data(model: TrainableModel) -> wire.DataRequest:
    return replace(DATA, trains=model, max_tokens=32, held_out_fraction=0.0)


def app_of(users: Users, **parts: Any) -> ClientApp:
    return create_client_app(
        lambda context: users, embedder=hash_embedder, trainer=LocalTraining(), **parts
    )


def ask(
    app: ClientApp,
    data: wire.DataRequest,
    parameters: np.ndarray,
    *,
    query: Query = QUESTION,
    round_number: int = 1,
    base: np.ndarray | None = None,
) -> Message:
    question = plain_ask(
        round_number=round_number,
        query=query,
        broadcast={"parameters": parameters} | ({} if base is None else {"base": base}),
        data=data,
        num_rounds=9,
    )
    return put(app, question)


def total(reply: Message) -> np.ndarray:
    return from_grid(read_answer(reply).total)


class TestErrorsTellNothing:
    def test_training_that_always_fails_fails_whatever_was_written(
        self,
        data: wire.DataRequest,
        model: TrainableModel,
        texts: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Else the error would say that somebody has text, exactly and for nothing."""

        def fails(*_: Any, **__: Any) -> None:
            raise ValueError("expected non-negative integer")

        monkeypatch.setattr(LocalModel, "_train", fails)
        public = LocalModel(model).parameters
        for rows in ([("a", texts[0]), ("b", "")], [("a", "")], []):
            reply = ask(app_of(Users.from_rows(rows)), data, public)
            assert reply.error.code == wire.ClientErrorCode.INTERNAL


class TestAnswers:
    def test_the_roster_names_the_model_and_its_size(
        self, data: wire.DataRequest, model: TrainableModel, tmp_path: Path
    ) -> None:
        users = Users.from_rows([("a", "one river"), ("b", "")])
        reply = prepare(app_of(users, cache_directory=tmp_path / "cache"), data)
        roster = wire.unpack_roster(reply)
        trained = LocalModel(model)
        assert roster == wire.RosterEntry(
            num_users=2, embedder=trained.fingerprint, dimension=trained.dimension
        )
        # Nothing of the text is kept on disk.
        assert not (tmp_path / "cache").exists()

    def test_are_the_clipped_updates_of_the_users(
        self, data: wire.DataRequest, model: TrainableModel, texts: list[str]
    ) -> None:
        rows = [("a", texts[0]), ("a", texts[1]), ("b", ""), ("c", texts[2])]
        trained = LocalModel(model)
        public = trained.parameters
        together = total(ask(app_of(Users.from_rows(rows)), data, public))
        alone = [
            total(ask(app_of(Users.from_rows(own)), data, public))
            for own in (rows[:2], rows[2:3], rows[3:])
        ]
        assert np.array_equal(together, sum(alone))
        assert not alone[1].any()
        update = trained.update(
            trained.encode([texts[2]]), learning_rate=0.5, epochs=1, batch_size=1
        )
        assert update is not None
        assert np.linalg.norm(update) > 0.05
        clipped = update / np.linalg.norm(update.astype(np.float64))
        assert np.abs(alone[2] - clipped).max() < 1e-7
        for answer in (alone[0], alone[2]):
            assert np.linalg.norm(answer) == pytest.approx(1.0, abs=1e-6)

    def test_the_order_of_samples_is_the_users_own_and_new_in_every_round(
        self, data: wire.DataRequest, model: TrainableModel, texts: list[str]
    ) -> None:
        public = LocalModel(model).parameters
        rows = [("a", text) for text in texts[:8]]
        answers = {
            name: total(ask(app_of(Users.from_rows(own)), data, public, round_number=number))
            for name, own, number in (
                ("first", rows, 1),
                ("again", rows, 1),
                ("later", rows, 2),
                ("other", [("b", text) for _, text in rows], 1),
            )
        }
        assert np.array_equal(answers["first"], answers["again"])
        assert not np.array_equal(answers["first"], answers["later"])
        assert not np.array_equal(answers["first"], answers["other"])


class TestAnotherBase:
    """What nodes do not train may come with the question; two runs may send two, or none."""

    @pytest.fixture(params=["lora", "lm_head.*"])
    def trained(self, request: pytest.FixtureRequest, lstm: Path) -> TrainableModel:
        return TrainableModel(name=str(lstm), trainable=request.param)

    def test_is_trained_on_and_is_gone_with_its_question(
        self, data: wire.DataRequest, trained: TrainableModel, texts: list[str], tmp_path: Path
    ) -> None:
        users = Users.from_rows([("a", texts[0]), ("b", texts[1])])
        whole = LocalModel(TrainableModel(name=trained.name))
        noise = np.random.default_rng(0).normal(0, 0.02, whole.dimension).astype(np.float32)
        whole.save(tmp_path / "moved", whole.parameters + noise)
        moved = replace(trained, name=str(tmp_path / "moved"))
        elsewhere, own = LocalModel(moved), LocalModel(trained)
        start, node = elsewhere.parameters, app_of(users)
        here, there = replace(data, trains=trained), replace(data, trains=moved)
        plain = total(ask(app_of(users), here, start))
        expected = total(ask(app_of(users), there, start))
        assert not np.array_equal(plain, expected)
        for base, answer in (
            (None, plain), (elsewhere.base, expected), (None, plain), (own.base, plain),
            (elsewhere.base, expected),
        ):  # fmt: skip
            assert np.array_equal(total(ask(node, here, start, base=base)), answer)

    def test_that_is_none_is_refused_or_bounded_and_changes_nothing_afterwards(
        self, data: wire.DataRequest, trained: TrainableModel, texts: list[str]
    ) -> None:
        model, users = LocalModel(trained), Users.from_rows([("a", texts[0])])
        here, node = replace(data, trains=trained), app_of(users)
        expected = total(ask(node, here, model.parameters))
        for base in (
            model.base[:-1],
            np.append(model.base, np.float32(0)),
        ):
            reply = ask(node, here, model.parameters, base=base)
            assert reply.error.code == wire.ClientErrorCode.BAD_REQUEST
        for base in (np.full_like(model.base, 3e38), -1e4 * model.base):
            answer = total(ask(node, here, model.parameters, base=base))
            assert np.linalg.norm(answer) <= 1.0 + 1e-6
        assert np.array_equal(total(ask(node, here, model.parameters)), expected)


class TestRefusals:
    def test_a_model_that_cannot_be_loaded(self, data: wire.DataRequest, tmp_path: Path) -> None:
        missing = replace(data, trains=TrainableModel(name=str(tmp_path / "nowhere")))
        reply = prepare(app_of(Users.from_rows([("a", "one river")])), missing)
        assert reply.error.code == wire.ClientErrorCode.EMBEDDER_UNAVAILABLE


class TestFailures:
    """What one user's text breaks costs that user's update, and no other bit of the sum."""

    @pytest.mark.parametrize("where_it_breaks", ["tokens", "training", "diverging"])
    def test_a_user_whose_training_fails_answers_zero(
        self,
        data: wire.DataRequest,
        model: TrainableModel,
        texts: list[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        where_it_breaks: str,
    ) -> None:
        encode, update = LocalModel.encode, LocalModel.update
        bad = [[7, 7, 7]]

        def broken_encode(self: LocalModel, given: list[str]) -> list[list[int]]:
            if where_it_breaks == "tokens" and "boom" in given:
                raise BaseException("as PyO3 panics")
            return [
                bad[0] if text == "boom" else row
                for text, row in zip(given, encode(self, given), strict=True)
            ]

        def broken_update(self: LocalModel, samples: Any, **options: Any) -> Any:
            moved = update(self, samples, **options)
            if list(samples) == bad and where_it_breaks == "training":
                raise RuntimeError("out of memory")
            if list(samples) == bad:
                moved[3] = np.nan
            return moved

        monkeypatch.setattr(LocalModel, "encode", broken_encode)
        monkeypatch.setattr(LocalModel, "update", broken_update)
        parameters = LocalModel(model).parameters
        sums = []
        for text in ("boom", ""):  # the second time there is nothing to leave out
            users = Users.from_rows([("a", texts[0]), ("bad", text), ("c", texts[1])])
            app = app_of(users, cache_directory=tmp_path / f"-{text}")
            assert wire.unpack_roster(prepare(app, data)).num_users == 3
            reply = ask(app, data, parameters)
            assert reply.content.config_records["privsyn.cohort"]["num_users"] == 3
            assert wire.unexpected_records(reply) == []
            sums.append(total(reply))
            assert (tmp_path / f"-{text}" / "skipped.log").exists() == bool(text)
        assert sums[0].any()
        np.testing.assert_array_equal(*sums)


def test_a_model_whose_files_were_replaced_is_loaded_again(lstm: Path, tmp_path: Path) -> None:
    """What a node's owner states the digest of is what it trains."""
    folder = tmp_path / "model"
    shutil.copytree(lstm, folder)
    trainer, model = LocalTraining(), TrainableModel(name=str(folder), trainable="lora")
    first = trainer.source(model)
    assert trainer.source(model).model is first.model
    network, _ = load_pretrained(str(folder), kind="causal", dtype="float32", device="cpu")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(0.5)
    network.save_pretrained(folder)
    again = trainer.source(model)
    assert again.model is not first.model
    assert again.fingerprint == LocalModel(model).fingerprint != first.fingerprint
