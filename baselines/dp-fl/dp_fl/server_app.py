"""The server: the strategy that `strategy` names, configured by the run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a model on the users' own text, seen as noised sums of clipped updates."""
    strategy_of(context.run_config).start(grid)
