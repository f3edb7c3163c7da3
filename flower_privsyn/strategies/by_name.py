"""Strategies by name, for apps in which the run configuration chooses the method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from flower_privsyn.errors import ConfigError
from flower_privsyn.private_path.engine import PrivateSumStrategy
from flower_privsyn.private_path.settings import PrivateSumConfig
from flower_privsyn.strategies.catalogue import entries, refusals


class _Strategies(Mapping[str, tuple[type[PrivateSumConfig], type[PrivateSumStrategy]]]):
    """The classes of the catalogue, each loaded when it is looked up."""

    def __getitem__(self, name: str) -> tuple[type[PrivateSumConfig], type[PrivateSumStrategy]]:
        return entries()[name].classes()

    def __contains__(self, name: object) -> bool:
        return name in entries()

    def __iter__(self) -> Iterator[str]:
        return iter(entries())

    def __len__(self) -> int:
        return len(entries())


#: Settings and strategy by the value of the key `strategy`.
STRATEGIES: Final[Mapping[str, tuple[type[PrivateSumConfig], type[PrivateSumStrategy]]]] = (
    _Strategies()
)


def configuration_of(run_config: Mapping[str, Any]) -> PrivateSumConfig:
    """The settings of the strategy that the key `strategy` names.

    Args:
        run_config: `context.run_config` of an app that declares `strategy` and the keys of all
            strategies it may name. Keys of the other strategies are left alone.

    Raises:
        ConfigError: There is no such strategy, a key belongs to none of them, or a value has the
            wrong type or is out of range.
    """
    name = run_config.get("strategy")
    if name not in STRATEGIES:
        raise ConfigError(f"strategy must be {listed_strategies()}, got {name!r}")
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
        ConfigError: See `configuration_of`.
    """
    return built(STRATEGIES[str(run_config["strategy"])][1], configuration_of(run_config))


def built(strategy: type[PrivateSumStrategy], settings: PrivateSumConfig) -> PrivateSumStrategy:
    """A strategy of one of these classes, which take their settings alone.

    Args:
        strategy: of `STRATEGIES`.
        settings: of its own class.
    """
    made: Any = strategy
    return cast("PrivateSumStrategy", made(settings))


def listed_strategies() -> str:
    """The names to choose from, in words, and why others are not among them."""
    listed = ", ".join(f'"{name}"' for name in STRATEGIES)
    return f"one of {listed}" + "".join(f" ({sentence})" for sentence in refusals())
