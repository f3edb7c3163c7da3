"""Running a comparison cell by cell, so that an interruption loses nothing and a failure one cell.

On disk:

    compare.json  comparison.md                     rewritten after every cell
    data/{private-0,tuning,held_out}.jsonl          the users, as they were split
    cells/<method>-eps-<epsilon>-seed-<seed>/run    the run directory, of methods that ask users
                                            student-*   the best of its students, as `cell.json`
                                                        says; in `run` is the last that was tried
                                            cell.json   what was measured

Everything here but the run directories is computed from private text without noise.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_privsyn import environment, files
from flower_privsyn.comparison.measures import (
    MAX_TEXTS,
    MEASURED,
    RATES,
    READ,
    REFERENCES,
    STUDENT,
    USERS_FILE,
    Job,
    Measures,
    spent,
)
from flower_privsyn.comparison.plan import FLOORS, Cell, Plan, place
from flower_privsyn.data import Users
from flower_privsyn.environment import library_versions
from flower_privsyn.errors import (
    ConfigError,
    FederationError,
    PrivsynError,
    RunDirectoryError,
    StoppedError,
)
from flower_privsyn.evaluation.language_model import Float64Array, resampled_bits
from flower_privsyn.host.grid import variables
from flower_privsyn.host.launch import Say, resume_run, run_app
from flower_privsyn.locks import lock_file
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.progress import Progress
from flower_privsyn.report.comparison import called, markdown
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import TRAINED_MODEL, OwnerFolder
from flower_privsyn.run.run_format import STOPPED, without_places
from flower_privsyn.training.causal import CausalTraining
from flower_privsyn.training.storage import weight_files

#: Figures of a cell that the table has, by the part of its record.
_FIGURES: Final[Mapping[str, Sequence[str]]] = {
    "quality": ("next_token_accuracy", "bits_per_byte", "steps"),
    "texts": ("frechet", "mauve", "copies", "copies_held_out"),
    "local_epsilon": ("sample", "user"),
    "costs": ("rounds", "bytes_up", "bytes_down", "client_cpu_seconds", "server_seconds"),
}


class Comparison:
    """A comparison in a folder.

    Args:
        plan: what is compared.
        folder: where it is written; an earlier comparison of the same users and settings there is
            continued, also with more methods, epsilons or seeds.
        command: how it was asked for, for the report.

    Raises:
        ConfigError: The folder holds a comparison of other users, another downstream model or
            other settings.
        RunDirectoryError: The folder cannot be written.
    """

    def __init__(self, plan: Plan, folder: Path, *, command: str = "") -> None:
        self.plan = plan
        self.folder = files.expanded(folder).absolute()
        self.command = command
        with files.os_errors_as(RunDirectoryError, f"The folder {self.folder} cannot be written"):
            # Beside the figures are times, and models that have learnt private text.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fixed = {
            "users": plan.people.fingerprint(),
            "downstream": plan.downstream,
            "training": dict(vars(plan.training)),
            "rates": RATES,
            "max_texts": MAX_TEXTS,
            "delta": plan.delta,
            "downstream_files": weight_files(plan.downstream),
        }
        self._refuse_other()
        self._measures = Measures(plan)

    # ------------------------------------------------------------------ files

    @property
    def document_file(self) -> Path:
        """`compare.json`."""
        return self.folder / "compare.json"

    def _refuse_other(self) -> None:
        before = files.read_json(self.document_file)
        # A comparison that was killed before its first cell has its users there, no more.
        if not before and {one.name for one in self.folder.iterdir()} - {".lock", "data"}:
            raise ConfigError(
                f"{self.folder} is not empty and holds no comparison: choose another --output"
            )
        for key, value in self._fixed.items() if before else ():
            if before.get("fixed", {}).get(key) != json.loads(json.dumps(value)):
                what = "other users" if key == "users" else f"another value of {key}"
                raise ConfigError(
                    f"{self.folder} holds a comparison with {what}: choose another --output, or "
                    "ask for the same to continue it"
                )

    # ------------------------------------------------------------------ running

    def run(self, *, say: Say) -> dict[str, Any]:
        """Run every cell that is not finished, and write the report after each.

        Args:
            say: told of every cell, and of what is being done, in a line each.

        Returns:
            The document of `compare.json`.

        Raises:
            ModelError: The downstream model cannot be loaded.
            ConfigError: A cell was run with other settings.
            RunDirectoryError: Another process works on this comparison.
            StoppedError: The owner asked the run of a cell to end before its next round.
        """
        # Whatever is wrong with the model would be wrong in every cell.
        load_pretrained(self.plan.downstream, kind="causal", dtype="float32", device="cpu")
        with lock_file(self.folder / ".lock", what=f"the comparison in {self.folder}"):
            data, progress = self._write_users(), Progress(say)
            jobs = [
                Job(
                    cell=cell,
                    values=self.plan.values(cell, data),
                    folder=self.folder / "cells" / cell.name,
                    progress=progress,
                )
                for cell in self.plan.cells()
            ]
            for job in jobs:
                self._refuse_changed(job)
            self._write(running=None)
            for number, job in enumerate(jobs, start=1):
                if job.record.get("status") == "finished":
                    continue
                say(f"[{number}/{len(jobs)}] {called(job.cell.to_dict())}")
                self._write(running=job.cell)
                say(f"    {self._attempt(job, say)}")
            return self._write(running=None)

    def _write_users(self) -> Path:
        """The users as files; the private ones are what the nodes read."""
        folder, people = self.folder / "data", self.plan.people
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, users in (
            *((f"private-{group}", users) for group, users in enumerate(people.groups)),
            ("tuning", people.tuning),
            ("held_out", people.held_out),
        ):
            file = folder / f"{name}.jsonl"
            # What a kill before the first cell left may be of other users.
            if not (self.document_file.exists() and file.exists()):
                with files.replacing(file) as opened:
                    opened.write(files.json_lines(_rows(users)))
        return folder

    def _refuse_changed(self, job: Job) -> None:
        """Refuse to put a cell of other settings, of those that it reads, beside the new ones."""
        before = job.record.get("settings")
        if before is None:
            return
        asked = json.loads(json.dumps(without_places(job.values)))
        keys = asked.keys() | before.keys()
        for key in sorted(keys & (READ.get(job.cell.method.name, keys) | MEASURED)):
            if asked.get(key) != before.get(key):
                raise ConfigError(
                    f"{job.folder} was run with {key} = {before.get(key)!r}, and "
                    f"{asked.get(key)!r} is asked for now: choose another --output, or delete that "
                    "folder to run the cell anew"
                )

    def _attempt(self, job: Job, say: Say) -> str:
        """Run and measure a cell; a failure is a result as well.

        Returns:
            What was found, in a sentence.
        """
        cell, before = job.cell, job.record
        job.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = {
            "stamp": self.plan.stamp,
            **cell.to_dict(),
            "status": "pending",
            "error": None,
            "settings": without_places(job.values),
            "own_settings": self.plan.own_settings(cell),
        }
        # Before anything of it is done: whoever continues it must ask for the same.
        files.write_json(job.file, record)
        begun = time.monotonic()
        try:
            record |= self._outcome(job, say) | {"status": "finished"}
        except StoppedError:
            raise  # the owner wants it to end here, and the cell to go on another day
        except PrivsynError as error:
            record |= {"status": "failed", "error": str(error)}
        except Exception as error:  # any library's: the other cells go on
            if os.environ.get(environment.TRACEBACK):
                raise
            record |= {"status": "failed", "error": f"unexpected {type(error).__name__}: {error}"}
        # Of a cell that goes on where an earlier attempt ended, times would be a part of it.
        record["wall_seconds"] = None if before else time.monotonic() - begun
        if before and not cell.method.asks_users and record.get("costs"):
            record["costs"] |= {"server_seconds": None, "client_cpu_seconds": None}
        files.write_json(job.file, record)
        if record["error"] is not None:
            return f"failed: {record['error']}"
        for student in job.folder.glob(f"{STUDENT}*"):
            if student.name != record["quality"].get("student"):
                shutil.rmtree(student)
        accuracy = record["quality"]["next_token_accuracy"]
        return f"next-token accuracy {accuracy:.4f} on held-out users ({self.plan.stamp})"

    def _outcome(self, job: Job, say: Say) -> dict[str, Any]:
        """What a cell gave."""
        method = job.cell.method
        if method.asks_users:
            return self._released(job, self._run(job, say))
        found = {"texts": None, "samples": [], **REFERENCES[method.name](job, self._measures)}
        # Private text itself is what would leave; and what is made of it may repeat it.
        return found | ({"costs": None, "samples": []} if method.kind == "private text" else {})

    def _run(self, job: Job, say: Say) -> RunDirectory:
        """The finished run of a cell: a new one, a continued one, or the one there is."""
        path, values = job.folder / "run", job.values
        if (path / "config.json").is_file() and RunDirectory.open(path).status == "finished":
            return RunDirectory.open(path)
        with variables({environment.CPU_TIME: str(job.folder / "cpu_time.jsonl")}):
            # What an attempt left that never came to a run is started from again.
            if (path / "config.json").is_file() or OwnerFolder(path).own_file.is_file():
                outcome = resume_run(path, app=self.plan.app, values=values, say=say)
            else:
                outcome = run_app(self.plan.app, path, values, say=say)
        if outcome.error is not None:
            asked = outcome.error.startswith(STOPPED)
            raise (StoppedError if asked else FederationError)(outcome.error)
        return RunDirectory.open(path)

    def _released(self, job: Job, run: RunDirectory) -> dict[str, Any]:
        """What a finished run gave, spent and cost."""
        found = spent(run, job.folder / "cpu_time.jsonl", self.plan.people.number)
        found["run"] = str(run.path.relative_to(self.folder))
        if job.cell.method.kind == "synthetic text":
            texts = [str(record["text"]) for record in files.read_json_lines(run.synthetic_jsonl)]
            return {**found, **self._measures.of_text(job, texts, found["costs"])}
        if job.cell.method.kind == "chosen text":
            quality = self._measures.of_best(job, partial(self._taught, job, run))
        else:
            quality = self._measures.quality(job, str(run.path / TRAINED_MODEL))
        return {**found, "quality": quality, "texts": None, "samples": []}

    def _taught(self, job: Job, run: RunDirectory, how: CausalTraining, output: Path) -> None:
        """Train the student of a finished run anew so, of the releases that it has.

        Args:
            job: the cell.
            run: whose student the server trains.
            how: steps and rate of the student, and of a teacher that learns first; of a method with
                its own rate, as many times that.
            output: folder of a copy of it, unless it is there.
        """
        if output.exists():
            return
        times = how.learning_rate / self.plan.training.learning_rate
        rate = times * job.values["learning-rate"]
        asked = {"student-steps": how.max_steps, "learning-rate": rate}
        if any(run.config[key] != value for key, value in asked.items()):
            run.mark_failed(ConfigError("its student is trained anew, of the same releases"))
            outcome = resume_run(run.path, settings=[f"{key}={asked[key]}" for key in asked])
            if outcome.error is not None:
                raise FederationError(outcome.error)
        built = output.with_name(f"{output.name}.built")
        shutil.copytree(run.path / TRAINED_MODEL, built, dirs_exist_ok=True)
        built.rename(output)

    # ------------------------------------------------------------------ the document

    def _records(self, running: Cell | None) -> list[dict[str, Any]]:
        """What is known of every cell in the folder or the plan, in the order of a table.

        Those of an earlier command stay, whatever this one asks for.
        """
        found = {cell.name: {**cell.to_dict(), "status": "pending"} for cell in self.plan.cells()}
        for file in (self.folder / "cells").glob("*/cell.json"):
            found[file.parent.name] = files.read_json(file)
        if running is not None:
            found[running.name] |= {"status": "running", "error": None}

        def row(record: Mapping[str, Any]) -> tuple[Any, ...]:
            budget = math.inf if record["epsilon"] is None else record["epsilon"]
            return place(record["method"]), budget, record["seed"]

        return sorted(filter(None, found.values()), key=row)

    def _write(self, *, running: Cell | None) -> dict[str, Any]:
        before, records = files.read_json(self.document_file), self._records(running)
        counts = {
            record["folder"]: np.load(file)
            for record in records
            if record["status"] == "finished"
            and (file := self.folder / record["folder"] / USERS_FILE).is_file()
        }
        people = self.plan.people
        versions = library_versions(
            "flower-privsyn", "flwr", "torch", "transformers", "trl", "peft"
        )
        document = {
            "stamp": self.plan.stamp,
            "created": before.get("created") or files.now(),
            "commands": list(dict.fromkeys([*before.get("commands", ()), self.command])),
            "versions": {name: version for name, version in versions.items() if version},
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
            f"Python {platform.python_version()}",
            "data": {
                "name": Path(people.source).name,
                "private_users": people.number,
                "groups": len(people.groups),
                "tuning_users": len(people.tuning),
                "held_out_users": len(people.held_out),
            },
            "downstream": self.plan.downstream,
            "delta": self.plan.delta,
            "fixed": self._fixed,
            "cells": [
                {key: record[key] for key in record if key not in ("settings", "stamp")}
                for record in records
            ],
            "summary": summarise(records, counts),
        }
        files.write_json(self.document_file, document)
        with files.replacing(self.folder / "comparison.md") as file:
            file.write(markdown(document).encode())
        return document


def _rows(users: Users) -> Iterator[dict[str, str]]:
    """One row per document; a user without any keeps an empty one, and so stays in the roster."""
    seen = set(users.owners.tolist())
    for number, user in enumerate(users.user_ids):
        if number not in seen:
            yield {"client_id": user, "text": ""}
    labels = users.labels or [None] * len(users.texts)
    for owner, text, label in zip(users.owners.tolist(), users.texts, labels, strict=True):
        row = {"client_id": users.user_ids[owner], "text": text}
        yield row if label is None else {**row, "label": label}


# ---------------------------------------------------------------------- from cells to rows


def summarise(
    cells: Sequence[Mapping[str, Any]], counts: Mapping[str, Float64Array] | None = None
) -> list[dict[str, Any]]:
    """One row per method and epsilon, in the order in which the methods come, then of epsilons.

    Args:
        cells: records of `compare.json`.
        counts: by a cell's `folder`, what `evaluate_language_model` keeps of each user; those of
            cells without it are in no difference.

    Returns:
        Rows with `method`, `title`, `epsilon`, `seeds` (finished), `failed`, `planned`, and by
        their names the figures of cells as `{"mean", "standard_error"}` over the finished seeds
        (the standard error is None for one seed; None where no cell has the figure).

        By bits per byte, on held-out people who are drawn for all alike, `{"value", "low",
        "high"}` with a 95 % interval over these: `gap_closed`, the share of the way from the
        public model (0) to fine-tuning on the private text itself (1), and `from_floor`, the same
        from the best floor; `over_floor`, the bits that are saved beside that floor, and `to_best`,
        beside the best method at the same epsilon, which `"of"` names. None where there is none but
        itself, or the ceiling is not above what is beneath it.
    """
    rows: dict[Place, dict[str, Any]] = {}
    for method in dict.fromkeys(cell["method"] for cell in cells):
        own = [cell for cell in cells if cell["method"] == method]
        for epsilon in dict.fromkeys(cell["epsilon"] for cell in own):
            here = [cell for cell in own if cell["epsilon"] == epsilon]
            done = [cell for cell in here if cell["status"] == "finished"]
            row: dict[str, Any] = {
                "method": method,
                "title": here[0]["title"],
                "epsilon": epsilon,
                "seeds": len(done),
                "failed": sum(cell["status"] == "failed" for cell in here),
                "planned": len(here),
            }
            for part, keys in _FIGURES.items():
                prefix = "local_epsilon_" if part == "local_epsilon" else ""
                row |= {
                    prefix + key: _mean([(cell.get(part) or {}).get(key) for cell in done])
                    for key in keys
                }
            rows[method, epsilon] = row
    _compare_people(rows, cells, counts or {})
    return list(rows.values())


Place = tuple[str, float | None]
"""A method and its epsilon."""


def _compare_people(
    rows: Mapping[Place, dict[str, Any]],
    cells: Sequence[Mapping[str, Any]],
    counts: Mapping[str, Float64Array],
) -> None:
    """Put what `summarise` says of people who are drawn into its rows."""
    known = [cell for cell in cells if cell.get("folder") in counts]
    bits: dict[Place, Float64Array] = {}  # of everybody, then of each draw
    if known:
        drawn = resampled_bits([counts[cell["folder"]] for cell in known])
        places = [(cell["method"], cell["epsilon"]) for cell in known]
        for key in dict.fromkeys(places):
            bits[key] = drawn[:, [place == key for place in places]].mean(axis=1)

    def interval(values: Float64Array, of: Place | None = None) -> dict[str, Any]:
        low, high = np.percentile(values[1:], [2.5, 97.5]).tolist()
        named = {} if of is None else {"of": rows[of]["title"]}
        return {"value": float(values[0]), "low": low, "high": high, **named}

    def best_of(others: Iterable[Place]) -> Place | None:
        return min(others, key=lambda place: bits[place][0], default=None)

    def share(key: Place, begin: Place | None, end: Place) -> dict[str, Any] | None:
        if begin not in bits or end not in bits or bits[begin][0] <= bits[end][0]:
            return None
        return interval((bits[begin] - bits[key]) / (bits[begin] - bits[end]), begin)

    public, ceiling = ("public-only", 0.0), ("finetune-private", None)
    floor = best_of(place for place in bits if place[0] in FLOORS)
    for key, row in rows.items():
        best = best_of(place for place in bits if place[1] == key[1] and key[1])
        for name, other in (("over_floor", floor), ("to_best", best)):
            row[name] = None
            if other is not None and other != key and key in bits:
                row[name] = interval(bits[other] - bits[key], other)
        row["gap_closed"] = share(key, public, ceiling) if key in bits else None
        row["from_floor"] = share(key, floor, ceiling) if key in bits else None


def _mean(found: Sequence[float | None]) -> dict[str, float | None] | None:
    if not (values := [float(value) for value in found if value is not None]):
        return None
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "standard_error": error}
