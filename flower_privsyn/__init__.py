"""Learn from private text without collecting it: Flower strategies under differential privacy.

The names below are imported on first use, so that `import flower_privsyn` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower_privsyn.client_apps import add_handlers, create_client_app
    from flower_privsyn.data import load_users
    from flower_privsyn.privacy import (
        GaussianMechanism,
        PrivacyLedger,
        calibrate_noise_multiplier,
    )
    from flower_privsyn.queries import NearestNeighborHistogram, Query
    from flower_privsyn.strategies import (
        PrivateEvolution,
        PrivateEvolutionConfig,
        PrivateSumStrategy,
    )

__version__ = "0.1.0"

_HOMES = {
    "GaussianMechanism": "privacy",
    "NearestNeighborHistogram": "queries",
    "PrivacyLedger": "privacy",
    "PrivateEvolution": "strategies",
    "PrivateEvolutionConfig": "strategies",
    "PrivateSumStrategy": "strategies",
    "Query": "queries",
    "add_handlers": "client_apps",
    "calibrate_noise_multiplier": "privacy",
    "create_client_app": "client_apps",
    "load_users": "data",
}

__all__ = [
    "GaussianMechanism",
    "NearestNeighborHistogram",
    "PrivacyLedger",
    "PrivateEvolution",
    "PrivateEvolutionConfig",
    "PrivateSumStrategy",
    "Query",
    "__version__",
    "add_handlers",
    "calibrate_noise_multiplier",
    "create_client_app",
    "load_users",
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
