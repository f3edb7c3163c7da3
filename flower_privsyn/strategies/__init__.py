"""The server's half, one file per method."""

from flower_privsyn.strategies.dp_fedavg import DPFedAvg, DPFedAvgConfig
from flower_privsyn.strategies.dp_ftrl import DPFTRL, DPFTRLConfig
from flower_privsyn.strategies.federated_training import (
    FederatedTraining,
    FederatedTrainingConfig,
)
from flower_privsyn.strategies.kernel_sketch import KernelSketch, KernelSketchConfig
from flower_privsyn.strategies.popri import POPri, POPriConfig
from flower_privsyn.strategies.preference_rounds import PreferenceConfig, PreferenceTrainer
from flower_privsyn.strategies.private_evolution import PrivateEvolution, PrivateEvolutionConfig
from flower_privsyn.strategies.private_sum import PrivateSumStrategy, ReleasedSum
from flower_privsyn.strategies.registry import STRATEGIES, configuration_of, strategy_of
from flower_privsyn.strategies.settings import CLIENT_KEYS, PrivateSumConfig
from flower_privsyn.strategies.sketch import Sketch

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
