"""Where processes listen."""

from __future__ import annotations

import psutil


def addresses(pids: list[int]) -> set[str]:
    """Where these processes listen, written as IPv4 where it is that."""
    found = set()
    for pid in pids:
        try:
            sockets = psutil.Process(pid).net_connections(kind="inet")
        except psutil.Error:
            continue
        found |= {
            each.laddr.ip.removeprefix("::ffff:")
            for each in sockets
            if each.status == psutil.CONN_LISTEN
        }
    return found
