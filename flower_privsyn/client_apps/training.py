"""The client's half of strategies that train a model on the nodes, beside all other queries.

`clientapp = "flower_privsyn.client_apps.training:app"` in a Flower app is ready to use; each node
reads the users named by `data` in its own configuration (in a simulation also the run's).

This is the one client app that loads PyTorch and Transformers. What leaves a node, and how it is
bounded, is the code of `flower_privsyn.client_apps.handlers`: a user's update is a record like
an embedding is, and the query clips it, puts it on the grid and adds it up.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.clientapp import ClientApp

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.node_users import EmbedderLoader, UserLoader
from flower_privsyn.data import Samples
from flower_privsyn.files import located
from flower_privsyn.messages import wire
from flower_privsyn.models import BUNDLED_MODELS
from flower_privsyn.privacy import quarantine
from flower_privsyn.queries import Cohort, ModelDelta, Query, TrainableModel
from flower_privsyn.training.local import LocalModel


def create_training_app(
    load: UserLoader | None = None,
    *,
    embedder: EmbedderLoader | None = None,
    cache_directory: str | Path | None = None,
    device: str | None = None,
    queries: Sequence[type[Query]] = (),
) -> ClientApp:
    """Build the ClientApp that serves every strategy of this package, those that train included.

    Args:
        load: from the node's context to its users; default `users_of_node`.
        embedder: as for `create_client_app`; used by strategies that ask about embeddings.
        cache_directory: as for `create_client_app`.
        device: where models are trained, as PyTorch names it; None takes the first accelerator,
            else the CPU.
        queries: as for `create_client_app`.
    """
    return create_client_app(
        load,
        embedder=embedder,
        cache_directory=cache_directory,
        trainer=LocalTraining(device=device),
        queries=queries,
    )


class LocalTraining:
    """Trains models on this node. One copy of a model serves all users of a process.

    Args:
        device: as PyTorch names it; None takes the first accelerator, else the CPU.
    """

    def __init__(self, *, device: str | None = None) -> None:
        self._device = device
        self._sources: dict[TrainableModel, _Updates] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """Travel to another process without models."""
        return _rebuild, (self._device,)

    def source(self, model: TrainableModel) -> _Updates:
        """The model, loaded once.

        Raises:
            PrivsynError: it cannot be loaded.
        """
        with self._lock:
            if model not in self._sources:
                # A bundled model is meant by its name, whatever lies in the folder one is in.
                name = model.name if model.name in BUNDLED_MODELS else located(model.name)
                found = TrainableModel.from_dict({**model.to_dict(), "name": name})
                self._sources[model] = _Updates(LocalModel(found, device=self._device))
            return self._sources[model]


def _rebuild(device: str | None) -> LocalTraining:
    return LocalTraining(device=device)


class _Updates:
    """A model as a source of records: updates, made anew in every round."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        self.lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        return self.model.fingerprint

    @property
    def dimension(self) -> int:
        return self.model.dimension

    @property
    def tokenizer(self) -> Any:
        return self.model.tokenizer

    @functools.cached_property
    def probe(self) -> list[list[int]]:
        """Public samples: training that fails on them fails on everybody's."""
        return self.model.encode([quarantine.PROBE])

    def read(self, samples: Samples, user_ids: Sequence[str]) -> _Tokens:
        found = quarantine.salvage(samples.texts, self.model.encode, probe=quarantine.PROBE)
        tokens: list[list[int]] = []
        for owner, row in zip(samples.owners.tolist(), found, strict=True):
            if row is None:
                quarantine.note([user_ids[owner]], records=1)
            tokens.append(row or [])
        bounds = np.searchsorted(samples.owners, np.arange(len(user_ids) + 1))
        return _Tokens(
            source=self,
            samples=tuple(tuple(tokens[first:last]) for first, last in itertools.pairwise(bounds)),
            user_ids=tuple(user_ids),
        )


@dataclass(frozen=True)
class _Tokens:
    """The samples of a node's users as tokens, in memory between messages and nowhere else.

    Attributes:
        source: what trains on them.
        samples: for each user, their samples' tokens.
        user_ids: for each user, who they are: the order of training is theirs alone.
    """

    source: _Updates
    samples: tuple[tuple[list[int], ...], ...]
    user_ids: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """About 36 bytes per token: a pointer and a small integer."""
        return 36 * sum(len(sample) for own in self.samples for sample in own)

    def cohorts(self, ask: wire.Ask, chosen: npt.NDArray[np.bool_]) -> Iterator[Cohort]:
        """Train the chosen users one after another; each is a cohort of one.

        A user whose training fails, or diverges, is in no cohort and so answers zero.
        """
        query, model = ask.query, self.source.model
        if not isinstance(query, ModelDelta):
            raise wire.WireError(f"{query.name} is not asked about updates")
        alone = np.zeros(1, dtype=np.int64)
        with self.source.lock:
            try:
                model.set_base(ask.broadcast.get("base"))
            except ValueError as error:
                raise wire.WireError(f"{query.name}: {error}") from error
            model.start_from(ask.broadcast["parameters"])
            for user in np.flatnonzero(chosen):
                (update,) = quarantine.salvage(
                    [(self.samples[user], self.user_ids[user])],
                    lambda users: [self._update(ask, query, *own) for own in users],
                    probe=(self.source.probe, ""),
                )
                if update is None or not np.isfinite(update).all():
                    quarantine.note([self.user_ids[user]], records=0)
                elif len(update):
                    yield Cohort(update[None], alone, 1)

    def _update(
        self, ask: wire.Ask, query: ModelDelta, samples: Sequence[list[int]], user_id: str
    ) -> npt.NDArray[np.float32]:
        """How far a user's training moves the parameters; empty without anything to predict."""
        update = self.source.model.update(
            samples,
            learning_rate=query.learning_rate,
            epochs=query.epochs,
            batch_size=query.batch_size,
            max_steps=query.max_steps,
            seed=[ask.data.seed, ask.round_number, *user_id.encode()],
        )
        return np.empty(0, dtype=np.float32) if update is None else update


#: For `clientapp = "flower_privsyn.client_apps.training:app"`.
app = create_training_app()
