"""What a real writer is shown, and where a private signal can go: students of what it writes.

    python -m scripts.experiments.shown_to_the_writer --data USERS... --public FILE --work DIR
                                                      --results FILE [--rows ...] [--bias 0.5]
    python -m scripts.experiments.shown_to_the_writer --tune --corpus DIR --work DIR

Users are asked once, by the joint sketch's own strategy and nodes (in one process, two nodes). Its
release chooses passages of public text, scores what the writer wrote, and, through a mapping of
whole words, biases what it writes. Every row is a corpus of as many tokens: the student is
fine-tuned on it and measured on other users. `ROWS` says what each is.

- Where the release chooses what is kept, `--times` as many tokens are written.
- Rows with the same prompt, examples and bias share what was written.
- `real` rows show the writer users' text, or are it: not private, upper bounds.

`--tune` says what the bias is worth on public text, one kind of which plays the users (as in
`ask_once_tuning.py`): bits per byte of the writer by the weight. No private text is read for it.

Needs the extra `gemma`. The release, every batch of texts and every row are kept in `--work` and
`--results`, and are not made again. Accuracies are outside the budget: for research.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from flwr.app import Context

from flower_privsyn.client_apps import create_client_app
from flower_privsyn.data import Cut, Users
from flower_privsyn.data.cut import token_ids
from flower_privsyn.data.sentences import sentence_ends
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.files import append_json_lines, read_json_lines, write_json
from flower_privsyn.generation import Prompt, SamplingParameters, TextGenerator, load_generator
from flower_privsyn.generation.streams import derive_seed
from flower_privsyn.models import resolve_model
from flower_privsyn.models.bias import LogitBias
from flower_privsyn.privacy import FullParticipation
from flower_privsyn.private_path.engine import PrivateSumStrategy
from flower_privsyn.private_path.method import Workplace
from flower_privsyn.private_path.release import stored_release
from flower_privsyn.runs import RunDirectory
from flower_privsyn.strategies import JointSketchConfig
from flower_privsyn.strategies.joint_sketch import AskedOnce
from flower_privsyn.strategies.parts.sketched_text import SketchedText
from flower_privsyn.strategies.parts.token_sketch import PUBLIC_TOKENS, TokenSketch, text_scorer
from flower_privsyn.testing import LoopbackGrid, flower_identity
from flower_privsyn.training.bias import save_biased, score_bias
from flower_privsyn.training.causal import CausalTraining, fine_tune
from flower_privsyn.training.selection import LogRatioScorer
from scripts.experiments.ask_once_tuning import Split
from scripts.experiments.people import deal

STUDENT: Final = "privsyn-tiny"

#: Tokens of a passage, examples in a prompt, and what a prompt is continued by.
PASSAGE, EXAMPLES, NEW_TOKENS = 128, 2, 150

#: Prompts of a batch and texts of each: a prompt that is read once costs less than eight.
PROMPTS, SAMPLES = 4, 8

#: Student tokens under which a text is dropped: scores of so few are noise.
LEAST_TOKENS: Final = 32

#: Passages that are chosen, and public or real ones that are drawn: about 0.3 % of a corpus.
SHOWN: Final = 160

#: Tokens of a training row and of a window of evaluation; rows of a step.
WINDOW, BATCH = 64, 16

#: A log-ratio beyond which noise speaks.
MOST_BIAS: Final = 3.0

WEIGHTS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)

#: The one names nothing, the other the domain, which is public knowledge.
PROMPT_OF: Final = {
    "samples": Prompt(
        name="samples",
        heading="Here are {num_samples} diverse original text samples:",
        marker="Original Text Sample {number}",
        num_samples=6,
    ),
    "domain": Prompt(
        name="domain",
        heading="Here are {num_samples} abstracts of new scientific papers from arXiv:",
        marker="Abstract {number}",
        num_samples=6,
    ),
}


#: What names the domain where no example is shown: after a list's heading it writes headings.
ALONE: Final = "This is the abstract of a new scientific paper from arXiv.\n\nAbstract:"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A corpus.

    Attributes:
        shown: what stands in the prompt: "nothing", or texts that are "public", "chosen", "real"
            or the "best" of what the prompt alone made it write.
        prompt: "samples" or "domain"; "" where the texts that would be shown are the corpus.
        biased: whether the release biases what is written.
        kept: "first", the "best" by the release, or "drawn" by it (importance resampling).
    """

    shown: str
    prompt: str = "samples"
    biased: bool = False
    kept: str = "first"


ROWS: Final[dict[str, Row]] = {
    "domain": Row(shown="nothing", prompt="domain"),
    "chosen": Row(shown="chosen"),
    "domain, filtered": Row(shown="nothing", prompt="domain", kept="best"),
    "real examples": Row(shown="real"),
    "real text": Row(shown="real", prompt=""),
    "chosen passages": Row(shown="chosen", prompt=""),
    "domain, its best shown": Row(shown="best", prompt="domain"),
    "domain, biased": Row(shown="nothing", prompt="domain", biased=True),
    "domain, biased, filtered": Row(shown="nothing", prompt="domain", biased=True, kept="best"),
    "chosen, filtered": Row(shown="chosen", kept="best"),
    "chosen, resampled": Row(shown="chosen", kept="drawn"),
    "public": Row(shown="public"),
    "public passages": Row(shown="public", prompt=""),
    "chosen, biased": Row(shown="chosen", biased=True),
    "chosen, biased, filtered": Row(shown="chosen", biased=True, kept="best"),
    "domain, chosen, filtered": Row(shown="chosen", prompt="domain", kept="best"),
}


class _OnlyAsked(AskedOnce):
    """A joint sketch of whose release nothing is made yet."""

    def finish(self) -> dict[str, Any]:
        """Nothing."""
        return {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Told:
    """What is made of the release.

    Attributes:
        scorer: of rows of the student's tokens.
        ratios: (V,) log-ratios of the student's tokens, private over public.
        texts: by what is shown, "public", "chosen" and "real".
    """

    scorer: LogRatioScorer
    ratios: npt.NDArray[np.float64]
    texts: dict[str, list[str]]


def people(files: Sequence[Path], *sizes: int, kept: Path) -> list[Users]:
    """Who is held out and who is asked; dealt once, and kept with their text."""
    if not kept.exists():
        groups = [
            [
                (group.user_ids[owner], text)
                for owner, text in zip(group.owners.tolist(), group.texts, strict=True)
            ]
            for group in deal(files, *sizes)
        ]
        write_json(kept, {"groups": groups})
    dealt = json.loads(kept.read_text(encoding="utf-8"))["groups"]
    return [Users.from_rows((one, text) for one, text in group) for group in dealt]


def ask(users: Users, config: JointSketchConfig) -> None:
    """Ask the users, unless they were asked."""

    def node(context: Context) -> Users:
        return users.deal(
            partition_id=int(context.node_config["partition-id"]),
            num_partitions=int(context.node_config["num-partitions"]),
        )

    if not Path(config.run_dir).exists():
        with flower_identity():
            PrivateSumStrategy(config, _OnlyAsked(config)).start(
                LoopbackGrid(create_client_app(node), num_nodes=config.num_nodes)
            )


def told(work: Path, users: Users, public: Path, *, epsilon: float, seed: int) -> Told:
    """Ask the users, choose passages and keep what is needed of the release."""
    arrays, texts = work / f"release-{seed}.npz", work / f"shown-{seed}.json"
    if not texts.exists():
        config = JointSketchConfig(
            epsilon=epsilon,
            delta=1 / (len(users) * math.log(len(users))),
            num_nodes=2,
            public_text=str(public),
            max_tokens=PASSAGE,
            select_share=1e-9,
            least_selected=SHOWN,
            teacher="",
            run_dir=str(work / f"asked-{seed}"),
            seed=seed,
        )
        ask(users, config)
        run = RunDirectory.open(config.run_dir)
        release = stored_release(run, 1, sampling=FullParticipation(len(users)))
        assert release is not None
        text = SketchedText(
            config, Workplace(run=run, progress=run.progress(), released=lambda _: release)
        )
        sketch = TokenSketch.of(
            config.sketch_question(),
            text.question.broadcast,
            [release.of_users],
            documents=list(text.public.documents(most_tokens=PUBLIC_TOKENS)),
        )
        assert sketch is not None
        assert sketch.reading.tokens is not None
        scorer = config.scorer(sketch)
        random = np.random.default_rng(seed)
        drawn = random.permutation(np.flatnonzero(text.public.lengths > PASSAGE // 2))[:SHOWN]
        pieces = Cut(max_tokens=PASSAGE).pieces(users.texts[: 2 * SHOWN], tokenizer=text.tokenizer)
        np.savez(
            arrays,
            tokens=scorer.tokens,
            keys=np.asarray(scorer.bigram_keys),
            bigrams=np.asarray(scorer.bigrams),
            weights=np.asarray(scorer.weights),
            ratios=sketch.reading.tokens.log_ratio,
        )
        write_json(
            texts,
            {
                "chosen": [begun(one) for one in text.texts_of(text.select(sketch))],
                "public": [begun(text.public.text_of(int(index))) for index in drawn],
                "real": [own[0] for own in pieces if own],
            },
        )
    kept = np.load(arrays)
    return Told(
        scorer=LogRatioScorer(
            tokens=kept["tokens"],
            bigram_keys=kept["keys"],
            bigrams=kept["bigrams"],
            weights=kept["weights"],
        ),
        ratios=kept["ratios"],
        texts=json.loads(texts.read_text(encoding="utf-8")),
    )


def begun(text: str) -> str:
    """A passage from the beginning of its first sentence; all of it where there is no other."""
    ends = sentence_ends(text)
    rest = text[ends[0] :].strip() if ends and not text[:1].isupper() else text
    return rest if len(rest) > len(text) // 2 else text


# ---------------------------------------------------------------------- the writer


def mapped(ratios: npt.NDArray[np.float64], writer: Any) -> LogitBias:
    """Log-ratios of the student's tokens as a bias of the writer's, by whole words.

    A token of the writer that is a blank and a word gets the log-ratio of the same token of the
    student. All others get nothing: a sum over the pieces of a rare word says what other words have
    those pieces.

    Args:
        ratios: (V,) of the student's tokens.
        writer: the ``tokenizers.Tokenizer`` of the writer, which writes a blank as U+2581.
    """
    student, _ = load_tokenizer(STUDENT)
    vocabulary = writer.get_vocab()
    words = {
        number: " " + token[1:]
        for token, number in vocabulary.items()
        if re.fullmatch("\u2581[A-Za-z]{2,}", token)
    }
    rows = token_ids(student, list(words.values()))
    bias = np.zeros(max(vocabulary.values()) + 1, dtype=np.float32)
    for number, row in zip(words, rows, strict=True):
        if len(row) == 1:
            bias[number] = np.clip(ratios[row[0]], -MOST_BIAS, MOST_BIAS)
    return LogitBias(tokens=bias)


@dataclass(kw_only=True)
class Writer:
    """The writer, with and without the bias, and what each wrote.

    Attributes:
        work: folder.
        told: what is made of the release.
        bias: weight of the log-ratios.
        times: how many times as much is written as is kept, where the release keeps.
        seed: of what is drawn.
    """

    work: Path
    told: Told
    bias: float
    times: int
    seed: int

    def __post_init__(self) -> None:
        """Nothing is loaded before something is written."""
        self._loaded: dict[bool, TextGenerator] = {}
        self._tokenizer, _ = load_tokenizer(STUDENT)

    def _generator(self, *, biased: bool) -> TextGenerator:
        if biased not in self._loaded:
            name = "gemma-3-270m"
            if biased:
                folder = self.work / f"biased-{self.seed}-{self.bias:g}"
                if not folder.exists():
                    words = mapped(
                        self.told.ratios, load_tokenizer(resolve_model("gemma-3-270m"))[0]
                    )
                    save_biased("gemma-3-270m", folder, words.scaled(self.bias, 0.0))
                name = str(folder)
            self._loaded = {biased: load_generator(name)}
        return self._loaded[biased]

    def tokens(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """(n,) how many tokens of the student each text has."""
        return np.array([len(row) for row in token_ids(self._tokenizer, list(texts))])

    def scores(self, texts: list[str]) -> npt.NDArray[np.float64]:
        """(n,) how much each text is like the users', by the release."""
        return text_scorer(self.told.scorer, self._tokenizer)(texts)

    def written(self, row: Row, *, tokens: int) -> list[str]:
        """At least so many tokens of a row's prompt; what was written before counts."""
        prompt, examples = PROMPT_OF[row.prompt], self._examples(row, tokens=tokens)
        name = f"{row.prompt}-{row.shown}{f'-biased-{self.bias:g}' if row.biased else ''}"
        file = self.work / f"{name}-{self.seed}.jsonl"
        while True:
            records = list(read_json_lines(file))
            texts = list(dict.fromkeys(str(r["text"]) for r in records if r["text"]))
            lengths = self.tokens(texts)
            texts = [t for t, n in zip(texts, lengths, strict=True) if n >= LEAST_TOKENS]
            if lengths[lengths >= LEAST_TOKENS].sum() >= tokens:
                return texts
            batch = 1 + max((int(record["batch"]) for record in records), default=-1)
            begun_at = time.process_time()
            found = self._generator(biased=row.biased).generate(
                [self._prompt(prompt, examples, batch, place) for place in range(PROMPTS)],
                num_samples=SAMPLES,
                sampling=SamplingParameters(
                    seed=derive_seed(self.seed, name, batch),
                    max_new_tokens=NEW_TOKENS,
                    top_p=0.95,
                    stop=("\n",),
                ),
            )
            spent = time.process_time() - begun_at
            fresh = [" ".join(text.split()) for own in found for text in own]
            append_json_lines(
                file,
                [{"batch": batch, "text": text, "cpu": spent / len(fresh)} for text in fresh],
            )
            print(f"{name}: batch {batch}, {len(fresh)} texts, {spent:.0f} CPU s", flush=True)

    def _examples(self, row: Row, *, tokens: int) -> list[str]:
        if row.shown == "nothing":
            return []
        if row.shown == "best":
            alone = Row(shown="nothing", prompt=row.prompt, kept="best")
            return self.corpus(alone, tokens=tokens)
        return self.told.texts[row.shown]

    def _prompt(self, prompt: Prompt, examples: list[str], batch: int, place: int) -> str:
        if not examples:
            return ALONE
        random = np.random.default_rng([self.seed, batch, place])
        chosen = random.choice(len(examples), EXAMPLES, replace=False)
        return prompt.render([examples[index] for index in chosen.tolist()])

    def kept(self, texts: list[str], how: str, *, tokens: int) -> list[str]:
        """As many of some texts as have so many tokens: the first, the best, or drawn ones."""
        lengths, order = self.tokens(texts), np.arange(len(texts))
        if how != "first":
            keys = self.scores(texts)
            if how == "drawn":  # DSIR: a text's log importance weight is the sum over its tokens
                noise = np.random.default_rng(self.seed).gumbel(size=len(texts))
                keys = keys * np.minimum(lengths, PASSAGE // 2) + noise
            order = np.argsort(-keys, kind="stable")
        last = int(np.searchsorted(np.cumsum(lengths[order]), tokens)) + 1
        return [texts[index] for index in order[:last].tolist()]

    def corpus(self, row: Row, *, tokens: int) -> list[str]:
        """The texts of a row."""
        if not row.prompt:
            return self.kept(self.told.texts[row.shown], row.kept, tokens=tokens)
        pool = tokens if row.kept == "first" else self.times * tokens
        # What other rows or an earlier start wrote beyond that does not count.
        written = self.kept(self.written(row, tokens=pool), "first", tokens=pool)
        return self.kept(written, row.kept, tokens=tokens)


# ---------------------------------------------------------------------- the student


def measured(
    writer: Writer, row: Row, held_out: Users, *, tokens: int, steps: int, rate: float
) -> dict[str, Any]:
    """A student of a row's texts: figures, under other names than what a row is made with."""
    texts = writer.corpus(row, tokens=tokens)
    with tempfile.TemporaryDirectory(dir=writer.work) as folder:
        student = Path(folder) / "student"
        fine_tune(
            STUDENT,
            texts,
            settings=CausalTraining(
                max_steps=steps, batch_size=BATCH, max_tokens=WINDOW, learning_rate=rate
            ),
            output=student,
            seed=writer.seed,
        )
        found = quality(student, held_out)
    counted = {"texts": len(texts), "corpus_tokens": int(writer.tokens(texts).sum())}
    return {**counted, "score": float(writer.scores(texts).mean()), **found}


def quality(student: str | Path, held_out: Users) -> dict[str, Any]:
    """Accuracy and bits per byte on held-out users."""
    found = evaluate_language_model(
        student, held_out.texts, owners=held_out.owners, max_tokens=WINDOW
    )
    accuracy, bits = found.next_token_accuracy, found.bits_per_byte
    assert bits is not None
    return {
        "accuracy": accuracy.value,
        "interval": [accuracy.low, accuracy.high],
        "bits_per_byte": bits.value,
        "stamp": found.stamp,
    }


# ---------------------------------------------------------------------- the weight of the bias


def tune(corpus: Path, work: Path, *, kind: str, epsilon: float, texts: int) -> None:
    """Print what the bias is worth on public text, one kind of which plays the users."""
    config = JointSketchConfig(epsilon=epsilon)
    split = Split(corpus, kind, users=1500, most_public=3000, work=work)
    broadcast, releases = split.asked(config, epsilon=epsilon)
    sketch = split.read(config, broadcast, releases)
    assert sketch.reading.tokens is not None
    bias = mapped(sketch.reading.tokens.log_ratio, load_tokenizer(resolve_model("gemma-3-270m"))[0])
    held_out = [" ".join(text.split()[:60]) for text in split.held_out[:texts]]
    scores = score_bias("gemma-3-270m", bias, held_out, token_weights=WEIGHTS)
    for weight, bits in zip(scores.token_weights, scores.bits_per_byte[:, 0], strict=True):
        print(f"{kind}: weight {weight:g}: {bits:.4f} bits per byte", flush=True)


def table(results: Path) -> None:
    """Print the rows, in their order."""
    records = list(read_json_lines(results))
    print("row | seeds | accuracy, % | bits per byte | score by the release | texts")
    for name in dict.fromkeys(str(record["row"]) for record in records):
        own = [record for record in records if record["row"] == name]
        mean = {
            key: float(np.mean([record[key] for record in own if key in record] or [math.nan]))
            for key in ("accuracy", "bits_per_byte", "score", "texts")
        }
        print(
            f"{name} | {len(own)} | {100 * mean['accuracy']:.2f} | {mean['bits_per_byte']:.4f} | "
            f"{mean['score']:.3f} | {mean['texts']:.0f}"
        )


#: What every row was made with, by its name in the results; and what some rows were.
_OF_ALL: Final = ("seed", "epsilon", "tokens", "steps", "rate")
_SETTINGS: Final = ("row", *_OF_ALL, "bias", "times")


def made_with(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What tells a row from the same row made in another way."""
    row = ROWS.get(name)
    made = {key: getattr(arguments, key) for key in _OF_ALL}
    if row is not None and row.biased:
        made["bias"] = arguments.bias
    if row is not None and (row.shown == "best" or row.kept != "first"):
        made["times"] = arguments.times
    return {"row": name, **made}


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", help="users' text")
    parser.add_argument("--public", type=Path, help="public text to choose from")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--users", type=int, default=3000)
    parser.add_argument("--held-out", type=int, default=300)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=8500)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--bias", type=float, default=0.5)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["write", "ask"], help="do no more than that")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--corpus", type=Path, help="for --tune: holds public-*.jsonl.gz")
    parser.add_argument("--kind", default="usgov", help="for --tune: what plays the users")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.tune:
        tune(
            arguments.corpus,
            arguments.work,
            kind=arguments.kind,
            epsilon=arguments.epsilon,
            texts=24,
        )
        return
    held_out, users = people(
        arguments.data, arguments.held_out, arguments.users, kept=arguments.work / "people.json"
    )
    writer = Writer(
        work=arguments.work,
        told=told(
            arguments.work,
            users,
            arguments.public,
            epsilon=arguments.epsilon,
            seed=arguments.seed,
        ),
        bias=arguments.bias,
        times=arguments.times,
        seed=arguments.seed,
    )
    if arguments.only == "ask":
        return
    if arguments.only == "write":
        for name in arguments.rows:
            writer.corpus(ROWS[name], tokens=arguments.tokens)
        return
    known = [
        {key: value for key, value in record.items() if key in _SETTINGS}
        for record in read_json_lines(arguments.results)
    ]
    for name in ("student as it is", *arguments.rows):
        made = made_with(name, arguments)
        if made in known:
            continue
        found = (
            measured(
                writer,
                ROWS[name],
                held_out,
                tokens=arguments.tokens,
                steps=arguments.steps,
                rate=arguments.rate,
            )
            if name in ROWS
            else quality(STUDENT, held_out)
        )
        append_json_lines(arguments.results, [{**made, **found}])
        print(f"{name}: {100 * found['accuracy']:.2f} %", flush=True)
    table(arguments.results)


if __name__ == "__main__":
    main()
