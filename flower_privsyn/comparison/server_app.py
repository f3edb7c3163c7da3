"""The server of one run of a comparison: the strategy that the run's settings name."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn.strategies import strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy of `context.run_config`."""
    strategy_of(context.run_config).start(grid)
