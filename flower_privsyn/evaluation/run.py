"""The evaluation of one run: a model before it and after, and its text beside held-out text.

    privsyn evaluate RUN_DIR --held-out held_out.jsonl

Nothing of it is written into the run directory: that holds released values and what was made of
them, and whoever may read it is promised the run's epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_privsyn.data import Chunking, Samples, Users, load_configured
from flower_privsyn.data.chunking import class_names
from flower_privsyn.data.public_rows import PublicRows
from flower_privsyn.embedding import Embedder, load_embedder, load_tokenizer
from flower_privsyn.embedding.embedder import has_embedder
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.evaluation.classification import (
    Classification,
    classify_run,
    logistic_regression,
)
from flower_privsyn.evaluation.copies import CopyRates, copy_rates
from flower_privsyn.evaluation.distribution import FrechetDistance, Mauve, frechet_distance, mauve
from flower_privsyn.evaluation.language_model import (
    LanguageModelEvaluation,
    evaluate_language_model,
)
from flower_privsyn.evaluation.result import NotPrivate
from flower_privsyn.files import expanded, read_json, read_json_lines
from flower_privsyn.models import has_model
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import TRAINED_MODEL, named
from flower_privsyn.training.causal import CausalTraining, fine_tune, on_public_rows
from flower_privsyn.training.distillation import Distillation

#: What to do about a run directory that may be somebody else's.
_INSTEAD = "evaluate it beside its owner's folder, or where the model is on this machine by name"

#: Fewest texts on either side for distances between distributions.
LEAST_TEXTS = 10

#: Which model learns from a run's texts where nobody names one.
_DOWNSTREAM: Final = "privsyn-tiny"

#: Steps on random public text where neither a student nor synthetic text says how many.
_STEPS: Final = 200


@dataclass(frozen=True, kw_only=True)
class TextComparison(NotPrivate):
    """Synthetic text beside the text of held-out users.

    Attributes:
        embedding_model: whose embeddings the distances are of.
        texts: of both sides, that were embedded.
        frechet: squared Fréchet distance.
        mauve: with these embeddings as features.
        held_out_copies: how much held-out text the synthetic text repeats: chance, since the run
            never met these users.
        private_copies: how much it repeats of the users the run learned from; None if they were
            not given. Beyond the rate of `held_out_copies` it is memory.
    """

    embedding_model: str
    texts: tuple[int, int]
    frechet: FrechetDistance
    mauve: Mauve
    held_out_copies: CopyRates
    private_copies: CopyRates | None


@dataclass(frozen=True, kw_only=True)
class Learned(NotPrivate):
    """A causal language model on held-out text, before a run and after.

    Attributes:
        model: the public model.
        before: as it is.
        random_public: fine-tuned on public text that nobody chose, in as many steps.
        release: fine-tuned on the run's synthetic text, or the model that the run made.
    """

    model: str
    before: LanguageModelEvaluation
    random_public: LanguageModelEvaluation
    release: LanguageModelEvaluation


@dataclass(frozen=True, kw_only=True)
class RunEvaluation(NotPrivate):
    """Everything measured about one run.

    Attributes:
        run: its folder.
        held_out_users: how many users the figures are about.
        held_out_texts: their samples.
        learned: a model before and after; None for a run that made neither model nor text.
        texts: None for a run without synthetic text.
        classification: what the labels of its text are worth; None for a run without classes.
    """

    run: str
    held_out_users: int
    held_out_texts: int
    learned: Learned | None
    texts: TextComparison | None
    classification: Classification | None


def evaluate_run(
    run: RunDirectory,
    held_out: Users,
    *,
    work: Path,
    private: Users | None = None,
    downstream: str | Path | None = None,
    training: CausalTraining | None = None,
    embedder: Embedder | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> RunEvaluation:
    """Evaluate a finished run on users it has never asked.

    Args:
        run: the run.
        held_out: users that took no part; see `split_users` for those a run held out itself.
        work: folder outside the run directory, for fine-tuned models.
        private: users that took part, to look for copies of their text; None to leave that out.
        downstream: causal language model to fine-tune on the synthetic text; None for the model
            that the run made, or a small bundled one where it made none.
        training: how it is fine-tuned.
        embedder: in place of the run's embedding model.
        seed: of the draws, the fine-tuning and the bootstrap.
        progress: where steps are shown.

    Raises:
        RunDirectoryError: The run has not finished.
        ConfigError: An argument is out of range, or users of both lists are the same.
        DataError: There is too little text.
        ModelError: A model cannot be loaded.
        MissingExtraError: A library is not installed.
    """
    run.refuse_unfinished()
    if private is not None and (both := set(private.user_ids) & set(held_out.user_ids)):
        raise ConfigError(
            f"{len(both)} users are among the held-out ones and among those the run learned from: "
            "held-out users must not have taken part"
        )
    if expanded(work).absolute().resolve().is_relative_to(run.path.resolve()):
        raise ConfigError(
            f"{work} lies in the run directory, whose readers are promised the run's epsilon: an "
            "evaluation on private text must lie elsewhere"
        )
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    shown: Progress = progress or Progress()
    embedder = RememberingEmbedder(embedder or run_embedder(run))
    samples = held_out_samples(run.config, held_out, tokenizer=embedder.tokenizer)
    synthetic = [str(record["text"]) for record in read_json_lines(run.synthetic_jsonl)]
    if downstream is not None and not synthetic:
        raise DataError(f"the run in {run.path} wrote no synthetic text to fine-tune on")
    others = (
        None if private is None else run_samples(run.config, private, tokenizer=embedder.tokenizer)
    )
    settings = training or CausalTraining(train_on_eos=False)  # as none of held-out text count
    return RunEvaluation(
        run=str(run.path),
        held_out_users=len(held_out),
        held_out_texts=len(samples),
        # First: too few texts are refused before minutes of training.
        texts=compare_texts(
            synthetic,
            samples.texts,
            whole=held_out.texts,
            private=[*others.texts, *private.texts] if others and private else None,
            embedder=embedder,
            embedding_model=str(run.config["embedding-model"]),
            seed=seed,
            progress=shown,
        )
        if synthetic
        else None,
        learned=_learned(run, synthetic, samples, downstream, settings, work, seed, shown),
        classification=classify_run(
            run,
            samples,
            private=others,
            classifier=logistic_regression(embedder.embed),
            name=f"logistic regression on {run.config['embedding-model']}",
            progress=shown,
        ),
    )


def _learned(
    run: RunDirectory,
    synthetic: Sequence[str],
    samples: Samples,
    downstream: str | Path | None,
    settings: CausalTraining,
    work: Path,
    seed: int,
    shown: Progress,
) -> Learned | None:
    """A model before a run, after as many steps on random public text, and with the release."""
    made = run.path / TRAINED_MODEL
    predicts = (made / "config.json").is_file() and not read_json(made / "config.json").get(
        "is_encoder_decoder"
    )
    own = downstream is None and bool(run.config.get("model")) and predicts
    if not (own or synthetic):
        return None
    model = downstream or _DOWNSTREAM
    if own:
        model = named(run, "model", here=has_model, instead=_INSTEAD)

    def measure(what: str | Path) -> LanguageModelEvaluation:
        return evaluate_language_model(
            what, samples.texts, owners=samples.owners, seed=seed, progress=shown
        )

    def tune(texts: Sequence[str], name: str, training: CausalTraining) -> Path:
        return tuned(model, texts, settings=training, output=work / name, seed=seed, progress=shown)

    training = settings
    if own and not settings.max_steps:
        learnt = "student-steps" in run.config
        training = on_public_rows(run.config) if learnt else replace(settings, max_steps=_STEPS)
    named_by_us = run.owner.own.get("settings", {}).get("public-text")
    source = str(named_by_us or "bundled")
    public = random_public_text(source, model, settings=training, rows=len(synthetic), seed=seed)
    return Learned(
        model=str(model),
        before=measure(model),
        random_public=measure(tune(public, "random-public", training)),
        release=measure(made if own else tune(synthetic, "downstream", settings)),
    )


# ---------------------------------------------------------------------- measures


def tuned(
    model: str | Path,
    texts: Sequence[str],
    *,
    settings: CausalTraining,
    output: Path,
    seed: int,
    progress: Progress,
    distillation: Distillation | None = None,
    stamp: str = "",
) -> Path:
    """Fine-tune a causal language model on texts, into `output`; see `fine_tune`."""
    with progress.stage(f"Fine-tune on {len(texts):,} texts") as stage:
        fine_tune(
            model,
            texts,
            settings=settings,
            output=output,
            seed=seed,
            progress=stage.reach,
            distillation=distillation,
            stamp=stamp,
        )
    return output


def random_public_text(
    source: str, model: str | Path, *, settings: CausalTraining, rows: int = 0, seed: int
) -> list[str]:
    """Public text that nobody chose, as much as fine-tuning reads, drawn by the seed.

    Args:
        source: "bundled", or a file.
        model: that is fine-tuned.
        settings: how; their steps say how many rows are read.
        rows: how many where passes are counted and not steps; 0 for all.
        seed: of the draw.
    """
    public = PublicRows.of(
        source,
        tokenizer=load_tokenizer(str(model))[0],
        max_tokens=settings.max_tokens,
    )
    read = settings.max_steps * settings.batch_size or rows or len(public)
    random = np.random.default_rng([seed, 3])
    drawn = random.choice(len(public), min(read, len(public)), replace=False)
    return [public.text_of(int(place)) for place in drawn]


def compare_texts(
    synthetic: Sequence[str],
    held_out: Sequence[str],
    *,
    embedder: Embedder,
    embedding_model: str,
    whole: Sequence[str] = (),
    private: Sequence[str] | None = None,
    max_texts: int = 5000,
    seed: int = 0,
    progress: Progress | None = None,
) -> TextComparison:
    """Measure synthetic text beside held-out private text.

    Args:
        synthetic: the texts.
        held_out: samples of users who took no part.
        embedder: whose embeddings the distances are of.
        embedding_model: its name, for the record.
        whole: the documents that `held_out` was cut from: a copy may go across a cut.
        private: samples and documents of users who took part; None to look for no copies of them.
        max_texts: at most so many of both are embedded, drawn at random; copies are looked for in
            all of them.
        seed: of the draws.
        progress: where steps are shown.

    Raises:
        DataError: There are fewer than 10 texts on a side.
    """
    shown: Progress = progress or Progress()
    for name, texts in (("synthetic", synthetic), ("held-out", held_out)):
        if len(texts) < LEAST_TEXTS:
            raise DataError(f"{len(texts)} {name} texts are too few, {LEAST_TEXTS} are needed")
    # Of its own each, so that the same held-out texts are drawn whatever they are compared with.
    some = _draw(synthetic, max_texts, np.random.default_rng(seed))
    others = _draw(held_out, max_texts, np.random.default_rng([seed, 1]))
    vectors = []
    for name, texts in (("synthetic", some), ("held-out", others)):
        with shown.stage(f"Embedding {name} texts", len(texts)) as stage:
            vectors.append(embedder.embed(texts, progress=stage.update))
    with shown.stage("Comparing distributions, and looking for copies"):
        return TextComparison(
            embedding_model=embedding_model,
            texts=(len(some), len(others)),
            frechet=frechet_distance(*vectors, seed=seed),
            mauve=mauve(*vectors, seed=seed),
            held_out_copies=copy_rates(synthetic, [*held_out, *whole]),
            private_copies=copy_rates(synthetic, private) if private else None,
        )


def own_users(
    config: Mapping[str, Any], file: str, columns: Mapping[str, str] | None = None
) -> Users:
    """Read the users of a run's own data, as it was read for the run.

    Args:
        config: of the run, by the keys of a run configuration.
        file: the data.
        columns: those that are called otherwise than the run's, by their keys.

    Raises:
        ConfigError: a value is out of range.
        DataError: it cannot be read.
    """
    labels = bool(class_names(str(config.get("classes") or "")))
    return load_configured({**(columns or {}), "data": file}, config, strict=True, labels=labels)


def split_users(config: Mapping[str, Any], users: Users) -> tuple[Users, Users]:
    """The users a run asks and those it holds out (`held-out-fraction`), from its data.

    Args:
        config: of the run, which may not have begun.
        users: everybody in the data.

    Raises:
        ConfigError: The run holds nobody out.
    """
    if not config.get("held-out-fraction"):
        raise ConfigError(
            f"held-out-fraction = {config.get('held-out-fraction', 0.0):g}: the run holds nobody "
            "out, so there is no private text to compare with; set it for a new run, or give a "
            "file of other users with --held-out"
        )
    return Chunking.of(config).split(users)


def run_embedder(run: RunDirectory) -> Embedder:
    """The embedding model a run's nodes used.

    Raises:
        ConfigError: The run directory may be somebody else's, and names a folder, or a model that
            is not on this machine.
    """
    name = named(run, "embedding-model", here=has_embedder, instead=_INSTEAD)
    return load_embedder(name, precision=run.config["embedding-precision"])


def run_samples(config: Mapping[str, Any], users: Users, *, tokenizer: Any) -> Samples:
    """The users' text as a run's nodes would have cut it.

    Args:
        config: of the run.
        users: any.
        tokenizer: of its embedding model.

    Raises:
        DataError: documents have no dates, or no labels, where the run asks for them.
    """
    chunking = Chunking.of(config)
    return chunking.samples(chunking.documents(users), tokenizer=tokenizer)


def held_out_samples(config: Mapping[str, Any], users: Users, *, tokenizer: Any) -> Samples:
    """The same of users who took no part.

    Raises:
        DataError: as `run_samples`; or they are too few to measure anything by.
    """
    samples = run_samples(config, users, tokenizer=tokenizer)
    if len(samples) < LEAST_TEXTS:
        raise DataError(
            f"the {len(users)} held-out users have {len(samples)} texts to measure by, "
            f"{LEAST_TEXTS} are needed"
        )
    return samples


def _draw(texts: Sequence[str], most: int, generator: np.random.Generator) -> list[str]:
    if len(texts) <= most:
        return list(texts)
    return [texts[index] for index in sorted(generator.permutation(len(texts))[:most].tolist())]


class RememberingEmbedder:
    """An embedding model that embeds no text twice: held-out text is compared with again and again.

    Args:
        embedder: the model.

    Attributes:
        fingerprint: of the model.
        dimension: of an embedding.
        tokenizer: of the model.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[str, Any] = {}
        self.fingerprint = embedder.fingerprint
        self.dimension = embedder.dimension
        self.tokenizer = embedder.tokenizer

    def embed(self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None) -> Any:
        """As the model embeds them: (n, d) of n texts."""
        fresh = list(dict.fromkeys(text for text in texts if text not in self._known))
        if progress is not None:
            progress(len(texts) - len(fresh))
        if fresh:
            self._known |= zip(fresh, self._embedder.embed(fresh, progress=progress), strict=True)
        return np.stack([self._known[text] for text in texts])
