"""What a method gives the private path and what it gets: values, none of which is a raw sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from flower_privsyn.privacy import Phase, Plan
from flower_privsyn.private_path.needs import Look, Needs
from flower_privsyn.private_path.release import ReleasedSum
from flower_privsyn.queries import Broadcast, Query, TrainableModel
from flower_privsyn.queries.query import TEXT_DIMENSION, TEXT_FINGERPRINT, Reads

if TYPE_CHECKING:
    from flower_privsyn.generation import TextGenerator
    from flower_privsyn.host.progress import Progress
    from flower_privsyn.runs import RunDirectory

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Question:
    """What one round asks: made at once, so that query and broadcast cannot disagree.

    Attributes:
        query: the question, with its clip norm.
        broadcast: public arrays, as `query.check` wants them.
    """

    query: Query
    broadcast: Broadcast


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found of a plan before anybody is asked.

    Attributes:
        sentence: for the person who started the run.
        warning: whether that person should think again.
    """

    sentence: str
    warning: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordSource:
    """What makes the records that questions are about; the nodes must have the same.

    Attributes:
        fingerprint: of the embedding model, or of the model that is trained.
        dimension: numbers in a record: of an embedding, or the parameters that are trained.
        reads: what a record is, as the questions declare it (`Query.reads`).
        trains: the model whose updates are asked for, which reads tokens; else None.
        model: whose tokenizer cuts and counts where tokens are read and no model is trained; "" for
            the embedding model of the settings.
        conditioned: whether the model is trained on documents after conditions, which the embedding
            model of the settings finds.
    """

    fingerprint: str
    dimension: int
    reads: Reads = "embeddings"
    trains: TrainableModel | None = None
    model: str = ""
    conditioned: bool = False

    @classmethod
    def of_text(cls) -> RecordSource:
        """Documents as they are, for which no node needs a model."""
        return cls(fingerprint=TEXT_FINGERPRINT, dimension=TEXT_DIMENSION, reads="text")

    def suits(self, query: Query) -> bool:
        """Whether these records are what a question is about."""
        if query.conditioned != self.conditioned:
            return False
        if query.trains != (self.trains is not None):
            return False
        return query.trains or query.reads == self.reads


@dataclass(frozen=True, kw_only=True)
class Outline:
    """What the rounds of a run ask, in the shape that they will have.

    Attributes:
        sources: what makes the records; their fingerprints are empty.
        question: from the number of a round to its question, whose arrays may hold anything.
        at_most: whether the run may send less, as where a response cannot be used.
    """

    sources: tuple[RecordSource, ...]
    question: Callable[[int], Question]
    at_most: bool = False


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where a method works.

    Attributes:
        run: the run directory.
        progress: where long work reports its steps.
        released: the release of a round; None before it and where it was lost.
    """

    run: RunDirectory
    progress: Progress
    released: Callable[[int], ReleasedSum | None]


class Method(ABC):
    """A method: what is asked, and what becomes of what was released.

    It sees public text, released sums and the run directory. Nodes, sums, noise and ledger are the
    private path's (`PrivateSumStrategy`) and the same for every method.

    All it returns are values. `first`, `following` and `restore` store in the run directory what
    `restore` needs for later rounds before they return, and may be called again for the same round
    when a run is resumed.
    """

    #: Settings that a resumed run may change: no release, made or to come, depends on them.
    changeable: ClassVar[frozenset[str]] = frozenset()

    #: The same once all releases are made.
    changeable_once_released: ClassVar[frozenset[str]] = frozenset()

    #: What an app gave to write in place of the setting `generator`; None where the setting says.
    given_writer: TextGenerator | None = None

    @property
    def stamp(self) -> str | None:
        """What marks every figure of a run whose result the ledger does not cover; else None."""
        return None

    @abstractmethod
    def prepare(self, place: Workplace) -> tuple[RecordSource, ...]:
        """Load and check everything the server needs, before any budget is spent.

        Every start calls it. The one before may have failed, also in here, have had another run
        directory, or have been followed by another process: nothing that it left in memory may
        stand for what is in the run directory now.

        Args:
            place: where to work from now on.

        Returns:
            What makes the records, one source for each kind that the questions read.

        Raises:
            PrivsynError: something is missing or unusable.
        """

    @property
    @abstractmethod
    def queries(self) -> tuple[Query, ...]:
        """Every question the run may ask, as it is first asked; settled by `prepare`."""

    def phases(self, population: int) -> tuple[Phase, ...] | None:
        """The rounds of the run, in groups that share noise, sampling and correlation.

        None, as here: one phase, as the settings have it.

        Args:
            population: users on the roster; before the nodes are met, the fewest there must be.
        """
        return None

    @abstractmethod
    def first(self) -> Question:
        """What round 1 asks."""

    @abstractmethod
    def following(self, release: ReleasedSum, *, last: bool) -> Question | None:
        """Post-process a release into the next question.

        Args:
            release: the noisy sum.
            last: no further round follows; return None.

        Returns:
            What the next round asks. None after the last round, and before it to end the run
            early: the rounds that are left are neither asked nor charged.
        """

    @abstractmethod
    def restore(self, round_number: int) -> Question:
        """What a round asks whose predecessor is over, from the run directory."""

    @abstractmethod
    def carry_over(self, round_number: int) -> None:
        """Keep what a round asked whose release was lost, so that the next one can ask it."""

    def closing(self) -> Broadcast | None:
        """What a round after the last would be asked of; None where that is made of nothing more.

        For `evaluate_fn` and the arrays of Flower's `Result`, where the next question would say
        what the last release has changed, as the parameters of a trained model.
        """
        return None

    def take_back(self, round_number: int) -> None:
        """Undo what `carry_over` did for a round that is asked again after all.

        Called before `restore`, for the last round first.
        """

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Make and write the result; return figures for the end of the run."""

    def free_settings(self, run: RunDirectory, *, all_released: bool) -> frozenset[str]:
        """Settings that a resumed run may change now.

        Args:
            run: the run directory.
            all_released: whether no round is left to ask.
        """
        return self.changeable | (self.changeable_once_released if all_released else frozenset())

    def needs(self) -> Needs:
        """What `prepare` and `finish` will use; nothing of it is loaded, and nothing by default."""
        return Needs()

    def outline(self, look: Look) -> Outline | None:
        """What the rounds will ask, made without loading a model; None where nobody can say.

        Args:
            look: what the files of models say of their sizes.

        Raises:
            ModelError: a model is not on this machine.
        """
        return None

    def check_plan(self, plan: Plan, *, spent: str) -> Finding | None:
        """Refuse a plan whose releases could not be used; asked before the next round is.

        What it reads is public. `privsyn check` asks before `prepare` as well.

        Args:
            plan: its phases, with the population there is and their noise settled.
            spent: words for what the run has cost.

        Returns:
            What the noise leaves; None where there is nothing to say.

        Raises:
            ConfigError: the result would say nothing.
        """

    def describe(self, plan: Plan) -> Sequence[str]:
        """Further sentences for the log, on what the run is about to spend.

        Args:
            plan: its phases, with their noise settled.
        """
        return ()


def need(value: T | None) -> T:
    """What `prepare` has set.

    Raises:
        RuntimeError: it has not been called.
    """
    if value is None:
        raise RuntimeError("the strategy has not been started")
    return value
