"""Whether a question's parameters reach the nodes as they are."""

from __future__ import annotations

from typing import Final

from flwr.app import ConfigRecord

from flower_privsyn.errors import ConfigError
from flower_privsyn.queries import Query

_CARRIED: Final = (
    "a whole number of 64 bits, a number, a text, bytes, true or false, or a tuple of one of these"
)


def refuse_uncarried(query: Query) -> None:
    """Refuse a question that nodes would not get, or would get as another one.

    What a message holds is the question after a journey through `to_wire`, a record of Flower and
    `from_wire`. One that fails there would fail in every round, once the round is charged.

    Args:
        query: that a run may ask.

    Raises:
        ConfigError: a parameter is of a kind that Flower does not carry, or comes back as another.
    """
    sent = query.to_wire()
    arrived = {}
    for key, value in sent.items():
        try:
            record = ConfigRecord({key: value})
            arrived[key] = ConfigRecord.inflate(record.deflate())[key]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the parameter {key.replace('-', '_')} of the query {query.name} is {value!r} "
                f"({type(value).__name__}), which Flower's messages do not carry: it must be "
                f"{_CARRIED}"
            ) from error
    try:
        received = type(query).from_wire(arrived).to_wire()
    except Exception as error:
        raise ConfigError(
            f"the query {query.name} cannot be made of its own parameters ({', '.join(sent)}) "
            f"after a message has carried them ({type(error).__name__}: {error}): its `from_wire` "
            "must take what its `to_wire` gives"
        ) from error
    changed = [key for key in sent if key not in received or received[key] != sent[key]]
    if changed:
        raise ConfigError(
            f"the parameter {changed[0].replace('-', '_')} of the query {query.name} is "
            f"{sent[changed[0]]!r} and arrives on a node as {received.get(changed[0])!r}: its "
            "`from_wire` must make the same query of what its `to_wire` gives"
        )
