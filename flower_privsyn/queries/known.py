"""Which questions a client app answers: the bundled ones, its own, and those of other packages.

A package offers a question by an entry point of the group "flower_privsyn.queries", whose name is
the query's:

    [project.entry-points."flower_privsyn.queries"]
    text_lengths = "my_package.queries:TextLengths"
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from typing import Final, TypeAlias

from flower_privsyn.errors import ConfigError
from flower_privsyn.queries.model_delta import ModelDelta
from flower_privsyn.queries.query import READS, Query

logger = logging.getLogger("flower_privsyn.client")

#: A question's class, or where an installed package has it.
KnownQuery: TypeAlias = type[Query] | metadata.EntryPoint

#: Entry points of this group are queries.
QUERY_GROUP: Final = "flower_privsyn.queries"

#: Message types are made of names, and one is taken.
_NAME: Final = re.compile(r"(?!prepare$)[a-z][a-z0-9_]{0,63}")


def is_query_name(name: object) -> bool:
    """Whether a question can be called that."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@cache
def load_query(known: KnownQuery) -> type[Query]:
    """The class of a question; one of another package is imported when it is first asked.

    Raises:
        ConfigError: It cannot be imported, or is no usable query of this name.
    """
    if isinstance(known, type):
        return known
    offered = f'the query "{known.name}" that the package {_package(known)} offers ({known.value})'
    try:
        found: type[Query] = known.load()
    except Exception as error:
        raise ConfigError(
            f"{offered} cannot be loaded ({type(error).__name__}: {error})."
        ) from error
    try:
        check_query_class(found)
    except ConfigError as error:
        raise ConfigError(f"{offered} cannot be asked: {error}") from None
    if found.name != known.name:
        raise ConfigError(f'{offered} calls itself "{found.name}".')
    return found


def check_query_class(query: object) -> None:
    """Refuse a class whose questions nobody could ask.

    Raises:
        ConfigError: It is no concrete, decorated subclass of `Query` with a usable name.
    """
    if not isinstance(query, type) or not issubclass(query, Query):
        raise ConfigError(
            f"queries must be subclasses of flower_privsyn.queries.Query, got {query!r}."
        )
    called = query.__qualname__
    if inspect.isabstract(query):
        missing = ", ".join(sorted(query.__abstractmethods__))
        raise ConfigError(f"query {called} is abstract: it does not give {missing}.")
    if "__dataclass_params__" not in query.__dict__:
        raise ConfigError(
            f"query {called} must be decorated with @dataclass(frozen=True, kw_only=True): its "
            "parameters are the fields."
        )
    name = getattr(query, "name", None)
    if not is_query_name(name):
        raise ConfigError(
            f"query {called} must have a name of small letters, digits and underscores other than "
            f'"prepare", such as "text_lengths", got {name!r}.'
        )
    if query.reads not in READS:
        allowed = ", ".join(f'"{kind}"' for kind in READS)
        raise ConfigError(f"query {called}: reads must be one of {allowed}, got {query.reads!r}.")
    if query.trains and not (issubclass(query, ModelDelta) and query.reads == "tokens"):
        raise ConfigError(
            f'query {called} trains: it must be a subclass of ModelDelta that reads "tokens".'
        )


def known_queries(
    bundled: Sequence[type[Query]], own: Sequence[type[Query]] = ()
) -> dict[str, KnownQuery]:
    """All questions that an app can be asked, by name.

    Args:
        bundled: those of this package.
        own: those the app was made with.

    Raises:
        ConfigError: One of the app's own is unusable, or a name stands for two questions.
    """
    known: dict[str, KnownQuery] = {}
    for query in (*bundled, *own):
        check_query_class(query)
    found: list[KnownQuery] = [*bundled, *own, *_offered()]
    for one in found:
        other = known.setdefault(one.name, one)
        # A package may offer what the app was made with, or what another does.
        if other is not one and (isinstance(one, type) or _place(other) != _place(one)):
            by = " and ".join(
                _place(each) + ("" if isinstance(each, type) else f" of {_package(each)}")
                for each in (other, one)
            )
            raise ConfigError(
                f'two questions are called "{one.name}": {by}; a name stands for one question, so '
                "rename one of them or remove its package."
            )
    return known


def _place(known: KnownQuery) -> str:
    """Where the class is, as `module:name`."""
    if isinstance(known, type):
        return f"{known.__module__}:{known.__qualname__}"
    return known.value


def _package(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"


@cache
def _offered() -> tuple[metadata.EntryPoint, ...]:
    """What installed packages offer, looked up once in a process; nothing is imported."""
    found = []
    for entry in metadata.entry_points(group=QUERY_GROUP):
        if is_query_name(entry.name):
            found.append(entry)
        else:
            logger.warning(
                'the package %s offers the query "%s", which is no name of a question: small '
                "letters, digits and underscores",
                _package(entry),
                entry.name,
            )
    return tuple(sorted(found, key=lambda entry: (entry.name, _package(entry))))
