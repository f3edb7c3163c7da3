"""A joint sketch at the server: what is asked, and what is made of a release without a price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import IN_PYTHON, OrZero
from flower_privsyn.data.public_rows import PublicRows
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import replacing
from flower_privsyn.generation.prompts import quoted
from flower_privsyn.models.bias import LogitBias
from flower_privsyn.queries import JointSketch as JointSketchQuery
from flower_privsyn.queries.joint_sketch import frequent_bigrams
from flower_privsyn.run.method import Question, RecordSource, RunContext, SumOfUsers
from flower_privsyn.strategies._sketch_reading import TokenSketch
from flower_privsyn.strategies._student import StudentConfig
from flower_privsyn.training.bias import beyond_model, load_plain, save_biased
from flower_privsyn.training.causal import FineTuning, fine_tune
from flower_privsyn.training.distillation import Distillation, check_same_tokens, load_teacher
from flower_privsyn.training.selection import Selection, choose, long_rows
from flower_privsyn.training.tokens import check_window, first_token, token_rows

Float64Array = npt.NDArray[np.float64]

IntArray = npt.NDArray[np.int64]

#: The bigrams' part of the squared norm of an answer, where there are any.
_BIGRAM_SHARE: Final = 0.5

#: Text that rules of tokenizers cut in different ways.
_VARIED: Final = "Ünder  the Tree's 3,141 leaves\n\tI'LL wait_"

#: Public tokens that are put into the hands of pseudo-users: more change the third digit.
PUBLIC_TOKENS: Final = 4_000_000


@dataclass(frozen=True, kw_only=True)
class SketchedStudentConfig(StudentConfig):
    """Settings of what is asked, of the public text that is chosen, and of the student."""

    delta: float = 3e-6
    max_samples: int = 64
    model: str = "privsyn-tiny"
    """Student: a bundled name, a folder or a hub name of a causal language model. The sketch counts
    its tokens.
    """
    max_tokens_per_user: Annotated[int, Ge(1), Le(2**24)] = 1024
    """Tokens of one user that count, the first ones over all samples."""
    max_occurrences: Annotated[int, OrZero("no bound"), Ge(1), IN_PYTHON] = 4
    """Times that one token or pair of a user counts: what every text repeats leaves more of an
    answer's length to what differs.
    """
    num_bigrams: Annotated[int, OrZero("tokens alone"), Ge(2), Le(2**22)] = 16_384
    """Most frequent bigrams of the public text that are counted; their table travels down, and they
    have half of the squared norm of an answer.
    """
    public_text: str = "bundled"
    """Text to choose from: "bundled", or a JSONL file with `text` and no person's data; of any
    size. Also a folder or a data set by name (docs/own_data.md).
    """
    select_share: Annotated[float, Gt(0), Le(1)] = 0.015
    """Share of the public rows that are chosen."""
    least_selected: Annotated[int, Ge(1)] = 2000
    """Rows that are chosen at least, where there are so many: a student that reads few rows again
    and again learns them by heart.
    """
    least_row_tokens: Annotated[int, Ge(1)] = 32
    """Rows with fewer tokens are not chosen, and written texts are the last to be kept: their
    scores are the noisiest.
    """
    most_overlap: Annotated[float, Gt(0), Le(1), IN_PYTHON] = 0.5
    """A row of whose 8-grams more than this share are in rows chosen before is left out, unless
    all are chosen (`select_share` of 1).
    """
    teacher: str = "privsyn-lm"
    """Causal language model with the student's tokens that teaches it on the chosen text; "" for
    none.
    """
    teacher_steps: Annotated[int, OrZero("the teacher as it is"), Ge(1)] = 0
    """Steps in which the teacher itself first learns from the chosen text; then it gets what it
    lacks in its logits, as the student does.
    """
    token_bias: Annotated[float, Ge(0), Le(1e9)] = 1.0
    """What is added to the student's logits, times this: the log-ratios of how often users write
    each token and pair to how often the student does. A release that tells little is trusted less,
    and adds less.
    """

    def __post_init__(self) -> None:
        """Check the values against one another."""
        super().__post_init__()
        if self.teacher_steps and not self.teacher:
            raise ConfigError(
                f'teacher-steps = {self.teacher_steps} needs a teacher, got teacher = ""'
            )
        self.sketch_question()

    def sketch_question(self) -> JointSketchQuery:
        """The query these settings ask."""
        return JointSketchQuery(
            bigram_share=_BIGRAM_SHARE if self.num_bigrams else 0.0,
            max_tokens_per_user=self.max_tokens_per_user,
            max_occurrences=self.max_occurrences,
        )


#: Of so many chosen rows one must hold whole sentences.
_LEAST_WHOLE: Final = 10


class SketchedText:
    """What a joint sketch asks and chooses, whatever is made of the choice.

    Args:
        config: the settings of the sketch.
        place: of the run.

    Attributes:
        place: of the run.
        tokenizer: the ``tokenizers.Tokenizer`` whose tokens are counted.
        public: the public text.
        question: what users are asked.
        source: what makes their records.

    Raises:
        PrivsynError: the model or the public text is missing or unusable, or no row of it is long
            enough to be chosen.
    """

    def __init__(self, config: SketchedStudentConfig, place: RunContext) -> None:
        self._config, self.place = config, place
        self.tokenizer, fingerprint = load_tokenizer(config.model)
        with place.progress.stage("Read the public text", total=None):
            self.public: PublicRows = PublicRows.of(
                config.public_text,
                tokenizer=self.tokenizer,
                max_tokens=config.max_tokens,
            )
            self.question = Question(config.sketch_question(), self._broadcast())
        self.public.long_enough(config.least_row_tokens, source=config.public_text)
        self.source = RecordSource(
            fingerprint=fingerprint,
            dimension=self.public.vocabulary,
            reads="tokens",
            model=config.model,
        )

    def longest(self, count: int) -> list[str]:
        """The rows of the most tokens, at most so many: no prompt of others is longer than theirs.

        Args:
            count: >= 1.
        """
        places = np.argsort(-self.public.lengths, kind="stable")[:count]
        return [self.public.text_of(int(place)) for place in places]

    def _broadcast(self) -> dict[str, Any]:
        config, bigrams, public = self._config, None, self.public
        if config.num_bigrams:
            # Kept, so that a resumed run asks the same whatever became of the file since.
            file = self.place.run.path / "bigrams.npy"
            if not file.exists():
                found = frequent_bigrams(
                    (np.split(one.tokens, np.cumsum(one.lengths)[:-1]) for one in public.chunks()),
                    vocabulary=public.vocabulary,
                    most=config.num_bigrams,
                )
                if not len(found):
                    raise ConfigError(
                        f'num-bigrams = {config.num_bigrams}: public-text = "{config.public_text}" '
                        "has no two tokens beside one another; give other text, or num-bigrams = 0"
                    )
                with replacing(file) as opened:
                    np.save(opened, found)
            bigrams = np.load(file)
        return config.sketch_question().broadcast(public.vocabulary, bigrams)

    def read(self, releases: Sequence[SumOfUsers]) -> TokenSketch:
        """What the releases say together; also written to `sketch.parquet`.

        Args:
            releases: at least one.
        """
        with self.place.progress.stage("Read the release", total=None):
            documents = list(self.public.documents(most_tokens=PUBLIC_TOKENS))
            sketch = TokenSketch.of(
                self._config.sketch_question(),
                self.question.broadcast,
                releases,
                documents=documents,
            )
            sketch.save(self.place.run.path, tokenizer=self.tokenizer)
        return sketch

    def sentences_of(self, selection: Selection) -> list[tuple[int, str]]:
        """The place of each row that holds whole sentences, and these.

        All rows as they are, where hardly any does, as in text without punctuation.
        """
        places = [int(index) for index in selection.indices]
        cut = [(index, text) for index in places if (text := self.public.sentences_of(index))]
        if len(cut) * _LEAST_WHOLE >= len(places):
            return cut
        return [(index, self.public.text_of(index)) for index in places]


#: Folder of a teacher that learnt from the chosen text, beside the student's.
_TEACHER: Final = "teacher"

#: Rows that a quotation is as long as: of the generator's own tokens, and with its beginning.
_QUOTATION: Final = 2

#: How a generator learns by adapters; set by what SmolLM2-135M makes of the best 128.
_ADAPTERS: Final[dict[str, Any]] = {
    "lora_rank": 16,
    "batch_size": 16,
    "micro_batch_size": 4,  # rows of like lengths: less padding
    "learning_rate": 5e-4,
    "schedule": "constant",
    "warmup_steps": 4,
}


def check_student(config: SketchedStudentConfig, begins: str) -> None:
    """Refuse a model that could not become the student, before anybody is asked.

    Args:
        config: the settings.
        begins: the model that is trained, whose tokens are those of `config.model`.

    Raises:
        ConfigError: the teacher has other tokens, one of them cannot read a row of `max_tokens`,
            or the model predicts fewer tokens than it has, or cuts text into others than nodes do.
        ModelError: a model is not on this machine, is no causal language model, has a bias where it
            is to get one, or no token to begin a text with.
    """
    network, tokenizer = load_plain(begins)
    first_token(tokenizer)  # stands before every row
    # Nodes have the rules of the file alone; Transformers has others for some classes.
    counted = load_tokenizer(config.model)[0].encode(_VARIED, add_special_tokens=False).ids
    if counted != token_rows(tokenizer, [_VARIED])[0]:
        raise ConfigError(
            f'model = "{begins}" is read by other rules than the tokenizer.json that nodes '
            "count by: save its tokenizer anew, by save_pretrained of AutoTokenizer"
        )
    predicted = int(network.get_output_embeddings().weight.shape[0])
    if len(tokenizer) > predicted:
        raise ConfigError(
            f'model = "{begins}" has {len(tokenizer)} tokens and predicts {predicted} of them: a '
            "student needs a number for each"
        )
    length = config.max_tokens  # of a row, at most
    check_window(network, length, called=f'model = "{begins}"', max_tokens=length)
    if teacher := config.teacher:
        check_same_tokens(begins, teacher, setting="teacher")
        load_teacher(teacher, longest=length, max_tokens=length)
        if config.teacher_steps:
            load_plain(teacher)  # it gets a bias


class SketchedStudent:
    """What is made of such a release.

    Made again from the same releases it chooses the same rows, and trains the same weights.

    Formal guarantee:
        All of it is post-processing of the releases and of public text.

    Args:
        config: the settings.
        text: what was asked, and the public text.
        releases: at least one.

    Attributes:
        sketch: what was released.
        selection: the rows that were chosen.
        texts: of these rows, in the order in which they were chosen.
        sentences: the whole sentences of these rows that hold some, and their place in public text.
    """

    def __init__(
        self, config: SketchedStudentConfig, text: SketchedText, releases: Sequence[SumOfUsers]
    ) -> None:
        self._config, self._text, self._releases = config, text, releases
        self.sketch = text.read(releases)
        self.selection = choose(
            text.public,
            long_rows(self.sketch.scorer(), config.least_row_tokens),
            share=config.select_share,
            least=config.least_selected,
            most_overlap=config.most_overlap,
            progress=text.place.progress,
        )
        self.texts = [text.public.text_of(int(index)) for index in self.selection.indices]
        self.sentences = text.sentences_of(self.selection)

    @property
    def figures(self) -> dict[str, Any]:
        """What was released and chosen, for the end of the run."""
        return {
            "public_rows": self.selection.num_rows,
            "selected_rows": len(self.selection.indices),
            "overlapping_rows": self.selection.overlapping,
            "least_score": float(self.selection.scores.min()),
            "users": self.sketch.num_users,
            "noise_std": self.sketch.noise_std,
            "trust": self.sketch.trust,
            "tokens_per_user": self.sketch.tokens_per_user,
        }

    def train(self, model: str, output: Path, *, written: Sequence[str] = ()) -> dict[str, Any]:
        """Train a model on what was chosen, taught by the teacher; free where it was done before.

        Args:
            model: that begins.
            output: the folder of the one that it becomes.
            written: texts that were written after what was chosen. A student that would read that
                more than once learns from these as well; before, they are not as good.

        Returns:
            Figures for the end of the run.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        config = self._config
        again = config.student_steps * config.training_batch_size > len(self.texts)
        training = self._fine_tune(
            model,
            output,
            who="student",
            steps=config.student_steps,
            texts=[*self.texts, *written] if again else None,
            distillation=self._distillation(output.with_name(_TEACHER)),
        )
        return {"student_steps": len(training.losses), "student_epochs": training.epochs}

    def _distillation(self, folder: Path) -> Distillation | None:
        """What the student is taught by; a teacher that is to learn first has done so."""
        config = self._config
        if not config.teacher:
            return None
        if not config.teacher_steps:
            return Distillation(config.teacher)
        self._fine_tune(config.teacher, folder, who="teacher", steps=config.teacher_steps)
        biased = folder.with_name(f"{folder.name}-biased")
        self.add_bias(folder, biased, who="teacher")
        return Distillation(biased)

    def train_writer(self, model: str, *, steps: int, domain: str | None, output: Path) -> None:
        """Train a generator on the best sentences that were chosen; free where it was done before.

        As many as its steps read once: what is further down is less like the users' text. By LoRA
        adapters: the weights of a model that writes a few hundred sentences would rather harm.

        Args:
            model: that begins, a public one.
            steps: of training.
            domain: what the texts are, in public words, for a generator that learns quotations
                (`quoted`); None to learn the sentences alone.
            output: the folder of the one that it becomes.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        texts = [text for _, text in self.sentences[: steps * int(_ADAPTERS["batch_size"])]]
        self._fine_tune(
            model,
            output,
            who="generator",
            steps=steps,
            texts=texts if domain is None else [quoted(domain, text) for text in texts],
            max_tokens=_QUOTATION * self._config.max_tokens,
            long_texts="cut",
            train_on_eos=True,  # a whole sentence is one
            **_ADAPTERS,
        )

    def _fine_tune(
        self,
        model: str,
        output: Path,
        *,
        who: str,
        steps: int,
        texts: Sequence[str] | None = None,
        distillation: Distillation | None = None,
        **otherwise: Any,
    ) -> FineTuning:
        config = self._config
        output.parent.mkdir(exist_ok=True)
        with self._text.place.progress.stage(f"Train the {who}", steps) as stage:
            return fine_tune(
                model,
                self.texts if texts is None else texts,
                settings=replace(config.student_training(), max_steps=steps, **otherwise),
                output=output,
                seed=config.seed,
                progress=stage.reach,
                distillation=distillation,
            )

    def add_bias(self, plain: Path, output: Path, *, who: str = "student") -> None:
        """Write a model with what it lacks in its logits, as much of it as the settings say.

        Args:
            plain: folder of the model, trained on what was chosen and on whatever else.
            output: folder of the one with the bias inside.
            who: what the model is called where the work reports.

        Raises:
            ModelError: the model cannot be loaded, or `output` holds something else.
        """
        save_biased(plain, output, self.bias_of(plain, who=who))

    def bias_of(self, plain: Path, *, who: str = "student") -> LogitBias:
        """What a model must say more often to say each token as often as users do.

        The users' text is told from the chosen text, whose kind it is nearly of; and what the model
        says there is compared with that text, which it was trained on for some steps or not at all.
        All of it as far as the release is to be trusted (`TokenSketch.trust`), and as much of it as
        the settings say.

        Args:
            plain: folder of the model, trained on what was chosen and on whatever else.
            who: what the model is called where the work reports.

        Raises:
            ModelError: the model cannot be loaded.
        """
        config, chosen = self._config, self.selection.tokens
        with self._text.place.progress.stage(f"Read what the {who} lacks", total=None):
            told = TokenSketch.of(
                config.sketch_question(),
                self._text.question.broadcast,
                self._releases,
                documents=chosen,
                tokens_per_user=self.sketch.tokens_per_user,
            )
            bias = beyond_model(told.bias(), plain, chosen)
            return bias.scaled(self.sketch.trust).scaled(config.token_bias)
