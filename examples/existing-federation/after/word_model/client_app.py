"""The node's text stays; it answers the strategy's queries about it."""

import json

from flwr.app import Context
from flwr.clientapp import ClientApp
from word_model.task import DATA

from flower_privsyn import add_handlers
from flower_privsyn.data import Users

app = ClientApp()


def load(context: Context) -> Users:
    """The users of this node, read as the app always read them."""
    with DATA.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    users = Users.from_rows((row["client_id"], row["text"]) for row in rows)
    return users.deal(
        partition_id=int(context.node_config["partition-id"]),
        num_partitions=int(context.node_config["num-partitions"]),
    )


add_handlers(app, load)
