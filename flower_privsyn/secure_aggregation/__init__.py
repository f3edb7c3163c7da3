"""Secure aggregation: sums of vectors of 64-bit numbers that show nobody's own.

Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", in its
version against a server that does as it likes, on a graph as in Bell et al. 2020, "Secure
Single-Server Aggregation with (Poly)Logarithmic Overhead". Pure functions over bytes and numbers:
nothing here knows Flower, a method or where noise comes from.
"""

from flower_privsyn.secure_aggregation.keys import NodeKey
from flower_privsyn.secure_aggregation.node import (
    Advertised,
    Agreed,
    Masked,
    Sealed,
    Shared,
    State,
    Unmasking,
    advertise,
    agree,
    mask,
    receive,
    share,
    unmask,
)
from flower_privsyn.secure_aggregation.roster import KeyCard, Roster, Session
from flower_privsyn.secure_aggregation.server import ServerRound
from flower_privsyn.secure_aggregation.terms import Terms, graph_of

__all__ = [
    "Advertised",
    "Agreed",
    "KeyCard",
    "Masked",
    "NodeKey",
    "Roster",
    "Sealed",
    "ServerRound",
    "Session",
    "Shared",
    "State",
    "Terms",
    "Unmasking",
    "advertise",
    "agree",
    "graph_of",
    "mask",
    "receive",
    "share",
    "unmask",
]
