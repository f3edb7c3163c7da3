"""An evaluation as a table for people, under its stamp."""

from __future__ import annotations

from flower_privsyn.evaluation.classification import Classification, Score, Share
from flower_privsyn.evaluation.language_model import Interval, LanguageModelEvaluation
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.evaluation.run import RunEvaluation


def show(record: RunEvaluation) -> None:
    """Print the main figures of a run's evaluation to standard output."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows(record):
        table.add_row(escape(name), escape(value))
    console = Console()
    console.print(f"[{STAMP}]", markup=False, highlight=False)
    console.print(table)


def rows(record: RunEvaluation) -> list[tuple[str, str]]:
    """The main figures with their names, in words."""
    found = [
        ("held out", f"{record.held_out_texts:,} texts of {record.held_out_users:,} users"),
    ]
    texts = record.texts
    if texts is not None:
        copies = texts.held_out_copies
        found += [
            (
                "embeddings",
                f"{texts.embedding_model}, {texts.frechet.synthetic_texts:,} synthetic "
                f"and {texts.frechet.private_texts:,} held-out texts",
            ),
            (
                "Fréchet distance, squared",
                f"{texts.frechet.squared:.4f} "
                f"({texts.frechet.extrapolated:.4f} extrapolated to infinitely many texts)",
            ),
            (
                "precision, recall",
                f"{texts.precision_recall.precision:.3f}, {texts.precision_recall.recall:.3f}",
            ),
            (
                "MMD, squared",
                f"{texts.discrepancy.squared:.5f} +- {texts.discrepancy.standard_error:.5f}",
            ),
            ("MAUVE", f"{texts.mauve.score:.3f} ({texts.mauve.smoothed:.3f} smoothed)"),
            (
                "self-similarity",
                f"{_number(texts.synthetic_diversity.self_similarity)}, held-out "
                f"text {_number(texts.private_diversity.self_similarity)}",
            ),
            (
                "distinct 2-grams",
                f"{texts.synthetic_diversity.distinct[2]:.3f} in "
                f"{texts.synthetic_diversity.words:,} words, held-out text "
                f"{texts.private_diversity.distinct[2]:.3f} in {texts.private_diversity.words:,}",
            ),
            ("copies of held-out text", _copies(copies.exact, copies.windows, copies.near)),
        ]
        if texts.private_copies is not None:
            copies = texts.private_copies
            found.append(
                ("copies of the users' text", _copies(copies.exact, copies.windows, copies.near))
            )
    if record.downstream is not None:
        found += _model("before fine-tuning", record.downstream.before)
        found += _model("fine-tuned", record.downstream.after)
    for classification in record.classification:
        found += _classified(classification)
    if record.public_model is not None:
        found += _model("before the run", record.public_model)
    if record.trained_model is not None:
        found += _model("after the run", record.trained_model)
    if record.costs is not None:
        costs = record.costs
        found += [
            ("rounds", f"{costs.rounds}"),
            ("down to one user", f"{costs.floats_down:,} floats, {costs.bytes_down:,} bytes"),
            ("up from one user", f"{costs.floats_up:,} floats, {costs.bytes_up:,} bytes"),
        ]
    if record.times is not None:
        times = record.times
        found.append(
            ("server", f"{times.seconds_server:.1f} s, and {times.seconds_feedback:.0f} s waiting")
        )
    if record.client_costs is not None:
        seconds = record.client_costs.cpu_seconds_per_user
        found.append(("one user's node", f"{seconds:.3g} CPU seconds in the whole run"))
    return found


def _model(name: str, figures: LanguageModelEvaluation) -> list[tuple[str, str]]:
    bits, known = figures.bits_per_byte, figures.in_vocabulary_accuracy
    lines = [
        (f"{name}: next-token accuracy", _interval(figures.next_token_accuracy)),
        (f"{name}: perplexity", _interval(figures.perplexity)),
        (f"{name}: bits per byte", "-" if bits is None else _interval(bits)),
    ]
    if figures.unknown_tokens and known is not None:
        lines.insert(1, (f"{name}: accuracy of known tokens", _interval(known)))
    return lines


def _classified(found: Classification) -> list[tuple[str, str]]:
    tested = f"{sum(found.test_texts.values()):,} texts of {found.test_users:,} users"
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
    texts = sum(score.training_texts.values())
    return f"{_share(score.accuracy)}, macro F1 {score.macro_f1:.3f}, from {texts:,} texts"


def _share(found: Share) -> str:
    error = "" if found.standard_error is None else f" +- {100 * found.standard_error:.1f}"
    return f"{100 * found.value:.1f}{error} %"


def _interval(figure: Interval) -> str:
    return f"{figure.value:.4g} [{figure.low:.4g}, {figure.high:.4g}]"


def _copies(exact: float, windows: float, near: float) -> str:
    return f"{exact:.2%} exact, {windows:.2%} share a window of words, {near:.2%} near copies"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
