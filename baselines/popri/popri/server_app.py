"""The server: the strategy that `strategy` names, configured by the run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import ConfigError, KernelSketch, KernelSketchConfig, POPri, POPriConfig

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a generator on what users' noised answers prefer."""
    given = dict(context.run_config)
    method = given.pop("strategy")
    shared = POPriConfig.keys() & KernelSketchConfig.keys()
    if method in ("popri", "pe-sft"):
        if method == "pe-sft":
            given["loss"] = "sft"
        others = KernelSketchConfig.keys() - shared
        POPri(POPriConfig.from_run_config(given, other_keys=others)).start(grid)
    elif method == "kernel-sketch":
        # Users are asked once. The rounds in which POPri asks again are refinement here.
        given |= {"refinement-rounds": given["num-rounds"], "num-rounds": 1}
        others = POPriConfig.keys() - shared
        KernelSketch(KernelSketchConfig.from_run_config(given, other_keys=others)).start(grid)
    else:
        raise ConfigError(f'strategy must be "popri", "pe-sft" or "kernel-sketch", got {method!r}')
