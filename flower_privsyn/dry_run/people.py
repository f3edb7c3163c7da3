"""The users of a run, read as the nodes will read them."""

from __future__ import annotations

import contextlib
import importlib
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from flower_privsyn.client_apps.guard import simulated
from flower_privsyn.client_apps.handlers import recipe_of
from flower_privsyn.client_apps.node_users import DRAWN_RUN_IDS, UserLoader, strictly, users_by
from flower_privsyn.data import Chunking, Users
from flower_privsyn.data.users import check_labels
from flower_privsyn.dry_run.public_text import BUNDLED, fingerprints
from flower_privsyn.errors import ConfigError, DataError, PrivsynError
from flower_privsyn.host.app import DATA_IS_EMPTY, App, ConfigValue, check_data

#: After so long no further node is asked.
_READING_SECONDS: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class People:
    """Who a run will ask.

    Attributes:
        users: who take part, on the nodes that were read.
        held_out: who do not, because the settings hold them out.
        writing: of those who take part, who have any text.
        documents: of those who take part.
        nodes_read: nodes whose users these are.
        nodes: of the run.
        written: what tells everybody's longer texts apart (`fingerprints`), held out or not;
            nothing where the run's configuration names no public text that they could be in.
    """

    users: int
    held_out: int
    writing: int
    documents: int
    nodes_read: int
    nodes: int
    written: frozenset[int]

    @property
    def all_read(self) -> bool:
        """Whether every node was read."""
        return self.nodes_read == self.nodes


def read_people(
    app: App, values: Mapping[str, ConfigValue], *, cut: Chunking, nodes: int, most_nodes: int
) -> People | None:
    """Read the users of a simulation by the code that its nodes will run.

    Args:
        app: the app; its ClientApp is imported unless it is one of this package.
        values: the run's configuration.
        cut: who is asked and what of their text counts.
        nodes: of the simulation.
        most_nodes: on how many of them one user may be.

    Returns:
        The users; None where the app reads them without this package.

    Raises:
        PrivsynError: `data` is empty or unreadable, nobody has any text, or the app's own code
            fails.
    """
    told = values.get("public-text", BUNDLED) != BUNDLED
    everybody = check_data(app, values)
    if everybody is not None:
        parts, read = [everybody], nodes
    else:
        with _imported(app) as client:
            recipe = recipe_of(client)
            if recipe is None:
                return None
            parts = _by_node(recipe, values, classes=cut.classes, nodes=nodes)
        read = len(parts)
        copies = Counter(user for part in parts for user in part.user_ids)
        most = max(copies.values(), default=0)
        if most > most_nodes:
            raise DataError(
                f"the app's recipe puts users on {most} nodes, where max-nodes-per-user = "
                f"{most_nodes}: give every node users of its own, or set max-nodes-per-user, for "
                "more noise"
            )
    written = fingerprints(parts) if told else frozenset[int]()
    return people_of(parts, cut=cut, nodes_read=read, nodes=nodes, written=written)


def _by_node(
    recipe: UserLoader,
    values: Mapping[str, ConfigValue],
    *,
    classes: tuple[str, ...],
    nodes: int,
) -> list[Users]:
    """The users of one node after the other, as far as time allows.

    Where a run has classes, at least until there is a document of one: that there is none can be
    said of all nodes alone.
    """
    parts: list[Users] = []
    missing = bool(classes)  # a document of one of them
    run_id = DRAWN_RUN_IDS + secrets.randbits(62)
    begun = time.monotonic()
    for node in range(nodes):
        context = Context(
            run_id=run_id,
            node_id=node + 1,
            node_config={"partition-id": node, "num-partitions": nodes},
            state=RecordDict(),
            run_config=dict(values),
        )
        try:
            # The file is everybody's: what is wrong with it, the first node finds.
            with simulated(), contextlib.nullcontext() if node else strictly():
                parts.append(users_by(recipe, context))
        except PrivsynError as error:
            if values.get("data") == "":  # and there is no sample of the app's own
                raise ConfigError(DATA_IS_EMPTY) from error
            raise
        except Exception as error:
            # As on a node: the text of an error may quote what somebody wrote.
            raise DataError(
                f"the app's own code fails on node {node} of {nodes} with {type(error).__name__}"
            ) from error
        missing = missing and not set(classes).intersection(parts[-1].labels or ())
        if time.monotonic() - begun > _READING_SECONDS and not missing:
            break
    return parts


def people_of(
    parts: Sequence[Users], *, cut: Chunking, nodes_read: int, nodes: int, written: frozenset[int]
) -> People:
    """Who a run will ask, of the users that were read.

    Args:
        parts: users, of a node each or of all of them.
        cut: who is asked and what of their text counts.
        nodes_read: nodes whose users these are.
        nodes: of the run.
        written: see `People`.

    Raises:
        DataError: of all nodes, one user takes part or none, or nobody who does has any text, or
            one of a class of the run.
    """
    if cut.classes:
        check_labels(parts, cut.classes)
    asked = [cut.asked(part) for part in parts]
    users, documents = sum(map(len, asked)), sum(len(part.texts) for part in asked)
    if nodes_read == nodes and users < 2:
        raise DataError(
            f"{users or 'nobody'} takes part, and a run needs at least 2 users, because nobody can "
            "hide among others alone; does client-column name the column that says whose a text is?"
        )
    if nodes_read == nodes and not documents:
        raise DataError("nobody who takes part has any text: every answer would be noise")
    return People(
        users=users,
        held_out=sum(map(len, parts)) - users,
        writing=sum(len(np.unique(part.owners)) for part in asked),
        documents=documents,
        nodes_read=nodes_read,
        nodes=nodes,
        written=written,
    )


@contextlib.contextmanager
def _imported(app: App) -> Iterator[ClientApp]:
    """The ClientApp of an app, its modules known only as long as it is needed."""
    module, _, name = app.client.partition(":")
    before, writes = set(sys.modules), sys.dont_write_bytecode
    sys.path.insert(0, str(app.path))
    sys.dont_write_bytecode = True  # nothing is written, in the app's folder either
    try:
        try:
            found = getattr(importlib.import_module(module), name or "app", None)
        except Exception as error:  # whatever the app's own modules may raise
            kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
            raise ConfigError(
                f"{app.client} of {app.name} cannot be imported: {kind}{error}"
            ) from error
        if not isinstance(found, ClientApp):
            raise ConfigError(f"{app.client} of {app.name} is no ClientApp")
        yield found
    finally:
        sys.dont_write_bytecode = writes
        sys.path.remove(str(app.path))
        # Another app may call its modules by the same names.
        for known in set(sys.modules) - before:
            if _lies_in(app.path, sys.modules[known]):
                del sys.modules[known]


def _lies_in(folder: Path, module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).is_relative_to(folder)
