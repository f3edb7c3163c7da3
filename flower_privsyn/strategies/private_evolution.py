"""Private evolution of synthetic text, user level, federated; PrE-Text is its preset.

Papers:
    Hou, Shrivastava, Zhan, Conway, Le, Sagar, Fanti, Lazar: "PrE-Text: Training Language Models on
    Private Federated Data in the Age of LLMs" (ICML 2024), Algorithms 1 and 2 (Histogram).
    Lin, Gopi, Kulkarni, Nori, Yekhanin: "Differentially Private Synthetic Data via Foundation
    Model APIs 1: Images" (2023), Algorithm 1.

Algorithm 1 of PrE-Text, line by line:
    2      S_1 <- N_syn random public samples                          `Evolution.init`
    6      Histogram: Algorithm 2
    7, 8   draw N_syn survivors with replacement, P ~ histogram        `Resample`
    9      S_{t+1} <- Variation(survivors)                             `Evolution.step`
    11     Expand(the union of the survivors of all rounds)            `finish`
Algorithm 2:
    8-13   users vote for the nearest sample; the distance is to the
           mean embedding of K variations of it (section 3, lookahead) `NearestNeighborHistogram`,
                                                                       `Evolution._lookahead`
    14     Gaussian noise, here on the sum                             `PrivateSumStrategy`
    15, 16 votes are summed                                            `PrivateSumStrategy`
    17     subtract the threshold H, cut at zero                       `Resample`
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, final

from flower_privsyn.checks import IN_PYTHON, NonNegativeInt, check_choice
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import RandomSource
from flower_privsyn.run.directory import EXPANDED
from flower_privsyn.run.method import Needs, State, need
from flower_privsyn.run.settings import Preset
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._evolution import (
    Evolution,
    EvolutionConfig,
    Population,
    survivor_records,
    survivors,
)
from flower_privsyn.strategies.more_text import MoreText

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.generation import Expand, TextGenerator, Variation

logger = logging.getLogger("flwr.privsyn")

#: What the authors' experiments subtract at epsilon 7.58: 8 samples x 1.541 x sqrt(2) votes.
PRE_TEXT_THRESHOLD_VOTES = 8 * 1.541 * math.sqrt(2)


@dataclass(frozen=True, kw_only=True)
class PrivateEvolutionConfig(EvolutionConfig):
    """Settings of `PrivateEvolution`; the defaults are PrE-Text with our corrections.

    References:
        Hou et al. 2024, section 4 and appendix; the defaults are from there unless said.
    """

    afterwards = frozenset(
        {
            "generator",
            "generator-interface",
            "generator-parameters",
            "prompt",
            "expand-samples",
            "max-new-tokens",
            "opening-words",
            "refuse-repetition",
            "output",
            "survivor-weights",
            "temperature",
            "top-p",
        }
    )

    num_rounds: int = 11
    delta: float = 3e-6
    prompt: Annotated[str, "the expansion prompt, a bundled name or a JSON file."] = "pre-text"
    expand_samples: Annotated[
        NonNegativeInt, 'synthetic texts to write; 0 with `output = "survivors"` alone.'
    ] = 2000
    survivor_weights: Annotated[
        Literal["distinct", "counted"],
        '"distinct": a text that survived in several rounds is one seed; "counted": it is as many '
        "seeds, as in the authors' code.",
        IN_PYTHON,
    ] = "distinct"
    opening_words: Annotated[
        NonNegativeInt,
        "words of a survivor that an expanded text begins with: a small model begins in the middle "
        "of a sentence by itself. 0 in PrE-Text.",
    ] = 0
    refuse_repetition: Annotated[
        bool,
        "drop an expanded text that says the same three words twice, as small models do; PrE-Text "
        "keeps it.",
    ] = False
    output: Annotated[
        Literal["expanded", "survivors", "both"],
        'what `synthetic.jsonl` holds: "expanded" texts (PrE-Text), "survivors", or "both".',
        IN_PYTHON,
    ] = "expanded"

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.output != "survivors" and self.expand_samples == 0:
            raise ConfigError(
                f'expand-samples = 0 needs output = "survivors", got output = "{self.output}"'
            )

    @classmethod
    def pre_text(cls, *, epsilon: float | None = None, **overrides: Any) -> Self:
        """PrE-Text: 11 rounds, full participation, 64-token samples, at most 8 per user.

        Noise is added exactly as accounted, the cap is enforced on the client, masks are counted
        per text and the threshold follows the noise. `pre_text_as_printed` has the paper's votes.
        """
        preset: dict[str, Any] = {"num_candidates": 2048, "lookahead": 4, **overrides}
        return cls(epsilon=epsilon, **preset)

    @classmethod
    def pre_text_as_printed(cls, *, epsilon: Literal["1.29", "7.58"], **overrides: Any) -> Self:
        """The published settings of one of PrE-Text's two budgets.

        Noise multiplier 11.3 (epsilon 1.29 by the papers' RDP accountant) or 2.31 (7.58), N_syn
        1,024 or 2,048, H in votes, embeddings in float32. Two things stay this package's: the
        models (printed: RoBERTa-large and LLaMA-2-7B) and how many texts are written.

        Raises:
            ConfigError: no such epsilon is printed.
        """
        check_choice("epsilon", epsilon, ("1.29", "7.58"))
        strong = epsilon == "1.29"
        preset: dict[str, Any] = {
            "noise_multiplier": 11.3 if strong else 2.31,
            "accountant": "rdp",
            "num_candidates": 1024 if strong else 2048,
            "threshold": PRE_TEXT_THRESHOLD_VOTES * (5.9 if strong else 1.0),
            "threshold_unit": "votes",
            "broadcast_precision": "float32",
            **overrides,
        }
        return cls(**preset)


@final
class PrivateEvolution(PrivateSumStrategy):
    """Evolve public text towards private text by differentially private votes.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            PrivateEvolution.pre_text(epsilon=1.29, num_users=1250, num_nodes=50).start(grid)
        ```

    Formal guarantee:
        Unit: user; relation: `config.relation`; `num_rounds` Gaussian releases of a histogram of
        L2 sensitivity `max_samples` (its root with `clip = "l2"`), composed with the sampling in
        use. All else is post-processing of public text and releases.

    Args:
        config: the settings, where they are not given as keywords.
        embedder: in place of `config.embedding_model`; nodes must use the same.
        variation: in place of mask-filling with `config.variation_model`; a name is the setting.
        generator: in place of `config.generator`; a name is the setting.
        random: source of noise and coins; only tests pass one.
        settings: by the names of the fields of `PrivateEvolutionConfig`.

    References:
        Hou et al. 2024 (PrE-Text), Algorithms 1 and 2.
    """

    config_class = PrivateEvolutionConfig
    pre_text = Preset(PrivateEvolutionConfig.pre_text)
    pre_text_as_printed = Preset(PrivateEvolutionConfig.pre_text_as_printed)

    def __init__(
        self,
        config: PrivateEvolutionConfig | None = None,
        *,
        embedder: Embedder | None = None,
        variation: Variation | str | None = None,
        generator: TextGenerator | str | None = None,
        random: RandomSource | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(variation, str):
            settings, variation = {**settings, "variation": variation}, None
        if isinstance(generator, str):
            settings, generator = {**settings, "generator": generator}, None
        config = PrivateEvolutionConfig.given(config, settings, strategy="PrivateEvolution")
        method = EvolutionByVotes(
            config, embedder=embedder, variation=variation, generator=generator
        )
        super().__init__(config, method, random=random)


class EvolutionByVotes(Evolution):
    """The server's half of `PrivateEvolution`: a population of texts, chosen by released votes.

    Args:
        config: the settings.
        embedder: in place of `config.embedding_model`.
        variation: in place of mask-filling with `config.variation_model`.
        generator: in place of `config.generator`.
    """

    config: PrivateEvolutionConfig

    @property
    def writes(self) -> bool:
        """Whether survivors are expanded."""
        return self.config.output != "survivors"

    def needs(self) -> Needs:
        """Embedder, mask-filling model, public text; and what expands the survivors."""
        return replace(super().needs(), prompt=self.config.prompt)

    def _rehearse(self) -> None:
        super()._rehearse()
        if self.writes:
            # The generator is needed after the last release: it must not be missing then.
            with self.progress.stage("Try the generator", total=None):
                self._expansion().rehearse(self._seeds)

    # ------------------------------------------------------------------ the result

    def finish(self, state: State) -> dict[str, Any]:  # noqa: ARG002
        """Algorithm 1, line 11: expand the survivors of all rounds into the synthetic corpus.

        Expanded texts are written down batch by batch, so that a generator that fails, or a run
        that is killed, loses none; a resumed run writes the ones that are missing.
        """
        config = self.config
        seeds = self._all_survivors()
        records: list[dict[str, Any]] = []
        if config.output in ("survivors", "both"):
            records += survivor_records(seeds)
        dropped: dict[str, int] = {}
        if self.writes:
            expanded, dropped = self._expand(seeds)
            records += expanded
        self.run.write_synthetic(records)
        self._expanded_file.unlink(missing_ok=True)
        return {
            "synthetic_texts": len(records),
            "survivors": len(set(seeds.texts)),
            "dropped": dropped,
        }

    def _expand(self, seeds: Population) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Expand until `expand_samples` texts are kept; what an earlier attempt kept counts."""
        from flower_privsyn.strategies._synthesis import expand_resumably, refuse_nothing

        config, expand = self.config, self._expansion()
        records, dropped = expand_resumably(
            expand,
            seeds.texts,
            ids=seeds.ids,
            num_samples=config.expand_samples,
            kept=self._expanded_file,
            seed=self._seed_of(0, 2),
            round_number=config.num_rounds,
            source="expanded",
            stage="Expand survivors",
            progress=self.progress,
        )
        refuse_nothing(
            records, dropped, num_samples=config.expand_samples, generator=expand.generator.name
        )
        return records, dropped

    def _expansion(self) -> Expand:
        return MoreText.like(self.config).expansion(need(self._generator))

    @property
    def _expanded_file(self) -> Path:
        """Expanded texts kept so far; gone once `synthetic.jsonl` holds them."""
        return self.run.path / EXPANDED

    def _all_survivors(self) -> Population:
        """The union of the survivors of all rounds."""
        return survivors(self.run, counted=self.config.survivor_weights == "counted")
