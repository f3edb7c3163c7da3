"""The server: public mid-training, configured by the run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import PublicMidTraining

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a model on the users' own text, with training on public text between two halves."""
    PublicMidTraining.from_run_config(context.run_config).start(grid)
