"""`privsyn simulate`: users from public text, for measuring seconds and memory."""

from __future__ import annotations

from typing import Annotated

from flower_privsyn.cli.options import Seed, option
from flower_privsyn.cli.signals import ended_by_signals
from flower_privsyn.files import expanded


def simulate(
    users: Annotated[int, option("N")],
    output: Annotated[str, option("FILE", "to write: .jsonl or .parquet")],
    samples_per_user: Annotated[int, option("N")] = 5,
    seed: Seed = 0,
) -> int:
    """Write users who quote the bundled public passages, each with a topic of their own.

    For measuring seconds and memory; they say nothing about quality.
    """
    from flower_privsyn.data import simulate_users
    from flower_privsyn.host.progress import ShownProgress
    from flower_privsyn.host.terminal import follower

    file = expanded(output).absolute()
    with (
        ended_by_signals(),
        follower() as follow,
        ShownProgress(follow).stage("Write users", users) as stage,
    ):
        rows = simulate_users(
            file,
            users=users,
            samples_per_user=samples_per_user,
            seed=seed,
            progress=stage.update,
        )
    print(f"{file}: {users:,} users, {rows:,} texts ({file.stat().st_size:,} bytes)")
    print("For tests of scale: nobody wrote these texts, and they show no method's quality.")
    return 0
