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
    from flower_privsyn.catalogue import strategy_of
    from flower_privsyn.client_apps.handlers import add_handlers, create_client_app
    from flower_privsyn.data import Users, load_users
    from flower_privsyn.errors import PrivsynError
    from flower_privsyn.notebook import fit
    from flower_privsyn.queries import Query
    from flower_privsyn.report.summary import open_run
    from flower_privsyn.strategies import (
        CTCL,
        DPFTRL,
        AugPE,
        DPFedAvg,
        FreD,
        Hybrid,
        JointSketch,
        Method,
        POPri,
        PrivateEvolution,
        PrivateSumStrategy,
        PublicMidTraining,
        Question,
    )

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.3.0"

#: Where each public name is at home that is no strategy's.
_HOMES = {
    "Query": "queries",
    "PrivsynError": "errors",
    "Users": "data",
    "add_handlers": "client_apps.handlers",
    "create_client_app": "client_apps.handlers",
    "fit": "notebook",
    "load_users": "data",
    "open_run": "report.summary",
    "strategy_of": "catalogue",
}

__all__ = [
    "CTCL",
    "DPFTRL",
    "AugPE",
    "DPFedAvg",
    "FreD",
    "Hybrid",
    "JointSketch",
    "Method",
    "POPri",
    "PrivateEvolution",
    "PrivateSumStrategy",
    "PrivsynError",
    "PublicMidTraining",
    "Query",
    "Question",
    "Users",
    "__version__",
    "add_handlers",
    "create_client_app",
    "fit",
    "load_users",
    "open_run",
    "strategy_of",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'strategies')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__
