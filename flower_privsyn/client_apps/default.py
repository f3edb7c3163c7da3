"""A ready ClientApp: `clientapp = "flower_privsyn.client_apps.default:app"` in a Flower app.

Each node reads the users named by `data` in its own or the run's configuration.
"""

from flower_privsyn.client_apps.handlers import create_client_app

app = create_client_app()
