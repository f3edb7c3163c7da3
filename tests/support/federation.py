"""Small populations, the grids that host them, and what was asked of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.data import Users
from flower_privsyn.messages import wire
from flower_privsyn.testing import LoopbackGrid, hash_embedder
from tests.support.questions import asked_round

WORDS = (
    "court judge ruling appeal budget deficit tax senate river forest mountain valley engine "
    "turbine rocket orbit protein enzyme gene cell market price trade export school teacher"
).split()


def is_rehearsal(prompts: Sequence[str]) -> bool:
    """Whether a generator is only being tried, before the first round: by one prompt."""
    return len(prompts) <= 1


def make_users(count: int, *, samples: int = 3) -> Users:
    """Users who write about courts, whatever their number."""
    rows = []
    for user in range(count):
        for sample in range(samples):
            topic = WORDS[:8]
            words = [topic[(user * 7 + sample * 3 + i * i) % len(topic)] for i in range(12)]
            rows.append((f"user-{user}", " ".join(words)))
    return Users.from_rows(rows)


def silent_users(count: int) -> Users:
    return Users.from_rows((f"user-{i}", "") for i in range(count))


def rounds_asked(grid: Any) -> list[int]:
    """The rounds in which anybody was asked."""
    numbers = [asked_round(m) for m in grid.requests]
    return sorted({number for number in numbers if number is not None})


def silent(
    *rounds: int, nodes: tuple[int, ...] = (), times: int = 99
) -> Callable[[Message, Message], list[Message]]:
    """Loses the answers of some rounds, or of every round from the first on.

    Args:
        rounds: in which answers are lost; none for every round.
        nodes: whose answers are lost; none for those of all.
        times: how often each node's answer in a round is lost.
    """
    asked: Counter[tuple[int, int]] = Counter()

    def lose(request: Message, reply: Message) -> list[Message]:
        number, node = asked_round(request), reply.metadata.src_node_id
        if number is None or (rounds and number not in rounds) or (nodes and node not in nodes):
            return [reply]
        asked[number, node] += 1
        return [] if asked[number, node] <= times else [reply]

    return lose


def dealt(users: Users, num_nodes: int = 2) -> Callable[[Context], Users]:
    """A recipe that deals users to so many nodes."""

    def load(context: Context) -> Users:
        return users.partition(
            partition_id=int(context.node_config["partition-id"]), num_partitions=num_nodes
        )

    return load


def embedding_nodes(
    users: Users, folder: Path, *, num_nodes: int = 2, **kwargs: Any
) -> LoopbackGrid:
    """A grid of nodes that embed their users' text, with a cache in a folder."""
    app = create_client_app(
        dealt(users, num_nodes), embedder=hash_embedder, cache_directory=folder / "cache"
    )
    return LoopbackGrid(app, num_nodes=num_nodes, **kwargs)


def training_nodes(
    users: Users, *, num_nodes: int = 2, app: Any = None, **kwargs: Any
) -> LoopbackGrid:
    """A grid of nodes that train on their users' text."""
    # Not at the top: processes that train nothing start with this module, and without PyTorch.
    from flower_privsyn.client_apps.training import LocalTraining

    app = (app or partial(create_client_app, trainer=LocalTraining()))(dealt(users, num_nodes))
    return LoopbackGrid(app, num_nodes=num_nodes, **kwargs)


def asked(grid: LoopbackGrid) -> list[Message]:
    return [m for m in grid.requests if m.metadata.message_type != wire.PREPARE]
