"""Print what was measured of the joint sketch: a table for each text and number of users.

    python -m scripts.experiments.ask_once_tables SOURCE [SOURCE ...] [--results FILE]

A source is NAME=FOLDER, what the text is and a folder of `privsyn compare`, or a file of cells as
`--results` writes it: a JSON line each, without any text. All finished cells count, however many
seeds a method has; of two cells of one method, place and seed the first one does. Folders that
cannot stand in one table are refused. Last comes the method at all places, with the share of the
gap that it closes, and the same for tokens alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_privsyn.errors import ConfigError
from scripts.measured_cells import costs_today

FLOOR: Final = "public-only"
CEILING: Final = "finetune-private"

#: The methods at all places, and what they ask for.
ASKED: Final = {"joint-sketch": "with pairs", "without-pairs": "tokens alone"}

#: Of a cell, what stands in a line.
_KEPT: Final = ("stamp", "method", "epsilon", "seed", "quality")

#: Of a line, what makes its figures those of another experiment on the same text, and its name.
_OF_THEIR_OWN: Final = {"public_text": "public text", "held_out": "held out"}

Line = dict[str, Any]


def lines_of(sources: Sequence[str]) -> list[Line]:
    """The cells of all sources.

    Args:
        sources: as on the command line.

    Raises:
        ConfigError: two folders of one text have other users, held-out users, downstream models,
            trainings or deltas; or some figures are of sealed users and others are not.
    """
    found: dict[tuple[Any, ...], Line] = {}
    fixed: dict[tuple[str, int], tuple[str, Any]] = {}
    for source in sources:
        name, _, place = source.rpartition("=")
        if name:
            document = json.loads((Path(place) / "compare.json").read_text(encoding="utf-8"))
            users = int(document["data"]["private_users"])
            first, known = fixed.setdefault((name, users), (place, document["fixed"]))
            if known != document["fixed"]:
                raise ConfigError(
                    f"{first} and {place} are of other users or settings: a table for each"
                )
        for line in _folder(name, Path(place), users) if name else _file(Path(place)):
            own = tuple(line.get(key) for key in _OF_THEIR_OWN)
            key = (line["data"], line["users"], line["method"], line["epsilon"], line["seed"], own)
            found.setdefault(key, line)
    stamps = sorted({str(line["stamp"]) for line in found.values()})
    if len(stamps) > 1:
        raise ConfigError(f"these figures cannot stand in one table: {'; '.join(stamps)}")
    return list(found.values())


def _folder(name: str, folder: Path, users: int) -> Iterator[Line]:
    for file in sorted(folder.glob("cells/*/cell.json")):
        cell = json.loads(file.read_text(encoding="utf-8"))
        if cell["status"] == "finished":
            line = {"data": name, "users": users} | {key: cell[key] for key in _KEPT}
            yield line | ({"costs": cell["costs"]} if cell.get("costs") else {})


def _file(file: Path) -> Iterator[Line]:
    for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        costs = costs_today(line)
        today = {key: value for key, value in line.items() if key != "bytes_a_number"}
        yield today | ({"costs": costs} if costs else {})


def name_of(line: Line) -> str:
    """What the text of a line is, and what is special about it."""
    own = [f"{words}: {line[key]}" for key, words in _OF_THEIR_OWN.items() if line.get(key)]
    return "; ".join([str(line["data"]), *own])


def told(values: Sequence[float], digits: int) -> str:
    """A mean, and its standard error where there are several values."""
    mean = f"{np.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {np.std(values, ddof=1) / len(values) ** 0.5:.{digits}f}"


def accuracies(lines: Sequence[Line]) -> list[float]:
    """Next-token accuracy in percent."""
    return [100 * line["quality"]["next_token_accuracy"] for line in lines]


class Table:
    """The cells of one text.

    Args:
        lines: of it.
        others: of the same text with the usual settings, for a floor and a ceiling that `lines` do
            not have.
    """

    def __init__(self, lines: Sequence[Line], others: Sequence[Line] = ()) -> None:
        self._lines, self._others = lines, others
        self.users = sorted({int(line["users"]) for line in lines})
        floors = self._own_or_usual(lambda line: line["method"] == FLOOR)
        # Of a public model nothing depends on the users but who is held out, who are the same.
        self._floor = float(np.mean(accuracies(floors))) if floors else None

    def _own_or_usual(self, fits: Callable[[Line], bool]) -> list[Line]:
        return [line for line in self._lines if fits(line)] or [
            line for line in self._others if fits(line)
        ]

    def of(self, users: int, method: str) -> dict[float | None, list[Line]]:
        """The cells of a method, by epsilon."""
        found: dict[float | None, list[Line]] = {}
        for line in self._lines:
            if (line["users"], line["method"]) == (users, method):
                found.setdefault(line["epsilon"], []).append(line)
        return found

    def ceiling(self, users: int) -> float | None:
        """The accuracy of private text that is fine-tuned on."""
        wanted = (users, CEILING)
        found = self._own_or_usual(lambda line: (line["users"], line["method"]) == wanted)
        return float(np.mean(accuracies(found))) if found else None

    def gap(self, lines: Sequence[Line], users: int) -> str:
        """The share of the way from floor to ceiling, in percent."""
        floor, ceiling = self._floor, self.ceiling(users)
        if floor is None or ceiling is None:
            return "-"
        return f"{100 * (float(np.mean(accuracies(lines))) - floor) / (ceiling - floor):.0f}"

    def rows(self, users: int) -> Iterator[str]:
        """A row for each method and epsilon."""
        here = [line for line in self._lines if line["users"] == users]
        for method in dict.fromkeys(line["method"] for line in here):
            found = self.of(users, method)
            for epsilon in sorted(found, key=lambda one: np.inf if one is None else one):
                lines = found[epsilon]
                bits = [line["quality"]["bits_per_byte"] for line in lines]
                up = (lines[0].get("costs") or {}).get("bytes_up")
                yield (
                    f"| `{method}` | {'∞' if epsilon is None else f'{epsilon:g}'} | {len(lines)} | "
                    f"{told(accuracies(lines), 2)} | {self.gap(lines, users)} | {told(bits, 4)} | "
                    f"{f'{up / 1000:,.0f}' if up else '-'} |"
                )

    def places(self, epsilons: Sequence[float]) -> Iterator[str]:
        """A row for each number of users and what they were asked."""
        for users in self.users:
            ceiling = self.ceiling(users)
            for method, asked in ASKED.items():
                found = self.of(users, method)
                cells = (
                    f"{told(accuracies(found[epsilon]), 2)} ({self.gap(found[epsilon], users)} %)"
                    if epsilon in found
                    else "-"
                    for epsilon in epsilons
                )
                if found:
                    yield (
                        f"| {users:,} | {asked} | {' | '.join(cells)} | "
                        f"{'-' if ceiling is None else f'{ceiling:.2f}'} |"
                    )


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    try:
        lines = lines_of(arguments.sources)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if arguments.results:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        arguments.results.write_text(text, encoding="utf-8")
    print(f"> {lines[0]['stamp']}" if lines else "there is no finished cell")
    named: dict[str, list[Line]] = {}
    for line in lines:
        named.setdefault(name_of(line), []).append(line)
    tables = {
        name: Table(own, () if own[0]["data"] == name else named.get(own[0]["data"], ()))
        for name, own in named.items()
    }
    for name, table in tables.items():
        for users in table.users:
            print(f"\n{name}, {users:,} users\n")
            print(
                "| method | ε | seeds | next-token accuracy, % | gap closed, % | bits per byte "
                "| kB up |\n|---|---:|---:|---:|---:|---:|---:|"
            )
            print("\n".join(table.rows(users)))
    epsilons = sorted({line["epsilon"] for line in lines if line["method"] in ASKED})
    print(f"\n| text | users | | {' | '.join(f'ε = {one:g}' for one in epsilons)} | ceiling |")
    print(f"|---|---:|---|{'---|' * len(epsilons)}---:|")
    for name, table in tables.items():
        print("\n".join(f"| {name} {row}" for row in table.places(epsilons)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
