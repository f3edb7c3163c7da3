"""What processes do that charge one owner's account: none of them imports what tests need."""

from __future__ import annotations

import math

from flower_privsyn.client_apps.account import Charge, NodeLedger
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.errors import NotAllowedError


def charge_all(charges: list[Charge]) -> None:
    """Charge an account that allows anything, one after the other."""
    for charge in charges:
        NodeLedger("people").charge(charge, NodePolicy(max_epsilon=math.inf))


def allowed(charge: Charge, max_epsilon: float) -> bool:
    """Charge an account with a limit, and say whether it allowed that."""
    try:
        NodeLedger("people").charge(charge, NodePolicy(max_epsilon=max_epsilon))
    except NotAllowedError:
        return False
    return True
