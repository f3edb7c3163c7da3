"""The format of run directories: its number, what states the ledger's lines, and file dates."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.files import quoted, read_json, read_json_lines
from flower_privsyn.run.round_files import ROUNDS, Rounds

FORMAT = 2
"""Of run directories."""

LEDGER_KEY = "ledger"
"""Under which a JSON file states the digest of the ledger's last line."""

TOO_LITTLE: Final = "too-little-as-printed"
"""The `noise-calibration` of FreD that is less than its epsilon needs, as the paper has it."""

RESEARCH_STAMP = (
    "research: the noise is the paper's as printed, too little for the epsilon it names; the "
    "ledger states what it costs"
)
"""What marks a run whose settings say so, wherever its figures are shown."""

_LEDGER_META = re.compile(r'<meta name="privsyn-ledger" content="([0-9a-f]{64})">')


def how_to_resume(path: Path, **settings: object) -> str:
    """What goes on with a run, as a command to type: `privsyn resume` for what it started alone.

    Args:
        path: the run directory.
        settings: by their names in Python, to go on with otherwise.
    """
    given = [f"{name.replace('_', '-')}={value}" for name, value in settings.items()]
    if was_launched(read_json(path / "config.json")):
        return f"`{' --set '.join([f'privsyn resume {quoted(path)}', *given])}`"
    run_dir = json.dumps(str(path), ensure_ascii=False)
    keys = " ".join([f"run-dir={run_dir}", "resume=true", *given])
    in_code = ", ".join(["resume=True", *(f"{name}={value}" for name, value in settings.items())])
    # Not a command of its own: what it leaves out would be the app's, not what the run began with.
    return (
        f"the command that began it, and `{keys}` in its --run-config (where the app sets run_dir "
        f"in code, {in_code} there)"
    )


def was_launched(document: Mapping[str, Any]) -> bool:
    """Whether `privsyn run` started a run, by everything in its `config.json`."""
    return document.get("app") is not None


def stamp_of(document: Mapping[str, Any]) -> str | None:
    """What must stand at every figure of a run that its epsilons do not cover; else None.

    Args:
        document: everything in its `config.json`.
    """
    config = document.get("config")
    if isinstance(config, dict) and config.get("noise-calibration") == TOO_LITTLE:
        return RESEARCH_STAMP
    return str(found) if (found := document.get("stamp")) else None


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run.

    Raises:
        RunDirectoryError: The file cannot be read, or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise RunDirectoryError(f"{path} is damaged: it is not JSON.") from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path} is damaged: it is not a JSON object.")
    return value


def refuse_links(path: Path) -> None:
    """Refuse a run directory that leads elsewhere: it may be somebody else's.

    What is read through a link would be shown as the run's, and what is written, appended or locked
    would be written there.

    Raises:
        RunDirectoryError: something in it is a symbolic link.
    """
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            if (link := Path(folder, name)).is_symlink():
                raise RunDirectoryError(
                    f"{link} is a link, and a run directory holds none: what it leads to is not "
                    "the run's."
                )


def refuse_other_format(path: Path, document: Mapping[str, Any]) -> None:
    """Refuse a run directory of another format.

    Args:
        path: the run directory.
        document: its `config.json`.

    Raises:
        RunDirectoryError: The format is not `FORMAT`.
    """
    found = document.get("format")
    if found != FORMAT:
        raise RunDirectoryError(
            f"The run in {path} has format {found!r} where this package reads {FORMAT}: it was "
            "written by another version."
        )


def ledger_meta(digest: str) -> str:
    """The element by which a page states a line of the ledger."""
    return f'<meta name="privsyn-ledger" content="{digest}">'


def stated_digests(path: Path) -> dict[str, str]:
    """The digests of ledger lines that other files of a run state, and the name of such a file.

    Args:
        path: the run directory.

    Raises:
        RunDirectoryError: `metrics.jsonl` is damaged.
    """
    found: dict[str, str] = {}

    def state(record: Mapping[str, Any], file: str) -> None:
        digest = record.get(LEDGER_KEY)
        if isinstance(digest, str):
            found.setdefault(digest, file)

    rounds = [files for _, files in Rounds(path / ROUNDS)]
    written = (file for files in rounds for file in (files.state, files.metrics))
    for file in [*written, path / "state.json"]:
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(record, dict):
                state(record, str(file.relative_to(path)))
    for line in read_json_lines(path / "metrics.jsonl"):
        state(line, "metrics.jsonl")
    with (
        contextlib.suppress(OSError),
        (path / "report.html").open(encoding="utf-8", errors="replace") as page,
    ):
        # In the head of the page, before anything long.
        for digest in _LEDGER_META.findall(page.read(100_000)):
            found.setdefault(digest, "report.html")
    return found


def others_than_a_start(path: Path) -> list[str]:
    """Names in a folder that are not what a start leaves that was killed before there was a run.

    Args:
        path: the folder; there are none where there is no folder.

    Raises:
        RunDirectoryError: it cannot be read.
    """
    written = ("config.json", "state.json", "progress.json")
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunDirectoryError(
            f"The folder {path} cannot be read: {error.strerror or error}."
        ) from error
    return [
        name
        for name in names
        if name not in {*written, ".lock", "lost+found"}  # the last of a disk of its own
        and not name.startswith(tuple(f".{one}." for one in written))  # half written
    ]


def hide_dates(path: Path, created: str) -> None:
    """Give every file and folder of a run the date of its creation.

    The dates of files would say how long each round took. What the operating system keeps beyond
    them (the time of a file's last change of status) cannot be set, and does not travel with a
    copy.

    Args:
        path: the run directory.
        created: the moment it was created, ISO 8601.
    """
    try:
        moment = datetime.fromisoformat(created).timestamp()
    except ValueError:
        moment = 0.0
    for entry in _entries(path):
        with contextlib.suppress(OSError):
            os.utime(entry, (moment, moment), follow_symlinks=False)


def _entries(path: Path) -> Iterator[Path]:
    """Everything below a folder and the folder itself, each folder after what is in it."""
    for folder, _, files in os.walk(path, topdown=False):
        yield from (Path(folder) / name for name in files)
        yield Path(folder)
