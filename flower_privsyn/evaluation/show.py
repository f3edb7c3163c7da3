"""An evaluation for people, under its stamp: three lines of a model, then the texts."""

from __future__ import annotations

from flower_privsyn.evaluation.classification import Classification, Score, Share
from flower_privsyn.evaluation.copies import CopyRates
from flower_privsyn.evaluation.language_model import LanguageModelEvaluation
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
    found = []
    if record.learned is not None:
        found += [
            ("before", _model(record.learned.before)),
            ("the same steps on random public text", _model(record.learned.random_public)),
            ("with the release", _model(record.learned.release)),
            ("", f"predicted by {record.learned.model}, 95 % intervals over users"),
        ]
    found.append(
        ("held out", f"{record.held_out_texts:,} texts of {record.held_out_users:,} users")
    )
    if record.texts is not None:
        far = record.texts.frechet
        found += [
            (
                "Fréchet distance, squared",
                f"{far.squared:.4f} ({far.extrapolated:.4f} for infinitely many texts), embeddings "
                f"of {record.texts.embedding_model}",
            ),
            ("copies of held-out text", _copies(record.texts.held_out_copies)),
        ]
        if record.texts.private_copies is not None:
            found.append(("copies of the users' text", _copies(record.texts.private_copies)))
    for classification in record.classification:
        found += _classified(classification)
    return found


def _model(figures: LanguageModelEvaluation | None) -> str:
    if figures is None:
        return "not measured"
    right, bits = figures.next_token_accuracy, figures.bits_per_byte
    told = f"{100 * right.value:.2f} % [{100 * right.low:.2f}, {100 * right.high:.2f}] of tokens"
    return told if bits is None else f"{told}, {bits.value:.3f} bits per byte"


def _classified(found: Classification) -> list[tuple[str, str]]:
    tested = f"{found.test_texts:,} texts of {found.test_users:,} users"
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


def _share(found: Share) -> str:
    error = "" if found.standard_error is None else f" +- {100 * found.standard_error:.1f}"
    return f"{100 * found.value:.1f}{error} %"


def _copies(found: CopyRates) -> str:
    return (
        f"{found.exact:.2%} exact, {found.windows:.2%} share a window of words, {found.near:.2%} "
        "near copies"
    )
