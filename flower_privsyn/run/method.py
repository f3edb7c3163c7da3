"""What a method asks and gets, values none of which is a raw sum, and what it makes of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy import Phase, Plan, PoissonSampling, Sampling
from flower_privsyn.privacy.mechanisms import LARGEST_SUM
from flower_privsyn.queries import Broadcast, Query
from flower_privsyn.queries.arrays import TEXT_DIMENSION, TEXT_FINGERPRINT, Reads

if TYPE_CHECKING:
    from flower_privsyn.generation import TextGenerator
    from flower_privsyn.progress import Progress
    from flower_privsyn.run import RunDirectory


class SumOfUsers(NamedTuple):
    """A noisy sum over users, or several ones of the same question added up.

    Attributes:
        total: (m,) float64.
        users: answers in it, or where that is secret as many as are expected, > 0.
        noise_std: standard deviation of its noise.
        rate: share of the people who are drawn for a round, in (0, 1].
        by_coins: whether each of them is drawn by a coin, so that nobody knows how many are.
        rounds: sums that were added up.
    """

    total: npt.NDArray[np.float64]
    users: float
    noise_std: float
    rate: float = 1.0
    by_coins: bool = False
    rounds: int = 1

    @property
    def sample(self) -> tuple[float, float]:
        """How the mean of a number over these users varies, with them and with who is drawn.

        Of a number with mean p and variance v among people, the sum over `users` has the variance
        v / n + b p^2 around p. There are N = users / (rate x rounds) people, the same ones in every
        round: 1 / n = 1 / N + (1 - rate) / users, and b = (1 - rate) / users where coins decide how
        many are drawn, else 0.

        Returns:
            n and b.
        """
        n = self.users / (self.rate * self.rounds + (1.0 - self.rate))
        return n, (1.0 - self.rate) / self.users if self.by_coins else 0.0


@dataclass(frozen=True, kw_only=True)
class ReleasedSum:
    """A noisy sum that has been charged to the ledger; everything made from it is free.

    Attributes:
        round_number: 1-based.
        values: (m,) float64, the sum over users plus noise.
        noise_std: standard deviation of the noise in `values`; public. Where nodes add it and who
            was drawn is secret, that of a sum of all nodes: how many answered is not released. For
            reading the release; what protects a user is in the ledger, and may be less.
        num_users: users whose answers are in the sum; None where who was drawn is secret, under
            Poisson and fixed-size sampling: how many of them answered is not released.
        sampling: who was drawn from, and how.
    """

    round_number: int
    values: npt.NDArray[np.float64]
    noise_std: float
    num_users: int | None
    sampling: Sampling

    @property
    def expected_users(self) -> float:
        """Users that take part in such a round on average; public."""
        return self.sampling.expected_users

    @property
    def largest_clip_norm(self) -> float:
        """The largest clip norm that a next question may have.

        Beyond, the grid does not hold the sum of everybody on the roster.
        """
        return LARGEST_SUM / (self.sampling.population or 1)

    @property
    def of_users(self) -> SumOfUsers:
        """The sum with what it takes to read it.

        Where who was drawn is secret, the expected number of users stands for theirs: the mean
        stays unbiased, and varies with the coins (`SumOfUsers.sample`).
        """
        users = self.expected_users if self.num_users is None else float(self.num_users)
        by_coins = isinstance(self.sampling, PoissonSampling)
        return SumOfUsers(self.values, users, self.noise_std, self.sampling.rate, by_coins)


def added_up(releases: Sequence[SumOfUsers]) -> SumOfUsers | None:
    """Releases of the same question as one; None where there is none, or nobody in them."""
    if not releases or sum(one.users for one in releases) <= 0:
        return None
    return releases[0]._replace(
        total=np.sum([one.total for one in releases], axis=0),
        users=float(sum(one.users for one in releases)),
        noise_std=float(np.sqrt(sum(one.noise_std**2 for one in releases))),
        rounds=sum(one.rounds for one in releases),
    )


#: Arrays of numbers, and small values that JSON can say, by name. It is read and never changed: a
#: step makes another one.
State: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Question:
    """What one round asks: made at once, so that query and broadcast cannot disagree.

    Attributes:
        query: the question, with its clip norm.
        broadcast: public arrays, as `query.check` wants them.
    """

    query: Query
    broadcast: Broadcast


Level = Literal["fine", "warning", "stops"]


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """One sentence about a run before anybody is asked, for the person who started it.

    Attributes:
        topic: what it is about, in a word: "data", "noise".
        level: "fine"; "warning": the run works, and this is worth knowing; "stops": it does not.
        sentence: in words.
    """

    topic: str
    level: Level = "fine"
    sentence: str


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


T = TypeVar("T")


def need(value: T | None) -> T:
    """What `setup` has set.

    Raises:
        RuntimeError: it has not been called.
    """
    if value is None:
        raise RuntimeError("the strategy has not been started")
    return value


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Where a method works.

    Attributes:
        run: the run directory.
        progress: where long work reports its steps.
        released: the release of a round; None before it and where it was lost.
    """

    run: RunDirectory
    progress: Progress
    released: Callable[[int], ReleasedSum | None]

    def releases(self) -> list[SumOfUsers]:
        """All releases of the run, as `ReleasedSum.of_users` has each of them."""
        found = (self.released(number) for number in self.run.rounds_with_outcome("released"))
        return [one.of_users for one in found if one is not None]


class Method(ABC):
    """A method: what is asked, and what becomes of what was released.

    It sees public text, released sums and the run directory. Nodes, sums, noise and ledger are the
    private path's (`PrivateSumStrategy`) and the same for every method.

    What a method knows between two rounds is its state, a mapping that the engine keeps
    (`flower_privsyn.run.rounds`): after any kill it loads the last one and steps it through
    the releases that were charged since. So `init`, `ask` and `step` give the same from the same,
    in whatever process, and a method restores nothing itself. Files that they write for readers of
    the run, such as a round's texts, are written again alike.

    Long work within `init` or `step` may keep what it has done in `scratch`, a folder that a killed
    run finds again and that is emptied once the state is on the disk.
    """

    #: What an app gave to write in place of the setting `generator`; None where the setting says.
    given_writer: TextGenerator | None = None

    #: Where the method works, from `setup` on: `setup` sets it.
    place: RunContext

    @property
    def run(self) -> RunDirectory:
        """The run directory; from `setup` on."""
        return self.place.run

    @property
    def progress(self) -> Progress:
        """Where long work reports its steps; from `setup` on."""
        return self.place.progress

    @property
    @abstractmethod
    def queries(self) -> tuple[Query, ...]:
        """Every question the run may ask, as it is first asked; settled by `setup`."""

    @abstractmethod
    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
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

    def init(self, scratch: Path) -> State:
        """What is known before round 1; here nothing.

        Args:
            scratch: a folder for what long work keeps of itself.
        """
        return {}

    @abstractmethod
    def ask(self, state: State, number: int) -> Question:
        """What a round asks.

        Args:
            state: what is known.
            number: of the round, 1-based.
        """

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:
        """Post-process a release; here nothing is made of it before all are there.

        A round that was lost has no step: the state stays as it was.

        Args:
            state: what was known when the round was asked; stays as it is.
            release: the noisy sum.
            scratch: a folder for what long work keeps of itself.

        Returns:
            What is known after it.
        """
        return state

    @abstractmethod
    def finish(self, state: State) -> dict[str, Any]:
        """Make and write the result, which a killed run may have begun; figures for its end.

        Args:
            state: what is known after the last round.
        """

    def phases(self, population: int) -> tuple[Phase, ...] | None:
        """The rounds of the run, in groups that share noise, sampling and correlation.

        None, as here: one phase, as the settings have it.

        Args:
            population: users on the roster; before the nodes are met, the fewest there must be.
        """
        return None

    def check(self, plan: Plan, *, spent: str, state: State | None = None) -> Diagnostic | None:
        """Refuse a plan whose releases could not be used; asked before the next round is.

        What it reads is public.

        Args:
            plan: its phases, with the population there is and their noise settled.
            spent: words for what the run has cost.
            state: what is known, of a run that goes on.

        Returns:
            What the noise leaves; None where there is nothing to say.

        Raises:
            ConfigError: the result would say nothing.
        """

    def arrays(self, state: State) -> Broadcast | None:
        """What has been learnt, as arrays: for `evaluate_fn` and Flower's `Result`.

        None, as here: there is nothing but the next round's broadcast.

        Args:
            state: what is known.
        """
        return None

    def example_states(self, scratch: Path) -> dict[int, State]:
        """States of the sizes that rounds ask with, by the first round that asks with each.

        For `privsyn check`, which counts by them what rounds will carry: after `setup`, in a run
        directory that is thrown away. One, that of `init`, as here; a method whose `init` is long
        work, or whose later rounds ask with other arrays, gives arrays of zeros.

        Args:
            scratch: as for `init`.
        """
        return {1: self.init(scratch)}
