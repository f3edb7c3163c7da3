"""What a method does with the releases of a run, and where it works."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_privsyn.privacy import Phase, Plan
from flower_privsyn.queries import Broadcast, Query
from flower_privsyn.run.question import (
    Diagnostic,
    Question,
    RecordSource,
    ReleasedSum,
    State,
    SumOfUsers,
)

if TYPE_CHECKING:
    from flower_privsyn.generation import TextGenerator
    from flower_privsyn.progress import Progress
    from flower_privsyn.run import RunDirectory


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
