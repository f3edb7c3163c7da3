"""The server: the strategy that `strategy` names, configured by the run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import POPri
from flower_privsyn.errors import ConfigError

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a generator on what users' noised answers prefer."""
    given = dict(context.run_config)
    method = given.pop("strategy")
    if method not in ("popri", "pe-sft"):
        raise ConfigError(f'strategy must be "popri" or "pe-sft", got {method!r}')
    if method == "pe-sft":
        given["loss"] = "sft"
    POPri.from_run_config(given).start(grid)
