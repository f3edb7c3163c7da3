"""The server's half, one file per method.

The names below are imported on first use, so that the catalogue of methods can be read without
loading any of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower_privsyn.run.method import (
        Finding,
        Method,
        Question,
        RecordSource,
        ReleasedSum,
        RunContext,
        State,
    )
    from flower_privsyn.run.settings import CLIENT_KEYS, PrivateSumConfig
    from flower_privsyn.run.strategy import PrivateSumStrategy
    from flower_privsyn.strategies._moments import MomentSketch
    from flower_privsyn.strategies._training import (
        FederatedTraining,
        FederatedTrainingConfig,
    )
    from flower_privsyn.strategies.aug_pe import AugPE, AugPEConfig
    from flower_privsyn.strategies.by_name import STRATEGIES, configuration_of, strategy_of
    from flower_privsyn.strategies.catalogue import CatalogueEntry
    from flower_privsyn.strategies.ctcl import CTCL, CTCLConfig
    from flower_privsyn.strategies.dp_fedavg import DPFedAvg, DPFedAvgConfig
    from flower_privsyn.strategies.dp_ftrl import DPFTRL, DPFTRLConfig
    from flower_privsyn.strategies.fred import FreD, FreDConfig
    from flower_privsyn.strategies.hybrid import Hybrid, HybridConfig
    from flower_privsyn.strategies.joint_sketch import JointSketch, JointSketchConfig
    from flower_privsyn.strategies.popri import (
        POPri,
        POPriConfig,
        PreferenceTrainer,
    )
    from flower_privsyn.strategies.private_evolution import PrivateEvolution, PrivateEvolutionConfig
    from flower_privsyn.strategies.public_mid_training import (
        PublicMidTraining,
        PublicMidTrainingConfig,
    )

_HOMES = {
    "AugPE": "strategies.aug_pe",
    "AugPEConfig": "strategies.aug_pe",
    "CTCL": "strategies.ctcl",
    "CTCLConfig": "strategies.ctcl",
    "CLIENT_KEYS": "run.settings",
    "DPFTRL": "strategies.dp_ftrl",
    "STRATEGIES": "strategies.by_name",
    "CatalogueEntry": "strategies.catalogue",
    "DPFTRLConfig": "strategies.dp_ftrl",
    "DPFedAvg": "strategies.dp_fedavg",
    "DPFedAvgConfig": "strategies.dp_fedavg",
    "FederatedTraining": "strategies._training",
    "FederatedTrainingConfig": "strategies._training",
    "FreD": "strategies.fred",
    "FreDConfig": "strategies.fred",
    "Hybrid": "strategies.hybrid",
    "HybridConfig": "strategies.hybrid",
    "JointSketch": "strategies.joint_sketch",
    "JointSketchConfig": "strategies.joint_sketch",
    "Method": "run.method",
    "MomentSketch": "strategies._moments",
    "POPri": "strategies.popri",
    "POPriConfig": "strategies.popri",
    "PreferenceTrainer": "strategies.popri",
    "PrivateEvolution": "strategies.private_evolution",
    "PrivateEvolutionConfig": "strategies.private_evolution",
    "PrivateSumConfig": "run.settings",
    "PrivateSumStrategy": "run.strategy",
    "PublicMidTraining": "strategies.public_mid_training",
    "PublicMidTrainingConfig": "strategies.public_mid_training",
    "Question": "run.method",
    "RecordSource": "run.method",
    "ReleasedSum": "run.method",
    "State": "run.method",
    "RunContext": "run.method",
    "configuration_of": "strategies.by_name",
    "strategy_of": "strategies.by_name",
    "Finding": "run.method",
}

__all__ = [
    "CLIENT_KEYS",
    "CTCL",
    "DPFTRL",
    "STRATEGIES",
    "AugPE",
    "AugPEConfig",
    "CTCLConfig",
    "CatalogueEntry",
    "DPFTRLConfig",
    "DPFedAvg",
    "DPFedAvgConfig",
    "FederatedTraining",
    "FederatedTrainingConfig",
    "Finding",
    "FreD",
    "FreDConfig",
    "Hybrid",
    "HybridConfig",
    "JointSketch",
    "JointSketchConfig",
    "Method",
    "MomentSketch",
    "POPri",
    "POPriConfig",
    "PreferenceTrainer",
    "PrivateEvolution",
    "PrivateEvolutionConfig",
    "PrivateSumConfig",
    "PrivateSumStrategy",
    "PublicMidTraining",
    "PublicMidTrainingConfig",
    "Question",
    "RecordSource",
    "ReleasedSum",
    "RunContext",
    "State",
    "configuration_of",
    "strategy_of",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"flower_privsyn.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__
