"""The server: one strategy, configured by the run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import PrivateEvolution

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Evolve public text towards the users' text."""
    PrivateEvolution.from_run_config(context.run_config).start(grid)
