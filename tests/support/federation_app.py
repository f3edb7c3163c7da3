"""A Flower app with fakes for models: private evolution of six users' text, at zero noise."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.federation import WORDS, make_users

_PYPROJECT = """
[project]
name = "six-users"
version = "1.0.0"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "six.server_app:app"
clientapp = "six.client_app:app"

[tool.flwr.app.config]
run-dir = ""
resume = false
num-nodes = 2
num-users = 6
num-rounds = 2
epsilon = -1.0
noise-multiplier = 0.0
accept-noise = true
min-users = -1
num-candidates = 24
lookahead = 1
clip = "l2"
public-text = ""
synthetic-samples = 0
generator = "privsyn-lm"
node-timeout = 120.0
behaviour = "honest"
app-does = ""
"""

_SERVER = """
import os
import signal
import sys
import threading
import time

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import PrivateEvolution
from flower_privsyn.strategies import PrivateEvolutionConfig
from flower_privsyn.testing import HashEmbedder, ShuffleWords

app = ServerApp()


def asking(context: Context, **others) -> PrivateEvolution:
    given = {**context.run_config, **others}
    config = PrivateEvolutionConfig.from_run_config(given, other_keys=["behaviour", "app-does"])
    return PrivateEvolution(config, embedder=HashEmbedder(), variation=ShuffleWords())


@app.main()
def main(grid: Grid, context: Context) -> None:
    does = context.run_config["app-does"]
    if does == "nothing":
        return
    if does == "fails before":
        raise RuntimeError("no credentials for the bucket")
    method = asking(context)

    def start() -> None:
        method.start(grid)

    if "thread" in does:
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
    else:
        start()
    if does == "two strategies, then fails":
        asking(context, **{"run-dir": context.run_config["run-dir"] + "-2"}).start(grid)
        raise RuntimeError("no credentials for the bucket")
    if does == "thread, long work, then exits":
        time.sleep(1.0)
        (method.run.path.parent / "worked").touch()
        sys.exit(3)
    if does == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""

_CLIENT = """
import json
from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp

from flower_privsyn import add_handlers
from flower_privsyn.data import Users
from flower_privsyn.testing import hash_embedder

ROWS = Path(__file__).parent / "users.json"


def load(context: Context) -> Users:
    if context.run_config["behaviour"] == "leak" and int(context.node_config["partition-id"]) == 0:
        raise RuntimeError("dear diary: " + ROWS.read_text()[:80])
    users = Users.from_rows(tuple(row) for row in json.loads(ROWS.read_text()))
    return users.partition(
        partition_id=int(context.node_config["partition-id"]),
        num_partitions=int(context.node_config["num-partitions"]),
    )


app = ClientApp()
add_handlers(app, load, embedder=hash_embedder)
"""


def write_app(folder: Path, *, num_users: int = 6) -> Path:
    """Write the app into a new folder and return it."""
    (folder / "six").mkdir(parents=True)
    public = folder / "public.jsonl"
    public.write_text(
        "".join(
            json.dumps(
                {"text": " ".join(WORDS[(i * 5 + k) % len(WORDS)] for k in range(9)) + f" {i}"}
            )
            + "\n"
            for i in range(40)
        )
    )
    (folder / "pyproject.toml").write_text(
        _PYPROJECT.replace('public-text = ""', f'public-text = "{public}"').replace(
            "num-users = 6", f"num-users = {num_users}"
        )
    )
    users = make_users(num_users)
    rows = [
        [users.user_ids[owner], text] for owner, text in zip(users.owners, users.texts, strict=True)
    ]
    (folder / "six" / "users.json").write_text(json.dumps(rows))
    (folder / "six" / "__init__.py").touch()
    (folder / "six" / "server_app.py").write_text(_SERVER)
    (folder / "six" / "client_app.py").write_text(_CLIENT)
    return folder
