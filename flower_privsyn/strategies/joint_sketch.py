"""Joint sketch: users are asked once what their text is made of, and public text answers the rest.

Ours. A user's answer counts tokens and public bigrams; the noisy sum says which of them private
text has more of than public text. By that one release public text is chosen, a student is trained
on what was chosen, taught by a teacher with the same tokens, and its logits are biased by what it
still says more seldom than users do. Everything after the release is post-processing.

Papers:
    Kim, Gopi, Kulkarni, Yekhanin: "Differentially Private n-gram Extraction" (NeurIPS 2021).
    Xie, Santurkar, Ma, Liang: "Data Selection for Language Models via Importance Resampling"
    (DSIR, NeurIPS 2023).
    Backurs, Lin, Mahabadi, Silwal, Tarnawski: "Efficiently Computing Similarities to Private
    Datasets" (ICLR 2024): one private data structure, any number of questions.
    Harder, Adamczewski, Park: "DP-MERF" (AISTATS 2021): one released mean of random features.
    Saerens, Latinne, Decaestecker: "Adjusting the Outputs of a Classifier to New a Priori
    Probabilities" (Neural Computation 2002).
    Hinton, Vinyals, Dean: "Distilling the Knowledge in a Neural Network" (2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, final

import numpy as np
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import OrZero, PositiveFloat
from flower_privsyn.data.chunking import token_ids
from flower_privsyn.data.public_rows import TokenRows
from flower_privsyn.errors import ConfigError
from flower_privsyn.generation import Expand, TextGenerator
from flower_privsyn.generation.backends import derive_seed
from flower_privsyn.generation.generators import ExpandingSettings, load_generator, runs_elsewhere
from flower_privsyn.models.adapters import with_adapters
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.queries import Query
from flower_privsyn.report.sketch_file import SELECTED
from flower_privsyn.run.directory import PLAIN_MODEL, TRAINED_MODEL, TRAINED_WRITER, WRITTEN
from flower_privsyn.run.method import Method, Question, RecordSource, RunContext, State, need
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._synthesis import expand_resumably, refuse_nothing
from flower_privsyn.strategies._token_sketch import (
    SketchedStudent,
    SketchedStudentConfig,
    SketchedText,
    check_student,
)
from flower_privsyn.training.selection import long_rows
from flower_privsyn.training.tokens import first_token

#: Of a generator that learns from the chosen text: more make it write what it read.
_STEPS: Final = 8


@dataclass(frozen=True, kw_only=True)
class JointSketchConfig(ExpandingSettings, SketchedStudentConfig):
    """Settings of `JointSketch`.

    `num_rounds` counts releases: one by default, with the whole budget. The defaults were set on
    public text alone (research/README.md has the figures).
    """

    # How public text is chosen, the student made of it, and what `synthetic.jsonl` is to hold.
    afterwards = ExpandingSettings.of_lists().union(
        {
            "select-share",
            "least-selected",
            "least-row-tokens",
            "most-overlap",
            "student-steps",
            "training-batch-size",
            "learning-rate",
            "teacher",
            "teacher-steps",
            "token-bias",
            "synthesis",
            "synthetic-samples",
            "best-of",
            "generator-steps",
        }
    )

    num_rounds: int = 1
    synthesis: Literal["selected", "written", "both"] = "selected"
    """What synthetic.jsonl holds: the best of the chosen public rows, text that `generator` wrote
    after them, of which the best by the same score are kept, or half of each, shuffled.
    """
    synthetic_samples: Annotated[int, Ge(1)] = 2000
    """Texts of synthetic.jsonl."""
    generator: str = "smollm2-135m"
    """Causal language model that writes, unless synthesis = "selected": a name, a folder,
    "gguf:FILE", or "http://host:port/v1#model".
    """
    temperature: PositiveFloat = 0.75
    """Sampling temperature of what is written."""
    top_p: Annotated[float, Gt(0), Le(1)] = 0.95
    """Nucleus of what is written."""
    best_of: Annotated[int, Ge(1)] = 1
    """Texts that are written for each one that is kept; 1 keeps all of them."""
    generator_steps: Annotated[int | None, OrZero("the generator as it is"), Ge(1)] = None
    """Steps in which the generator first learns from whole sentences of the chosen text, the best
    ones, by LoRA adapters. None, in a run configuration a negative number: 8 for a model of this
    process that goes on without a prompt, none for all others.
    """
    prompt: str = ""
    """A prompt of lists, "pre-text" or a JSON file, in which the generator is shown whole sentences
    of the chosen text; "" for "pre-text" where it learns none. One that learnt opens a quotation
    from `domain` after two of them, and what repeats itself or holds no whole sentence is dropped.
    """

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.generator_steps and not self.prompt and self.generator_interface == "chat":
            raise ConfigError(
                'generator-interface = "chat" answers a prompt, got prompt = "" and '
                f'generator-steps = {self.generator_steps}: give prompt = "pre-text"'
            )

    def writing(self, *, by_object: bool) -> tuple[int, str]:
        """Steps in which the generator learns, and its prompt; "" for quotations.

        Args:
            by_object: whether an object of the app's own writes.
        """
        steps = self.generator_steps
        if steps is None:
            shown = self.prompt or self.generator_interface == "chat"
            steps = 0 if by_object or shown or runs_elsewhere(self.generator) else _STEPS
        return steps, self.prompt or ("" if steps else "pre-text")


class AskedOnce(Method):
    """The server's half of `JointSketch`: what is made of a release of token counts.

    Args:
        config: the settings.
        generator: in place of `config.generator`.
    """

    def __init__(
        self, config: JointSketchConfig, *, generator: TextGenerator | None = None
    ) -> None:
        self.config = config
        self.given_writer = generator
        self._generator: TextGenerator | None = None
        self._steps, self._prompt = config.writing(by_object=generator is not None)
        self._text: SketchedText | None = None

    @property
    def queries(self) -> tuple[Query, ...]:
        """The counts."""
        return (self.config.sketch_question(),)

    # ------------------------------------------------------------------ the release

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        """Load tokenizers, check models and read the public text."""
        config, self.place = self.config, place
        check_student(config, config.model)
        expand: Expand | None = None
        if config.synthesis != "selected":
            self._refuse_untrainable()
            self._generator = self.given_writer or config.load_generator()
            expand = config.expansion_by(self._prompt, self._generator)
        self._text = SketchedText(config, place)
        if expand is not None:
            # It writes after the last release: it must not be missing then.
            with self.progress.stage("Try the generator", total=None):
                expand.rehearse(self._text.longest(expand.num_examples))
        return (self._text.source,)

    def ask(self, state: State, number: int) -> Question:  # noqa: ARG002
        """The tables of tokens and bigrams, which are public."""
        return need(self._text).question

    # ------------------------------------------------------------------ what is made of it

    def finish(self, state: State) -> dict[str, Any]:  # noqa: ARG002
        """Read the releases, choose public text, write more, and train the student on both."""
        config, plain = self.config, self.run.path / PLAIN_MODEL
        student = SketchedStudent(config, need(self._text), self.place.releases())
        figures = student.figures | {"model": TRAINED_MODEL, "plain_model": PLAIN_MODEL}
        # What synthetic.jsonl holds: what was chosen, what was written after it, or half of each.
        wanted = config.synthetic_samples
        to_write = {"selected": 0, "both": (wanted + 1) // 2, "written": wanted}[config.synthesis]
        records = [
            {"text": text, "round": 1, "parent": [f"public:{index}"], "source": SELECTED}
            for index, text in student.sentences[: wanted - to_write]
        ]
        written: list[dict[str, Any]] = []
        if to_write:
            written, figures["dropped"] = self._written(student, to_write)
            records += written
        if config.synthesis == "both":
            np.random.default_rng([config.seed, 4]).shuffle(records)
        figures["synthetic"] = self.run.write_synthetic(records)
        texts = [str(record["text"]) for record in written]
        figures |= student.train(config.model, plain, written=texts)
        student.add_bias(plain, self.run.path / TRAINED_MODEL)
        return figures

    def _written(
        self, student: SketchedStudent, count: int
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Write more texts than are wanted after what was chosen, and keep the best.

        Returns:
            The records of at most `count` texts, and how many were dropped, by reason.
        """
        config = self.config
        shown = student.sentences[: config.synthetic_samples]
        expand = config.expansion_by(self._prompt, self._writer(student))
        wanted = config.best_of * count
        records, dropped = expand_resumably(
            expand,
            [text for _, text in shown],
            ids=[f"public:{index}" for index, _ in shown],
            num_samples=wanted,
            kept=self.run.path / WRITTEN,
            seed=derive_seed(config.seed, "write", 0),
            round_number=1,
            source="written",
            stage="Write synthetic text",
            progress=self.progress,
        )
        refuse_nothing(records, dropped, num_samples=wanted, generator=expand.generator.name)
        rows = token_ids(need(self._text).tokenizer, [str(record["text"]) for record in records])
        scorer = long_rows(student.sketch.scorer(), config.least_row_tokens)
        scores = scorer(TokenRows.of(rows))
        best = np.sort(np.argsort(-scores, kind="stable")[:count])
        return [records[index] for index in best.tolist()], dropped

    def _writer(self, student: SketchedStudent) -> TextGenerator:
        """The generator, as it learnt from what was chosen."""
        if not self._steps:
            return need(self._generator)
        made = self.run.path / TRAINED_WRITER
        student.train_writer(
            self.config.generator,
            steps=self._steps,
            domain=None if self._prompt else self.config.domain,
            output=made,
        )
        return load_generator(str(made))

    def _refuse_untrainable(self) -> None:
        """Refuse a generator that is to learn and cannot, before anybody is asked."""
        name = self.config.generator
        if not self._steps:
            return
        if self.given_writer is not None or runs_elsewhere(name):
            raise ConfigError(
                f"generator-steps = {self._steps} trains the generator in this process, which an "
                "address, a GGUF file or an object of one's own cannot be: a bundled name, a "
                "folder or a hub name, or no generator-steps"
            )
        network, tokenizer = load_pretrained(name, kind="causal", dtype="float32", device="cpu")
        with_adapters(network, name=name, rank=1, alpha=1, seed=0)
        first_token(tokenizer)


@final
class JointSketch(PrivateSumStrategy):
    """Ask once for counts of tokens and bigrams; choose public text and train a student by them.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            JointSketch(epsilon=1.0).start(grid)
        ```

    The student is in `<run-dir>/models/final`, with the bias inside; without it in
    `<run-dir>/models/plain`, which Transformers loads without this package.

    Formal guarantee:
        Unit: user; relation: `config.relation`; `num_rounds` Gaussian releases (one by default) of
        a sum of L2 sensitivity 1, composed with the sampling in use. Choosing text, training and
        writing are post-processing of public text and those releases.

    Args:
        config: the settings, where they are not given as keywords.
        generator: in place of `config.generator`; a name is the setting.
        random: source of noise and coins; only tests pass one.
        settings: by the names of the fields of `JointSketchConfig`.
    """

    config_class = JointSketchConfig
    method_class = AskedOnce
