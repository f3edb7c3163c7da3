"""Public text that a first release chooses, for methods that begin with public text.

Ours: a joint sketch (`flower_privsyn.strategies.joint_sketch`) as the first release of a method
that asks something else afterwards, in one budget. What it chooses stands where all public text
would: among it the first candidates are drawn, or the examples in prompts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import append_json_lines, read_json_lines, replacing
from flower_privsyn.private_path.method import Outline, Question, RecordSource, Workplace, need
from flower_privsyn.private_path.needs import Look, NeededModel, Needs
from flower_privsyn.private_path.release import ReleasedSum
from flower_privsyn.queries import JointSketch
from flower_privsyn.runs.rounds import RoundFiles
from flower_privsyn.strategies.parts.outlines import about_tokens
from flower_privsyn.strategies.parts.sketch_settings import JointSketchConfig

if TYPE_CHECKING:
    from flower_privsyn.strategies.parts.sketched_text import SketchedText

InitialText = Annotated[
    Literal["public", "selected"],
    '"public": what is written begins with all of `public_text`; "selected": with what a joint '
    "sketch chooses of it (ours), which is the first of the `num_rounds` releases.",
]

SketchModel = Annotated[
    str,
    'for "selected": causal language model whose tokens users count; nodes load its tokenizer.',
]

SKETCH_MODEL: Final = "privsyn-tiny"


class BeginsWithText(Protocol):
    """The settings that are looked at."""

    @property
    def public_text(self) -> str:
        """What is chosen from."""

    @property
    def sketch_model(self) -> str:
        """Whose tokens are counted."""

    @property
    def max_tokens(self) -> int:
        """Length of a sample."""

    @property
    def seed(self) -> int:
        """Of public randomness."""


def check_initial_text(initial_text: str, num_rounds: int) -> None:
    """Refuse a run whose only release would be the sketch.

    Args:
        initial_text: the setting.
        num_rounds: releases of the run.
    """
    if initial_text == "selected" and num_rounds < 2:
        raise ConfigError(
            'initial-text = "selected" makes the first release a joint sketch, so num-rounds must '
            f"be at least 2, got {num_rounds}"
        )


class SelectedText:
    """The first release of such a method, and what it chooses.

    The chosen text is on the disk before anything is asked about it, so a resumed run goes on with
    the same; a sketch that is lost is asked for again.

    Args:
        config: of the method, with `public_text` and `sketch_model`.
        needed: texts that the method cannot do without.
        least: texts that are chosen at least, where there are so many.
    """

    def __init__(self, config: BeginsWithText, *, needed: int, least: int) -> None:
        self._needed = needed
        self._settings = JointSketchConfig(
            noise_multiplier=0.0,  # that of the method's plan is added, whatever stands here
            model=config.sketch_model,
            public_text=config.public_text,
            max_tokens=config.max_tokens,
            seed=config.seed,
            least_selected=max(needed, least),
        )
        self._text: SketchedText | None = None

    @property
    def query(self) -> JointSketch:
        """The counts that are asked for first."""
        return self._settings.sketch_question()

    def needs_with(self, needs: Needs) -> Needs:
        """What the method needs, and the tokenizer whose tokens are counted.

        Args:
            needs: of the method without this.
        """
        name = self._settings.model
        counted = NeededModel(setting="sketch-model", name=name, kind="causal")
        return replace(
            needs,
            models=(*needs.models, counted),
            libraries=(*needs.libraries, "tokenizers"),
        )

    def before(self, outline: Outline, look: Look) -> Outline:
        """What the method asks, one round later, after this.

        Args:
            outline: of the method without this.
            look: what the files of models say of their sizes.
        """
        settings = self._settings
        asked = about_tokens(
            self.query, num_bigrams=settings.num_bigrams, model=settings.model, look=look
        )
        return Outline(
            sources=(*asked.sources, *outline.sources),
            question=lambda number: (
                asked.question(1) if number == 1 else outline.question(number - 1)
            ),
            at_most=asked.at_most or outline.at_most,
        )

    def prepare(self, place: Workplace) -> RecordSource:
        """Load the tokenizer and the public text.

        Returns:
            What makes the records that the sketch is about.

        Raises:
            ConfigError: too few rows of public text are long enough to be chosen.
        """
        from flower_privsyn.strategies.parts.sketched_text import SketchedText

        text = self._text = SketchedText(self._settings, place)
        shortest = self._settings.least_row_tokens
        found = int((text.public.lengths >= shortest).sum())
        if found < self._needed:
            raise ConfigError(
                f'initial-text = "selected" needs {self._needed} rows of at least {shortest} '
                f'tokens to choose from, and public-text = "{self._settings.public_text}" has '
                f"{found}"
            )
        return text.source

    def question(self) -> Question:
        """What is asked first."""
        return self._need_text().question

    def asked_in(self, number: int) -> bool:
        """Whether a round that has no candidates asked this, and not another first question."""
        return self._chose() in (None, number)

    def choose(self, release: ReleasedSum) -> None:
        """Write `selected.jsonl`: the rows that are most like the users' text, best first."""
        file = self._file(release.round_number)
        if file.exists():
            return
        text = self._need_text()
        selection = text.select(text.read([release.of_users]))
        records = [
            {"text": row, "parent": f"public:{index}", "score": float(score)}
            for row, index, score in zip(
                text.texts_of(selection), selection.indices, selection.scores, strict=True
            )
        ]
        with replacing(file) as temporary:
            append_json_lines(temporary, records)

    def texts(self, *, tokenizer: Any) -> list[str] | None:
        """What was chosen, best first; None before.

        Args:
            tokenizer: of the embedding model, by which samples are cut.

        Returns:
            The first `max_tokens` of its tokens of each, without duplicates.
        """
        from flower_privsyn.data import Cut

        number = self._chose()
        if number is None:
            return None
        rows = [str(record["text"]) for record in read_json_lines(self._file(number))]
        cut = Cut(max_tokens=self._settings.max_tokens)
        pieces = cut.pieces(rows, tokenizer=tokenizer)
        return list(dict.fromkeys(own[0] for own in pieces if own))

    def _chose(self) -> int | None:
        """The round whose release chose."""
        rounds = self._need_text().place.run.rounds
        return next((number for number, files in rounds if files.selected.exists()), None)

    def _file(self, number: int) -> Path:
        return RoundFiles(self._need_text().place.run.round_dir(number)).selected

    def _need_text(self) -> SketchedText:
        return need(self._text)
