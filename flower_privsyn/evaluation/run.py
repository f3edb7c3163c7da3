"""The evaluation of one run: its costs, its text beside held-out text, a model trained on it.

    privsyn evaluate RUN_DIR --held-out held_out.jsonl

Nothing of it is written into the run directory: that holds released values and what was made of
them, and whoever may read it is promised the run's epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flower_privsyn.checks import check_whole
from flower_privsyn.data import Cut, Samples, Users, load_configured
from flower_privsyn.data.cut import class_names
from flower_privsyn.embedding import Embedder, load_embedder
from flower_privsyn.embedding.embedder import has_embedder
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.evaluation.classification import Classification
from flower_privsyn.evaluation.copies import CopyRates, copy_rates
from flower_privsyn.evaluation.costs import (
    ClientCosts,
    RunCosts,
    RunTimes,
    client_costs,
    roster_size,
    run_costs,
    run_times,
)
from flower_privsyn.evaluation.distribution import (
    FrechetDistance,
    Mauve,
    MeanDiscrepancy,
    PrecisionRecall,
    frechet_distance,
    mauve,
    mean_discrepancy,
    precision_recall,
)
from flower_privsyn.evaluation.diversity import Diversity, diversity
from flower_privsyn.evaluation.labels import classify_run
from flower_privsyn.evaluation.language_model import (
    LanguageModelEvaluation,
    evaluate_language_model,
)
from flower_privsyn.evaluation.result import NotPrivate
from flower_privsyn.files import expanded, located, read_json_lines
from flower_privsyn.host.progress import NullProgress, ProgressReporter
from flower_privsyn.models import has_model
from flower_privsyn.models.pretrained import holds_encoder_decoder
from flower_privsyn.runs import RunDirectory
from flower_privsyn.runs.handed_over import named
from flower_privsyn.runs.rounds import TRAINED_MODEL
from flower_privsyn.training.causal import FineTuning, fine_tune
from flower_privsyn.training.causal_settings import CausalTraining

#: What to do about a run directory that may be somebody else's.
_INSTEAD = "evaluate it beside its owner's folder, or where the model is on this machine by name"

#: Fewest texts on either side for distances between distributions.
LEAST_TEXTS = 10


@dataclass(frozen=True, kw_only=True)
class TextComparison(NotPrivate):
    """Synthetic text beside the text of held-out users.

    Attributes:
        embedding_model: whose embeddings the distances are of.
        max_tokens: to which private text was cut, in that model's tokens.
        frechet: squared Fréchet distance.
        precision_recall: fidelity and coverage.
        discrepancy: squared maximum mean discrepancy.
        mauve: with these embeddings as features.
        synthetic_diversity: variety of the synthetic text.
        private_diversity: of the held-out text, for scale.
        held_out_copies: how much held-out text the synthetic text repeats: chance, since the run
            never met these users.
        private_copies: how much it repeats of the users the run learned from; None if they were
            not given. Beyond the rate of `held_out_copies` it is memory.
    """

    embedding_model: str
    max_tokens: int
    frechet: FrechetDistance
    precision_recall: PrecisionRecall
    discrepancy: MeanDiscrepancy
    mauve: Mauve
    synthetic_diversity: Diversity
    private_diversity: Diversity
    held_out_copies: CopyRates
    private_copies: CopyRates | None


@dataclass(frozen=True, kw_only=True)
class Downstream(NotPrivate):
    """A model before and after fine-tuning on synthetic text, on held-out text.

    Attributes:
        before: the public model as it is: the floor (public-only).
        after: fine-tuned.
        training: what the fine-tuning did.
    """

    before: LanguageModelEvaluation
    after: LanguageModelEvaluation
    training: FineTuning


@dataclass(frozen=True, kw_only=True)
class RunEvaluation(NotPrivate):
    """Everything measured about one run.

    Attributes:
        run: its folder.
        held_out_users: how many users the figures are about.
        held_out_texts: their samples.
        costs: what the run counted; None if it counted nothing.
        times: how long it took; None if the owner's folder is not beside it.
        client_costs: what its nodes counted on themselves; None if they were not told to.
        texts: None for a run without synthetic text.
        downstream: None unless it was asked for.
        classification: what the labels of its text are worth, by a classifier each; none for a run
            without classes.
        trained_model: the model that the run made; None for methods that make none.
        public_model: what that was before the run.
    """

    run: str
    held_out_users: int
    held_out_texts: int
    costs: RunCosts | None
    times: RunTimes | None
    client_costs: ClientCosts | None
    texts: TextComparison | None
    downstream: Downstream | None
    classification: tuple[Classification, ...]
    trained_model: LanguageModelEvaluation | None
    public_model: LanguageModelEvaluation | None


def evaluate_run(
    run: RunDirectory,
    held_out: Users,
    *,
    private: Users | None = None,
    downstream: str | Path | None = None,
    training: CausalTraining | None = None,
    work: Path | None = None,
    encoder: str | Path | None = None,
    cpu_time: str | Path | None = None,
    embedder: Embedder | None = None,
    max_texts: int = 5000,
    seed: int = 0,
    progress: ProgressReporter | None = None,
) -> RunEvaluation:
    """Evaluate a finished run on users it has never asked.

    Args:
        run: the run.
        held_out: users that took no part; see `split_users` for those a run held out itself.
        private: users that took part, to look for copies of their text; None to leave that out.
        downstream: causal language model to fine-tune on the synthetic text and to measure before
            and after; None to leave that out.
        training: how it is fine-tuned.
        work: folder outside the run directory, for the fine-tuned model; needed with `downstream`.
        encoder: model to fine-tune as a classifier, beside logistic regression, where texts have
            classes; None to leave that out.
        cpu_time: what the run's nodes wrote under `PRIVSYN_CPU_TIME`; None to leave that out.
        embedder: in place of the run's embedding model.
        max_texts: at most so many synthetic and so many held-out texts are embedded and compared,
            drawn at random, >= 10.
        seed: of the draws, the fine-tuning and the bootstrap.
        progress: where steps are shown.

    Raises:
        ConfigError: An argument is out of range, or users of both lists are the same.
        DataError: There is too little text.
        ModelError: A model cannot be loaded.
        MissingExtraError: A library is not installed.
    """
    _check(run, held_out, private=private, downstream=downstream, work=work, max_texts=max_texts)
    shown: ProgressReporter = progress or NullProgress()
    # Before anything that takes time: a wrong file is named at once.
    spent = None if cpu_time is None else client_costs(cpu_time, users=roster_size(run))
    embedder = embedder or run_embedder(run)
    samples = held_out_samples(run.config, held_out, tokenizer=embedder.tokenizer)
    synthetic = [str(record["text"]) for record in read_json_lines(run.synthetic_jsonl)]
    others = (
        None if private is None else run_samples(run.config, private, tokenizer=embedder.tokenizer)
    )
    comparison = _compared(
        run, synthetic, samples, others, embedder, max_texts=max_texts, seed=seed, shown=shown
    )
    classified = classify_run(
        run,
        samples,
        private=others,
        embedder=embedder,
        encoder=encoder,
        seed=seed,
        progress=shown,
    )
    public, trained = _made(run, samples, seed, shown)
    tuned = None
    if downstream is not None and work is not None:
        settings = training or CausalTraining(learn_ends=False)  # as none of held-out text count
        tuned = _fine_tuned(run, downstream, synthetic, samples, settings, work, seed, shown)
    return RunEvaluation(
        run=str(run.path),
        held_out_users=len(held_out),
        held_out_texts=len(samples),
        costs=_costs(run),
        times=run_times(run),
        client_costs=spent,
        texts=comparison,
        downstream=tuned,
        classification=classified,
        trained_model=trained,
        public_model=public,
    )


def _compared(
    run: RunDirectory,
    synthetic: Sequence[str],
    held_out: Samples,
    private: Samples | None,
    embedder: Embedder,
    *,
    max_texts: int,
    seed: int,
    shown: ProgressReporter,
) -> TextComparison | None:
    """A run's text beside held-out text, as its settings cut this; None where it wrote none."""
    if not synthetic:
        return None
    return compare_texts(
        synthetic,
        held_out.texts,
        private=None if private is None else private.texts,
        embedder=embedder,
        embedding_model=str(run.config["embedding-model"]),
        max_tokens=int(run.config["max-tokens"]),
        max_texts=max_texts,
        seed=seed,
        progress=shown,
    )


def _check(
    run: RunDirectory,
    held_out: Users,
    *,
    private: Users | None,
    downstream: str | Path | None,
    work: Path | None,
    max_texts: int,
) -> None:
    """Refuse what `evaluate_run` cannot do."""
    check_whole("max_texts", max_texts, ge=LEAST_TEXTS)
    if private is not None and (both := set(private.user_ids) & set(held_out.user_ids)):
        raise ConfigError(
            f"{len(both)} users are among the held-out ones and among those the run learned from: "
            "held-out users must not have taken part"
        )
    if downstream is not None and (work is None or _inside(work, run.path)):
        raise ConfigError(
            "fine-tuning needs a work folder outside the run directory: what is measured on "
            "private text must not lie beside what was released"
        )


def compare_texts(
    synthetic: Sequence[str],
    held_out: Sequence[str],
    *,
    embedder: Embedder,
    embedding_model: str,
    private: Sequence[str] | None = None,
    max_tokens: int = 64,
    max_texts: int = 5000,
    seed: int = 0,
    progress: ProgressReporter | None = None,
) -> TextComparison:
    """Measure synthetic text beside held-out private text.

    Args:
        synthetic: the texts.
        held_out: samples of users who took no part.
        embedder: whose embeddings the distances are of.
        embedding_model: its name, for the record.
        private: samples of users who took part, for copies; None to leave that out.
        max_tokens: to which private text was cut, for the record.
        max_texts: at most so many of both are embedded, drawn at random, >= 10; copies are looked
            for in all of them.
        seed: of the draws.
        progress: where steps are shown.

    Raises:
        ConfigError: `max_texts` is below 10.
        DataError: There are fewer than 10 texts on a side.
    """
    check_whole("max_texts", max_texts, ge=LEAST_TEXTS)
    shown: ProgressReporter = progress or NullProgress()
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
    with shown.stage("Comparing distributions", 4) as stage:
        frechet = frechet_distance(*vectors, seed=seed)
        stage.update()
        support = precision_recall(*vectors)
        stage.update()
        discrepancy = mean_discrepancy(*vectors)
        stage.update()
        quantised = mauve(*vectors, features=embedding_model, seed=seed)
        stage.update()
    with shown.stage("Looking for copies"):
        held_out_copies = copy_rates(synthetic, held_out)
        private_copies = copy_rates(synthetic, private) if private else None
    return TextComparison(
        embedding_model=embedding_model,
        max_tokens=max_tokens,
        frechet=frechet,
        precision_recall=support,
        discrepancy=discrepancy,
        mauve=quantised,
        synthetic_diversity=diversity(some, embeddings=vectors[0], seed=seed),
        private_diversity=diversity(others, embeddings=vectors[1], seed=seed),
        held_out_copies=held_out_copies,
        private_copies=private_copies,
    )


def own_users(config: Mapping[str, Any], file: str, **given: str) -> Users:
    """Read the users of a run's own data, as it was read for the run.

    Args:
        config: of the run, by the keys of a run configuration.
        file: the data.
        given: other values of keys that say how it is read, by their names in Python; "" for the
            run's.

    Raises:
        ConfigError: a value is out of range.
        DataError: it cannot be read.
    """
    named = {key.replace("_", "-"): value for key, value in given.items()}
    labels = bool(class_names(str(config.get("classes") or "")))
    return load_configured({**named, "data": file}, config, strict=True, labels=labels)


def split_users(run: RunDirectory, users: Users) -> tuple[Users, Users]:
    """The users a run asked and those it held out (`held-out-fraction`), from its data.

    Raises:
        ConfigError: The run held nobody out.
    """
    return split_by(run.config, users)


def split_by(config: Mapping[str, Any], users: Users) -> tuple[Users, Users]:
    """The same by the settings of a run that may not have begun.

    Raises:
        ConfigError: The run holds nobody out.
    """
    if not config.get("held-out-fraction"):
        raise ConfigError(
            f"held-out-fraction = {config.get('held-out-fraction', 0.0):g}: the run holds nobody "
            "out, so there is no private text to compare with; set it for a new run, or give a "
            "file of other users with --held-out"
        )
    return Cut.of(config).split(users)


def run_embedder(run: RunDirectory) -> Embedder:
    """The embedding model a run's nodes used.

    Raises:
        ConfigError: The run directory may be somebody else's, and names a folder, or a model that
            is not on this machine.
    """
    name = named(run, "embedding-model", here=has_embedder, instead=_INSTEAD)
    return load_embedder(located(name), precision=run.config["embedding-precision"])


def run_samples(config: Mapping[str, Any], users: Users, *, tokenizer: Any) -> Samples:
    """The users' text as a run's nodes would have cut it.

    Args:
        config: of the run.
        users: any.
        tokenizer: of its embedding model.

    Raises:
        DataError: documents have no dates, or no labels, where the run asks for them.
    """
    cut = Cut.of(config)
    if cut.newer_than:
        users.check_documents(dated=True)
    return cut.samples(cut.documents(users), tokenizer=tokenizer)


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


def _costs(run: RunDirectory) -> RunCosts | None:
    try:
        return run_costs(run)
    except DataError:
        return None  # of a run that asked nothing


def _made(
    run: RunDirectory, samples: Samples, seed: int, shown: ProgressReporter
) -> tuple[LanguageModelEvaluation | None, LanguageModelEvaluation | None]:
    """The model that a run made, before and after it; None where there is none."""
    made = run.path / TRAINED_MODEL
    if not (made / "config.json").is_file():
        return None, None
    if holds_encoder_decoder(made):
        return None, None  # it predicts documents after conditions, and no token of them alone
    public = None
    if run.config.get("model"):
        model = located(named(run, "model", here=has_model, instead=_INSTEAD))
        public = _measured(model, samples, seed, shown, "the public model")
    return public, _measured(made, samples, seed, shown, "the trained model")


def _measured(
    model: str | Path, samples: Samples, seed: int, shown: ProgressReporter, name: str
) -> LanguageModelEvaluation:
    with shown.stage(f"Held-out text under {name}", len(samples)) as stage:
        return evaluate_language_model(
            model, samples.texts, owners=samples.owners, seed=seed, progress=stage.update
        )


def _fine_tuned(
    run: RunDirectory,
    model: str | Path,
    synthetic: Sequence[str],
    samples: Samples,
    training: CausalTraining,
    work: Path,
    seed: int,
    shown: ProgressReporter,
) -> Downstream:
    if not synthetic:
        raise DataError(f"the run in {run.path} wrote no synthetic text to fine-tune on")
    before = _measured(model, samples, seed, shown, "the public model")
    output = work / "downstream"
    with shown.stage("Fine-tuning on synthetic text") as stage:
        report = fine_tune(
            model, synthetic, settings=training, output=output, seed=seed, progress=stage.reach
        )
    after = _measured(output, samples, seed, shown, "the fine-tuned model")
    return Downstream(before=before, after=after, training=report)


def _draw(texts: Sequence[str], most: int, generator: np.random.Generator) -> list[str]:
    if len(texts) <= most:
        return list(texts)
    return [texts[index] for index in sorted(generator.permutation(len(texts))[:most].tolist())]


def _inside(path: Path, folder: Path) -> bool:
    return expanded(path).absolute().resolve().is_relative_to(folder.resolve())
