"""`privsyn evaluate`: a run measured on private text that took no part in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from flower_privsyn.cli.options import Json, RunDir, given, option
from flower_privsyn.cli.output import show_json, show_table, tell
from flower_privsyn.errors import ConfigError, MissingExtraError
from flower_privsyn.files import expanded

if TYPE_CHECKING:
    from flower_privsyn.data import Users
    from flower_privsyn.evaluation.classification import Classification, Score
    from flower_privsyn.evaluation.copies import CopyRates
    from flower_privsyn.evaluation.language_model import Interval, LanguageModelEvaluation
    from flower_privsyn.evaluation.run import RunEvaluation


def evaluate(
    run_dir: RunDir,
    held_out: Annotated[str | None, option("FILE", "users who took no part in the run")] = None,
    users: Annotated[
        str | None, option("FILE", "the run's own data, where held-out-fraction was set")
    ] = None,
    private: Annotated[
        str | None, option("FILE", "users who took part, to look for copies of their text")
    ] = None,
    downstream: Annotated[
        str | None,
        option(
            "MODEL",
            "causal model to fine-tune on the synthetic text (default: that which the run made, "
            "else privsyn-tiny)",
        ),
    ] = None,
    steps: Annotated[int | None, option("N", "of the fine-tuning")] = None,
    output: Annotated[str | None, option("DIR", "where to write (default: DIR.evaluation)")] = None,
    seed: Annotated[int, option("N")] = 0,
    settings: Annotated[
        list[str] | None,
        option("KEY=VALUE", "a column of the files, where the run's has another name", "--set"),
    ] = None,
    as_json: Json = False,
) -> int:
    """Measure a run on held-out private text (not private).

    DIR is the run directory. A model before and after, distances to held-out private text, copies,
    a classifier. The figures are computed from private text without noise: they are for
    choosing between methods in research and must not be published beside a private result.
    """
    from flower_privsyn.data.load import COLUMNS
    from flower_privsyn.evaluation.run import evaluate_run, own_users, split_users
    from flower_privsyn.progress import Progress
    from flower_privsyn.report import write_run_page
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.training.causal import CausalTraining

    run = RunDirectory.open(run_dir)
    columns = given(settings, COLUMNS, "privsyn evaluate")
    taking_part: Users | None = None
    if users is not None and held_out is None:
        if private is not None:
            raise ConfigError("--private goes with --held-out: --users holds both.")
        taking_part, others = split_users(run.config, own_users(run.config, users, columns))
    elif held_out is not None and users is None:
        others = own_users(run.config, held_out, columns)
        if private is not None:
            taking_part = own_users(run.config, private, columns)
    else:
        raise ConfigError(
            "Give either --held-out, a file of users who took no part, or --users, the run's own "
            "data, of which it held some users out."
        )
    folder = run.owner.path.with_suffix(".evaluation")
    folder = folder if output is None else expanded(output).absolute()
    training = CausalTraining(max_steps=steps or 0, train_on_eos=False)
    record = evaluate_run(
        run,
        others,
        private=taking_part,
        downstream=downstream,
        training=training,
        work=folder,
        seed=seed,
        progress=Progress(tell),
    )
    record.write(folder / "evaluation.json")
    page = str(folder / "report.html")
    try:
        write_run_page(run, folder / "report.html", quality=rows(record))
    except MissingExtraError as error:  # the figures took minutes
        page = f"none. {error}"
    if as_json:
        return show_json(record.to_dict())
    print(f"[{record.stamp}]")
    show_table(rows(record))
    print(f"All figures: {folder / 'evaluation.json'}\nPage: {page}")
    return 0


def rows(record: RunEvaluation) -> list[tuple[str, str]]:
    """The main figures with their names, in words."""
    found = []
    if record.learned is not None:
        found += [
            ("before", _model(record.learned.before)),
            ("the same steps on random public text", _model(record.learned.random_public)),
            ("with the release", _model(record.learned.release)),
            ("", f"predicted by {record.learned.model}, 95 % intervals over users"),
        ]
    found.append(
        ("held out", f"{record.held_out_texts:,} samples of {record.held_out_users:,} users")
    )
    if record.texts is not None:
        far, like = record.texts.frechet, record.texts.mauve
        found += [
            (
                "Fréchet distance, squared",
                f"{far.squared:.4f} ({far.extrapolated:.4f} for infinitely many texts), embeddings "
                f"of {record.texts.embedding_model}",
            ),
            ("MAUVE", f"{like.score:.3f} ({like.smoothed:.3f} smoothed)"),
            ("copies of held-out text", _copies(record.texts.held_out_copies)),
        ]
        if record.texts.private_copies is not None:
            found.append(("copies of the users' text", _copies(record.texts.private_copies)))
    if record.classification is not None:
        found += _classified(record.classification)
    return found


def _model(figures: LanguageModelEvaluation) -> str:
    told, bits = f"{_share(figures.next_token_accuracy, 2)} of tokens", figures.bits_per_byte
    return told if bits is None else f"{told}, {bits.value:.3f} bits per byte"


def _classified(found: Classification) -> list[tuple[str, str]]:
    tested = f"{found.test_texts:,} samples of {found.test_users:,} users"
    rows = [
        ("classes", f"{len(found.classes)}; {found.classifier}, tested on {tested}"),
        ("accuracy, synthetic text", _accuracy(found.synthetic)),
        ("accuracy, the commonest class", _share(found.majority)),
    ]
    if found.public is not None:
        rows.append(("accuracy, first candidates (epsilon 0)", _accuracy(found.public)))
    if found.private is not None:
        rows.append(("accuracy, private text (no privacy)", _accuracy(found.private)))
    return rows


def _accuracy(score: Score) -> str:
    learned = f"from {score.training_texts:,} texts"
    return f"{_share(score.accuracy)}, macro F1 {score.macro_f1:.3f}, {learned}"


def _share(found: Interval, digits: int = 1) -> str:
    value, low, high = (f"{100 * one:.{digits}f}" for one in (found.value, found.low, found.high))
    return f"{value} % [{low}, {high}]"


def _copies(found: CopyRates) -> str:
    return (
        f"{found.exact:.2%} exact, {found.windows:.2%} share a window of words, {found.near:.2%} "
        "near copies"
    )
