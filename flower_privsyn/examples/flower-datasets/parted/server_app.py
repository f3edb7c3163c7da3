"""The server: one strategy, configured by the run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what `strategy` names; `dataset` is a key of the nodes."""
    strategy_of(context.run_config, other_keys=["dataset"]).start(grid)
