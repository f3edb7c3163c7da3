"""Training of users on a node, beside its passes and pfl, one user after another.

What the client app does: one model, weights put back before each user, the update clipped and
summed by the query. The floor is the forward and backward passes alone. pfl trains by
FederatedAveraging with clipping in its SimulatedBackend; that both make the same of the users is
checked before anything is timed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import Other, Ratio, compared, installed
from flower_privsyn.data import public_texts
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.queries import Cohort, ModelDelta
from flower_privsyn.training.common import disable_dropout
from flower_privsyn.training.local import LocalModel

Samples = Sequence[Sequence[int]]

SAMPLES, TOKENS = 8, 64
CLIP, RATE, BATCH = 0.1, 0.1, 4
#: Without its dependencies: its bound on dp-accounting is not ours, nor needed to run it.
PFL = "pfl (peer): `pip install --no-deps pfl prv-accountant multiprocess dill`"


def measure(*, model: str = "privsyn-tiny", users: int = 16) -> list[Ratio]:
    """Of so many users."""
    local = LocalModel(TrainableModel(name=model), device="cpu")
    samples = [local.encode(texts) for texts in texts_of(users, local.tokenizer)]
    return compared(
        f"training on a node, {model}, {users} users",
        lambda: by_cohort(local, samples),
        passes(local, samples),
        by_pfl(model, samples, expected=by_cohort(local, samples) * CLIP / users),
        repeats=5,
    )


def texts_of(count: int, tokenizer: Any) -> list[list[str]]:
    """Eight public texts for each user, of 64 tokens or little fewer."""
    texts = public_texts("bundled", tokenizer=tokenizer, max_tokens=TOKENS)
    texts = sorted(texts, key=len)[-count * SAMPLES :]
    np.random.default_rng(0).shuffle(texts)  # a user's samples differ in length
    return [texts[i::count] for i in range(count)]


def by_cohort(model: LocalModel, users: Sequence[Samples]) -> np.ndarray:
    """The sum of all users' contributions."""
    broadcast = {"parameters": model.parameters}
    query = ModelDelta(clip_to=CLIP)
    total, alone = np.zeros(model.dimension), np.zeros(1, dtype=np.int64)
    moved = np.empty(model.dimension, dtype=np.float32)
    for samples in users:
        update = model.update(samples, into=moved, learning_rate=RATE, epochs=1, batch_size=BATCH)
        if update is not None:
            total += query.answer(Cohort(update[None], alone, 1), broadcast)
    return total


def passes(model: LocalModel, users: Sequence[Samples]) -> Other:
    """Forward and backward alone, the gradients thrown away."""

    def work() -> None:
        for samples in users:
            for first in range(0, len(samples), BATCH):
                model._loss([(sample, 1) for sample in samples[first : first + BATCH]]).backward()
                model._drop_gradients()

    return Other("forward and backward alone (floor)", work, 1.05)


@functools.cache
def plain_model(name: str) -> Any:
    """The model as Transformers loads it, without dropout, once a process."""
    model, _ = load_pretrained(name, kind="causal", dtype="float32", device="cpu")
    disable_dropout(model)
    return model.requires_grad_(True).train()


def batches(samples: Samples) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Padded tokens, and labels that are -100 where there is nothing to predict.

    In the order in which `LocalModel.update` takes a user's samples by default.
    """
    order = np.random.default_rng((0,)).permutation(len(samples))
    for first in range(0, len(samples), BATCH):
        part = [samples[rank] for rank in order[first : first + BATCH]]
        width = max(map(len, part))
        labels = torch.tensor([[*one, *[-100] * (width - len(one))] for one in part])
        yield labels.clamp(min=0), labels


def loss(model: Any, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Transformers' own loss of a padded batch."""
    mask = (labels != -100).long()
    return model(input_ids=tokens, attention_mask=mask, labels=labels, use_cache=False).loss


def by_pfl(name: str, users: Sequence[Samples], *, expected: np.ndarray) -> Other:
    """pfl, which is to move the model as far as expected."""
    if not installed("pfl", "prv_accountant", "multiprocess", "dill"):
        return Other(PFL, None, 1.0)
    work = pfl_round(name, users)
    if np.abs(work() - expected).max() > 1e-3 * np.abs(expected).max():
        raise SystemExit("pfl trains differently")
    return Other("pfl (peer)", work, 1.0)


def pfl_round(name: str, users: Sequence[Samples]) -> Callable[[], np.ndarray]:
    """One round of pfl, from the same model every time; it returns the average update."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
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

    if pytorch_ops.distributed is None:  # as pfl leaves it in any process but the main one
        pytorch_ops.distributed = NotDistributedContext()

    class User(Dataset):  # type: ignore[misc]
        """Yields batches padded to their own width, as ours are."""

        def iter(self, batch_size: int | None) -> Iterator[Any]:
            # pfl also evaluates all users, in one batch each; here that shall cost nothing.
            return batches(self.raw_data[0]) if batch_size == BATCH else iter([()])

        def __len__(self) -> int:
            return len(self.raw_data[0])

    class Module(torch.nn.Module):
        """What pfl asks of a model."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = plain_model(name)

        def loss(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return loss(self.inner, tokens, labels)

        def metrics(self, *batch: torch.Tensor) -> Any:  # noqa: ARG002
            return {"none": Weighted(0.0, 1)}

    module = Module()
    weights = list(module.parameters())
    start = [value.detach().clone() for value in weights]
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(weights, lr=1.0),
    )
    held = [User((samples,)) for samples in users]
    data = FederatedDataset(held.__getitem__, MinimizeReuseUserSampler(list(range(len(users)))))
    clip = CentrallyAppliedPrivacyMechanism(NormClippingOnly(2.0, CLIP))
    backend = SimulatedBackend(data, data, postprocessors=[WeightByUser(), clip])

    def work() -> np.ndarray:
        with torch.no_grad():
            for now, then in zip(weights, start, strict=True):
                now.copy_(then)
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=1,
                evaluation_frequency=1,
                train_cohort_size=len(users),
                val_cohort_size=0,
            ),
            backend,
            model,
            NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH
            ),
            send_metrics_to_platform=False,
        )
        with torch.no_grad():
            moved = [(now - then).flatten() for now, then in zip(weights, start, strict=True)]
        return torch.cat(moved).numpy()

    return work
