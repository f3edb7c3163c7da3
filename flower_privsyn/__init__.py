"""Learn from private text without collecting it: Flower strategies under differential privacy.

The names below are all that an app needs. They are imported on first use, so that
`import flower_privsyn` stays light.

The import sets `OMP_WAIT_POLICY=PASSIVE`, unless the variable is set: OpenMP's threads, as of
PyTorch, then sleep where they wait for one another. Otherwise they spin, on cores that the threads
they wait for would need. A library takes notice as it is loaded, and not later.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower_privsyn.client_apps import (
        add_handlers,
        create_client_app,
        users_of_node,
    )
    from flower_privsyn.client_apps.training import LocalTraining, create_training_app
    from flower_privsyn.data import (
        Users,
        load_users,
        public_texts,
    )
    from flower_privsyn.embedding import Embedder, load_embedder
    from flower_privsyn.errors import (
        BudgetExceededError,
        ConfigError,
        DataError,
        FederationError,
        GenerationError,
        LedgerError,
        MissingExtraError,
        ModelError,
        NotAllowedError,
        PrivsynError,
        ProtocolError,
        RunDirectoryError,
        StoppedError,
        TrainingError,
    )
    from flower_privsyn.evaluation import evaluate_language_model, evaluate_run
    from flower_privsyn.generation import (
        ChatGenerator,
        Expand,
        OpenAIGenerator,
        SamplingParameters,
        TextGenerator,
        Variation,
        load_generator,
    )
    from flower_privsyn.models import resolve_model
    from flower_privsyn.models.bias import LogitBias
    from flower_privsyn.privacy import (
        CyclicSampling,
        FixedSizeSampling,
        FullParticipation,
        GaussianMechanism,
        NeighboringRelation,
        Phase,
        Plan,
        PoissonSampling,
        PrivacyLedger,
        budget_report,
        calibrate_noise_multiplier,
    )
    from flower_privsyn.queries import (
        Broadcast,
        Cohort,
        MeanSimilarity,
        ModelDelta,
        NearestNeighborHistogram,
        Query,
    )
    from flower_privsyn.runs import RunDirectory
    from flower_privsyn.runs.opened import OpenedRun, open_run
    from flower_privsyn.runs.trackers import Figures, Tracker
    from flower_privsyn.strategies import (
        CTCL,
        DPFTRL,
        AugPE,
        AugPEConfig,
        CatalogueEntry,
        CTCLConfig,
        DPFedAvg,
        DPFedAvgConfig,
        DPFTRLConfig,
        Finding,
        FreD,
        FreDConfig,
        Hybrid,
        HybridConfig,
        JointSketch,
        JointSketchConfig,
        Look,
        Method,
        NeededModel,
        Needs,
        Outline,
        Paper,
        POPri,
        POPriConfig,
        PrivateEvolution,
        PrivateEvolutionConfig,
        PrivateSumConfig,
        PrivateSumStrategy,
        PublicMidTraining,
        PublicMidTrainingConfig,
        Question,
        RecordSource,
        ReleasedSum,
        Workplace,
        configuration_of,
        strategy_of,
    )
    from flower_privsyn.training.bias import save_biased
    from flower_privsyn.training.causal import fine_tune
    from flower_privsyn.training.causal_settings import CausalTraining
    from flower_privsyn.training.distillation import Distillation

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.3.0"

_NAMES = {
    "client_apps": (
        "add_handlers",
        "create_client_app",
        "users_of_node",
    ),
    "client_apps.training": (
        "create_training_app",
        "LocalTraining",
    ),
    "data": (
        "load_users",
        "public_texts",
        "Users",
    ),
    "embedding": (
        "Embedder",
        "load_embedder",
    ),
    "errors": (
        "BudgetExceededError",
        "ConfigError",
        "DataError",
        "FederationError",
        "GenerationError",
        "LedgerError",
        "MissingExtraError",
        "ModelError",
        "NotAllowedError",
        "PrivsynError",
        "ProtocolError",
        "RunDirectoryError",
        "StoppedError",
        "TrainingError",
    ),
    "evaluation": (
        "evaluate_language_model",
        "evaluate_run",
    ),
    "generation": (
        "ChatGenerator",
        "Expand",
        "load_generator",
        "OpenAIGenerator",
        "SamplingParameters",
        "TextGenerator",
        "Variation",
    ),
    "models": ("resolve_model",),
    "models.bias": ("LogitBias",),
    "privacy": (
        "budget_report",
        "calibrate_noise_multiplier",
        "CyclicSampling",
        "FixedSizeSampling",
        "FullParticipation",
        "GaussianMechanism",
        "NeighboringRelation",
        "Phase",
        "Plan",
        "PoissonSampling",
        "PrivacyLedger",
    ),
    "queries": (
        "Broadcast",
        "Cohort",
        "MeanSimilarity",
        "ModelDelta",
        "NearestNeighborHistogram",
        "Query",
    ),
    "runs": ("RunDirectory",),
    "runs.opened": (
        "open_run",
        "OpenedRun",
    ),
    "runs.trackers": (
        "Figures",
        "Tracker",
    ),
    "strategies": (
        "AugPE",
        "AugPEConfig",
        "CatalogueEntry",
        "configuration_of",
        "CTCL",
        "CTCLConfig",
        "DPFedAvg",
        "DPFedAvgConfig",
        "DPFTRL",
        "DPFTRLConfig",
        "Finding",
        "FreD",
        "FreDConfig",
        "Hybrid",
        "HybridConfig",
        "JointSketch",
        "JointSketchConfig",
        "Look",
        "Method",
        "NeededModel",
        "Needs",
        "Outline",
        "Paper",
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
        "strategy_of",
        "Workplace",
    ),
    "training.bias": ("save_biased",),
    "training.causal": ("fine_tune",),
    "training.causal_settings": ("CausalTraining",),
    "training.distillation": ("Distillation",),
}
#: Where each public name is at home.
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "CTCL",
    "DPFTRL",
    "AugPE",
    "AugPEConfig",
    "Broadcast",
    "BudgetExceededError",
    "CTCLConfig",
    "CatalogueEntry",
    "CausalTraining",
    "ChatGenerator",
    "Cohort",
    "ConfigError",
    "CyclicSampling",
    "DPFTRLConfig",
    "DPFedAvg",
    "DPFedAvgConfig",
    "DataError",
    "Distillation",
    "Embedder",
    "Expand",
    "FederationError",
    "Figures",
    "Finding",
    "FixedSizeSampling",
    "FreD",
    "FreDConfig",
    "FullParticipation",
    "GaussianMechanism",
    "GenerationError",
    "Hybrid",
    "HybridConfig",
    "JointSketch",
    "JointSketchConfig",
    "LedgerError",
    "LocalTraining",
    "LogitBias",
    "Look",
    "MeanSimilarity",
    "Method",
    "MissingExtraError",
    "ModelDelta",
    "ModelError",
    "NearestNeighborHistogram",
    "NeededModel",
    "Needs",
    "NeighboringRelation",
    "NotAllowedError",
    "OpenAIGenerator",
    "OpenedRun",
    "Outline",
    "POPri",
    "POPriConfig",
    "Paper",
    "Phase",
    "Plan",
    "PoissonSampling",
    "PrivacyLedger",
    "PrivateEvolution",
    "PrivateEvolutionConfig",
    "PrivateSumConfig",
    "PrivateSumStrategy",
    "PrivsynError",
    "ProtocolError",
    "PublicMidTraining",
    "PublicMidTrainingConfig",
    "Query",
    "Question",
    "RecordSource",
    "ReleasedSum",
    "RunDirectory",
    "RunDirectoryError",
    "SamplingParameters",
    "StoppedError",
    "TextGenerator",
    "Tracker",
    "TrainingError",
    "Users",
    "Variation",
    "Workplace",
    "__version__",
    "add_handlers",
    "budget_report",
    "calibrate_noise_multiplier",
    "configuration_of",
    "create_client_app",
    "create_training_app",
    "evaluate_language_model",
    "evaluate_run",
    "fine_tune",
    "load_embedder",
    "load_generator",
    "load_users",
    "open_run",
    "public_texts",
    "resolve_model",
    "save_biased",
    "strategy_of",
    "users_of_node",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__
