"""The nodes: users of a file, a folder or a data set."""

from flower_privsyn import create_client_app
from flower_privsyn.client_apps import users_of_node

app = create_client_app(users_of_node)
