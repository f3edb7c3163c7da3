"""The nodes: each hosts its part of the users in `data/users.jsonl`."""

from pathlib import Path

from flwr.app import Context

from flower_privsyn import Users, create_client_app, load_users

DATA = Path(__file__).parent / "data" / "users.jsonl"


def load(context: Context) -> Users:
    """Deal the file's users to the nodes."""
    return load_users(DATA).deal(
        partition_id=int(context.node_config["partition-id"]),
        num_partitions=int(context.node_config["num-partitions"]),
    )


app = create_client_app(load)
