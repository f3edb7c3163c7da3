"""Settings of small runs that train on the nodes, without noise where no budget is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

Config = TypeVar("Config")


def small_training(
    kind: Callable[..., Config],
    run_dir: Path,
    *,
    noises: Sequence[str] = ("noise_multiplier",),
    **settings: Any,
) -> Callable[..., Config]:
    """A builder of settings; keyword arguments replace them.

    Args:
        kind: the settings' class.
        run_dir: of the run.
        noises: what is 0 where `epsilon` is not given.
        settings: of this kind, beside those that all small runs have.
    """

    def build(**changes: Any) -> Config:
        values: dict[str, Any] = {
            "local_learning_rate": 0.5,
            "clip_norm": 0.05,
            "max_tokens": 32,
            "run_dir": str(run_dir),
            "node_timeout": 0.2,
            "accept_noise": True,
            **settings,
            **changes,
        }
        if "epsilon" not in values:
            values = dict.fromkeys(noises, 0.0) | values
        return kind(**values)

    return build
