"""What a node keeps between two messages, as bytes for its disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from flower_privsyn.errors import ProtocolError
from flower_privsyn.secure_aggregation.node import Advertised, Agreed, Masked, Shared
from flower_privsyn.secure_aggregation.roster import KeyCard, Roster, Session
from flower_privsyn.secure_aggregation.terms import Terms

#: What a node keeps between two messages of a round.
State: TypeAlias = Advertised | Shared | Masked | Agreed


def session_of(state: State) -> Session:
    """The round that a state belongs to."""
    if isinstance(state, Agreed):
        state = state.masked
    return state.session if isinstance(state, Advertised) else state.roster.session


def pack_state(state: State) -> bytes:
    """A state as JSON. It holds secrets."""
    values: dict[str, Any] = {"step": type(state).__name__}
    if isinstance(state, Agreed):
        values["survivors"] = sorted(state.survivors)
        state = state.masked
    if isinstance(state, Advertised):
        session = state.session
        values |= {
            "card": state.card.to_bytes().hex(),
            "seal_secret": state.seal_secret.hex(),
            "mask_secret": state.mask_secret.hex(),
        }
    else:
        session = state.roster.session
        values |= {
            "name": state.name,
            "terms": [state.roster.terms.least_nodes, state.roster.terms.colluding],
            "cards": [card.to_bytes().hex() for card in state.roster.cards.values()],
        }
    if isinstance(state, Shared):
        values |= {
            "seal_secret": state.seal_secret.hex(),
            "mask_secret": state.mask_secret.hex(),
            "self_seed": state.self_seed.hex(),
        }
    if isinstance(state, Masked):
        values |= {
            "active": sorted(state.active),
            "context": state.context.hex(),
            "shares": {
                str(name): [one.hex() for one in pair] for name, pair in state.shares.items()
            },
        }
    values["session"] = [session.run, session.round_number]
    return json.dumps(values).encode()


def unpack_state(data: bytes) -> State:
    """Read what `pack_state` wrote.

    Raises:
        ProtocolError: It is damaged.
    """
    try:
        return _unpacked(json.loads(data))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError("what this node kept of the round is damaged") from error


def _unpacked(values: Mapping[str, Any]) -> State:
    step = values["step"]
    session = Session(run=values["session"][0], round_number=values["session"][1])
    if step == "Advertised":
        return Advertised(
            session=session,
            card=KeyCard.from_bytes(bytes.fromhex(values["card"])),
            seal_secret=bytes.fromhex(values["seal_secret"]),
            mask_secret=bytes.fromhex(values["mask_secret"]),
        )
    name = int(values["name"])
    roster = Roster(session, _terms(values["terms"]), _cards(values["cards"]))
    if step == "Shared":
        return Shared(
            name=name,
            roster=roster,
            seal_secret=bytes.fromhex(values["seal_secret"]),
            mask_secret=bytes.fromhex(values["mask_secret"]),
            self_seed=bytes.fromhex(values["self_seed"]),
        )
    masked = Masked(
        name=name,
        roster=roster,
        active=frozenset(values["active"]),
        context=bytes.fromhex(values["context"]),
        shares={
            int(other): (bytes.fromhex(pair[0]), bytes.fromhex(pair[1]))
            for other, pair in values["shares"].items()
        },
    )
    if step == "Masked":
        return masked
    if step == "Agreed":
        return Agreed(masked=masked, survivors=frozenset(values["survivors"]))
    raise ValueError(step)


def _terms(values: Iterable[int]) -> Terms:
    least, colluding = values
    return Terms(least_nodes=least, colluding=colluding)


def _cards(values: Iterable[str]) -> list[KeyCard]:
    return [KeyCard.from_bytes(bytes.fromhex(one)) for one in values]
