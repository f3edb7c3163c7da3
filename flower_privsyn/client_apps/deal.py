"""On how many nodes of a simulation one user is: what the sensitivity of a sum rests on.

In a deployment nobody can check it: no node sees another one's users. The nodes of a simulation
run on one machine for one owner, so there they can keep one list.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.files import own_folder

_BUSY_SECONDS = 60.0
_KEPT_SECONDS = 7 * 24 * 3600.0


def check_deal(
    directory: Path, *, run_id: int, node_id: int, user_ids: Sequence[str], max_nodes: int
) -> None:
    """Note a node's users, and refuse a user who is on too many nodes of the run.

    Args:
        directory: the node's cache, which the nodes of one machine share; a list of hashes is kept
            there for a week.
        run_id: of the run; lists of two runs have nothing to do with each other.
        node_id: whose users they are.
        user_ids: who they are.
        max_nodes: on how many nodes one user may be.

    Raises:
        ConfigError: A user is on more nodes than that. The sentence names nobody.
        DataError: The list cannot be kept.
    """
    key = run_id.to_bytes(16, "big", signed=True)
    hashes = [
        hashlib.blake2b(user.encode(), digest_size=16, key=key, person=b"privsyn-deal").digest()
        for user in user_ids
    ]
    try:
        path = _looked_at(_swept(directory, run_id) / f"{run_id}.sqlite")
        with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)) as deal:
            # One node after the other: of two that share a user the second one sees the first.
            deal.execute("BEGIN IMMEDIATE")
            deal.execute(
                "CREATE TABLE IF NOT EXISTS deal (user BLOB, node TEXT, PRIMARY KEY (user, node)) "
                "WITHOUT ROWID"
            )
            deal.executemany(
                "INSERT OR IGNORE INTO deal VALUES (?, ?)",
                ((user, str(node_id)) for user in hashes),
            )
            (users, most) = deal.execute(
                "SELECT count(*), max(nodes) FROM (SELECT count(*) AS nodes FROM deal WHERE user "
                "IN (SELECT user FROM deal WHERE node = ?) GROUP BY user HAVING nodes > ?)",
                (str(node_id), max_nodes),
            ).fetchone()
            deal.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        raise _untold(directory, error) from None
    if users:
        raise ConfigError(
            f"the app's recipe puts {users} users of this node on {most} nodes, where "
            f"max-nodes-per-user = {max_nodes}: give every node users of its own, or set "
            "max-nodes-per-user, for more noise."
        )


def _swept(directory: Path, run_id: int) -> Path:
    """The folder of what is noted of runs, without those of long ago."""
    folder = directory / "deals"
    for place in (directory, folder):
        own_folder(place)
    for old in folder.glob("*.sqlite*"):
        if old.name.startswith(f"{run_id}."):
            continue  # a run may take longer: without it every deal would be its first
        # A journal ends with the transaction of the node that it belongs to.
        with suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
                old.unlink()
    return folder


def _looked_at(path: Path) -> Path:
    """What is noted of a run, kept from other runs for as long as from now on."""
    with suppress(FileNotFoundError):
        os.utime(path)
    return path


def _untold(directory: Path, error: Exception) -> DataError:
    return DataError(
        f"{directory / 'deals'} cannot be written ({type(error).__name__}), so nobody can tell on "
        "how many nodes a user is."
    )
