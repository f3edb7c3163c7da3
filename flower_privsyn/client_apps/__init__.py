"""The client's half: ClientApps that answer queries and say nothing else."""

from flower_privsyn.client_apps.handlers import add_handlers, create_client_app
from flower_privsyn.client_apps.node_users import users_of_node

__all__ = ["add_handlers", "create_client_app", "users_of_node"]
