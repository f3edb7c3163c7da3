"""The server's half, one file per method."""

from flower_privsyn.private_path.engine import PrivateSumStrategy, ReleasedSum
from flower_privsyn.private_path.settings import CLIENT_KEYS, PrivateSumConfig
from flower_privsyn.strategies.catalogue import STRATEGIES, configuration_of, strategy_of
from flower_privsyn.strategies.dp_fedavg import DPFedAvg, DPFedAvgConfig
from flower_privsyn.strategies.dp_ftrl import DPFTRL, DPFTRLConfig
from flower_privsyn.strategies.kernel_sketch import KernelSketch, KernelSketchConfig
from flower_privsyn.strategies.parts.federated_training import (
    FederatedTraining,
    FederatedTrainingConfig,
)
from flower_privsyn.strategies.parts.preference_rounds import PreferenceConfig, PreferenceTrainer
from flower_privsyn.strategies.parts.sketch import Sketch
from flower_privsyn.strategies.popri import POPri, POPriConfig
from flower_privsyn.strategies.private_evolution import PrivateEvolution, PrivateEvolutionConfig

__all__ = [
    "CLIENT_KEYS",
    "DPFTRL",
    "STRATEGIES",
    "DPFTRLConfig",
    "DPFedAvg",
    "DPFedAvgConfig",
    "FederatedTraining",
    "FederatedTrainingConfig",
    "KernelSketch",
    "KernelSketchConfig",
    "POPri",
    "POPriConfig",
    "PreferenceConfig",
    "PreferenceTrainer",
    "PrivateEvolution",
    "PrivateEvolutionConfig",
    "PrivateSumConfig",
    "PrivateSumStrategy",
    "ReleasedSum",
    "Sketch",
    "configuration_of",
    "strategy_of",
]
