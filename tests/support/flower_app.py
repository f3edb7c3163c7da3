"""A small Flower app for tests: one question to every node, then whatever the test asks for."""

from __future__ import annotations

from pathlib import Path

_PYPROJECT = """
[project]
name = "{name}"
version = "1.0.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "asking.server_app:app"
clientapp = "asking.client_app:app"

[tool.flwr.app.config]
{config}
num-nodes = 1
behaviour = "finish"
epsilon = 7.58
note = "a text"
"""

_CLIENT = """
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query("ask")
def ask(message: Message, context: Context) -> Message:
    return Message(RecordDict({"answer": MetricRecord({"one": 1})}), reply_to=message)
"""

_SERVER = """
import os
import time
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from flower_privsyn.run import RunDirectory

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    behaviour = config["behaviour"]
    run = RunDirectory.start(
        config["run-dir"], config=dict(config), resume=bool(config["resume"])
    )
    with run.session():
        with run.progress().stage("ask the nodes", config["num-nodes"]) as stage:
            while len(nodes := list(grid.get_node_ids())) < config["num-nodes"]:
                time.sleep(0.1)
            messages = [Message(RecordDict(), node, "query.ask") for node in nodes]
            for reply in grid.send_and_receive(messages):
                stage.update(int(reply.content["answer"]["one"]))
        line = {"answers": stage.done, "folder": os.getcwd(), "start": run.state["starts"]}
        run.log_metrics(line)
        if behaviour == "hang":
            with run.progress().stage("hang"):
                while not (run.path / "go-on").exists():
                    time.sleep(0.1)
        run.finish_round(1)
        run.write_synthetic(
            [{"text": f"text {n}", "round": 1, "parent": None, "source": "x"} for n in range(5)]
        )
        run.mark_finished({"answers": stage.done})
"""


def write_app(folder: Path, *, name: str = "asking-app", run_directory: bool = True) -> Path:
    """Write the app into a folder and return it."""
    (folder / "asking").mkdir(parents=True)
    config = 'run-dir = ""\nresume = false' if run_directory else ""
    (folder / "pyproject.toml").write_text(_PYPROJECT.format(name=name, config=config))
    (folder / "asking" / "__init__.py").touch()
    (folder / "asking" / "client_app.py").write_text(_CLIENT)
    (folder / "asking" / "server_app.py").write_text(_SERVER)
    return folder
