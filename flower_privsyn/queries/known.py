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
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Final

from flower_privsyn.errors import ConfigError
from flower_privsyn.queries.model_delta import ModelDelta
from flower_privsyn.queries.query import READS, Query

logger = logging.getLogger("flower_privsyn.client")

#: Entry points of this group are queries.
QUERY_GROUP: Final = "flower_privsyn.queries"

#: Message types are made of names, and one is taken.
_NAME: Final = re.compile(r"(?!prepare$)[a-z][a-z0-9_]{0,63}")


def is_query_name(name: object) -> bool:
    """Whether a question can be called that."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class KnownQuery:
    """A question that can be answered; one of another package is loaded when it is asked.

    Attributes:
        name: of the question.
        place: where its class is, as `module:name`.
        package: the distribution that offers it; "" for a class that was given.
        given: the class; None until it is loaded.
    """

    name: str
    place: str
    package: str = ""
    given: type[Query] | None = None

    def load(self) -> type[Query]:
        """The query's class.

        Raises:
            ConfigError: It cannot be imported, or is no usable query of this name.
        """
        if self.given is not None:
            return self.given
        offered = f'the query "{self.name}" that the package {self.package} offers ({self.place})'
        entry = metadata.EntryPoint(self.name, self.place, QUERY_GROUP)
        try:
            found = entry.load()
        except Exception as error:
            raise ConfigError(
                f"{offered} cannot be loaded ({type(error).__name__}: {error})."
            ) from error
        try:
            check_query_class(found)
        except ConfigError as error:
            raise ConfigError(f"{offered} cannot be asked: {error}") from None
        if found.name != self.name:
            raise ConfigError(f'{offered} calls itself "{found.name}".')
        loaded: type[Query] = found
        return loaded


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
        place = f"{query.__module__}:{query.__qualname__}"
        _add(known, KnownQuery(name=query.name, place=place, given=query))
    for offered in _offered():
        _add(known, offered)
    return known


def _add(known: dict[str, KnownQuery], query: KnownQuery) -> None:
    """Take a question in; a package may offer what the app was made with, or what another does."""
    other = known.setdefault(query.name, query)
    if other is query or (query.package and other.place == query.place):
        return
    by = [f"{one.place} of {one.package}" if one.package else one.place for one in (other, query)]
    raise ConfigError(
        f'two questions are called "{query.name}": {by[0]} and {by[1]}; a name stands for one '
        "question, so rename one of them or remove its package."
    )


@cache
def _offered() -> tuple[KnownQuery, ...]:
    """What installed packages offer, looked up once in a process; nothing is imported."""
    found = []
    for entry in metadata.entry_points(group=QUERY_GROUP):
        package = entry.dist.name if entry.dist is not None else "unknown"
        if is_query_name(entry.name):
            found.append(KnownQuery(name=entry.name, place=entry.value, package=package))
        else:
            logger.warning(
                'the package %s offers the query "%s", which is no name of a question: small '
                "letters, digits and underscores",
                package,
                entry.name,
            )
    return tuple(sorted(found, key=lambda query: (query.name, query.package)))
