"""What the owner of a node allows, and the account a node keeps over all runs and all servers."""

from flower_privsyn.node.account import NodeAccount, NodeLedger
from flower_privsyn.node.charge import Charge
from flower_privsyn.node.guard import Announcement, NodeGuard, ToCome, in_simulation, simulated
from flower_privsyn.node.models import model_digest
from flower_privsyn.node.policy import NodePolicy, find_policy, policy_file, policy_text
from flower_privsyn.node.secure import (
    RoundStore,
    check_state_folder,
    key_file,
    make_node_key,
    read_node_key,
)

__all__ = [
    "Announcement",
    "Charge",
    "NodeAccount",
    "NodeGuard",
    "NodeLedger",
    "NodePolicy",
    "RoundStore",
    "ToCome",
    "check_state_folder",
    "find_policy",
    "in_simulation",
    "key_file",
    "make_node_key",
    "model_digest",
    "policy_file",
    "policy_text",
    "read_node_key",
    "simulated",
]
