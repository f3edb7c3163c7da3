"""The users of a run, read as the nodes will read them; their own file is no public text."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError

from flower_privsyn.client_apps.guard import simulated
from flower_privsyn.client_apps.handlers import RECIPES
from flower_privsyn.client_apps.node_users import (
    DRAWN_RUN_IDS,
    UserLoader,
    assigned,
    strictly,
    users_by,
    users_of_node,
)
from flower_privsyn.data import Chunking, Users
from flower_privsyn.data.public_corpus import PublicCorpus
from flower_privsyn.data.users import check_labels
from flower_privsyn.errors import ConfigError, DataError, PrivsynError
from flower_privsyn.files import user_path
from flower_privsyn.host.app import App, ConfigValue
from flower_privsyn.host.grid import loaded_app

#: ClientApps of this package, which are not loaded to know whose text they read.
_READY_CLIENTS: Final = (
    "flower_privsyn.client_apps.default:app",
    "flower_privsyn.client_apps.training:app",
)

#: After so long no further node is asked.
_READING_SECONDS: Final = 5.0

#: The public text that comes with the package, which is nobody's.
BUNDLED: Final = "bundled"


@dataclass(frozen=True, kw_only=True)
class People:
    """Who a run will ask.

    Attributes:
        users: who take part, on the nodes that were read.
        held_out: who do not, because the settings hold them out.
        writing: of those who take part, who have any text.
        documents: of those who take part.
        all_read: whether these are the users of every node.
    """

    users: int
    held_out: int
    writing: int
    documents: int
    all_read: bool = True


def read_people(
    app: App, values: Mapping[str, ConfigValue], *, chunking: Chunking, nodes: int
) -> People | None:
    """Read the users of a simulation by the code that its nodes will run.

    Args:
        app: the app; its ClientApp is imported unless it is one of this package.
        values: the run's configuration.
        chunking: who is asked and what of their text counts.
        nodes: of the simulation.

    Returns:
        The users; None where the app reads them without this package.

    Raises:
        PrivsynError: `data` is empty or unreadable, nobody has any text, or the app's own code
            fails.
    """
    if app.client in _READY_CLIENTS:
        recipe: UserLoader | None = partial(users_of_node, labels=bool(chunking.classes))
    else:
        try:
            client = loaded_app(app.client, str(app.path), ClientApp, LoadClientAppError)
        except Exception as error:  # whatever the app's own modules may raise
            raise ConfigError(
                f"{app.client} of {app.name} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        recipe = RECIPES.get(client)
    if recipe is None:
        return None
    parts = _by_node(recipe, values, nodes=nodes)
    assigned.cache_clear()
    return people_of(parts, chunking=chunking, all_read=len(parts) == nodes)


def _by_node(recipe: UserLoader, values: Mapping[str, ConfigValue], *, nodes: int) -> list[Users]:
    """The users of one node after the other, as far as time allows."""
    parts: list[Users] = []
    run_id = DRAWN_RUN_IDS + secrets.randbits(62)
    begun = 0.0
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
                raise ConfigError(
                    "data is empty: name a file of users, such as --set data=users.jsonl with one "
                    '{"client_id": ..., "text": ...} per line.'
                ) from error
            raise
        except Exception as error:
            # As on a node: the text of an error may quote what somebody wrote.
            raise DataError(
                f"the app's own code fails on node {node} of {nodes} with {type(error).__name__}"
            ) from error
        begun = begun or time.monotonic()  # the first one reads what the others' users are of, too
        if time.monotonic() - begun > _READING_SECONDS:
            break
    return parts


def people_of(parts: Sequence[Users], *, chunking: Chunking, all_read: bool = True) -> People:
    """Who a run will ask, of the users that were read.

    Args:
        parts: users, of a node each or of all of them.
        chunking: who is asked and what of their text counts.
        all_read: whether these are the users of every node.

    Raises:
        DataError: of all nodes, one user takes part or none, or nobody who does has any text, or
            one of a class of the run.
    """
    if chunking.classes and all_read:
        check_labels(parts, chunking.classes)
    asked = [chunking.asked(part) for part in parts]
    users, documents = sum(map(len, asked)), sum(len(part.texts) for part in asked)
    if all_read and users < 2:
        raise DataError(
            f"{users or 'nobody'} takes part, and a run needs at least 2 users, because nobody can "
            "hide among others alone; does client-column name the column that says whose a text is?"
        )
    if all_read and not documents:
        of = f" with a date from min-date = {chunking.min_date} on" if chunking.min_date else ""
        raise DataError(f"nobody who takes part has any text{of}: every answer would be noise")
    return People(
        users=users,
        held_out=sum(map(len, parts)) - users,
        writing=sum(len(np.unique(part.owners)) for part in asked),
        documents=documents,
        all_read=all_read,
    )


# ---- public text that is theirs ----------------------------------------------------------------


def check_public_text(source: str, *, data: str) -> None:
    """Refuse public text that is the users' own file, or a folder that holds it.

    Args:
        source: the setting `public-text`.
        data: what the users are read from.

    Raises:
        ConfigError: it is.
        DataError: it cannot be found.
    """
    if source == BUNDLED:
        return
    corpus = PublicCorpus.find(source, setting="public-text")
    if source == data or _reads(corpus, data):
        raise ConfigError(
            f'public-text = "{source}" is the text of the users (data): what is chosen of it is '
            "published as it is, and models learn it, at no cost in any ledger; name text that is "
            "public, without theirs"
        )


def _reads(corpus: PublicCorpus, data: str) -> bool:
    """Whether the users' file is what is read as public text, or one file of its folder."""
    place = user_path(data)
    try:
        return bool(data) and any(map(place.samefile, corpus.places()))
    except OSError:
        return False
