"""The nodes: each hosts its part of the users of `data`, or of `data/users.jsonl` here."""

from pathlib import Path

from flwr.app import Context

from flower_privsyn import Users, create_client_app, load_users, users_of_node

OURS = Path(__file__).parent / "data" / "users.jsonl"


def load(context: Context) -> Users:
    """Deal the users to the nodes."""
    if context.node_config.get("data") or context.run_config["data"]:
        return users_of_node(context)
    return load_users(OURS).deal(
        partition_id=int(context.node_config["partition-id"]),
        num_partitions=int(context.node_config["num-partitions"]),
    )


app = create_client_app(load)
