"""Which questions a client app answers: the bundled ones, its own, and those of other packages.

A package offers a question by an entry point of the group "flower_privsyn.queries":

    [project.entry-points."flower_privsyn.queries"]
    text_lengths = "my_package.queries:TextLengths"
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from inspect import isabstract
from typing import Any, Final

from flower_privsyn.errors import ConfigError
from flower_privsyn.queries import QUERIES, Query

#: Entry points of this group are queries.
QUERY_GROUP: Final = "flower_privsyn.queries"

#: Message types are made of names, and one is taken.
_NAME: Final = re.compile(r"(?!prepare$)[a-z][a-z0-9_]{0,63}")


def is_query_name(name: object) -> bool:
    """Whether a question can be called that."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_query_class(query: object) -> None:
    """Refuse a class whose questions nobody could ask.

    Raises:
        ConfigError: It is no concrete, decorated subclass of `Query` with a usable name.
    """
    concrete = isinstance(query, type) and issubclass(query, Query) and not isabstract(query)
    # A subclass of another question has its decorator, and not its own fields.
    decorated = concrete and "__dataclass_params__" in vars(query)
    if not decorated or not is_query_name(getattr(query, "name", None)):
        raise ConfigError(
            f"queries must be classes that define all of flower_privsyn.queries.Query, decorated "
            "with @dataclass(frozen=True, kw_only=True), each with a name of small letters, digits "
            f'and underscores other than "prepare", got {query!r}.'
        )


def known_queries(own: Sequence[type[Query]]) -> dict[str, type[Query]]:
    """All questions that an app can be asked, by name.

    Args:
        own: those the app was made with.

    Raises:
        ConfigError: One of them is unusable, or a name stands for two questions.
    """
    known: dict[str, type[Query]] = {query.name: query for query in QUERIES}
    for query in (*own, *_offered()):
        check_query_class(query)
        if known.setdefault(query.name, query) is not query:
            raise ConfigError(
                f'two questions are called "{query.name}": a name stands for one question, so '
                "rename one of them or remove its package."
            )
    return known


@cache
def _offered() -> tuple[Any, ...]:
    """What installed packages offer, looked up once in a process."""
    return tuple(point.load() for point in metadata.entry_points(group=QUERY_GROUP))
