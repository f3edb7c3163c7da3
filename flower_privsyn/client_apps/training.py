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
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import raised_as
from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.records import EmbeddingSource, note_left_out
from flower_privsyn.data import Samples
from flower_privsyn.files import user_path
from flower_privsyn.messages import wire
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy import skipping
from flower_privsyn.queries import Cohort, ConditionalDelta, ModelDelta, nearest_candidates
from flower_privsyn.queries.model_delta import conditioned_fingerprint, unpack_conditions
from flower_privsyn.training.local import LocalModel

#: A seed may be negative (`Chunking`), the entropy of a generator may not.
_SEEDS: Final = 2**128


class LocalTraining:
    """Trains models on this node. One copy of a model serves all users of a process.

    Args:
        device: as PyTorch names it; None takes the first accelerator, else the CPU.
    """

    def __init__(self, *, device: str | None = None) -> None:
        self._device = device
        # One: a server says which, run after run, and a node lives for months.
        self._model = functools.lru_cache(maxsize=1)(
            lambda model, files: LocalModel(model, device=device)  # noqa: ARG005
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Travel to another process without models."""
        return functools.partial(LocalTraining, device=self._device), ()

    def source(
        self, model: TrainableModel, *, embeddings: EmbeddingSource | None = None
    ) -> _Updates:
        """The model, loaded once while it is the last that was asked for.

        Where its files have been replaced it is another one: their owner may have stated a digest.

        Args:
            model: which, and what of it.
            embeddings: finds the conditions that documents are trained on after; None where they
                have none.

        Raises:
            PrivsynError: it cannot be loaded.
        """
        return _Updates(self._model(model, _files_of(user_path(model.name))), embeddings)


def _files_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of the files of a model's folder; none where there is no such folder."""
    found = sorted(folder.glob("*")) if folder.is_dir() else []
    stats = ((file.name, file.stat()) for file in found if file.is_file())
    return tuple((called, stat.st_size, stat.st_mtime_ns) for called, stat in stats)


class _Updates:
    """A model as a source of records: updates, made anew in every round.

    Args:
        model: which is trained.
        embeddings: find the conditions that documents are trained on after; None where they have
            none.
    """

    def __init__(self, model: LocalModel, embeddings: EmbeddingSource | None) -> None:
        self.model = model
        self.embeddings = embeddings
        self.dimension: int = model.dimension
        self.tokenizer: Any = model.tokenizer
        self.fingerprint: str = model.fingerprint
        if embeddings is not None:
            self.fingerprint = conditioned_fingerprint(model.fingerprint, embeddings.fingerprint)

    @functools.cached_property
    def probe(self) -> list[list[int]]:
        """Public samples: training that fails on them fails on everybody's."""
        return self.model.encode([skipping.PUBLIC_EXAMPLE])

    def read(self, samples: Samples, user_ids: Sequence[str]) -> _Tokens:
        found = skipping.map_isolating_errors(
            samples.texts, self.model.encode, probe=skipping.PUBLIC_EXAMPLE
        )
        usable = np.array([row is not None for row in found], dtype=np.bool_)  # (n,)
        vectors = None if self.embeddings is None else self.embeddings.vectors(samples.texts)
        if vectors is not None:
            usable &= np.isfinite(vectors).all(axis=1)
        note_left_out(user_ids, samples.owners[~usable])
        owners, users = samples.owners[usable], len(user_ids)
        tokens = [array("i", row or []) for row in itertools.compress(found, usable.tolist())]
        kept = _Tokens(self, _by_user(tokens, owners, users), tuple(user_ids))
        if vectors is None:
            return kept
        ends = np.ones(len(samples), dtype=np.bool_) if samples.ends is None else samples.ends
        return replace(
            kept,
            embeddings=_by_user(vectors[usable], owners, users),
            ends=_by_user(ends[usable], owners, users),
        )


def _by_user(rows: Any, owners: npt.NDArray[np.int64], users: int) -> tuple[Any, ...]:
    """The rows of each user, of rows in the order of their users."""
    bounds = np.searchsorted(owners, np.arange(users + 1)).tolist()
    return tuple(rows[first:last] for first, last in itertools.pairwise(bounds))


@dataclass(frozen=True, repr=False)  # whoever prints one prints no text
class _Tokens:
    """The samples of a node's users as tokens, in memory between messages and nowhere else.

    Attributes:
        source: what trains on them.
        samples: for each user, their samples' tokens, in four bytes each: they are kept.
        user_ids: for each user, who they are: the order of training is theirs alone.
        embeddings: for each user, (n, d) float32 of their samples, which find the conditions that
            they are trained on after; None where they have none.
        ends: for each user, (n,) bool, whether a document ends with each sample; None where there
            are no conditions, and nothing is learnt of ends.
    """

    source: _Updates
    samples: tuple[Sequence[array[int]], ...]
    user_ids: tuple[str, ...]
    embeddings: tuple[npt.NDArray[np.float32], ...] | None = None
    ends: tuple[npt.NDArray[np.bool_], ...] | None = None

    @property
    def public_cohorts(self) -> tuple[Cohort, ...]:
        """One user without an update; public text is trained on by `cohorts`."""
        none = np.zeros((0, self.source.dimension), dtype=np.float32)
        return (Cohort(none, np.zeros(0, dtype=np.int64), 1),)

    def cohorts(self, ask: wire.Ask, chosen: npt.NDArray[np.bool_]) -> Iterator[Cohort]:
        """Train the chosen users one after another; each is a cohort of one.

        A cohort's update holds until the next one is asked for. A user whose training fails, or
        diverges, is in no cohort and so answers zero. Public text is trained on before anybody's,
        whoever was chosen and whatever they wrote: training that fails fails there.
        """
        query, model = ask.query, self.source.model
        if not isinstance(query, ModelDelta):
            raise wire.WireError(f"{query.name} is not asked about updates")
        alone = np.zeros(1, dtype=np.int64)
        conditions: list[list[int]] = []
        if self.source.embeddings is not None:
            conditions = model.encode(unpack_conditions(ask.broadcast["conditions"]))
            if ask.broadcast["centres"].shape[1] != self.source.embeddings.dimension:
                raise wire.WireError("the centres are not of the request's embedding model")
        with raised_as(wire.WireError, ValueError, prefix=f"{query.name}: "):
            model.set_base(ask.broadcast.get("base"))
            model.set_bias(query.bias(ask.broadcast))
        model.start_from(ask.broadcast["parameters"])
        # One array for the updates of all users: each is added up before the next is made.
        moved = np.empty(model.dimension, dtype=np.float32)
        self._update(ask, query, self._public_rows(conditions), "", moved)
        for user in np.flatnonzero(chosen).tolist():
            (update,) = skipping.retry_by_halves(
                [(user, self.user_ids[user])],
                lambda users: [
                    self._update(ask, query, self._rows(place, ask, conditions), name, moved)
                    for place, name in users
                ],
            )
            if update is None or not np.isfinite(update).all():
                skipping.note([self.user_ids[user]], records=0)
            elif len(update):
                yield Cohort(update[None], alone, 1)

    def _public_rows(self, conditions: Sequence[list[int]]) -> _Rows:
        """Public text, after a condition where there are any."""
        if not conditions:
            return _Rows(self.source.probe)
        probe = self.source.probe
        return self._after([conditions[0]] * len(probe), probe, [True] * len(probe))

    def _rows(self, user: int, ask: wire.Ask, conditions: Sequence[list[int]]) -> _Rows:
        """What a user trains on: their samples, after the conditions of their topics if any."""
        samples = [sample.tolist() for sample in self.samples[user]]
        if self.embeddings is None or self.ends is None:
            return _Rows(samples)
        topics = nearest_candidates(self.embeddings[user], ask.broadcast["centres"])
        everywhere = isinstance(ask.query, ConditionalDelta) and ask.query.train_on_eos == "samples"
        ends = [True] * len(samples) if everywhere else self.ends[user].tolist()
        return self._after([conditions[topic] for topic in topics.tolist()], samples, ends)

    def _after(
        self, before: Sequence[list[int]], samples: Sequence[list[int]], ends: Sequence[bool]
    ) -> _Rows:
        """Each sample after its own condition, and before an end where it has one."""
        after = self.source.model.after_condition
        return _Rows(
            [after(b, own, ends=end) for b, own, end in zip(before, samples, ends, strict=True)],
            [len(row) for row in before],
        )

    def _update(
        self,
        ask: wire.Ask,
        query: ModelDelta,
        rows: _Rows,
        user_id: str,
        moved: npt.NDArray[np.float32],
    ) -> npt.NDArray[np.float32]:
        """How far a user's training moves the parameters; empty without anything to predict.

        Args:
            ask: the question.
            query: of the question.
            rows: what the user trains on.
            user_id: who it is.
            moved: (dimension,) that the update is written to.
        """
        update = self.source.model.update(
            rows.samples,
            given=rows.given,
            learning_rate=query.learning_rate,
            epochs=query.epochs,
            batch_size=query.batch_size,
            max_steps=query.max_steps,
            seed=[ask.data.seed % _SEEDS, ask.release.round, *user_id.encode()],
            into=moved,
        )
        return np.empty(0, dtype=np.float32) if update is None else update


@dataclass(frozen=True, repr=False)
class _Rows:
    """What one user trains on.

    Attributes:
        samples: as tokens.
        given: of each sample how many tokens are given and not predicted; None for the first alone.
    """

    samples: Sequence[list[int]]
    given: Sequence[int] | None = None


#: For `clientapp = "flower_privsyn.client_apps.training:app"`.
app = create_client_app(trainer=LocalTraining())
