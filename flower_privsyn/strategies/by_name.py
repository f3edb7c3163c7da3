"""Strategies by name, for apps in which the run configuration chooses the method."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from flower_privsyn.errors import ConfigError
from flower_privsyn.run.settings import CLIENT_KEYS, PrivateSumConfig
from flower_privsyn.run.strategy import PrivateSumStrategy
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


def configuration_of(
    run_config: Mapping[str, Any], *, other_keys: Collection[str] = ()
) -> PrivateSumConfig:
    """The settings of the strategy that the key `strategy` names.

    Args:
        run_config: `context.run_config` of an app that declares `strategy` and the keys of all
            strategies it may name. Keys of the other strategies are left alone.
        other_keys: Keys that belong to the rest of your app.

    Raises:
        ConfigError: There is no such strategy, a key belongs to none of them, or a value has the
            wrong type or is out of range.
    """
    return _chosen(run_config)[0].from_run_config(
        run_config, other_keys={*_keys_of_others(run_config), "strategy", *other_keys}
    )


def strategy_of(
    run_config: Mapping[str, Any], *, other_keys: Collection[str] = ()
) -> PrivateSumStrategy:
    """The strategy that the key `strategy` names, with its settings from the run configuration.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            strategy_of(context.run_config, other_keys=["fraction-fit"]).start(grid)
        ```

    Args:
        run_config: See `configuration_of`.
        other_keys: The same.

    Raises:
        ConfigError: The same.
    """
    return _chosen(run_config)[1](configuration_of(run_config, other_keys=other_keys))


def own_keys(run_config: Mapping[str, Any]) -> frozenset[str]:
    """Keys of a run configuration with `strategy` that are no strategy's, but an app's own.

    Raises:
        ConfigError: There is no such strategy.
    """
    known = _chosen(run_config)[0].keys() | _keys_of_others(run_config) | CLIENT_KEYS
    return frozenset(run_config) - known - {"strategy"}


def _chosen(
    run_config: Mapping[str, Any],
) -> tuple[type[PrivateSumConfig], type[PrivateSumStrategy]]:
    name = run_config.get("strategy")
    if name not in STRATEGIES:
        raise ConfigError(f"strategy must be {listed_strategies()}, got {name!r}")
    return STRATEGIES[str(name)]


def _keys_of_others(run_config: Mapping[str, Any]) -> frozenset[str]:
    every = frozenset[str]().union(*(other.keys() for other, _ in STRATEGIES.values()))
    return every - _chosen(run_config)[0].keys()


def listed_strategies() -> str:
    """The names to choose from, in words, and why others are not among them."""
    listed = ", ".join(f'"{name}"' for name in STRATEGIES)
    return f"one of {listed}" + "".join(f" ({sentence})" for sentence in refusals())
