"""The server: one question, one release, and a writer that learns from what it chose."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask once, choose public text by the answer, and write after it."""
    strategy_of(context.run_config).start(grid)
