"""The server: public mid-training, configured by the run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import PublicMidTraining, PublicMidTrainingConfig

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a model on the users' own text, with training on public text between two halves."""
    config = PublicMidTrainingConfig.from_run_config(context.run_config)
    PublicMidTraining(config).start(grid)
