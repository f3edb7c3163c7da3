r"""Read the students of finished comparisons on sealed people whom none of them has opened.

    python -m research.unopened_people COMPARISON ... --data FILE \
        --people 1500 --results FILE

The sealed users of the data that no COMPARISON has held out are the ones, as many of them as are
asked for, drawn by a hash of their ids. On them every finished cell's student is measured as its
comparison measures it, and so is the one that a teacher taught; nothing is trained. So a table that
was made while some of its settings were still open to choice is confirmed by people whom no choice
has seen. A line has the figures on them and those on the people of the comparison. What is in the
results already is not measured again; a table of all of them is printed at the end.

Everything it writes is computed from private text outside the privacy budget.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from flower_privsyn.catalogue import OF_MODELS
from flower_privsyn.comparison.measures import STUDENT
from flower_privsyn.comparison.people import sealed
from flower_privsyn.data import Samples, Users, load_users
from flower_privsyn.data.chunking import Chunking
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import ConfigError, PrivsynError
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.files import append_json_lines, located, read_json, read_json_lines
from flower_privsyn.run.directory import TRAINED_MODEL

#: Of a cell, what a line has to say which it is.
PLACE = ("method", "epsilon", "seed")

#: The method whose student is the downstream model as it is.
_FLOOR = "public-only"


class Student(NamedTuple):
    """A model of a finished cell.

    Attributes:
        cell: as `compare.json` has it.
        figures: which of the cell's figures are this model's: "quality" or "distilled".
        model: a folder, or the name of the downstream model.
        max_tokens: that it reads at once.
    """

    cell: Mapping[str, Any]
    figures: str
    model: str
    max_tokens: int


def students_of(comparison: Path) -> Iterator[Student]:
    """The models of a comparison's finished cells.

    Args:
        comparison: its folder.

    Raises:
        ConfigError: it holds none, or a cell's model is gone.
    """
    document = read_json(comparison / "compare.json")
    if not document:
        raise ConfigError(
            f"{comparison} holds no comparison: it has no compare.json that can be read"
        )
    max_tokens = int(document["fixed"]["training"]["max_tokens"])
    for cell in document["cells"]:
        if cell["status"] != "finished":
            continue
        folder = comparison / cell["folder"]
        places = {"quality": folder / STUDENT, "distilled": folder / "distilled"}
        for figures, place in places.items():
            if not cell.get(figures):
                continue
            if cell["kind"] in OF_MODELS:
                place = folder / "run" / TRAINED_MODEL  # of what writes, it is the generator
            model = str(document["downstream"] if cell["method"] == _FLOOR else place)
            if cell["method"] != _FLOOR and not (place / "config.json").is_file():
                raise ConfigError(f"{place} is gone, and with it the model of {cell['method']}")
            yield Student(cell, figures, model, max_tokens)


def unopened(data: str, comparisons: Sequence[Path], *, people: int) -> Users:
    """Sealed people whom no comparison has held out.

    Args:
        data: a file or folder of users.
        comparisons: their folders.
        people: how many, by a hash of their ids.

    Raises:
        ConfigError: there are fewer.
    """
    opened: set[str] = set()
    for comparison in comparisons:
        opened |= set(load_users(comparison / "data" / "held_out.jsonl").user_ids)
    users = load_users(data)
    users = users.select(sealed(users.user_ids))
    left = [place for place, user in enumerate(users.user_ids) if user not in opened]
    if not 0 < people <= len(left):
        raise ConfigError(
            f"--people must be between 1 and the {len(left)} sealed users of --data that no "
            f"comparison has held out, got {people}"
        )
    left.sort(key=lambda place: hashlib.blake2b(users.user_ids[place].encode()).digest())
    mask = np.zeros(len(users), dtype=np.bool_)
    mask[left[:people]] = True
    return users.select(mask)


def measured(student: Student, samples: Samples) -> dict[str, Any]:
    """The line of a student.

    Args:
        student: is read as its comparison reads it.
        samples: of the people.
    """
    found = evaluate_language_model(
        student.model, samples.texts, owners=samples.owners, max_tokens=student.max_tokens
    )
    accuracy, bits = found.next_token_accuracy, found.bits_per_byte
    before = student.cell[student.figures]
    return {
        "accuracy": accuracy.value,
        "interval": [accuracy.low, accuracy.high],
        "bits_per_byte": None if bits is None else bits.value,
        "before": {
            "accuracy": before["next_token_accuracy"],
            "bits_per_byte": before["bits_per_byte"],
        },
    }


def table_of(lines: Sequence[Mapping[str, Any]]) -> str:
    """A row for every method and epsilon: means over seeds, and their standard errors.

    Args:
        lines: of the results.
    """
    rows = [
        "| method | ε | seeds | accuracy, % | of the first people | taught: accuracy, % "
        "| of the first people |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for method, epsilon in dict.fromkeys((line["method"], line["epsilon"]) for line in lines):
        own = [line for line in lines if (line["method"], line["epsilon"]) == (method, epsilon)]
        first, taught = (
            [line for line in own if line["figures"] == figures]
            for figures in ("quality", "distilled")
        )
        cells = (
            _mean([100 * value["accuracy"] for value in values])
            for group in (first, taught)
            for values in (group, [line["before"] for line in group])
        )
        budget = "∞" if epsilon is None else f"{epsilon:g}"
        rows.append(f"| {method} | {budget} | {len(first)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "-"
    error = f" ± {stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{error}"


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is not in the results yet, and print the table of all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("comparisons", type=Path, nargs="+", metavar="COMPARISON")
    parser.add_argument("--data", required=True, metavar="FILE")
    parser.add_argument("--people", type=int, default=1500)
    parser.add_argument("--embedding-model", default="all-MiniLM-L6-v2", help="that cuts samples")
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args(words)
    try:
        students = [one for comparison in options.comparisons for one in students_of(comparison)]
        users = unopened(options.data, options.comparisons, people=options.people)
        chunking = Chunking(max_tokens=64)
        tokenizer = load_tokenizer(located(options.embedding_model))[0]
        samples = chunking.samples(chunking.documents(users), tokenizer=tokenizer)
        lines = list(read_json_lines(options.results))
        for student in students:
            place = {key: student.cell[key] for key in PLACE} | {"figures": student.figures}
            if any(place.items() <= line.items() for line in lines):
                continue
            lines.append(place | {"people": len(users)} | measured(student, samples))
            append_json_lines(options.results, lines[-1:])
    except PrivsynError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    print(table_of(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
