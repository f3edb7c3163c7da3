"""The nodes: users of a file, a folder or a data set, or the bundled sample."""

from flower_privsyn import create_client_app

app = create_client_app()
