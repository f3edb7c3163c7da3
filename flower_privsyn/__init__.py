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
    )
    from flower_privsyn.errors import (
        ConfigError,
        PrivsynError,
    )
    from flower_privsyn.generation import (
        Expand,
        SamplingParameters,
        load_generator,
    )
    from flower_privsyn.models import resolve_model
    from flower_privsyn.queries import Query
    from flower_privsyn.runs import RunDirectory
    from flower_privsyn.runs.opened import open_run
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
        Method,
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
        strategy_of,
    )
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
        "Users",
    ),
    "errors": (
        "ConfigError",
        "PrivsynError",
    ),
    "generation": (
        "Expand",
        "load_generator",
        "SamplingParameters",
    ),
    "models": ("resolve_model",),
    "queries": ("Query",),
    "runs": ("RunDirectory",),
    "runs.opened": ("open_run",),
    "strategies": (
        "AugPE",
        "AugPEConfig",
        "CatalogueEntry",
        "CTCL",
        "CTCLConfig",
        "DPFedAvg",
        "DPFedAvgConfig",
        "DPFTRL",
        "DPFTRLConfig",
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
        "strategy_of",
    ),
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
    "CTCLConfig",
    "CatalogueEntry",
    "CausalTraining",
    "ConfigError",
    "DPFTRLConfig",
    "DPFedAvg",
    "DPFedAvgConfig",
    "Distillation",
    "Expand",
    "FreD",
    "FreDConfig",
    "Hybrid",
    "HybridConfig",
    "JointSketch",
    "JointSketchConfig",
    "LocalTraining",
    "Method",
    "POPri",
    "POPriConfig",
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
    "RunDirectory",
    "SamplingParameters",
    "Users",
    "__version__",
    "add_handlers",
    "create_client_app",
    "create_training_app",
    "fine_tune",
    "load_generator",
    "load_users",
    "open_run",
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
