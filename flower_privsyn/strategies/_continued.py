"""Training whose rounds go on from a model that the run itself has made of public text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flower_privsyn.run.question import State, need
from flower_privsyn.strategies._training import FederatedTraining

if TYPE_CHECKING:
    from flower_privsyn.training.local import LocalModel


class ContinuedTraining(FederatedTraining):
    """`FederatedTraining` that goes on from models of the run.

    In its state, beside the others: `base`, the folder of the model whose values stand where nodes
    train nothing; none where that is what the rounds start from.

    Args:
        config: the settings.
    """

    def base_of(self, state: State) -> LocalModel:
        """The model whose values stand where nodes train nothing.

        Args:
            state: names the folder of one that the run has made.

        Raises:
            RunDirectoryError: the folder is elsewhere.
        """
        return need(self._models).base(state.get("base", ""), home=self.run.path)

    def begun_from(self, state: State, base: str) -> State:
        """The state whose rounds go on from a model that was trained from theirs.

        Args:
            state: before.
            base: the folder of that model, below the run directory.
        """
        parameters = self.base_of({"base": base}).parameters
        return {**state, "base": base, "parameters": parameters}

    def example_on(self, base: str, state: State) -> State:
        """A state whose rounds go on from a model of the run, here the one that they began with.

        Args:
            base: the folder of that model, below the run directory.
            state: before.
        """
        if self.config.trainable == "full":
            return state  # nodes train all of it, and nothing travels beside it
        self.model.save(self.run.path / base, state["parameters"])
        return self.begun_from(state, base)
