"""The nodes: every partition of a data set plays one user."""

from functools import cache
from pathlib import Path

from flwr.app import Context
from flwr_datasets import FederatedDataset
from flwr_datasets.partitioner import DirichletPartitioner

from flower_privsyn import Users, create_client_app

SAMPLE = Path(__file__).parent / "data"


@cache
def parted(dataset: str, num_users: int) -> FederatedDataset:
    """The data set, in the same partitions wherever it is loaded: both seeds have a default."""
    partitioner = DirichletPartitioner(
        num_partitions=num_users, partition_by="label", alpha=1.0, min_partition_size=0
    )
    return FederatedDataset(dataset=dataset or str(SAMPLE), partitioners={"train": partitioner})


def load(context: Context) -> Users:
    """Deal whole partitions to the nodes; one without rows is a user, too, who wrote nothing."""
    node, nodes = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    num_users = int(context.run_config["num-users"])
    data = parted(str(context.run_config["dataset"]), num_users)
    return Users.from_rows(
        (f"partition {number}", text)
        for number in range(node, num_users, nodes)
        for text in [*data.load_partition(number)["text"]] or [""]
    )


app = create_client_app(load)
