"""Aug-PE: private evolution by rank and by prompts, for texts that may have classes.

Papers:
    Xie, Lin, Backurs, Gopi, Yu, Inan, Nori, Jiang, Zhang, Lee, Li, Yekhanin: "Differentially
    Private Synthetic Data via Foundation Model APIs 2: Text" (ICML 2024), algorithm Aug-PE.

The algorithm, step by step:
    the first texts, of every class, written by a model; L - 1 variations of each  `_first`
    a candidate's embedding: its own, or the mean of K variations            `Evolution._candidates`
    private texts vote for the nearest candidate of their class                 `LabelledHistogram`
    Gaussian noise                                                             `PrivateSumStrategy`
    of every class the N / L candidates with most votes survive                        `_survivors`
    they and L - 1 variations of each are the next population                          `_following`
    the last survivors, with their labels, are the result                                  `finish`

The paper is central and its unit is a text; here users vote, and a user is the unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, final

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from flower_privsyn.checks import NonNegativeFloat, PositiveInt
from flower_privsyn.data.chunking import class_names
from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.generation import ByInstruction
from flower_privsyn.queries import LabelledHistogram, NearestNeighborHistogram
from flower_privsyn.run.method import Question, ReleasedSum, State
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._evolution import Evolution, EvolutionConfig
from flower_privsyn.strategies._population import IntArray, Population, survivor_records, survivors


@dataclass(frozen=True, kw_only=True)
class AugPEConfig(EvolutionConfig):
    """Settings of `AugPE`; the defaults are the authors' for open models, with our noise.

    With one text a user and `max_samples` = 1 the sensitivity is the paper's.

    References:
        Xie et al. 2024, and the authors' code (AI-secure/aug-pe).
    """

    num_rounds: int = 10
    num_candidates: int = 14_000
    num_variations: Annotated[int, Ge(2)] = 7
    """Texts of a population for each text that it is made of (L), of which there are so many fewer:
    itself and L - 1 variations.
    """
    variation: str = "style"
    """How texts are varied: by `generator`, which is asked for it: "style", "paraphrase",
    "fill-blanks", or a JSON file, and for the first texts of each class; or "mask-fill", by
    `variation_model` (PrE-Text): then the first ones of each class are drawn from `public_text`.
    """
    blank_fraction: Annotated[float, Ge(0), Le(1)] = 0.5
    """Share of the words that "fill-blanks" leaves out of a text."""
    word_spread: NonNegativeFloat = 0.0
    """Standard deviation of the number of words that a prompt asks for, about that of the text
    which is varied.
    """
    max_new_tokens: int = 448
    classes: str = ""
    """The classes that texts are of, with semicolons between them; public. Documents of another one
    do not count. Empty: texts have no classes.
    """
    initial_words: PositiveInt = 100
    """About how many words a first text is to have."""

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        several, of = self.num_variations, f"num-variations = {self.num_variations}"
        if self.class_names:
            several *= len(self.class_names)
            of += f" times the {len(self.class_names)} classes"
        if self.num_candidates % several:
            raise ConfigError(
                f"num-candidates must be a multiple of {of}, got {self.num_candidates}"
            )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, which are public; none where texts have none."""
        return class_names(self.classes)

    @property
    def of_each_class(self) -> int:
        """How many texts of a class survive a round; of all texts where there are no classes."""
        return self.num_candidates // (self.num_variations * max(1, len(self.class_names)))

    @property
    def prompting(self) -> Mapping[str, float]:
        """How much a prompt leaves out of a text, and how far its number of words may be off."""
        return {"blank_fraction": self.blank_fraction, "word_spread": self.word_spread}

    def histogram(self) -> NearestNeighborHistogram:
        """The query these settings ask: of which class each vote is, where there are classes."""
        query = LabelledHistogram if self.class_names else NearestNeighborHistogram
        return query(max_samples=self.max_samples, clip=self.clip)


class EvolutionByClass(Evolution):
    """The server's half of `AugPE`: of every class a population, chosen by released votes."""

    config: AugPEConfig

    # ------------------------------------------------------------------ before the first round

    def _read_seeds(self, fewest: int | None = None) -> list[str]:  # noqa: ARG002
        """The public texts where they are the first ones, at least those of one class."""
        config = self.config
        return [] if config.asks_for_variations else super()._read_seeds(config.of_each_class)

    def _rehearse(self) -> None:
        super()._rehearse()
        if self.config.asks_for_variations:
            self._beginning().rehearse(self.config.class_names or None)

    def _beginning(self) -> ByInstruction:
        """The generator, asked for first texts."""
        return self.config.asked(self._writer(), "write", "beginning")

    # ------------------------------------------------------------------ populations

    def _first(self) -> Population:
        """Texts of every class, and L - 1 variations of each."""
        classes, each = self.config.class_names or ("",), self.config.of_each_class
        labels = [name for name in classes for _ in range(each)]
        if self.config.asks_for_variations:
            texts, source = self._written(labels), "generated"
        else:
            texts, source = [], "public"
            for place in range(len(classes)):
                chooser = np.random.default_rng([self.config.seed, 1, place])
                drawn = chooser.choice(len(self._seeds), size=each, replace=False)
                texts += [self._seeds[index] for index in drawn]
        made_of = Population.create(
            texts, round_number=1, source=source, labels=labels if self.config.class_names else None
        )
        return self._grown(made_of, 0, source=source, own=made_of.parents)

    def _following(self, survivors: Population, number: int) -> Population:
        """The survivors, and L - 1 variations of each."""
        own = [(identifier,) for identifier in survivors.ids]
        return self._grown(survivors, number, source="survivor", own=own)

    def _grown(
        self, made_of: Population, number: int, *, source: str, own: Sequence[Sequence[str]]
    ) -> Population:
        """The population of round `number + 1`.

        Args:
            made_of: texts that stand in it, before their variations.
            number: of the round before.
            source: of these texts.
            own: the parents of these texts.
        """
        more, n = self.config.num_variations - 1, len(made_of)
        labels = None if made_of.labels is None else [*made_of.labels] * (1 + more)
        varied = self._varied(made_of, number, f"Round {number}: vary texts", copies=more)
        return Population.create(
            [*made_of.texts, *varied],
            round_number=number + 1,
            source=[source] * n + ["variation"] * (more * n),
            parents=[*own, *[(identifier,) for identifier in made_of.ids] * more],
            labels=labels,
        )

    def _written(self, labels: list[str]) -> list[str]:
        """One text of each of these classes; where nothing comes, another of the class."""
        config = self.config
        with self.progress.stage("Write the first texts", len(labels)) as stage:
            texts = self._beginning().write(
                len(labels),
                words=config.initial_words,
                seed=self._seed_of(0, 1, 0),
                progress=stage.update,
                labels=labels if config.class_names else None,
            )
        for place, label in enumerate(labels):
            if not texts[place]:
                own = [text for text, of in zip(texts, labels, strict=True) if text and of == label]
                if not own:
                    called = f' of the class "{label}"' if label else ""
                    raise GenerationError(
                        f"the generator {self._writer().name} wrote no first text{called}"
                    )
                texts[place] = own[place % len(own)]
        return texts

    # ------------------------------------------------------------------ a round

    def ask(self, state: State, number: int) -> Question:
        """Which of the candidates of a text's class are near."""
        question = super().ask(state, number)
        if not self.config.class_names:
            return question
        classes = self._class_of(state["labels"])
        return Question(self._query, {**question.broadcast, "classes": classes})

    def _class_of(self, labels: Sequence[str]) -> npt.NDArray[np.int32]:
        """(m,) which of the classes each candidate is of."""
        return np.array([self.config.class_names.index(label) for label in labels], dtype=np.int32)

    def _survivors(self, population: Population, release: ReleasedSum) -> IntArray:
        """Of every class those with most votes; of equal ones the first."""
        counts, labels = np.zeros(len(population), dtype=np.int64), population.labels
        classes = np.zeros(len(population)) if labels is None else self._class_of(labels)
        for place in np.unique(classes):
            members = np.flatnonzero(classes == place)
            first = np.argsort(-release.values[members], kind="stable")
            counts[members[first[: self.config.of_each_class]]] = 1
        return counts

    # ------------------------------------------------------------------ the result

    def finish(self, state: State) -> dict[str, Any]:  # noqa: ARG002
        """Write the survivors of the last released round, with their labels."""
        released = self.run.rounds_with_outcome("released")
        found = survivors(self.run, rounds=released[-1:])
        self.run.write_synthetic(survivor_records(found))
        figures: dict[str, Any] = {"synthetic_texts": len(found), "survivors": len(found)}
        if found.labels is not None:
            figures["synthetic_texts_by_class"] = {
                name: list(found.labels).count(name) for name in self.config.class_names
            }
        return figures


@final
class AugPE(PrivateSumStrategy):
    """Evolve texts of public classes towards private ones by differentially private votes.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            AugPE.from_run_config(context.run_config).start(grid)
        ```

    Formal guarantee:
        Unit: user; relation: `config.relation`; `num_rounds` Gaussian releases of one histogram
        over the candidates of all classes, of L2 sensitivity `max_samples` (its root with
        `clip = "l2"`) whatever classes a user's texts are of, composed with the sampling in use.
        Which classes there are, and how many candidates each has, is public and does not depend on
        private text. All else is post-processing.

    Args:
        config: the settings, where they are not given as keywords.
        embedder: in place of `config.embedding_model`; nodes must use the same.
        variation: in place of `config.variation`; a name is the setting.
        generator: in place of `config.generator`; a name is the setting.
        random: source of noise and coins; only tests pass one.
        settings: by the names of the fields of `AugPEConfig`.

    References:
        Xie et al. 2024 (Aug-PE).
    """

    config_class = AugPEConfig
    method_class = EvolutionByClass
