"""Settings of small runs that train on the nodes, without noise where no budget is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from flower_privsyn.strategies import PublicMidTrainingConfig

Config = TypeVar("Config")

EPSILON_8 = {"epsilon": 8.0}


def small_run(
    kind: Callable[..., Config],
    run_dir: Path,
    *,
    otherwise: Mapping[str, float] = EPSILON_8,
    **settings: Any,
) -> Callable[..., Config]:
    """A builder of settings; keyword arguments replace them.

    Args:
        kind: the settings' class.
        run_dir: of the run.
        otherwise: the privacy where neither epsilon nor a noise multiplier is given.
        settings: of this kind.
    """

    def build(**changes: Any) -> Config:
        common = {"run_dir": str(run_dir), "node_timeout": 0.2, "accept_noise": True}
        values: dict[str, Any] = {**common, **settings, **changes}
        stated = {"epsilon", "noise_multiplier"} & values.keys()
        return kind(**values, **({} if stated else otherwise))

    return build


def small_mid_training(
    run_dir: Path, *, lstm: Path, gpt2: Path, public_file: Path, **settings: Any
) -> Callable[..., PublicMidTrainingConfig]:
    """A builder of settings of public mid-training; keyword arguments replace them.

    Args:
        run_dir: of the run.
        lstm: the model that is trained.
        gpt2: the teacher, and what reads public text.
        public_file: that text.
        settings: beside these.
    """
    return small_training(
        PublicMidTrainingConfig,
        run_dir,
        model=str(lstm),
        teacher=str(gpt2),
        public_model=str(gpt2),
        public_text=str(public_file),
        select_share=0.5,
        least_row_tokens=5,
        student_steps=3,
        training_batch_size=4,
        **settings,
    )


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
