"""The nodes: users of a file or data set, or the sample that comes with this app."""

from pathlib import Path

from flwr.app import Context

from flower_privsyn import Users
from flower_privsyn.client_apps import users_of_node
from flower_privsyn.client_apps.training import create_training_app

SAMPLE = Path(__file__).parent / "sample" / "users.jsonl"


def load(context: Context) -> Users:
    """Deal the users to the nodes; `data = "sample"` is 600 speakers."""
    return users_of_node(context, sample=SAMPLE)


app = create_training_app(load)
