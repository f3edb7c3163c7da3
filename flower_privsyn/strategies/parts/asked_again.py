"""Methods that ask the same question in every round and work with all releases at the end."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING

from flower_privsyn.private_path.method import Method, Question, Workplace, need
from flower_privsyn.private_path.release import ReleasedSum, SumOfUsers

if TYPE_CHECKING:
    from flower_privsyn.host.progress import Progress
    from flower_privsyn.runs import RunDirectory


class AskedAgain(Method, ABC):
    """What such methods share: a subclass gives `prepare`, which sets `_place`, and `first`."""

    _place: Workplace | None = None

    @property
    def run(self) -> RunDirectory:
        """The run directory; available from `prepare` on."""
        return self._need_place().run

    @property
    def progress(self) -> Progress:
        """Where long work reports its steps; available from `prepare` on."""
        return self._need_place().progress

    def following(
        self,
        release: ReleasedSum,  # noqa: ARG002 - it is on the disk, and read when all are there
        *,
        last: bool,
    ) -> Question | None:
        """The same question again."""
        return None if last else self.first()

    def restore(self, round_number: int) -> Question:  # noqa: ARG002
        """The same question in every round."""
        return self.first()

    def carry_over(self, round_number: int) -> None:
        """Nothing: what a round sends does not depend on the ones before."""

    def releases(self) -> list[SumOfUsers]:
        """All releases of the run, as `ReleasedSum.of_users` has each of them."""
        found = (
            self._need_place().released(number)
            for number in self.run.rounds_with_outcome("released")
        )
        return [one.of_users for one in found if one is not None]

    def _need_place(self) -> Workplace:
        return need(self._place)
