"""The server: a sketch, a student made of it, and training on the nodes, configured by the run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask once, make a student of the answer, and train it on the users' own text."""
    strategy_of(context.run_config).start(grid)
