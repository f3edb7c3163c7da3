"""Strategies by name, for apps in which the run configuration chooses the method."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from flower_privsyn.errors import ConfigError
from flower_privsyn.private_path.engine import PrivateSumStrategy
from flower_privsyn.private_path.settings import PrivateSumConfig
from flower_privsyn.strategies.dp_fedavg import DPFedAvg, DPFedAvgConfig
from flower_privsyn.strategies.dp_ftrl import DPFTRL, DPFTRLConfig
from flower_privsyn.strategies.kernel_sketch import KernelSketch, KernelSketchConfig
from flower_privsyn.strategies.popri import POPri, POPriConfig
from flower_privsyn.strategies.private_evolution import PrivateEvolution, PrivateEvolutionConfig

#: Settings and strategy by the value of the key `strategy`.
STRATEGIES: Final[Mapping[str, tuple[type[PrivateSumConfig], type[PrivateSumStrategy]]]] = (
    MappingProxyType(
        {
            "private-evolution": (PrivateEvolutionConfig, PrivateEvolution),
            "popri": (POPriConfig, POPri),
            "kernel-sketch": (KernelSketchConfig, KernelSketch),
            "dp-fedavg": (DPFedAvgConfig, DPFedAvg),
            "dp-ftrl": (DPFTRLConfig, DPFTRL),
        }
    )
)


def configuration_of(run_config: Mapping[str, Any]) -> PrivateSumConfig:
    """The settings of the strategy that the key `strategy` names.

    Args:
        run_config: `context.run_config` of an app that declares `strategy` and the keys of all
            strategies it may name. Keys of the other strategies are left alone.

    Raises:
        ConfigError: there is no such strategy, a key belongs to none of them, or a value has the
            wrong type or is out of range.
    """
    name = run_config.get("strategy")
    if name not in STRATEGIES:
        listed = ", ".join(f'"{known}"' for known in STRATEGIES)
        raise ConfigError(f"strategy must be one of {listed}, got {name!r}")
    config = STRATEGIES[str(name)][0]
    every = frozenset().union(*(other.keys() for other, _ in STRATEGIES.values()))
    return config.from_run_config(run_config, other_keys=(every - config.keys()) | {"strategy"})


def strategy_of(run_config: Mapping[str, Any]) -> PrivateSumStrategy:
    """The strategy that the key `strategy` names, with its settings from the run configuration.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            strategy_of(context.run_config).start(grid)
        ```

    Raises:
        ConfigError: see `configuration_of`.
    """
    config = configuration_of(run_config)
    strategy: Any = STRATEGIES[str(run_config["strategy"])][1]
    built: PrivateSumStrategy = strategy(config)
    return built
