"""The client's half: ClientApps that answer queries and say nothing else.

The names are imported on first use. Flower's simulation finds a ClientApp of this package by
importing the package in one thread, while another imports the strategies: an import of the modules
at this place could meet theirs half way, and find a module half made.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flower_privsyn.client_apps.handlers import add_handlers, create_client_app
    from flower_privsyn.client_apps.node_users import users_of_node

_HOMES = {
    "add_handlers": "handlers",
    "create_client_app": "handlers",
    "users_of_node": "node_users",
}

__all__ = ["add_handlers", "create_client_app", "users_of_node"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
