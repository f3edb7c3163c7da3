"""A ready ServerApp: `serverapp = "flower_privsyn.strategies.default:app"` in a Flower app.

It runs the strategy that `strategy` in the run configuration names.
"""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn.catalogue import strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy of `context.run_config`."""
    strategy_of(context.run_config).start(grid)
