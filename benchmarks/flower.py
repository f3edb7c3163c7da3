"""Whole rounds of training in Flower's simulation engine, server included, beside Flower's own way.

Ours is `DPFedAvg` on two nodes that hold half of the users each. Flower's is the one that its
documentation gives: a client per user, `fixedclipping_mod` in its ClientApp and
`DifferentialPrivacyClientSideFixedClipping` around FedAvg at the server. To its advantage a worker
process keeps the model between messages, and only its weights are set anew. Two CPUs, and seconds
of the clock from one round's messages to the next one's.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

from benchmarks import Other, Ratio
from benchmarks.training import CLIP, RATE, Samples, batches, loss, plain_model, texts_of

NODES = 2


def measure(*, model: str = "privsyn-tiny", users: int = 32, rounds: int = 4) -> list[Ratio]:
    """Rounds after the first, in which processes start and models are loaded."""
    from flower_privsyn.models.trainable import TrainableModel
    from flower_privsyn.training.local import LocalModel

    local = LocalModel(TrainableModel(name=model), device="cpu")
    texts = texts_of(users, local.tokenizer)
    theirs = simulated(
        lambda grid: flowers_strategy(grid, model, users, rounds),
        flowers_client(model, [local.encode(own) for own in texts]),
        nodes=users,
    )
    ours = simulated(lambda grid: our_strategy(grid, model, rounds), OurClient(texts), nodes=NODES)
    return [
        Ratio(
            part=f"a round of training in Flower, {model}, {users} users",
            other=Other("Flower's own strategy (peer)", None, 1.0),
            ours=ours,
            theirs=theirs,
            unit="s",
        )
    ]


def simulated(strategy: Callable[[Grid], object], client: ClientApp, *, nodes: int) -> list[float]:
    """Seconds from round to round of a strategy in Flower's simulation engine."""
    from flwr.simulation import run_simulation

    app, begun = ServerApp(), list[float]()

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        push_messages = grid.push_messages

        # Flower's loop and ours both send this way, and so few nodes are sent all at once.
        def noted(messages: Any) -> Any:
            messages = list(messages)
            if messages and messages[0].metadata.message_type != "query.prepare":
                begun.append(time.perf_counter())
            return push_messages(messages)

        grid.push_messages = noted  # type: ignore[method-assign]
        strategy(grid)

    os.environ |= {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "FLWR_TELEMETRY_ENABLED": "0",
        # By default Ray lets its workers yield to every other process of the machine.
        "RAY_worker_niceness": "0",
    }
    cpus: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(app, client, num_supernodes=nodes, backend_config=cpus)
    return np.diff(begun)[1:].tolist()


def flowers_client(name: str, users: list[Samples]) -> ClientApp:
    """A client per user, as Flower documents it."""
    import torch

    app = ClientApp(mods=[fixedclipping_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = plain_model(name)
        named = dict(model.named_parameters())
        arrays = message.content.array_records["arrays"].to_torch_state_dict()
        with torch.no_grad():
            for key, value in named.items():
                value.copy_(arrays[key])
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        for tokens, labels in batches(users[int(context.node_config["partition-id"])]):
            optimiser.zero_grad()
            loss(model, tokens, labels).backward()
            optimiser.step()
        content = RecordDict({"metrics": MetricRecord({"num-examples": 1})})
        content["arrays"] = ArrayRecord({key: value.detach() for key, value in named.items()})
        return Message(content=content, reply_to=message)

    return app


def flowers_strategy(grid: Grid, model: str, users: int, rounds: int) -> None:
    """Flower's own, at noise multiplier 0: it draws and adds noise all the same, of no size."""
    plain = FedAvg(fraction_evaluate=0.0, min_train_nodes=users, min_available_nodes=users)
    start = {key: value.detach() for key, value in plain_model(model).named_parameters()}
    DifferentialPrivacyClientSideFixedClipping(
        plain, noise_multiplier=0.0, clipping_norm=CLIP, num_sampled_clients=users
    ).start(grid, ArrayRecord(start), num_rounds=rounds)


class OurClient(ClientApp):
    """The ready client app, which stays in a worker process as under `flwr run`."""

    def __init__(self, texts: list[list[str]]) -> None:
        super().__init__()
        self._texts = tuple(map(tuple, texts))

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        return our_client(self._texts)(message, context)


@functools.cache
def our_client(texts: tuple[tuple[str, ...], ...]) -> ClientApp:
    """The same users, dealt to the nodes."""
    from flower_privsyn.client_apps.handlers import create_client_app
    from flower_privsyn.client_apps.training import LocalTraining
    from flower_privsyn.data import Users

    def load(context: Context) -> Users:
        rows = [(f"user-{i}", text) for i, own in enumerate(texts) for text in own]
        return Users.from_rows(rows).partition(
            partition_id=int(context.node_config["partition-id"]), num_partitions=NODES
        )

    return create_client_app(load, trainer=LocalTraining(device="cpu"))


def our_strategy(grid: Grid, model: str, rounds: int) -> None:
    """Our own, whose learning rate, batch size and clip norm are the defaults."""
    from flower_privsyn.strategies import DPFedAvg

    with tempfile.TemporaryDirectory() as folder:
        DPFedAvg(
            model=model,
            noise_multiplier=1.0,
            accept_noise=True,
            num_rounds=rounds,
            num_nodes=NODES,
            run_dir=f"{folder}/run",
        ).start(grid)
