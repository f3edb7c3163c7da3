"""The server's half, one file per method.

May import `run`, `report`, `evaluation` and what these import; no client. The parts that methods
share have a name with an underscore.
"""

from flower_privsyn.run.method import Method, Question, RecordSource, ReleasedSum, RunContext, State
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies.aug_pe import AugPE, AugPEConfig
from flower_privsyn.strategies.ctcl import CTCL, CTCLConfig
from flower_privsyn.strategies.dp_fedavg import DPFedAvg, DPFedAvgConfig
from flower_privsyn.strategies.dp_ftrl import DPFTRL, DPFTRLConfig
from flower_privsyn.strategies.fred import FreD, FreDConfig
from flower_privsyn.strategies.hybrid import Hybrid, HybridConfig
from flower_privsyn.strategies.joint_sketch import JointSketch, JointSketchConfig
from flower_privsyn.strategies.popri import POPri, POPriConfig
from flower_privsyn.strategies.private_evolution import PrivateEvolution, PrivateEvolutionConfig
from flower_privsyn.strategies.public_mid_training import PublicMidTraining, PublicMidTrainingConfig

__all__ = [
    "CTCL",
    "DPFTRL",
    "AugPE",
    "AugPEConfig",
    "CTCLConfig",
    "DPFTRLConfig",
    "DPFedAvg",
    "DPFedAvgConfig",
    "FreD",
    "FreDConfig",
    "Hybrid",
    "HybridConfig",
    "JointSketch",
    "JointSketchConfig",
    "Method",
    "POPri",
    "POPriConfig",
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
]
