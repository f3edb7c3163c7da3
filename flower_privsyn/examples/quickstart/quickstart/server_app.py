"""The server: one strategy, configured by the run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import PrivateEvolution, PrivateEvolutionConfig

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Evolve public text towards the users' text."""
    config = PrivateEvolutionConfig.from_run_config(context.run_config)
    PrivateEvolution(config).start(grid)
