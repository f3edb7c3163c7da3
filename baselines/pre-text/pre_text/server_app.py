"""The server: one strategy, configured by the run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Evolve public text towards the users' text."""
    strategy_of(context.run_config).start(grid)
