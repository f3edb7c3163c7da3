"""The node's text stays; it answers the strategy's queries about it."""

from flwr.app import Context
from flwr.clientapp import ClientApp
from word_model.task import read_rows

from flower_privsyn import Users, add_handlers

app = ClientApp()


def load(context: Context) -> Users:
    """The users of this node, read as the app always read them."""
    return Users.from_rows(read_rows()).deal(
        partition_id=int(context.node_config["partition-id"]),
        num_partitions=int(context.node_config["num-partitions"]),
    )


add_handlers(app, load)
