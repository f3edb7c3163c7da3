"""Private evolution of synthetic text, user level, federated; its defaults are PrE-Text's.

Papers:
    Hou, Shrivastava, Zhan, Conway, Le, Sagar, Fanti, Lazar: "PrE-Text: Training Language Models on
    Private Federated Data in the Age of LLMs" (ICML 2024), Algorithms 1 and 2 (Histogram).
    Lin, Gopi, Kulkarni, Nori, Yekhanin: "Differentially Private Synthetic Data via Foundation
    Model APIs 1: Images" (2023), Algorithm 1.

Algorithm 1 of PrE-Text, line by line:
    2      S_1 <- N_syn random public samples                          `_first`
    6      Histogram: Algorithm 2
    7, 8   draw N_syn survivors with replacement, P ~ histogram        `_survivors`
    9      S_{t+1} <- Variation(survivors)                             `_following`
    11     Expand(the union of the survivors of all rounds)            `finish`
Algorithm 2:
    8-13   users vote for the nearest sample; the distance is to the
           mean embedding of K variations of it (section 3, lookahead) `NearestNeighborHistogram`,
                                                                       `Evolution._candidates`
    14     Gaussian noise, here on the sum                             `PrivateSumStrategy`
    15, 16 votes are summed                                            `PrivateSumStrategy`
    17     subtract the threshold H, cut at zero                       `_survivors`
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from flower_privsyn.checks import NonNegativeFloat, NonNegativeInt
from flower_privsyn.run.method import ReleasedSum, State
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._evolution import Evolution, EvolutionConfig
from flower_privsyn.strategies._population import IntArray, Population, survivor_records, survivors
from flower_privsyn.strategies._synthesis import ExpansionSettings, write_corpus

logger = logging.getLogger("flwr.privsyn")


@dataclass(frozen=True, kw_only=True)
class PrivateEvolutionConfig(EvolutionConfig, ExpansionSettings):
    """Settings of `PrivateEvolution`; the defaults are PrE-Text with our corrections.

    References:
        Hou et al. 2024, section 4 and appendix; the defaults are from there unless said.
    """

    afterwards = ExpansionSettings.of_lists() | {"synthetic-samples"}

    num_rounds: int = 11
    delta: float = 3e-6
    threshold: NonNegativeFloat = 1.0
    """H, subtracted from the noisy votes, in standard deviations of their noise; those above it are
    drawn from.
    """
    synthetic_samples: NonNegativeInt = 2000
    """Synthetic texts to write; 0: the survivors are the result."""


class EvolutionByVotes(Evolution):
    """The server's half of `PrivateEvolution`: a population of texts, chosen by released votes."""

    config: PrivateEvolutionConfig

    def _rehearse(self) -> None:
        super()._rehearse()
        if self.config.synthetic_samples:
            self.config.expansion_by(self.config.prompt, self._writer()).rehearse(self._seeds)

    def _first(self) -> Population:
        """Algorithm 1, line 2: random public samples, drawn without replacement."""
        chooser = np.random.default_rng([self.config.seed, 1])
        size = self.config.num_candidates
        drawn = chooser.choice(len(self._seeds), size=size, replace=False)
        return Population.create([self._seeds[i] for i in drawn], round_number=1, source="public")

    def _survivors(
        self,
        population: Population,  # noqa: ARG002
        release: ReleasedSum,
    ) -> IntArray:
        """Lines 7 and 8: draw as many as there are, in proportion to votes above the threshold.

        When no candidate stands above it the histogram says nothing: the population survives as it
        is, and the round counts.
        """
        config, number, m = self.config, release.round_number, len(release.values)
        chooser = np.random.default_rng([config.seed, 2, number])
        above = np.maximum(release.values - config.threshold * release.noise_std, 0.0)
        if not above.any():
            logger.warning(
                "round %d: no candidate stands above the threshold; the population stays", number
            )
            return np.ones(m, dtype=np.int64)
        drawn = chooser.choice(m, size=m, replace=True, p=above / float(above.sum()))
        return np.bincount(drawn, minlength=m)

    def _following(self, survivors: Population, number: int) -> Population:
        """Line 9: a variation of each survivor."""
        return Population.create(
            self._varied(survivors, number, f"Round {number}: vary survivors"),
            round_number=number + 1,
            source="variation",
            parents=[(identifier,) for identifier in survivors.ids],
        )

    def finish(self, state: State) -> dict[str, Any]:  # noqa: ARG002
        """Line 11: expand the survivors of all rounds into the synthetic corpus."""
        config = self.config
        seeds = survivors(self.run)
        figures: dict[str, Any] = {"survivors": len(set(seeds.texts))}
        if config.synthetic_samples == 0:
            return {**figures, "synthetic_texts": self.run.write_synthetic(survivor_records(seeds))}
        return figures | write_corpus(
            config.expansion_by(config.prompt, self._writer()),
            seeds.texts,
            ids=seeds.ids,
            num_samples=config.synthetic_samples,
            seed=self._seed_of(0, 2),
            round_number=config.num_rounds,
            source="expanded",
            stage="Expand survivors",
            run=self.run,
            progress=self.progress,
        )


@final
class PrivateEvolution(PrivateSumStrategy):
    """Evolve public text towards private text by differentially private votes.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            PrivateEvolution(epsilon=1.29, num_users=1250, num_nodes=50).start(grid)
        ```

    Formal guarantee:
        Unit: user; relation: `config.relation`; `num_rounds` Gaussian releases of a histogram of
        L2 sensitivity `max_samples` (its root with `clip = "l2"`), composed with the sampling in
        use. All else is post-processing of public text and releases.

    Args:
        config: the settings, where they are not given as keywords.
        embedder: in place of `config.embedding_model`; nodes must use the same.
        variation: in place of `config.variation`; a name is the setting.
        generator: in place of `config.generator`; a name is the setting.
        random: source of noise and coins; only tests pass one.
        settings: by the names of the fields of `PrivateEvolutionConfig`.

    References:
        Hou et al. 2024 (PrE-Text), Algorithms 1 and 2.
    """

    config_class = PrivateEvolutionConfig
    method_class = EvolutionByVotes
