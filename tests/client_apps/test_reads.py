"""Questions that read text, tokens or embeddings, and questions from outside the package."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp

from flower_privsyn.client_apps import known
from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError
from flower_privsyn.messages import wire
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy import PoissonSampling, skipping
from flower_privsyn.privacy.mechanisms import from_grid
from flower_privsyn.queries import (
    Broadcast,
    Cohort,
    JointSketch,
    ModelDelta,
    NearestNeighborHistogram,
    Query,
    Reads,
)
from flower_privsyn.testing import HashEmbedder, LoopbackGrid
from tests.support.answering import read_answer
from tests.support.text_lengths import REQUEST, TextLengths, ask_node, load


@dataclass(frozen=True, kw_only=True)
class TokenCounts(TextLengths):
    """How often a user writes each of the first tokens of the vocabulary."""

    name: ClassVar[str] = "token_counts"
    reads: ClassVar[Reads] = "tokens"

    def statistic(self, cohort: Cohort, broadcast: Broadcast) -> np.ndarray[Any, Any]:
        counts = np.zeros((cohort.num_users, self.bins))
        for owner, tokens in zip(cohort.owners, cohort.records, strict=True):
            counts[owner] += np.bincount(tokens, minlength=self.bins)[: self.bins]
        return counts


@dataclass(frozen=True, kw_only=True)
class Picky(TextLengths):
    """Fails on one user's text."""

    name: ClassVar[str] = "picky"

    def statistic(self, cohort: Cohort, broadcast: Broadcast) -> np.ndarray[Any, Any]:
        if any("boom" in text for text in cohort.records):
            raise RuntimeError("boom")
        return super().statistic(cohort, broadcast)


def no_embedder(name: str, precision: str) -> HashEmbedder:
    raise AssertionError("an embedder was asked for")


@pytest.fixture
def app(tmp_path: Path) -> ClientApp:
    return create_client_app(
        load,
        embedder=no_embedder,
        cache_directory=tmp_path / "cache",
        queries=[TextLengths, TokenCounts, Picky],
    )


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model folder with a tokenizer, and nothing to embed with."""
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer = HashEmbedder().tokenizer
    tokenizer.add_tokens(["court", "tax"])
    tokenizer.enable_truncation(1)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def unpacked(reply: Message, query: Query, *, length: int, users: int) -> wire.Answer:
    """A reply as the server reads it."""
    return wire.unpack_answer(
        reply, query=query, length=length, roster_users=users, most_users=users
    )


class TestText:
    def test_a_question_about_whole_documents(self, app: ClientApp, tmp_path: Path) -> None:
        prepared, answered = ask_node(app, TextLengths())
        assert wire.unpack_roster(prepared) == wire.RosterEntry(
            num_users=5, embedder="text", dimension=1
        )
        answer = unpacked(answered, TextLengths(), length=4, users=5)
        # Of five equal texts three count: the norm of what a user adds is at most 3.
        np.testing.assert_allclose(from_grid(answer.total), [1.0, 3.0, 1.0, 1.0], atol=1e-8)
        assert answer.num_users == 5
        assert not list((tmp_path / "cache").rglob("*.npy"))

    def test_at_most_so_many_documents_of_a_user(self, app: ClientApp) -> None:
        _, answered = ask_node(app, TextLengths(), replace(REQUEST, max_samples=1))
        answer = unpacked(answered, TextLengths(), length=4, users=5)
        assert from_grid(answer.total).sum() == 3.0
        assert from_grid(answer.total)[1] == 1.0

    @pytest.mark.parametrize("rate", [0.02, 0.98])
    def test_how_long_an_answer_is_says_nothing_about_who_took_part(
        self, tmp_path: Path, rate: float
    ) -> None:
        users = Users.from_rows([(str(number), "text") for number in range(171)])
        app = create_client_app(
            lambda where: users, cache_directory=tmp_path, queries=[TextLengths]
        )
        _, answered = ask_node(app, TextLengths(), sampling=PoissonSampling(rate))
        assert 0 < read_answer(answered).num_users < 171
        # Three times 171 needs six bytes, whoever was drawn.
        assert answered.content["privsyn.answer"]["total"].numpy().shape == (4, 6)

    def test_no_model_library_is_imported(self, tmp_path: Path) -> None:
        script = f"""
import sys
from pathlib import Path
from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.testing import flower_identity
from tests.support.text_lengths import TextLengths, ask_node, load
with flower_identity():
    app = create_client_app(load, cache_directory=Path({str(tmp_path)!r}), queries=[TextLengths])
    _, answered = ask_node(app, TextLengths())
assert answered.has_content(), answered.error
heavy = {{"torch", "transformers", "sentence_transformers", "tokenizers"}} & set(sys.modules)
assert not heavy, heavy
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


class TestTokens:
    def test_a_question_about_tokens(self, model: str, tmp_path: Path) -> None:
        rows = [("a", "court tax other"), ("b", "tax tax tax tax other tax")]
        app = create_client_app(
            lambda where: Users.from_rows(rows),
            embedder=no_embedder,
            cache_directory=tmp_path / "cache",
            queries=[TokenCounts],
        )
        data = replace(REQUEST, reads="tokens", embedding_model=model, max_tokens=64)
        prepared, answered = ask_node(app, TokenCounts(bins=3), data)
        roster = wire.unpack_roster(prepared)
        assert roster.embedder.startswith("tokens-")
        assert roster.dimension == 3
        answer = unpacked(answered, TokenCounts(bins=3), length=3, users=2)
        np.testing.assert_allclose(
            from_grid(answer.total), [1 + 3 / 26**0.5, 1.0, 1 + 15 / 26**0.5], atol=1e-6
        )

    def test_a_sketch_of_all_documents_up_to_the_cap(self, model: str, tmp_path: Path) -> None:
        rows = [("a", "court tax tax"), ("a", "tax court " * 20), ("b", ""), ("c", "other")]
        app = create_client_app(
            lambda where: Users.from_rows(rows),
            embedder=no_embedder,
            cache_directory=tmp_path / "cache",
        )
        query = JointSketch(bigram_share=0.5, max_tokens_per_user=8)
        broadcast = query.broadcast(3, np.arange(9))
        data = replace(REQUEST, reads="tokens", embedding_model=model, max_tokens=8, max_samples=8)
        _, answered = ask_node(app, query, data, broadcast=broadcast)
        answer = unpacked(answered, query, length=12, users=3)
        # Of the first user three tokens of one document and five of the other: no pair across.
        tokens = [[1, 2, 2], [2, 1, 2, 1, 2], [0]]
        records = [np.array(record) for record in tokens]
        expected = query.answer(Cohort.of(records, [0, 0, 2], 3), broadcast)
        assert from_grid(answer.total).tolist() == expected.tolist()
        assert answer.num_users == 3

    def test_a_text_that_the_tokenizer_fails_on_is_left_out(self) -> None:
        from flower_privsyn.client_apps.records import TokenSource
        from flower_privsyn.data import Samples

        class Breaks:
            truncation = padding = None

            def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[Any]:
                if "boom" in texts:
                    raise RuntimeError
                return HashEmbedder().tokenizer.encode_batch(texts)

        source = TokenSource(Breaks(), "tokens-1", max_tokens=2)
        samples = Samples(texts=["a b c", "boom", "d"], owners=np.array([0, 0, 1]), num_users=2)
        with skipping.counting() as tally:
            cohort = source.read(samples, ["x", "y"]).cohort
        assert [tokens.tolist() for tokens in cohort.records] == [[0, 0], [0]]
        assert cohort.owners.tolist() == [0, 1]
        assert (tally.records, tally.users) == (1, {"x"})


class TestRefusals:
    @pytest.mark.parametrize(
        ("query", "reads"),
        [
            (TextLengths(), "embeddings"),
            (TextLengths(), "tokens"),
            (NearestNeighborHistogram(), "text"),
        ],
    )
    def test_a_question_about_something_else(
        self, app: ClientApp, query: Query, reads: Reads, caplog: pytest.LogCaptureFixture
    ) -> None:
        data = replace(REQUEST, reads=reads, embedding_model="m")
        for reply in ask_node(app, query, data):
            assert reply.error.code == wire.ClientErrorCode.BAD_REQUEST
        assert f"{query.name} is not asked about {reads}" in caplog.text

    def test_an_app_without_the_question(self, tmp_path: Path) -> None:
        app = create_client_app(load, embedder=no_embedder, cache_directory=tmp_path)
        grid = LoopbackGrid(app, num_nodes=1)
        plan = wire.Announcement(queries=("text_lengths",))
        (reply,) = grid.send_and_receive(
            [Message(wire.pack_prepare(REQUEST, plan=plan), 1, wire.PREPARE)]
        )
        assert reply.error.code == wire.ClientErrorCode.UNKNOWN_QUERY

    def test_what_is_read_is_said_by_the_request(self) -> None:
        trained = replace(REQUEST, trains=TrainableModel(name="m"))
        assert trained.reads == "tokens"
        assert trained.suits(ModelDelta)
        assert not trained.suits(TokenCounts)
        assert not replace(REQUEST, reads="tokens").suits(ModelDelta)
        record = wire.pack_prepare(REQUEST).config_records["privsyn.request"]
        assert record["reads"] == "text"
        for value in ("updates", ""):
            content = wire.pack_prepare(REQUEST)
            content.config_records["privsyn.request"]["reads"] = value
            with pytest.raises(wire.WireError, match="reads"):
                wire.unpack_prepare(Message(content, 1, wire.PREPARE))


class TestTheOwnersWord:
    def test_a_default_policy_allows_the_bundled_questions_alone(
        self, app: ClientApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setenv("PRIVSYN_NODE_LEDGERS", str(tmp_path / "ledgers"))
        assert set(NodePolicy().queries).isdisjoint({"text_lengths", "token_counts"})
        for reply in ask_node(app, TextLengths(), is_simulation=False):
            assert reply.error.code == wire.ClientErrorCode.NOT_ALLOWED

    def test_a_question_that_the_owner_names(
        self, app: ClientApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PRIVSYN_NODE_LEDGERS", str(tmp_path / "ledgers"))
        policy = tmp_path / "policy.toml"
        policy.write_text('queries = ["text_lengths"]\nmax-epsilon = 10.0\n')
        node = {"policy": str(policy)}
        prepared, answered = ask_node(app, TextLengths(), node=node, is_simulation=False)
        assert prepared.has_content()
        assert answered.has_content()


@dataclass(frozen=True, kw_only=True)
class SameName(TextLengths):
    """Another question of a bundled name."""

    name: ClassVar[str] = NearestNeighborHistogram.name


@dataclass(frozen=True, kw_only=True)
class BadName(TextLengths):
    name: ClassVar[str] = "prepare"


@dataclass(frozen=True, kw_only=True)
class Abstract(Query):
    name: ClassVar[str] = "abstract"


class TestOwnQueries:
    @pytest.mark.parametrize(
        ("queries", "words"),
        [
            ([SameName], "nearest_neighbor_histogram"),
            ([BadName], 'other than "prepare", got .*BadName'),
            ([Abstract], "define all of .*Abstract"),
            ([int], "Query"),
        ],
    )
    def test_refused_when_the_app_is_made(self, queries: list[Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            create_client_app(load, queries=queries)


class TestPackages:
    @pytest.fixture
    def install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        """Put a distribution with entry points where Python looks for them."""
        folder = tmp_path / "packages"
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))

        def add(package: str, **queries: str) -> None:
            about = folder / f"{package}-1.0.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
            lines = [f"{name} = {place}" for name, place in queries.items()]
            (about / "entry_points.txt").write_text(
                "\n".join([f"[{known.QUERY_GROUP}]", *lines, ""])
            )
            importlib.invalidate_caches()
            known._offered.cache_clear()

        yield add
        known._offered.cache_clear()

    def test_a_package_offers_a_question(self, install: Any, tmp_path: Path) -> None:
        install("lengths", text_lengths=f"{TextLengths.__module__}:TextLengths")
        app = create_client_app(load, cache_directory=tmp_path)
        _, answered = ask_node(app, TextLengths())
        assert answered.has_content()
        # And an app that brings it too asks the same one.
        create_client_app(load, queries=[TextLengths])

        install("clash", text_lengths=f"{__name__}:OtherLengths")
        with pytest.raises(ConfigError, match="text_lengths"):
            create_client_app(load)


@dataclass(frozen=True, kw_only=True)
class OtherLengths(TextLengths):
    """Another question of a name that is taken."""
