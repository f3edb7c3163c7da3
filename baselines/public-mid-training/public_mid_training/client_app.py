"""The nodes: users of a file, a folder or a data set, or the bundled sample."""

from flower_privsyn import create_client_app
from flower_privsyn.client_apps.training import LocalTraining

app = create_client_app(trainer=LocalTraining())
