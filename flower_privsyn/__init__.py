"""Learn from private text without collecting it: Flower strategies under differential privacy.

The names below are all that an app needs. They are imported on first use, so that
`import flower_privsyn` stays light.
"""

from __future__ import annotations

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
        FederationError,
        NotAllowedError,
        PrivsynError,
        RunDirectoryError,
    )
    from flower_privsyn.evaluation import evaluate_language_model, evaluate_run
    from flower_privsyn.generation import (
        Expand,
        SamplingParameters,
        TextGenerator,
        load_generator,
    )
    from flower_privsyn.models import resolve_model
    from flower_privsyn.models.bias import LogitBias
    from flower_privsyn.privacy import (
        CyclicSampling,
        DisjointCyclicSampling,
        FixedSizeSampling,
        FullParticipation,
        GaussianMechanism,
        GroupSampling,
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
        KernelMean,
        MeanSimilarity,
        ModelDelta,
        NearestNeighborHistogram,
        Query,
    )
    from flower_privsyn.runs import RunDirectory
    from flower_privsyn.runs.opened import OpenedRun, open_run
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
        FreD,
        FreDConfig,
        Hybrid,
        HybridConfig,
        JointSketch,
        JointSketchConfig,
        KernelSketch,
        KernelSketchConfig,
        Method,
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

__version__ = "0.2.0"

_HOMES = {
    "BudgetExceededError": "errors",
    "FederationError": "errors",
    "NotAllowedError": "errors",
    "RunDirectoryError": "errors",
    "Embedder": "embedding",
    "TextGenerator": "generation",
    "LocalTraining": "client_apps.training",
    "AugPE": "strategies",
    "AugPEConfig": "strategies",
    "CTCL": "strategies",
    "CTCLConfig": "strategies",
    "Broadcast": "queries",
    "CatalogueEntry": "strategies",
    "CausalTraining": "training.causal_settings",
    "Cohort": "queries",
    "ConfigError": "errors",
    "CyclicSampling": "privacy",
    "DisjointCyclicSampling": "privacy",
    "DPFTRL": "strategies",
    "DPFTRLConfig": "strategies",
    "DPFedAvg": "strategies",
    "DPFedAvgConfig": "strategies",
    "Distillation": "training.distillation",
    "Expand": "generation",
    "FixedSizeSampling": "privacy",
    "FullParticipation": "privacy",
    "GaussianMechanism": "privacy",
    "GroupSampling": "privacy",
    "FreD": "strategies",
    "FreDConfig": "strategies",
    "Hybrid": "strategies",
    "HybridConfig": "strategies",
    "JointSketch": "strategies",
    "JointSketchConfig": "strategies",
    "KernelMean": "queries",
    "KernelSketch": "strategies",
    "KernelSketchConfig": "strategies",
    "LogitBias": "models.bias",
    "MeanSimilarity": "queries",
    "Method": "strategies",
    "ModelDelta": "queries",
    "NearestNeighborHistogram": "queries",
    "NeighboringRelation": "privacy",
    "OpenedRun": "runs.opened",
    "POPri": "strategies",
    "POPriConfig": "strategies",
    "Paper": "strategies",
    "Phase": "privacy",
    "Plan": "privacy",
    "PoissonSampling": "privacy",
    "PrivacyLedger": "privacy",
    "PrivateEvolution": "strategies",
    "PrivateEvolutionConfig": "strategies",
    "PrivateSumConfig": "strategies",
    "PrivateSumStrategy": "strategies",
    "PublicMidTraining": "strategies",
    "PublicMidTrainingConfig": "strategies",
    "PrivsynError": "errors",
    "Query": "queries",
    "Question": "strategies",
    "RecordSource": "strategies",
    "ReleasedSum": "strategies",
    "RunDirectory": "runs",
    "SamplingParameters": "generation",
    "Users": "data",
    "Workplace": "strategies",
    "add_handlers": "client_apps",
    "budget_report": "privacy",
    "calibrate_noise_multiplier": "privacy",
    "configuration_of": "strategies",
    "create_client_app": "client_apps",
    "create_training_app": "client_apps.training",
    "evaluate_language_model": "evaluation",
    "evaluate_run": "evaluation",
    "fine_tune": "training.causal",
    "load_embedder": "embedding",
    "load_generator": "generation",
    "load_users": "data",
    "open_run": "runs.opened",
    "public_texts": "data",
    "resolve_model": "models",
    "save_biased": "training.bias",
    "strategy_of": "strategies",
    "users_of_node": "client_apps",
}

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
    "Cohort",
    "ConfigError",
    "CyclicSampling",
    "DPFTRLConfig",
    "DPFedAvg",
    "DPFedAvgConfig",
    "DisjointCyclicSampling",
    "Distillation",
    "Embedder",
    "Expand",
    "FederationError",
    "FixedSizeSampling",
    "FreD",
    "FreDConfig",
    "FullParticipation",
    "GaussianMechanism",
    "GroupSampling",
    "Hybrid",
    "HybridConfig",
    "JointSketch",
    "JointSketchConfig",
    "KernelMean",
    "KernelSketch",
    "KernelSketchConfig",
    "LocalTraining",
    "LogitBias",
    "MeanSimilarity",
    "Method",
    "ModelDelta",
    "NearestNeighborHistogram",
    "NeighboringRelation",
    "NotAllowedError",
    "OpenedRun",
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
    "PublicMidTraining",
    "PublicMidTrainingConfig",
    "Query",
    "Question",
    "RecordSource",
    "ReleasedSum",
    "RunDirectory",
    "RunDirectoryError",
    "SamplingParameters",
    "TextGenerator",
    "Users",
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
