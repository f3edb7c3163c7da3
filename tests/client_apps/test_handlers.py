"""Which users a node hosts, and what it keeps between messages."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, fixedclipping_mod, message_size_mod

from flower_privsyn.client_apps.handlers import add_handlers, create_client_app
from flower_privsyn.client_apps.node_users import users_of_node
from flower_privsyn.data import Users
from flower_privsyn.errors import DataError, ModelError
from flower_privsyn.messages import wire
from flower_privsyn.testing import HashEmbedder, hash_embedder
from tests.support.answering import prepare, where
from tests.support.questions import DATA


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    names = []
    for name, users in (("node", 3), ("run", 4)):
        path = tmp_path / f"{name}.jsonl"
        rows = [
            {"client_id": f"{name}-{i}", "text": "court judge", "body": "x"} for i in range(users)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        names.append(str(path))
    return names[0], names[1]


class TestUsersOfNode:
    def test_a_nodes_own_file_is_all_its_own(self, files: tuple[str, str]) -> None:
        node = {"data": files[0], "partition-id": 0, "num-partitions": 2}
        assert users_of_node(where(node, {"data": files[1]})).user_ids == (
            "node-0", "node-1", "node-2",
        )  # fmt: skip

    def test_the_runs_file_is_dealt(self, files: tuple[str, str]) -> None:
        node = {"partition-id": 1, "num-partitions": 2}
        assert users_of_node(where(node, {"data": files[1]})).user_ids == ("run-1", "run-3")

    def test_relative_to_where_the_command_was_typed(
        self, files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PRIVSYN_WORKING_DIRECTORY", str(tmp_path))
        monkeypatch.chdir("/")
        assert len(users_of_node(where({}, {"data": "run.jsonl"}))) == 4

    def test_the_sample_of_an_app_is_dealt_where_the_run_asks_for_it(
        self, files: tuple[str, str]
    ) -> None:
        own, sample = files[0], Path(files[1])
        node = {"partition-id": 1, "num-partitions": 2}
        dealt = users_of_node(where(node, {"data": "sample"}), sample=sample)
        assert dealt.user_ids == ("run-1", "run-3")
        for context in (
            where({**node, "data": own}, {"data": "sample"}),
            where({"partition-id": 0, "num-partitions": 1}, {"data": own}),
        ):
            assert users_of_node(context, sample=sample).user_ids == ("node-0", "node-1", "node-2")
        assert len(users_of_node(where(node, {"data": "sample"}))) == 300

    def test_no_data(self) -> None:
        with pytest.raises(DataError, match="no data"):
            users_of_node(where())


class TestHandlers:
    def test_text_is_loaded_once_for_a_run(self, tmp_path: Path) -> None:
        loads: list[int] = []

        def load(where: Context) -> Users:
            loads.append(1)
            return Users.from_rows([("a", "court"), ("b", "tax")])

        app = create_client_app(load, embedder=hash_embedder, cache_directory=tmp_path)
        for _ in range(3):
            reply = prepare(app, context=where(run_id=2**40))
        assert len(loads) == 1
        roster = wire.unpack_roster(reply)
        assert roster.dimension == HashEmbedder().dimension

    @pytest.mark.usefixtures("owner")
    def test_an_owner_is_told_who_was_read_and_whose_account_it_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        people = Users.from_rows([("a", "court"), ("b", "tax")])
        app = create_client_app(lambda _: people, embedder=hash_embedder, cache_directory="~/kept")
        with caplog.at_level(logging.INFO):
            prepare(app, context=where({"dataset": "clinic"}))
        assert {"2", '"clinic"'} <= {*caplog.messages[-1].split()}
        assert (tmp_path / "kept").is_dir()

    @pytest.mark.parametrize(
        ("returned", "what"),
        [
            ({"ann": "my secret"}, "a dict"),
            (None, "nothing"),
        ],
    )
    def test_a_recipe_that_returns_something_else_is_named_in_the_nodes_log(
        self, returned: Any, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def load(where: Context) -> Any:
            return returned

        app = create_client_app(load, embedder=hash_embedder, cache_directory=tmp_path)
        assert prepare(app).error.code == wire.ClientErrorCode.DATA_UNAVAILABLE
        (said,) = caplog.messages
        assert "load must return Users, as load_users" in said
        assert said.endswith(f"and returned {what}.")
        assert "secret" not in said

    def test_handlers_stand_beside_those_of_the_app(self, tmp_path: Path) -> None:
        app = ClientApp()

        @app.query("mine")
        def mine(message: Message, where: Context) -> Message:
            return Message(RecordDict(), reply_to=message)

        add_handlers(
            app,
            lambda where: Users.from_rows([("a", "court")]),
            embedder=hash_embedder,
            cache_directory=tmp_path,
        )
        request = Message(RecordDict(), dst_node_id=5, message_type="query.mine")
        assert app(request, where()).has_content()
        assert wire.unpack_roster(prepare(app)).num_users == 1

    def test_mods_of_flower(self, tmp_path: Path) -> None:
        """Those of an app meet the library's messages, too; those of a handler do not."""
        refused = (fixedclipping_mod, LocalDpMod(1.0, 1.0, 1.0, 1e-5))
        for mods, of_the_app in (
            ([], [message_size_mod, arrays_size_mod]),
            ([*refused, message_size_mod], []),
        ):
            app = ClientApp(mods=of_the_app)

            @app.train(mods=mods)
            def mine(message: Message, where: Context) -> Message:
                return Message(RecordDict(), reply_to=message)

            add_handlers(
                app,
                lambda where: Users.from_rows([("a", "court")]),
                embedder=hash_embedder,
                cache_directory=tmp_path,
            )
            assert wire.unpack_roster(prepare(app)).num_users == 1

    def test_what_cannot_be_had_or_read_is_a_code(self, tmp_path: Path) -> None:
        def broken(name: str, precision: str) -> HashEmbedder:
            raise ModelError("no such model")

        people = {"load": lambda where: Users.from_rows([("a", "court")])}
        missing = where({"data": str(tmp_path / "missing.jsonl")})
        code = wire.ClientErrorCode
        for values, context, content, expected in (
            ({**people, "embedder": broken}, where(), None, code.EMBEDDER_UNAVAILABLE),
            ({"embedder": hash_embedder}, missing, None, code.DATA_UNAVAILABLE),
            ({"embedder": hash_embedder}, where(), RecordDict(), code.BAD_REQUEST),
        ):
            app = create_client_app(cache_directory=tmp_path, **values)
            request = wire.pack_prepare(DATA) if content is None else content
            assert app(Message(request, 5, wire.PREPARE), context).error.code == expected
