"""Seconds of a round of secure aggregation, and of each of its messages, on loopback.

    python -m benchmarks.secure_rounds [--nodes 4 8 16] [--rounds 2] [--work FOLDER]

Starts a SuperLink and so many SuperNodes by processes, as examples/deployment has them (TLS, known
nodes, an owner's policy and key each), and runs `benchmarks/rounds-app`: 2,048 candidates, two
users a node, no model on any side, so what is measured is messages. A message takes from when the
server sends it to the slowest node's reply; a round, from its first message to its last reply. Of
one node's message there is told apart how long it waits for a process (SuperNode and SuperExec ask
every few seconds), how long the process takes to the package's first line (Python, Flower, the
app), the answer itself, and the way back (until the server has asked again). Medians over nodes
and rounds; the first exchange of a run, in which nodes fetch the app, is left out.

All nodes share this machine, as those of a federation do not: what processes wait for one another
grows with their number. Everything is stopped at the end of each size.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

from flower_privsyn.examples.deployment.loopback import Federation

APP = Path(__file__).parent / "rounds-app"
STEPS = ("sa_keys", "sa_shares", "sa_input", "sa_agree", "sa_unmask")
PARTS = ("waits for a process", "process starts", "answers", "way back", "CPU s")


def run(folder: Path, nodes: int, rounds: int, *, timeout: float) -> dict[str, Any]:
    """One run with so many nodes: its exchanges in order, and its messages."""
    folder.mkdir(parents=True)
    write_users(users := folder / "users.jsonl", nodes)
    federation = Federation(folder / "all", [f"owner-{number}" for number in range(1, nodes + 1)])
    federation.prepare(users)
    before = os.getloadavg()[0]
    try:
        federation.start()
        federation.submit(APP, f"num-rounds={rounds}")
        status = federation.wait(timeout=timeout)
    finally:
        federation.stop()
    if status != "finished":
        raise SystemExit(f"{status}: see {folder / 'all'}")
    messages = messages_of(folder / "all" / "run")
    return {
        "nodes": nodes,
        "exchanges": exchanges(messages),
        "messages": messages,
        "load": (before, os.getloadavg()[0]),
    }


def write_users(file: Path, nodes: int) -> None:
    """Two users a node, of one text each."""
    rows = [
        {"client_id": f"user-{number}", "text": f"a short text of user number {number}"}
        for number in range(2 * nodes)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def messages_of(run_dir: Path) -> list[dict[str, Any]]:
    """What server and nodes wrote down of every message of a run."""
    sent = json.loads(run_dir.with_suffix(".messages.json").read_text())
    lines = run_dir.with_suffix(".nodes.jsonl").read_text().splitlines()
    handled = {line["message"]: line for line in map(json.loads, lines)}
    return [{**about, **handled.get(name, {})} for name, about in sent.items()]


def exchanges(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The five exchanges of every round, in order, each with its seconds and what was lost.

    The messages of one exchange are sent together; those of the next after the last reply.
    """
    found: list[dict[str, Any]] = []
    for message in sorted(messages, key=lambda one: one["sent"]):
        step = message["step"].removeprefix("query.")
        if step not in STEPS:
            continue
        if not found or found[-1]["step"] != step:
            found.append({"step": step, "begun": message["sent"], "ended": 0.0, "lost": 0})
        found[-1]["ended"] = max(found[-1]["ended"], message.get("received", 0.0))
        found[-1]["lost"] += message.get("failed", True)
    return found


def table(line: dict[str, Any]) -> str:
    """A row: seconds of a round and of its messages, and where one node's message spends them."""
    every = line["exchanges"]
    rounds = [every[place : place + len(STEPS)] for place in range(0, len(every), len(STEPS))]
    seconds = [one[-1]["ended"] - one[0]["begun"] for one in rounds]
    steps = [
        statistics.median(one["ended"] - one["begun"] for one in every if one["step"] == step)
        for step in STEPS
    ]
    answered = [
        one for one in line["messages"]
        if one["step"].removeprefix("query.") in STEPS and "answered" in one and "received" in one
    ]  # fmt: skip
    parts = [
        statistics.median(one[end] - one[begin] for one in answered)
        for begin, end in (
            ("sent", "started"), ("started", "begun"), ("begun", "answered"),
            ("answered", "received"),
        )
    ]  # fmt: skip
    cpu = statistics.median(one["cpu_before"] + one["cpu_answer"] for one in answered)
    lost = sum(one["lost"] for one in every)
    return (
        f"| {line['nodes']} | {' / '.join(f'{one:.0f}' for one in seconds)} "
        f"| {' / '.join(f'{one:.0f}' for one in steps)} "
        f"| {' | '.join(f'{one:.1f}' for one in [*parts, cpu])} | {lost} "
        f"| {line['load'][0]:.0f} to {line['load'][1]:.0f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=3600.0)
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="privsyn-rounds-"))
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores; figures in seconds")
    print(f"| nodes | rounds | {' / '.join(STEPS)} | {' | '.join(PARTS)} | lost | load |")
    print(f"|{'---|' * (5 + len(PARTS))}")
    for nodes in options.nodes:
        line = run(work / f"{nodes}-nodes", nodes, options.rounds, timeout=options.timeout)
        (work / f"{nodes}-nodes.json").write_text(json.dumps(line))
        print(table(line), flush=True)


if __name__ == "__main__":
    main()
