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
    from flower_privsyn.client_apps.training import create_training_app
    from flower_privsyn.data import (
        Users,
        load_users,
        public_texts,
    )
    from flower_privsyn.embedding import load_embedder
    from flower_privsyn.errors import ConfigError, PrivsynError
    from flower_privsyn.evaluation import evaluate_run
    from flower_privsyn.generation import (
        Expand,
        SamplingParameters,
        load_generator,
    )
    from flower_privsyn.models import resolve_model
    from flower_privsyn.privacy import (
        GaussianMechanism,
        NeighboringRelation,
        Phase,
        Plan,
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
    from flower_privsyn.strategies import (
        DPFTRL,
        CatalogueEntry,
        DPFedAvg,
        DPFedAvgConfig,
        DPFTRLConfig,
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
        Question,
        RecordSource,
        ReleasedSum,
        Workplace,
        configuration_of,
        strategy_of,
    )

__version__ = "0.1.0"

_HOMES = {
    "Broadcast": "queries",
    "CatalogueEntry": "strategies",
    "Cohort": "queries",
    "ConfigError": "errors",
    "DPFTRL": "strategies",
    "DPFTRLConfig": "strategies",
    "DPFedAvg": "strategies",
    "DPFedAvgConfig": "strategies",
    "Expand": "generation",
    "GaussianMechanism": "privacy",
    "JointSketch": "strategies",
    "JointSketchConfig": "strategies",
    "KernelMean": "queries",
    "KernelSketch": "strategies",
    "KernelSketchConfig": "strategies",
    "MeanSimilarity": "queries",
    "Method": "strategies",
    "ModelDelta": "queries",
    "NearestNeighborHistogram": "queries",
    "NeighboringRelation": "privacy",
    "POPri": "strategies",
    "POPriConfig": "strategies",
    "Paper": "strategies",
    "Phase": "privacy",
    "Plan": "privacy",
    "PrivacyLedger": "privacy",
    "PrivateEvolution": "strategies",
    "PrivateEvolutionConfig": "strategies",
    "PrivateSumConfig": "strategies",
    "PrivateSumStrategy": "strategies",
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
    "evaluate_run": "evaluation",
    "load_embedder": "embedding",
    "load_generator": "generation",
    "load_users": "data",
    "public_texts": "data",
    "resolve_model": "models",
    "strategy_of": "strategies",
    "users_of_node": "client_apps",
}

__all__ = [
    "DPFTRL",
    "Broadcast",
    "CatalogueEntry",
    "Cohort",
    "ConfigError",
    "DPFTRLConfig",
    "DPFedAvg",
    "DPFedAvgConfig",
    "Expand",
    "GaussianMechanism",
    "JointSketch",
    "JointSketchConfig",
    "KernelMean",
    "KernelSketch",
    "KernelSketchConfig",
    "MeanSimilarity",
    "Method",
    "ModelDelta",
    "NearestNeighborHistogram",
    "NeighboringRelation",
    "POPri",
    "POPriConfig",
    "Paper",
    "Phase",
    "Plan",
    "PrivacyLedger",
    "PrivateEvolution",
    "PrivateEvolutionConfig",
    "PrivateSumConfig",
    "PrivateSumStrategy",
    "PrivsynError",
    "Query",
    "Question",
    "RecordSource",
    "ReleasedSum",
    "RunDirectory",
    "SamplingParameters",
    "Users",
    "Workplace",
    "__version__",
    "add_handlers",
    "budget_report",
    "calibrate_noise_multiplier",
    "configuration_of",
    "create_client_app",
    "create_training_app",
    "evaluate_run",
    "load_embedder",
    "load_generator",
    "load_users",
    "public_texts",
    "resolve_model",
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
