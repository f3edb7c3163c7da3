"""The same users, model and batches: trained by pfl, by Flower's own strategy, and by ours in it.

What `benchmarks.local_training` compares with. pfl is no dependency; see `PFL_INSTALL`.

Flower's own way is the one its documentation gives: a client per user, `fixedclipping_mod` in its
ClientApp, `DifferentialPrivacyClientSideFixedClipping` around FedAvg at the server. To its
advantage a worker process keeps the model between messages, and only its weights are set anew.
This module is imported by Flower's worker processes: what users hold comes from a file.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.queries import ModelDelta
from flower_privsyn.training.local import LocalModel

Samples = Sequence[Sequence[int]]

#: Without its dependencies: its bound dp-accounting < 0.6 is not ours, and is not needed to run it.
PFL_INSTALL = (
    "pip install --no-deps --target /tmp/pfl pfl==0.6.0 prv-accountant==0.2.0 multiprocess dill; "
    "then PYTHONPATH=/tmp/pfl"
)

#: Names the file that Flower's worker processes read.
_PLAN = "PRIVSYN_BENCHMARK_PLAN"


def in_order(samples: Samples) -> list[Sequence[int]]:
    """A user's samples in the order in which `LocalModel.update` takes them by default."""
    return [samples[rank] for rank in np.random.default_rng((0,)).permutation(len(samples))]


def batches(samples: Samples, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Padded tokens, and labels that are -100 where there is nothing to predict."""
    for first in range(0, len(samples), size):
        part = samples[first : first + size]
        width = max(map(len, part))
        labels = torch.tensor([[*one, *[-100] * (width - len(one))] for one in part])
        yield labels.clamp(min=0), labels


def loss(model: Any, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Transformers' own loss of a padded batch."""
    mask = (labels != -100).long()
    result: torch.Tensor = model(
        input_ids=tokens, attention_mask=mask, labels=labels, use_cache=False
    ).loss
    return result


# ---------------------------------------------------------------------- pfl


class Pfl:
    """pfl's FederatedAveraging in its SimulatedBackend: one process, one model, users in turn.

    Args:
        model: an ordinary model that this object may change.
        users: their samples.
        query: how a user trains, and the clip norm; one epoch.

    Raises:
        ImportError: pfl is not installed.
    """

    def __init__(self, model: Any, users: Sequence[Samples], query: ModelDelta) -> None:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByUser
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.sampling import MinimizeReuseUserSampler
        from pfl.hyperparam.base import NNTrainHyperParams
        from pfl.internal.ops import pytorch_ops
        from pfl.internal.ops.distributed import NotDistributedContext
        from pfl.metrics import Weighted
        from pfl.model.pytorch import PyTorchModel
        from pfl.privacy import CentrallyAppliedPrivacyMechanism
        from pfl.privacy.privacy_mechanism import NormClippingOnly

        if pytorch_ops.distributed is None:  # what pfl leaves in any process but the main one
            pytorch_ops.distributed = NotDistributedContext()

        class User(Dataset):  # type: ignore[misc]
            """Yields batches padded to their own width, as everywhere else here."""

            def iter(self, batch_size: int | None) -> Any:
                return batches(self.raw_data[0], batch_size or len(self))

            def __len__(self) -> int:
                return len(self.raw_data[0])

        class Module(torch.nn.Module):
            """What pfl asks of a model."""

            def __init__(self) -> None:
                super().__init__()
                self.inner = model

            def loss(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
                return loss(self.inner, tokens, labels)

            def metrics(self, *batch: torch.Tensor) -> Any:  # noqa: ARG002
                # pfl evaluates users in the first iteration; here that shall cost nothing.
                return {"none": Weighted(0.0, 1)}

        module = Module()
        self._named = {n: v for n, v in module.named_parameters() if v.requires_grad}
        self._start = {name: value.detach().clone() for name, value in self._named.items()}
        self._model = PyTorchModel(
            module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        )
        held = [User((in_order(samples),)) for samples in users]
        data = FederatedDataset(
            lambda user: held[user], MinimizeReuseUserSampler(list(range(len(users))))
        )
        clip = CentrallyAppliedPrivacyMechanism(NormClippingOnly(2.0, query.clip_to))
        self._backend = SimulatedBackend(data, data, postprocessors=[WeightByUser(), clip])
        self._train = NNTrainHyperParams(
            local_num_epochs=query.epochs,
            local_learning_rate=query.learning_rate,
            local_batch_size=query.batch_size,
        )
        self._users = len(users)

    def round(self) -> np.ndarray:
        """Train all users once; returns the average update, flat."""
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging

        with torch.no_grad():
            for name, value in self._named.items():
                value.copy_(self._start[name])
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=1,
                evaluation_frequency=1,
                train_cohort_size=self._users,
                val_cohort_size=0,
            ),
            self._backend,
            self._model,
            self._train,
            send_metrics_to_platform=False,
        )
        moved = [(value - self._start[name]).detach() for name, value in self._named.items()]
        return torch.cat([one.flatten() for one in moved]).numpy()


# ---------------------------------------------------------------------- Flower


@functools.cache
def plan() -> dict[str, Any]:
    """What the benchmark does, in a process that Flower started."""
    return dict(json.loads(Path(os.environ[_PLAN]).read_text()))


@functools.cache
def worker_model() -> Any:
    """The model of a worker process, loaded once; as `LocalModel` has it, without dropout."""
    torch.set_num_threads(1)
    return ordinary(LocalModel(TrainableModel(name=plan()["model"]), device="cpu"))


def ordinary(local: LocalModel) -> Any:
    """A model whose parameters are no pieces of one vector any more."""
    for parameter in local._named.values():
        parameter.data, parameter.grad = parameter.data.clone(), None
    return local._model


def flower_client() -> Any:
    """A client per user, as Flower documents it."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.clientapp.mod import fixedclipping_mod

    app = ClientApp(mods=[fixedclipping_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, settings = worker_model(), plan()
        named = dict(model.named_parameters())
        arrays = message.content.array_records["arrays"].to_torch_state_dict()
        with torch.no_grad():
            for name, value in named.items():
                value.copy_(arrays[name])
        optimiser = torch.optim.SGD(model.parameters(), lr=settings["learning_rate"])
        samples = in_order(settings["users"][int(context.node_config["partition-id"])])
        for tokens, labels in batches(samples, settings["batch_size"]):
            optimiser.zero_grad()
            loss(model, tokens, labels).backward()
            optimiser.step()
        content = RecordDict(
            {
                "arrays": ArrayRecord(OrderedDict((n, v.detach()) for n, v in named.items())),
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        return Message(content=content, reply_to=message)

    return app


def our_client() -> Any:
    """The ready client app, over the same users dealt to the nodes."""
    from flwr.app import Context

    from flower_privsyn.client_apps.training import create_training_app
    from flower_privsyn.data import Users

    def load(context: Context) -> Users:
        torch.set_num_threads(1)
        rows = [(f"user-{i}", text) for i, own in enumerate(plan()["texts"]) for text in own]
        return Users.from_rows(rows).partition(
            partition_id=int(context.node_config["partition-id"]),
            num_partitions=int(context.node_config["num-partitions"]),
        )

    return create_training_app(load, device="cpu")


class Watch:
    """Notes the CPU seconds of all processes whenever a round of training begins."""

    def __init__(self, grid: Any) -> None:
        self.marks: list[float] = []
        inner = grid.push_messages

        # Flower's loop and ours both send this way, and few nodes are sent everything at once.
        def push_messages(messages: Any) -> Any:
            messages = list(messages)
            if messages and messages[0].metadata.message_type != "query.prepare":
                self.note()
            return inner(messages)

        grid.push_messages = push_messages

    def note(self) -> None:
        """A round begins, or the last one has ended."""
        self.marks.append(cpu_seconds())

    def rounds(self) -> list[float]:
        """Of all but the first, in which processes start and models are loaded."""
        return [after - before for before, after in itertools.pairwise(self.marks[1:])]


def cpu_seconds() -> float:
    """CPU time so far of this process and all that it has started and that still run."""
    ticks = os.sysconf("SC_CLK_TCK")
    used = 0.0
    for pid in (os.getpid(), *(info.pid for info in psutil.Process().children(recursive=True))):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used += (int(fields[11]) + int(fields[12])) / ticks
    return used


def by_flower(
    model: str, texts: Sequence[Sequence[str]], users: Sequence[Samples], query: ModelDelta
) -> tuple[list[float], np.ndarray]:
    """Flower's own way; returns rounds, and the average update of the first, flat."""
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

    local = ordinary(LocalModel(TrainableModel(name=model), device="cpu"))
    start = {name: value.detach() for name, value in local.named_parameters()}
    sent: list[np.ndarray] = []
    app = ServerApp()
    watches: list[Watch] = []

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        watches.append(Watch(grid))
        plain = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=len(users),
            min_available_nodes=len(users),
        )
        # At noise multiplier 0 it draws and adds its noise all the same, of no size.
        strategy = DifferentialPrivacyClientSideFixedClipping(
            plain, noise_multiplier=0.0, clipping_norm=query.clip_to, num_sampled_clients=len(users)
        )

        def keep(number: int, arrays: ArrayRecord) -> None:
            if number == 1:
                values = arrays.to_torch_state_dict()
                sent.append(torch.cat([(values[n] - start[n]).flatten() for n in start]).numpy())

        strategy.start(
            grid,
            ArrayRecord(OrderedDict(start)),
            num_rounds=3,
            evaluate_fn=keep,
        )
        watches[0].note()

    _simulate(app, "flower_client", len(users), model, texts, users, query)
    return watches[0].rounds(), sent[0]


def ours_in_flower(
    model: str, texts: Sequence[Sequence[str]], users: Sequence[Samples], query: ModelDelta
) -> list[float]:
    """Our strategy and client app, two nodes that hold half of the users each."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    from flower_privsyn.strategies import DPFedAvg, DPFedAvgConfig, State

    app = ServerApp()
    watches: list[Watch] = []

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        watches.append(Watch(grid))
        with tempfile.TemporaryDirectory() as folder:
            config = DPFedAvgConfig(
                model=model,
                noise_multiplier=1.0,
                accept_noise=True,
                num_rounds=3,
                num_nodes=2,
                local_learning_rate=query.learning_rate,
                local_batch_size=query.batch_size,
                clip_norm=query.clip_to,
                run_dir=f"{folder}/run",
            )
            strategy = DPFedAvg(config)
            finish = strategy.method.finish

            def finished(state: State) -> dict[str, Any]:
                watches[0].note()
                return finish(state)

            strategy.method.finish = finished  # type: ignore[method-assign]
            strategy.start(grid)

    _simulate(app, "our_client", 2, model, texts, users, query)
    return watches[0].rounds()


def _simulate(
    app: Any,
    client: str,
    nodes: int,
    model: str,
    texts: Sequence[Sequence[str]],
    users: Sequence[Samples],
    query: ModelDelta,
) -> None:
    """Run a ServerApp in Flower's simulation engine, with two CPUs for the nodes."""
    from flwr.simulation import run_simulation

    import benchmarks.other_frameworks as here

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(
            json.dumps(
                {
                    "model": model,
                    "texts": [list(own) for own in texts],
                    "users": [[list(sample) for sample in own] for own in users],
                    "learning_rate": query.learning_rate,
                    "batch_size": query.batch_size,
                }
            )
        )
        root = str(Path(__file__).parents[1])
        os.environ |= {
            _PLAN: str(file),
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
            "FLWR_TELEMETRY_ENABLED": "0",
            # By default Ray lets its workers yield to every other process of the machine.
            "RAY_worker_niceness": "0",
        }
        build: Callable[[], Any] = getattr(here, client)
        run_simulation(
            app,
            build(),
            num_supernodes=nodes,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": 2, "logging_level": 40, "log_to_driver": False},
            },
        )
