"""The files of a round: the one place that spells their names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from flower_privsyn.errors import RunDirectoryError

ROUNDS: Final = "rounds"
"""Folder of the rounds in a run directory."""

TRAINING: Final = "training.json"
"""What a round's training of the generator reported."""

EXPANDED: Final = "expanded.jsonl"
"""Texts of an expansion, as far as they are written; gone once all are."""

WRITTEN: Final = "written.jsonl"
"""Texts of a generator that a run has made, one by one as they were written."""

TRAINED_MODEL: Final = "models/final"
"""The model that a run has made, below its directory."""

PLAIN_MODEL: Final = "models/plain"
"""The same without a bias of its logits, where that one has one."""

WRITER: Final = "models/writer"
"""The generator with a bias of its logits, of a run that ends with a student and texts."""

TRAINED_WRITER: Final = "models/generator"
"""The generator that learnt from public text which was chosen, of such a run; without the bias."""


def writer_in(run: Path) -> Path | None:
    """The generator that a run has made beside its student; None where it made none.

    Args:
        run: its directory.
    """
    made = (run / name for name in (WRITER, TRAINED_WRITER))
    return next((folder for folder in made if (folder / "config.json").is_file()), None)


@dataclass(frozen=True)
class RoundFiles:
    """Where the files of one round are, whether they exist or not.

    Attributes:
        folder: of the round.
    """

    folder: Path

    def make(self) -> Path:
        """Make the folder where there is none, and return it.

        Raises:
            RunDirectoryError: There is a file in its place.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise _in_place_of_a_folder(self.folder) from error
        return self.folder

    @property
    def state(self) -> Path:
        """Written last: the round is finished."""
        return self.folder / "state.json"

    @property
    def release(self) -> Path:
        """The released sum."""
        return self.folder / "release.npy"

    @property
    def metrics(self) -> Path:
        """The round's line of `metrics.jsonl`, until it is there."""
        return self.folder / "metrics.json"

    @property
    def population(self) -> Path:
        """Texts that users were asked about, with their embeddings and votes."""
        return self.folder / "population.parquet"

    @property
    def candidates(self) -> Path:
        """The same of a method that trains a generator, with scores."""
        return self.folder / "candidates.parquet"

    @property
    def adapter(self) -> Path:
        """Folder of the adapter that the round trained."""
        return self.folder / "adapter"

    @property
    def training(self) -> Path:
        """What the round's training of the generator reported."""
        return self.folder / TRAINING

    @property
    def server(self) -> Path:
        """Figures of the server's step."""
        return self.folder / "server.json"

    @property
    def texts(self) -> Path | None:
        """The file with the round's texts; None of a round that holds none."""
        return next((file for file in (self.candidates, self.population) if file.is_file()), None)

    def record(self, kind: Literal["state", "metrics", "training", "server"]) -> dict[str, Any]:
        """The object in one of the small JSON files; empty where it is missing or damaged."""
        file: Path = getattr(self, kind)
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}


@dataclass(frozen=True)
class Rounds:
    """The rounds below a folder.

    Attributes:
        folder: which may not exist.
    """

    folder: Path

    def files(self, number: int) -> RoundFiles:
        """The files of one round.

        Args:
            number: 0 is what existed before the first round.

        Raises:
            ValueError: The number is negative.
        """
        if number < 0:
            raise ValueError(f"A round number cannot be negative, got {number}.")
        return RoundFiles(self.folder / f"{number:04d}")

    def __iter__(self) -> Iterator[tuple[int, RoundFiles]]:
        """Number and files of every round that has a folder, ascending."""
        for number in sorted(int(entry.name) for entry in self._named() if entry.is_dir()):
            yield number, self.files(number)

    def refuse_files(self) -> None:
        """Refuse files where folders of rounds belong, before a round is asked that would need one.

        Raises:
            RunDirectoryError: The name of one is a round's number.
        """
        for entry in self._named():
            if not entry.is_dir():
                raise _in_place_of_a_folder(entry)

    def _named(self) -> Iterator[Path]:
        """What has the number of a round for its name; other figures than ASCII's are none."""
        for entry in self.folder.iterdir() if self.folder.is_dir() else ():
            if entry.name.isascii() and entry.name.isdecimal():
                yield entry


def _in_place_of_a_folder(path: Path) -> RunDirectoryError:
    return RunDirectoryError(f"{path} is a file where the folder of a round belongs: move it away.")
