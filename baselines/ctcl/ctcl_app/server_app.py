"""The server: a histogram of topics, training on the nodes, and texts by the one of the other."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Adapt a generator to the users' text and have it write."""
    strategy_of(context.run_config).start(grid)
