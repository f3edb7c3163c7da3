"""The server: the strategy that `strategy` names, configured by the run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import strategy_of
from flower_privsyn.errors import ConfigError

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a model on the users' own text, seen as noised sums of clipped updates."""
    method = context.run_config["strategy"]
    if method not in ("dp-fedavg", "dp-ftrl"):
        raise ConfigError(f'strategy must be "dp-fedavg" or "dp-ftrl", got {method!r}')
    strategy_of(context.run_config).start(grid)
