"""What a SuperNode does with what a run says of data, users and coins: through the ClientApp."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Context, Message, RecordDict
from numpy.lib.format import write_array_header_1_0

from flower_privsyn.client_apps.account import NodeLedger
from flower_privsyn.client_apps.guard import model_digest, simulated
from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.node_users import users_of_node
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.errors import DataError
from flower_privsyn.messages import wire
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy import (
    FixedSizeSampling,
    FullParticipation,
    GaussianMechanism,
    PoissonSampling,
)
from flower_privsyn.privacy.mechanisms import from_grid
from flower_privsyn.queries import LabelledHistogram
from flower_privsyn.testing import HashEmbedder, hash_embedder
from tests.support.answering import prepare, put, read_answer, where
from tests.support.federation import make_users
from tests.support.questions import DATA, ask, with_release

pytestmark = pytest.mark.usefixtures("owner")

REQUEST = replace(DATA, held_out_fraction=0.0)
#: Rounds that nobody plans.
MANY = 10**9
ENOUGH = GaussianMechanism(noise_multiplier=50.0, l2_sensitivity=5.0)
Answering = Callable[..., tuple[int | str, float]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One person with twenty documents."""
    path = tmp_path / "users.jsonl"
    rows = [
        {"client_id": "anna", "doc": f"d{n}", "text": "the court", "note": "a diagnosis"}
        for n in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def context(node: dict[str, Any] | None = None, run: dict[str, Any] | None = None) -> Context:
    return where(node, run, run_id=2**40)


@pytest.fixture
def answers(tmp_path: Path) -> Answering:
    """Head-count or error of a node's reply, and the norm of its sum."""
    apps: dict[Any, Any] = {}
    candidates = HashEmbedder().embed(["the court", "price of tea", "a school"])

    def send(
        load: Any, node: dict[str, Any], run: dict[str, Any] | None = None, **changes: Any
    ) -> tuple[int | str, float]:
        app = apps.setdefault(
            load,
            create_client_app(load, embedder=hash_embedder, cache_directory=tmp_path / "cache"),
        )
        values = {
            "round_number": 1, "data": REQUEST, "sampling": FullParticipation(),
            "broadcast": {"candidates": candidates}, "num_rounds": 20, **changes,
        }  # fmt: skip
        reply = put(app, ask(**values), context(node, run))
        if reply.has_error():
            return str(wire.ClientErrorCode(reply.error.code).name), 0.0
        answered = read_answer(reply)
        return answered.num_users, float((from_grid(answered.total) ** 2).sum() ** 0.5)

    return send


def twelve(where: Context) -> Any:
    return make_users(12)


class TestWhoChooses:
    def test_one_person_is_one_user_whatever_column_a_run_names(
        self, file: Path, answers: Answering
    ) -> None:
        node = {"data": str(file), "dataset": "people"}
        count, norm = answers(None, node)
        assert count == 1
        assert norm <= 5.0
        for run in ({"client-column": "doc"}, {"text-column": "note"}, {"date-column": "day"}):
            assert answers(None, node, run) == ("NOT_ALLOWED", 0.0)
        assert len(NodeLedger("people").account().charges) == 1
        # An app that spells the defaults out, and an owner who wants another unit.
        defaults = {"client-column": "client_id", "text-column": "text", "data": "everybody.jsonl"}
        assert answers(None, node, defaults)[0] == 1
        own = {**node, "dataset": "documents", "client-column": "doc"}
        assert answers(None, own, defaults)[0] == 20

    def test_classes_are_asked_where_the_owner_names_the_column_of_labels(
        self, answers: Answering, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "labelled.jsonl"
        rows = [{"client_id": f"u{n}", "text": "the court", "label": "ill"} for n in range(3)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        policy = tmp_path / "policy.toml"
        policy.write_text('queries = ["labelled_histogram"]\nmax-epsilon = 9.0\n')
        node = {"data": str(path), "dataset": "clinic", "policy": str(policy)}
        candidates = HashEmbedder().embed(["the court", "price of tea"])
        about = {
            "data": replace(REQUEST, classes=("ill", "well")),
            "broadcast": {"candidates": candidates, "classes": np.array([0, 1], np.int32)},
            "query": LabelledHistogram(max_samples=5),
        }
        assert answers(None, node, **about) == ("NOT_ALLOWED", 0.0)
        assert "this node's owner names no column of labels" in caplog.text
        # Not with a recipe of the app's own either, and no other question takes classes along.
        assert answers(twelve, node, **about) == ("NOT_ALLOWED", 0.0)
        assert NodeLedger("clinic").account().charges == []
        own = {**node, "label-column": "label"}
        assert answers(None, own, **about) == (3, 3.0)
        (charge,) = NodeLedger("clinic").account().charges
        assert charge.classes == ("ill", "well")
        anything = {**own, "policy": "", "dataset": "another"}
        assert answers(None, anything, data=about["data"])[0] == "BAD_REQUEST"
        with simulated():
            assert answers(None, {"data": str(path)}, **about)[0] == 3

    def test_a_run_that_announces_classes_is_refused_before_any_text_is_read(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "labelled.jsonl"
        rows = [{"client_id": f"u{n}", "text": "the court", "label": "ill"} for n in range(3)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        read: list[Context] = []

        def load(where: Context) -> Any:
            read.append(where)
            return users_of_node(where, labels=True)

        app = create_client_app(load, embedder=hash_embedder, cache_directory=tmp_path / "cache")

        def announced(node: dict[str, Any], *classes: str) -> int | str:
            request = replace(REQUEST, classes=classes)
            plan = wire.Announcement(
                queries=("labelled_histogram" if classes else "nearest_neighbor_histogram",)
            )
            message = Message(
                wire.pack_prepare(request, plan=plan), dst_node_id=5, message_type=wire.PREPARE
            )
            reply = app(message, context(node, {}))
            if reply.has_error():
                return str(wire.ClientErrorCode(reply.error.code).name)
            return wire.unpack_roster(reply).num_users

        node = {"data": str(path), "dataset": "clinic"}
        assert announced(node, "ill", "well") == "NOT_ALLOWED"
        assert "this node's owner names no column of labels" in caplog.text
        assert read == []
        assert announced(node) == 3  # without classes it is an ordinary run
        assert announced({**node, "label-column": "label"}, "ill", "well") == 3

    def test_a_run_names_no_file_of_the_node(self, file: Path, answers: Answering) -> None:
        assert answers(None, {}, {"data": str(file)}) == ("NOT_ALLOWED", 0.0)
        dealt = {"partition-id": 0, "num-partitions": 1}
        assert answers(None, dealt, {"data": str(file)}) == ("NOT_ALLOWED", 0.0)
        with simulated():
            assert answers(None, dealt, {"data": str(file), "client-column": "doc"})[0] == 20


class TestAnEditedPolicy:
    """The owner edits the policy while a run goes on, in this process or between two."""

    @pytest.fixture(params=["one process", "a process for each message"])
    def prepared(self, request: Any, tmp_path: Path) -> Callable[[dict[str, Any]], Message]:
        apps: list[Any] = []

        def send(node: dict[str, Any]) -> Message:
            if not apps or request.param != "one process":
                cache = tmp_path / "cache"
                apps.append(create_client_app(embedder=hash_embedder, cache_directory=cache))
            return prepare(apps[-1], REQUEST, context(node))

        return send

    def test_other_people_are_not_answered_for_with_those_before(
        self, file: Path, tmp_path: Path, prepared: Callable[[dict[str, Any]], Message]
    ) -> None:
        """What they are charged would be told of the others, whose account stays as it is."""
        policy = tmp_path / "policy.toml"
        model = f'[embedding-models]\n"{REQUEST.embedding_model}" = ""\n'
        node = {"data": str(file), "policy": str(policy)}
        found = []
        for name, people in (("spring", ["anna"]), ("autumn", ["berta", "carl"])):
            policy.write_text(f'max-epsilon = 9.0\ndataset = "{name}"\n{model}')
            file.write_text("".join(f'{{"client_id": "{p}", "text": "hi"}}\n' for p in people))
            found.append(wire.unpack_roster(prepared(node)).num_users)
        assert found == [1, 2]

    def test_a_model_that_is_no_longer_allowed_answers_nothing(
        self, file: Path, tmp_path: Path, prepared: Callable[[dict[str, Any]], Message]
    ) -> None:
        policy = tmp_path / "policy.toml"
        node = {"data": str(file), "policy": str(policy)}
        for digest, refused in (("", False), ("0" * 64, True)):
            policy.write_text(
                f'max-epsilon = 9.0\n[embedding-models]\n"{REQUEST.embedding_model}" = "{digest}"\n'
            )
            reply = prepared(node)
            assert reply.has_error() == refused
        assert reply.error.code == wire.ClientErrorCode.NOT_ALLOWED

    def test_files_that_the_owner_replaced_are_what_is_loaded(
        self, file: Path, tmp_path: Path
    ) -> None:
        """The digest was that of the new ones, and the process answered by the old ones."""
        folder, policy = tmp_path / "model", tmp_path / "policy.toml"
        folder.mkdir()

        def load(name: str, precision: str) -> HashEmbedder:
            found = HashEmbedder()
            found.fingerprint = (Path(name) / "weights").read_text()
            return found

        app = create_client_app(embedder=load, cache_directory=tmp_path / "cache")
        data = replace(REQUEST, embedding_model=str(folder))
        node = {"data": str(file), "policy": str(policy)}
        for weights in ("spring", "autumn", "spring"):
            (folder / "weights").write_text(weights)
            stated = f'[embedding-models]\n"{folder}" = "{model_digest(folder)}"\n'
            policy.write_text(f"max-epsilon = 9.0\n{stated}")
            assert wire.unpack_roster(prepare(app, data, context(node))).embedder == weights


class TestWhoIsDrawn:
    @pytest.fixture
    def node(self, tmp_path: Path) -> dict[str, Any]:
        policy = tmp_path / "policy.toml"
        policy.write_text("max-epsilon = inf\n")
        return {"dataset": "people", "policy": str(policy)}

    def test_a_population_below_the_nodes_own_users_is_refused(
        self, answers: Answering, node: dict[str, Any]
    ) -> None:
        for population, expected in ((11, "BAD_REQUEST"), (12, 3)):
            sampling = FixedSizeSampling(3, population=population)
            drawn = {"sampling": sampling, "sample_count": 3, "roster_users": 12}
            assert answers(twelve, node, **drawn)[0] == expected
        assert len(NodeLedger("people").account().charges) == 1

    def test_a_node_that_has_lost_users_draws_none(
        self, answers: Answering, node: dict[str, Any]
    ) -> None:
        """Of fewer users each would be likelier to be drawn than was accounted for."""
        sampling = FixedSizeSampling(3, population=40)
        for said, expected in ((13, "BAD_REQUEST"), (12, 3), (11, 3)):
            drawn = {"sampling": sampling, "sample_count": 3, "roster_users": said}
            assert answers(twelve, node, **drawn)[0] == expected

    @pytest.mark.parametrize(
        "sampling",
        [
            {"sampling": PoissonSampling(0.5)},
            {
                **{"sampling": FixedSizeSampling(3, population=40)},
                **{"sample_count": 3, "roster_users": 12},
            },
        ],
    )
    def test_coins_are_flipped_once(
        self, answers: Answering, node: dict[str, Any], sampling: dict[str, Any]
    ) -> None:
        first = answers(twelve, node, **sampling)
        assert isinstance(first[0], int)
        for changes in ({"round_number": 2}, {"round_number": 3, "num_rounds": 30}):
            again = answers(twelve, node, **sampling, **changes)
            assert again == ("NOT_ALLOWED", 0.0)
            fresh = answers(twelve, node, **sampling, sampling_key=b"%d" % changes[
                "round_number"] * 32, **changes)  # fmt: skip
            assert isinstance(fresh[0], int)


def test_what_is_loaded_is_what_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is looked up once: a folder beside the process is no bundled model."""
    from flower_privsyn.client_apps import training
    from flower_privsyn.client_apps.guard import model_files

    loaded: list[str] = []

    class Trainer:
        def source(self, model: TrainableModel, *, embeddings: Any = None) -> Any:
            loaded.append(model.name)
            raise DataError("enough")

    (tmp_path / "privsyn-lstm").mkdir()
    monkeypatch.setenv("PRIVSYN_WORKING_DIRECTORY", str(tmp_path))
    bundled = model_files("trained", "privsyn-lstm")
    policy = tmp_path / "policy.toml"
    policy.write_text(
        f'max-epsilon = 1.0\n[trained-models]\n"privsyn-lstm" = "{model_digest(bundled)}"\n'
    )
    app = create_client_app(twelve, cache_directory=tmp_path / "cache", trainer=Trainer())
    data = replace(REQUEST, trains=TrainableModel(name="privsyn-lstm"))
    prepare(app, data, context({"policy": str(policy)}))
    assert loaded == [str(bundled)]

    # And where the owner allows any files, the bundled name wins over the folder.
    def spied(model: TrainableModel, *, device: str | None) -> Any:
        loaded.append(model.name)
        raise DataError("enough")

    monkeypatch.setattr(training, "LocalModel", spied)
    prepare(app, data, context())
    assert loaded[1:] == ["privsyn-lstm"]
    with pytest.raises(DataError, match="enough"):
        training.LocalTraining().source(TrainableModel(name=loaded[1]))
    assert loaded[2:] == ["privsyn-lstm"]


def test_the_owners_limit_is_the_default_one_without_a_file(answers: Answering) -> None:
    """A node without any configuration still keeps an account, of the defaults' size."""
    assert answers(twelve, {})[0] == 12
    assert 0.0 < NodeLedger("default").account().epsilon(NodePolicy()) < 10.0


class TestHeaders:
    """What a message claims costs a node nothing before its owner's policy has been asked."""

    @pytest.fixture
    def costs(self, tmp_path: Path) -> Callable[[RecordDict, str], tuple[str, float]]:
        """The error of a node's reply, and the most memory that it took, in MiB."""
        cache = tmp_path / "cache"
        app = create_client_app(twelve, embedder=hash_embedder, cache_directory=cache)

        def send(content: RecordDict, kind: str) -> tuple[str, float]:
            def reply() -> Message:
                return app(Message(content, 5, kind), context({"dataset": "people"}, {}))

            reply()  # loads what every message needs
            tracemalloc.start()
            try:
                error = reply().error
                return (
                    wire.ClientErrorCode(error.code).name,
                    tracemalloc.get_traced_memory()[1] / 2**20,
                )
            finally:
                tracemalloc.stop()

        return send

    @pytest.mark.parametrize(
        "factorisation",
        [
            {"name": "banded-toeplitz", "coefficients": [1.0, 0.5]},
            {"name": "buffered-linear-toeplitz", "scales": [0.5], "decays": [0.5]},
            {"name": "tree-aggregation", "restart_every": None},
        ],
    )
    @pytest.mark.parametrize("num_rounds", [20, 10**9])
    def test_correlated_rounds(
        self, costs: Callable[..., Any], factorisation: dict[str, Any], num_rounds: int
    ) -> None:
        rounds = MANY
        content = wire.pack_ask(
            ask(num_rounds=num_rounds, sampling=FullParticipation(), round_number=1),
            wire.broadcast_record(ask().broadcast, precision="float32"),
        )
        correlation = {
            "stream": "0" * 32,
            "first_round": 1,
            "min_separation": 1,
            "factorisation": {**factorisation, "rounds": rounds},
        }
        with_release(content, correlation=correlation)
        error, memory = costs(content, "query.nearest_neighbor_histogram")
        assert error == ("BAD_REQUEST" if num_rounds < rounds else "NOT_ALLOWED")
        assert memory < 4.0

    def test_a_plan_of_many_rounds(self, costs: Callable[..., Any]) -> None:
        one = wire.ToCome(count=MANY, noise_multiplier=0.001, sampling=PoissonSampling(0.01))
        for num_rounds, kinds, refused in (
            (MANY, 1, "NOT_ALLOWED"), (MANY * 5, 5, "BAD_REQUEST"), (MANY - 1, 1, "BAD_REQUEST"),
        ):  # fmt: skip
            plan = wire.Announcement(
                num_rounds=num_rounds, noise_multiplier=0.001, to_come=(one,) * kinds
            )
            error, memory = costs(wire.pack_prepare(REQUEST, plan=plan), wire.PREPARE)
            assert error == refused
            assert memory < 4.0

    def test_arrays_of_a_question_that_is_not_allowed(self, costs: Callable[..., Any]) -> None:
        sent = ask(
            num_rounds=10_001,
            sampling=FullParticipation(),
            broadcast={"candidates": np.zeros((2**13, 1024), np.float32)},
        )
        record = wire.broadcast_record(sent.broadcast, precision="float16")
        error, memory = costs(wire.pack_ask(sent, record), "query.nearest_neighbor_histogram")
        assert error == "NOT_ALLOWED"
        assert memory < 4.0

    def test_an_array_with_fewer_bytes_than_its_shape_has(self, costs: Callable[..., Any]) -> None:
        sent = ask(sampling=FullParticipation(), mechanism=ENOUGH)
        record = wire.broadcast_record(sent.broadcast, precision="float32")
        header = io.BytesIO()
        write_array_header_1_0(
            header, {"descr": "<f4", "fortran_order": False, "shape": (2**16, 1024)}
        )
        record["candidates"] = Array("float32", (2**16, 1024), "numpy.ndarray", header.getvalue())
        error, memory = costs(wire.pack_ask(sent, record), "query.nearest_neighbor_histogram")
        assert error == "BAD_REQUEST"
        assert memory < 4.0

    def test_adapters_of_a_rank_that_nobody_trains(self, costs: Callable[..., Any]) -> None:
        content = wire.pack_prepare(
            replace(REQUEST, trains=TrainableModel(name="privsyn-tiny", trainable="lora"))
        )
        record = content.config_records["privsyn.request"]
        record["trains"] = str(record["trains"]).replace('"lora_rank": 4', f'"lora_rank": {MANY}')
        assert f"{MANY}" in str(record["trains"])
        error, memory = costs(content, wire.PREPARE)
        assert (error, memory < 4.0) == ("BAD_REQUEST", True)
