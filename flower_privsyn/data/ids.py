"""Ids of users that look as if one person had several, or several people one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

#: What tables write where nobody is named.
_NOBODY: Final = frozenset({"null", "none", "nan", "na", "n/a", "nil", "unknown", "undefined", "-"})


def odd_ids(user_ids: Iterable[str]) -> str:
    """What is odd about ids, in words without any id; "" where nothing is.

    Args:
        user_ids: of the users of a file, each once.
    """
    plain = [user.strip().casefold() for user in user_ids]
    same = Counter(user.lstrip("0") or "0" for user in plain)
    alike = sum(count for count in same.values() if count > 1)
    nobody = sum(user in _NOBODY for user in plain)
    said = []
    if alike:
        said.append(
            f"{alike:,} ids differ from another one in blanks, capitals or leading zeros alone: a "
            "person with two ids is protected less than is stated"
        )
    if nobody:
        said.append(
            f"{nobody:,} {'ids are words' if nobody > 1 else 'id is a word'} for nobody, such as "
            "null or nan: their texts count as those of one person"
        )
    return "; ".join(said)
