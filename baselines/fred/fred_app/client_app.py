"""The nodes: users of a file or data set, or the sample that comes with this app."""

from pathlib import Path

from flwr.app import Context

from flower_privsyn import Users, create_client_app
from flower_privsyn.client_apps.node_users import users_of_node

SAMPLE = Path(__file__).parent / "sample" / "users.jsonl"


def load(context: Context) -> Users:
    """Deal the users to the nodes; `data = "sample"` is the 600 speakers of the sample."""
    return users_of_node(context, sample=SAMPLE)


app = create_client_app(load)
