"""Public mid-training: DP-FTRL in two halves, with training on public text between them.

Paper:
    Wang, Zhang, Cao, Li, McMahan, Oh, Xu, Zaheer: "Can Public Large Language Models Help Private
    Cross-device Federated Learning?" (NAACL 2024), Algorithm 1:

    lines of the paper                                            here
    DP-FTRL for T' rounds                                         rounds up to `rounds_before`
    score public rows by log p_private + log p_public, keep q     `PublicStep`, public-rows
    train on them by cross-entropy + beta x distillation          `PublicStep`, teacher
    DP-FTRL for the other T - T' rounds from there                `step`; the same mechanism
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from flower_privsyn.privacy import RandomSource
from flower_privsyn.private_path.engine import PrivateSumStrategy
from flower_privsyn.private_path.method import RecordSource, RunContext, need
from flower_privsyn.private_path.needs import ChosenRows, NeededModel, Needs
from flower_privsyn.private_path.release import ReleasedSum
from flower_privsyn.private_path.settings import Preset
from flower_privsyn.private_path.state import State
from flower_privsyn.strategies.dp_ftrl import CorrelatedTraining
from flower_privsyn.strategies.parts.mid_training_settings import PublicMidTrainingConfig
from flower_privsyn.strategies.parts.public_step import AFTER, PublicStep

if TYPE_CHECKING:
    from flower_privsyn.training.local import LocalModel


@final
class PublicMidTraining(PrivateSumStrategy):
    """Train a language model on the users' own text, with public text in the middle.

    DP-FTRL for T' rounds; at the server, the public text that the model of these rounds and a
    public one find likeliest, and training on it with a larger public model as the teacher; DP-FTRL
    for the other rounds, from the model that this made. The trained model is in
    `<run-dir>/models/final`, those before and after the public text beside it.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            PublicMidTraining(
                epsilon=1.0, num_rounds=40, min_separation=40, num_users=1250, num_nodes=50
            ).start(grid)
        ```
    with `clientapp = "flower_privsyn.client_apps.training:app"`.

    Formal guarantee:
        Unit: user; relation: `config.relation`. All rounds, those before and those after the public
        text, are one Gaussian mechanism with the sensitivity of its correlation matrix, charged as
        a whole with the first round, as for `DPFTRL`: a user takes part at most
        ceil(`num_rounds` / `min_separation`) times, and with `min_separation` >= `num_rounds`, as
        in the paper, once in the whole run. What is done between the rounds reads public text and
        the released checkpoint: it is post-processing.

        The choice of T' and of the public training must not look at private text, or it costs what
        looking costs.

    Args:
        config: the settings, where they are not given as keywords.
        random: source of noise; only tests pass one.
        settings: by the names of the fields of `PublicMidTrainingConfig`.

    References:
        Wang et al. 2023, Algorithm 1.
    """

    config_class = PublicMidTrainingConfig
    wang = Preset(PublicMidTrainingConfig.wang)

    def __init__(
        self,
        config: PublicMidTrainingConfig | None = None,
        *,
        random: RandomSource | None = None,
        **settings: Any,
    ) -> None:
        config = PublicMidTrainingConfig.given(config, settings, strategy="PublicMidTraining")
        super().__init__(config, TrainingInHalves(config), random=random)


class TrainingInHalves(CorrelatedTraining):
    """The server's half of `PublicMidTraining`.

    Args:
        config: the settings.
    """

    config: PublicMidTrainingConfig

    def __init__(self, config: PublicMidTrainingConfig) -> None:
        super().__init__(config)
        self._public: PublicStep | None = None

    def base_moved(self, number: int) -> bool:
        """Whether nodes train on a base of public text in a round, or began with another one."""
        before = self.config.rounds_before
        return (before is not None and number > before) or super().base_moved(number)

    @property
    def momentum_restarts(self) -> frozenset[int]:
        """Where the public text stands, an optimiser begins anew."""
        before = self.config.rounds_before
        return super().momentum_restarts if before is None else frozenset({before})

    def needs(self) -> Needs:
        """The model that is trained, its teacher, what scores, and public text."""
        config, needs = self.config, super().needs()
        if config.position == "none":
            return needs
        named = {"teacher": config.teacher}
        if config.scores_by_public_model:
            named["public-model"] = config.public_model
        return replace(
            needs,
            models=(
                *needs.models,
                *(
                    NeededModel(setting=setting, name=name, kind="causal")
                    for setting, name in named.items()
                    if name
                ),
            ),
            libraries=(*needs.libraries, "tokenizers"),
            public_text=config.public_text,
            rows=ChosenRows(
                model=config.model,
                max_tokens=config.max_tokens,
                least_tokens=config.least_row_tokens,
                fewest=config.student_batch_size,
            ),
        )

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load the model, read the public text, and refuse what could not work later."""
        sources = super().setup(place)
        if self.config.position != "none":
            self._public = PublicStep(self.config, run=place.run.path, progress=place.progress)
            self._public.check()
        return sources

    def init(self, scratch: Path) -> State:
        """The public parameters; where the public text stands first, those that it makes."""
        return self._taught(super().init(scratch), 0)

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:
        """The server's step; after T' rounds the model that public text makes of theirs, as well.

        Where the last of these was lost, after the first that is released.
        """
        return self._taught(super().step(state, release, scratch), release.round_number)

    def _taught(self, state: State, number: int) -> State:
        before = self.config.rounds_before
        if before is None or number < before or state.get("base"):
            return state
        need(self._public).take(state["parameters"])
        # The optimiser begins anew.
        momentum = np.zeros_like(state["momentum"])
        return {**self.begun_from(state, f"models/{AFTER}"), "momentum": momentum}

    def trained(self, state: State) -> tuple[LocalModel, npt.NDArray[np.float32]]:
        """The last model, on the base that public text made; or what public text makes of it."""
        if self.config.position == "after":
            need(self._public).take(state["parameters"])
            model = self.base_of({"base": f"models/{AFTER}"})
            return model, model.parameters
        return super().trained(state)
