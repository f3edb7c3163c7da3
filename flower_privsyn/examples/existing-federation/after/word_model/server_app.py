"""The same next-word model, learned from private synthetic text: nothing else leaves the nodes."""

import json

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from word_model.task import new_model, result, train

from flower_privsyn import PrivateEvolution

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Make synthetic text, then train on it at the server."""
    strategy = PrivateEvolution.from_run_config(context.run_config)
    strategy.start(grid)

    with strategy.run.synthetic_jsonl.open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    model, _ = train(new_model(), texts)
    print(result(model))
