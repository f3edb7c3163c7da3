"""The server: private evolution without a model, and when each message left and came back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import PrivateEvolution
from flower_privsyn.strategies import PrivateEvolutionConfig
from flower_privsyn.testing import HashEmbedder, ShuffleWords

app = ServerApp()


def watch(grid: Grid) -> dict[str, dict[str, Any]]:
    """By message, its step and its seconds; filled in while the grid is used."""
    seen: dict[str, dict[str, Any]] = {}
    push, pull = grid.push_messages, grid.pull_messages

    def push_messages(messages: Iterable[Message]) -> list[str]:
        sent, begun = list(messages), time.time()
        names = list(push(sent))
        for name, message in zip(names, sent, strict=True):
            seen[name] = {"step": message.metadata.message_type, "sent": begun}
        return names

    def pull_messages(names: Iterable[str]) -> list[Message]:
        replies = list(pull(names))
        for reply in replies:
            about = seen[reply.metadata.reply_to_message_id]
            about |= {"received": time.time(), "failed": reply.has_error()}
        return replies

    grid.push_messages, grid.pull_messages = push_messages, pull_messages  # type: ignore[method-assign]
    return seen


def ask(grid: Grid, run_config: Mapping[str, Any]) -> None:
    """Run, and write down the times beside the run directory."""
    beside = Path(str(run_config["run-dir"]))
    public = beside.with_suffix(".public.jsonl")
    rows = [
        {"text": f"public text {number}"} for number in range(int(run_config["num-candidates"]))
    ]
    public.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = PrivateEvolutionConfig.from_run_config({**run_config, "public-text": str(public)})
    config = replace(config, synthetic_samples=0)
    seen = watch(grid)
    method = PrivateEvolution(config, embedder=HashEmbedder(), variation=ShuffleWords())
    try:
        method.start(grid)
    finally:
        beside.with_suffix(".messages.json").write_text(json.dumps(seen))


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run."""
    ask(grid, context.run_config)
