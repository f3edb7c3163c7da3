"""The nodes: users of a file, a folder or a data set, or the bundled sample."""

from flower_privsyn.client_apps.training import create_training_app

app = create_training_app()
