"""The server: public mid-training, configured by the run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a model on the users' own text, with training on public text between two halves."""
    strategy_of(context.run_config).start(grid)
