"""Public fakes: everything a test of your own strategy, query or app needs, without downloads.

    with flower_identity():
        grid = LoopbackGrid(create_client_app(load, embedder=hash_embedder), num_nodes=3)
        PrivateEvolution(
            config,
            embedder=HashEmbedder(),
            variation=ShuffleWords(),
            generator=EchoGenerator(),
        ).start(grid)

runs a whole method in one process: no Ray, no server, no model. `check_batch_invariance` and
`check_query` test an embedder and a query of your own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Message
from flwr.clientapp import ClientApp

from flower_privsyn.client_apps.guard import simulated
from flower_privsyn.embedding import check_batch_invariance
from flower_privsyn.host.grid import InProcessGrid, flower_identity, partitions
from flower_privsyn.messages.wire import refuse_uncarried
from flower_privsyn.queries import Broadcast, Cohort, Query, Reads

__all__ = [
    "EchoGenerator",
    "HashEmbedder",
    "LoopbackGrid",
    "ShuffleWords",
    "check_batch_invariance",
    "check_query",
    "flower_identity",
    "hash_embedder",
    "random_cohort",
]

RUN_ID = 1


class LoopbackGrid(InProcessGrid):
    """Flower's Grid that calls a ClientApp in this process and keeps all messages.

    Args:
        client_app: the app every node runs.
        num_nodes: nodes, numbered from 1 and given `partition-id` and `num-partitions`.
        run_config: what the nodes see as the run's configuration.
        node_configs: in place of the numbered partitions, one mapping per node.
        tamper: called with (request, reply) and returns the replies to deliver, so that a test can
            lose, change or repeat them.
        is_simulation: whether the nodes are one person's, as under `flwr run`; else each has an
            owner, with a policy and an account.
        run_id: of every node's context.

    Attributes:
        requests: every message sent, in order.
        replies: every reply delivered, in order.
    """

    def __init__(
        self,
        client_app: ClientApp,
        *,
        num_nodes: int = 2,
        run_config: Mapping[str, Any] | None = None,
        node_configs: Sequence[Mapping[str, Any]] | None = None,
        tamper: Callable[[Message, Message], list[Message]] | None = None,
        is_simulation: bool = True,
        run_id: int = RUN_ID,
    ) -> None:
        configs = node_configs or partitions(num_nodes)
        super().__init__(client_app, configs, run_id=run_id, run_config=run_config or {})
        self._tamper = tamper
        self._simulated = is_simulation
        self.requests: list[Message] = []
        self.replies: list[Message] = []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to these messages that have arrived and were not pulled yet."""
        delivered = list(super().pull_messages(message_ids))
        self.replies += delivered
        return delivered

    def _replies(self, message: Message) -> list[Message]:
        """What `tamper` makes of the reply of its node."""
        self.requests.append(message)
        with simulated(self._simulated):
            (reply,) = super()._replies(message)
        return [reply] if self._tamper is None else self._tamper(message, reply)


class HashEmbedder:
    """Texts to unit vectors by hashing words: texts that share words are close.

    Args:
        dimension: of the vectors, >= 1.
    """

    def __init__(self, dimension: int = 32) -> None:
        self.dimension = dimension
        self.fingerprint = f"hash-{dimension}"

    @property
    def tokenizer(self) -> Any:
        """One token per word."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer

    def embed(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> npt.NDArray[np.float32]:
        """(n, dimension) float32."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                generator = np.random.default_rng(int.from_bytes(digest, "little"))
                vectors[row] += generator.standard_normal(self.dimension).astype(np.float32)
            norm = float(np.linalg.norm(vectors[row]))
            vectors[row] /= norm if norm else 1.0
        if progress is not None:
            progress(len(texts))
        return vectors


def hash_embedder(name: str, precision: str) -> HashEmbedder:
    """Loader for `create_client_app(embedder=...)`; ignores what is asked for."""
    return HashEmbedder()


class ShuffleWords:
    """A variation that swaps words of a text, the same way for the same seed."""

    name = "shuffle-words"

    def vary(
        self,
        texts: Sequence[str],
        *,
        seed: int,
        progress: Callable[[int], None] | None = None,
        labels: Sequence[str] | None = None,
    ) -> list[str]:
        """One variation per text, whatever its class."""
        varied = []
        for index, text in enumerate(texts):
            words = text.split()
            order = np.random.default_rng([seed % 2**63, index]).permutation(len(words))
            varied.append(" ".join(words[i] for i in order))
        if progress is not None:
            progress(len(texts))
        return varied


class EchoGenerator:
    """A generator whose continuations are words of the prompt, drawn by seed."""

    name = "echo"

    def generate(
        self,
        prompts: Sequence[str],
        *,
        num_samples: int = 1,
        sampling: Any,
        system: str | None = None,
        adapter: Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[str]]:
        """`num_samples` continuations of each prompt."""
        outputs = []
        for index, prompt in enumerate(prompts):
            words = prompt.split()
            row = []
            for sample in range(num_samples):
                chooser = np.random.default_rng([sampling.seed % 2**63, index, sample])
                row.append(" ".join(chooser.choice(words, size=min(12, len(words)))))
            outputs.append(row)
            if progress is not None:
                progress(num_samples)
        return outputs


#: Words of random texts: short and long ones, and what is not ASCII.
_WORDS = ("a", "river", "court", "Grüße", "\u5ddd", "\U0001f680", "\n", "x" * 300, "42", "--")


def random_cohort(
    *,
    num_users: int,
    max_records: int,
    dimension: int,
    seed: int,
    empty: float = 0.1,
    reads: Reads = "embeddings",
) -> Cohort:
    """A cohort of random records, a share of the users without any.

    Args:
        num_users: users.
        max_records: each user has between 1 and this many records.
        dimension: of embeddings, which are unit vectors; where tokens are read, how many there are
            in the vocabulary; where text is read, most words of a document. At least 1.
        seed: of the generator.
        empty: share of users without records.
        reads: what the records are.
    """
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, max_records + 1, size=num_users)
    counts[generator.random(num_users) < empty] = 0
    owners = np.repeat(np.arange(num_users), counts)
    if reads == "tokens":
        lengths = generator.integers(0, 65, size=len(owners))
        tokens = [generator.integers(0, dimension, size=length) for length in lengths]
        return Cohort.of(tokens, owners, num_users)
    if reads == "text":
        lengths = generator.integers(0, dimension, size=len(owners))
        # A document is never blank.
        texts = [" ".join(["text", *generator.choice(_WORDS, size=length)]) for length in lengths]
        return Cohort.of(texts, owners, num_users)
    records = generator.standard_normal((len(owners), dimension)).astype(np.float32)
    records /= np.linalg.norm(records, axis=1, keepdims=True)
    return Cohort(records, owners, num_users)


def check_query(
    query: Query, cohort: Cohort, broadcast: Broadcast, *, tolerance: float = 0.0
) -> None:
    """Check what every query must hold on one input.

    Its parameters reach the nodes as they are; every contribution is within the clip norm; `answer`
    equals the sum of contributions to `tolerance` (relative to its largest coordinate); cohorts of
    one user add up to the same.

    Raises:
        ConfigError: no message carries one of its parameters.
        AssertionError: one of the others does not hold; it says which.
    """
    refuse_uncarried(query)
    contributions = query.contribution(cohort, broadcast)
    norms = np.linalg.norm(contributions, axis=1)
    if len(norms) and norms.max() > query.clip_norm * (1 + 1e-12):
        raise AssertionError(f"a contribution has norm {norms.max()} > {query.clip_norm}")
    answer = query.answer(cohort, broadcast)
    direct = contributions.sum(axis=0)
    scale = max(1.0, float(np.abs(direct).max(initial=0.0)))
    if not np.allclose(answer, direct, rtol=0.0, atol=tolerance * scale):
        raise AssertionError(
            f"answer differs from the sum of contributions by {np.abs(answer - direct).max()}"
        )
    single = np.zeros(query.answer_length(broadcast))
    for one in cohort.blocks(1):
        single += query.answer(one, broadcast)
    if not np.allclose(answer, single, rtol=0.0, atol=tolerance * scale):
        raise AssertionError("the answer depends on how users are dealt to nodes")
