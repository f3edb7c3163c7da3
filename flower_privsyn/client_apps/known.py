"""Which questions a client app answers: the bundled ones, its own, and those of other packages.

A package offers a question by an entry point of the group "flower_privsyn.queries", whose name is
the query's:

    [project.entry-points."flower_privsyn.queries"]
    text_lengths = "my_package.queries:TextLengths"
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from typing import Final, TypeAlias

from flower_privsyn.errors import ConfigError
from flower_privsyn.queries import QUERIES, Query

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
    offered = f'the query "{known.name}" that a package offers as {known.value}'
    try:
        found: type[Query] = known.load()
        check_query_class(found)
    except Exception as error:
        raise ConfigError(
            f"{offered} cannot be asked ({type(error).__name__}: {error})."
        ) from error
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
    wrong, name = "", getattr(query, "name", None)
    if inspect.isabstract(query):
        missing = ", ".join(sorted(query.__abstractmethods__))
        wrong = f"is abstract: it does not give {missing}"
    elif "__dataclass_params__" not in query.__dict__:
        wrong = (
            "must be decorated with @dataclass(frozen=True, kw_only=True): its parameters are the "
            "fields"
        )
    elif not is_query_name(name):
        wrong = (
            "must have a name of small letters, digits and underscores other than "
            f'"prepare", such as "text_lengths", got {name!r}'
        )
    if wrong:
        raise ConfigError(f"query {query.__qualname__} {wrong}.")


def known_queries(own: Sequence[type[Query]]) -> dict[str, KnownQuery]:
    """All questions that an app can be asked, by name.

    Args:
        own: those the app was made with.

    Raises:
        ConfigError: One of the app's own is unusable, or a name stands for two questions.
    """
    for query in own:
        check_query_class(query)
    known: dict[str, KnownQuery] = {}
    found: list[KnownQuery] = [*QUERIES, *own, *_offered()]
    for one in found:
        other = known.setdefault(one.name, one)
        # A package may offer what the app was made with, or what another does.
        if other is not one and (isinstance(one, type) or _place(other) != _place(one)):
            raise ConfigError(
                f'two questions are called "{one.name}": {_place(other)} and {_place(one)}; a name '
                "stands for one question, so rename one of them or remove its package."
            )
    return known


def _place(known: KnownQuery) -> str:
    """Where the class is, as `module:name`."""
    if isinstance(known, type):
        return f"{known.__module__}:{known.__qualname__}"
    return known.value


@cache
def _offered() -> tuple[metadata.EntryPoint, ...]:
    """What installed packages offer, looked up once in a process; nothing is imported."""
    found = [one for one in metadata.entry_points(group=QUERY_GROUP) if is_query_name(one.name)]
    return tuple(sorted(found, key=lambda entry: (entry.name, entry.value)))
