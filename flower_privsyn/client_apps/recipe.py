"""The default recipe: whose text a node answers from, and who decides that."""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from flwr.app import Context

from flower_privsyn.client_apps.guard import in_simulation
from flower_privsyn.data import Gathered, Users, gather_configured, load_configured
from flower_privsyn.environment import WORKING_DIRECTORY
from flower_privsyn.errors import DataError, NotAllowedError
from flower_privsyn.privacy import quarantine

#: Flower draws run ids from 64 bits, so a smaller one was written down by somebody (a test, a
#: notebook) and will be written down again: nothing of such a run may be found by its id.
DRAWN_RUN_IDS: Final = 2**32

#: Documents that a process of a simulation keeps while it prepares its nodes: 512 MiB.
_KEPT_BYTES: Final = 2**29

_strict: Final = contextvars.ContextVar("strict", default=False)


@contextlib.contextmanager
def strictly() -> Iterator[None]:
    """In this block what `users_of_node` would leave out in silence is named.

    For whoever holds the data of a simulation and is about to begin it.
    """
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)


#: What is read where nobody says so; the column of ids is the unit of privacy.
_DEFAULTS: Final = {
    "client-column": "client_id",
    "text-column": "text",
    "date-column": "date",
    "label-column": "label",
}


def users_of_node(context: Context, *, labels: bool = True, sample: Path | None = None) -> Users:
    """The default recipe: the users of `data`.

    A SuperNode reads from its own configuration alone: `data` (a file, a folder, or the name of a
    data set, as `load_users` takes it), whose users are all its own, `client-column`,
    `text-column`, `date-column` and `label-column` (default `client_id`, `text`, `date`, `label`).
    In a simulation, where one person owns everything, the run's configuration counts where the
    node's says nothing, and the users are dealt to the nodes by `partition-id` and
    `num-partitions`.

    Args:
        context: Of the node.
        labels: Whether the classes of documents are read too, as for a run that asks for classes.
        sample: A file of users that comes with an app: what a run means by ``data = "sample"`` in a
            simulation.

    Formal guarantee:
        Outside a simulation the unit of privacy, one value of the owner's `client-column`, and the
        data are the owner's choice; no run changes them.

    Raises:
        DataError: nothing names the data, or they cannot be read.
        NotAllowedError: outside a simulation, the run names data or a column that the owner did
            not name.
    """
    own, run = context.node_config, context.run_config
    if not in_simulation():
        _refuse_names_of(run, own)
        return load_configured(own, labels=labels)
    if sample is not None and run.get("data") == "sample":
        run = {**run, "data": str(sample)}
    if _strict.get():
        with quarantine.counting():  # what is left out is counted as it is read below
            load_configured(own, run, labels=labels, strict=True)
    if "data" in own or "num-partitions" not in own:
        return load_configured(own, run, labels=labels)
    return dealt.read(context.run_id, own, run, labels=labels)


def users_by(load: Callable[[Context], Users], context: Context) -> Users:
    """The users of a node by a recipe, which may be an app's own.

    Args:
        load: The recipe.
        context: Of the node.

    Raises:
        DataError: It returns something else; the sentence says what, by its type alone.
        Exception: Whatever an app's own recipe raises.
    """
    users: object = load(context)
    if not isinstance(users, Users):
        name = getattr(load, "__qualname__", type(load).__name__)
        what = "nothing" if users is None else f"a {type(users).__name__}"
        raise DataError(
            f"The app's {name} must return Users, as load_users and Users.from_rows make them, and "
            f"returned {what}."
        )
    return users


def _refuse_names_of(run: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse a run that says what a SuperNode reads; what its owner has said stands."""
    for key, default in {"data": "", **_DEFAULTS}.items():
        named = str(run.get(key, ""))
        if own.get(key) or named in ("", default):
            continue
        if key == "data":
            raise NotAllowedError(
                f'The run names the data "{named}", and this node\'s owner names none: what a node '
                "reads is its owner's choice (--node-config 'data=\"/path/users.jsonl\"')."
            )
        unit = ", and with it whom the guarantee is for" if key == "client-column" else ""
        raise NotAllowedError(
            f'The run names the {key} "{named}"; this node reads "{default}"{unit}, unless its '
            f"owner names another (--node-config '{key}=\"{named}\"')."
        )


class _DealtUsers:
    """What the nodes of a simulation are dealt from, read as seldom as memory allows.

    A process prepares several nodes one after the other, and reading the file takes longer than
    all else once the records are on the disk. What was read last is kept until a question comes:
    everybody's documents, or those of so many nodes as `_KEPT_BYTES` hold, from the one that was
    asked for on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[tuple[object, ...], Gathered] | None = None

    def read(
        self, run_id: int, own: Mapping[str, Any], run: Mapping[str, Any], *, labels: bool
    ) -> Users:
        """The users of a node.

        Args:
            run_id: As Flower drew it.
            own: The node's configuration.
            run: The run's.
            labels: Whether classes are read too.
        """
        configurations = (own, run)
        node, nodes = (int(own[key]) for key in ("partition-id", "num-partitions"))
        if run_id < DRAWN_RUN_IDS:
            gathered = gather_configured(
                *configurations, labels=labels, node=node, nodes=nodes, most_bytes=0
            )
            return gathered.users(node)
        names = [
            next(filter(None, (str(c.get(key, "")) for c in configurations)), "")
            for key in ("data", *_DEFAULTS)
        ]
        here = os.environ.get(WORKING_DIRECTORY, "")
        key = (run_id, here, labels, nodes, *names)
        with self._lock:
            if self._last is None or self._last[0] != key or not self._last[1].holds(node):
                self._last = None  # never two of them in memory
                gathered = gather_configured(
                    *configurations, labels=labels, node=node, nodes=nodes, most_bytes=_KEPT_BYTES
                )
                self._last = (key, gathered)
            return self._last[1].users(node)

    def forget(self) -> None:
        """Give up the memory."""
        with self._lock:
            self._last = None


dealt = _DealtUsers()
