"""Running a comparison cell by cell, so that an interruption loses nothing and a failure one cell.

On disk:

    compare.json  comparison.md  report.html        rewritten after every cell
    data/private.jsonl  data/held_out.jsonl         the users, as they were split
    cells/<method>-eps-<epsilon>-seed-<seed>/run    the run directory, of methods that ask users
                                            cell.json   what was measured

Everything here but the run directories is computed from private text without noise.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_privsyn import environment, files
from flower_privsyn.comparison.measures import MAX_TEXTS, REFERENCES, Job, Measures, spent
from flower_privsyn.comparison.plan import Cell, Plan, settings_of
from flower_privsyn.comparison.teachers import writer_of
from flower_privsyn.data import Users
from flower_privsyn.environment import library_versions
from flower_privsyn.errors import (
    ConfigError,
    FederationError,
    PrivsynError,
    RunDirectoryError,
    StoppedError,
)
from flower_privsyn.files import (
    append_json_lines,
    expanded,
    located,
    read_json,
    read_json_lines,
    replacing,
    write_json,
)
from flower_privsyn.host.grid import variables
from flower_privsyn.host.launch import Follower, resume_run, run_app
from flower_privsyn.locks import lock_file
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.progress import Progress
from flower_privsyn.report import write_comparison_page
from flower_privsyn.report.comparison import markdown
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import TRAINED_MODEL, OwnerFolder
from flower_privsyn.run.run_format import STOPPED
from flower_privsyn.strategies.catalogue import ComparedMethod
from flower_privsyn.training.storage import weight_files

Shown = Callable[[], contextlib.AbstractContextManager[Follower]]
"""Opens a display of stages, as `flower_privsyn.cli.terminal.follower` does."""


#: Figures of `quality` and of `texts` that the table has.
_QUALITY = ("next_token_accuracy", "perplexity", "bits_per_byte")
_TEXTS = ("frechet", "mmd", "mauve", "self_similarity", "copies", "copies_held_out")
_LABELS = ("synthetic", "majority", "public", "private")
_COSTS = (
    "rounds",
    "floats_up",
    "bytes_up",
    "floats_down",
    "bytes_down",
    "client_cpu_seconds",
    "server_seconds",
)


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
        self.folder = expanded(folder).absolute()
        self.command = command
        try:
            # Beside the figures are times, and models that have learnt private text.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(
                f"The folder {self.folder} cannot be written: {error.strerror or error}."
            ) from error
        self._fixed = {
            "users": plan.people.fingerprint(),
            "downstream": plan.downstream,
            "training": dict(vars(plan.training)),
            "max_texts": MAX_TEXTS,
            "delta": plan.delta,
            "downstream_files": weight_files(located(plan.downstream)),
        }
        self._refuse_other()
        self._measures = Measures(plan)

    # ------------------------------------------------------------------ files

    @property
    def document_file(self) -> Path:
        """`compare.json`."""
        return self.folder / "compare.json"

    @property
    def page_file(self) -> Path:
        """`report.html`."""
        return self.folder / "report.html"

    def _cell_folder(self, cell: Cell) -> Path:
        return self.folder / "cells" / cell.name

    def _refuse_other(self) -> None:
        try:
            before = json.loads(self.document_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            # A comparison that was killed before its first cell has its users there, no more.
            if {one.name for one in self.folder.iterdir()} - {".lock", "data"}:
                raise ConfigError(
                    f"{self.folder} is not empty and holds no comparison: choose another --output"
                ) from None
            return
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.document_file} cannot be read: {error}") from error
        fixed = before.get("fixed", {})
        for key, value in self._fixed.items():
            if fixed.get(key) != json.loads(json.dumps(value)):
                what = "other users" if key == "users" else f"another value of {key}"
                raise ConfigError(
                    f"{self.folder} holds a comparison with {what}: choose another --output, or "
                    "ask for the same to continue it"
                )

    # ------------------------------------------------------------------ running

    def run(self, *, follower: Shown, say: Callable[[str], None]) -> dict[str, Any]:
        """Run every cell that is not finished, and write the report after each.

        Args:
            follower: opens a display of what is being done.
            say: told of every cell in a sentence.

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
        lock = lock_file(self.folder / ".lock", what=f"the comparison in {self.folder}")
        with lock:
            data = self._write_users()
            cells = self.plan.cells()
            for cell in cells:
                self._refuse_changed(cell, data)
            self._write(cells, running=None)
            for number, cell in enumerate(cells, start=1):
                if self._is_finished(cell):
                    continue
                say(f"[{number}/{len(cells)}] {self._called(cell)}")
                self._write(cells, running=cell)
                say(f"    {self._attempt(cell, data, follower)}")
            return self._write(cells, running=None)

    def _is_finished(self, cell: Cell) -> bool:
        """Whether nothing is left to do; a second student that is asked for later is something."""
        found, teaches = self._result(cell), self.plan.teaches(self.plan.method(cell))
        return found.get("status") == "finished" and bool(found.get("distilled") or not teaches)

    def _called(self, cell: Cell) -> str:
        method = self.plan.method(cell)
        if cell.epsilon is None:
            budget = "a local epsilon" if method.kind == "local text" else "epsilon infinity"
        else:
            budget = f"epsilon {cell.epsilon:g}"
        return f"{method.title}, {budget}, seed {cell.seed}"

    def _write_users(self) -> Path:
        """Both groups of users as files; the private one is what the nodes read."""
        folder = self.folder / "data"
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, users in (
            ("private", self.plan.people.private),
            ("held_out", self.plan.people.held_out),
        ):
            file = folder / f"{name}.jsonl"
            # What a kill before the first cell left may be of other users.
            if not (self.document_file.exists() and file.exists()):
                with replacing(file) as temporary:
                    append_json_lines(temporary, _rows(users))
        return folder / "private.jsonl"

    def _refuse_changed(self, cell: Cell, data: Path) -> None:
        """Refuse to put a cell of other settings beside the new ones."""
        before = self._result(cell).get("settings")
        if before is None:
            return
        asked = json.loads(json.dumps(settings_of(self.plan.values(cell, data))))
        for key in sorted(asked.keys() | before.keys()):
            if asked.get(key) != before.get(key):
                raise ConfigError(
                    f"{self._cell_folder(cell)} was run with {key} = {before.get(key)!r}, and "
                    f"{asked.get(key)!r} is asked for now: choose another --output, or delete that "
                    "folder to run the cell anew"
                )

    def _attempt(self, cell: Cell, data: Path, follower: Shown) -> str:
        """Run and measure a cell; a failure is a result as well.

        Returns:
            What was found, in a sentence.
        """
        folder, before = self._cell_folder(cell), self._result(cell)
        folder.mkdir(parents=True, exist_ok=True)
        values = self.plan.values(cell, data)
        record = {
            "stamp": self.plan.stamp,
            **vars(cell),
            "status": "pending",
            "error": None,
            "settings": settings_of(values),
            "own_settings": self.plan.own_settings(cell),
        }
        # Before anything of it is done: whoever continues it must ask for the same.
        write_json(folder / "cell.json", record)
        begun = time.monotonic()
        found, error = self._tried(cell, data, follower)
        # Of a cell that goes on where an earlier attempt ended, times would be a part of it.
        seconds = None if before else time.monotonic() - begun
        status = "finished" if error is None else "failed"
        record |= {**found, "status": status, "error": error, "wall_seconds": seconds}
        if before and not self.plan.method(cell).asks_users and record.get("costs"):
            record["costs"] |= {"server_seconds": None, "client_cpu_seconds": None}
        write_json(folder / "cell.json", record)
        if error is not None:
            return f"failed: {error}"
        accuracy = record["quality"]["next_token_accuracy"]
        return f"next-token accuracy {accuracy:.4f} on held-out users ({self.plan.stamp})"

    def _tried(self, cell: Cell, data: Path, follower: Shown) -> tuple[dict[str, Any], str | None]:
        """What a cell gave, or why it gave nothing."""
        try:
            return self._outcome(cell, data, follower), None
        except StoppedError:
            raise  # the owner wants it to end here, and the cell to go on another day
        except PrivsynError as error:
            return {}, str(error)
        except Exception as error:  # any library's: the other cells go on
            if os.environ.get(environment.TRACEBACK):
                raise
            return {}, f"unexpected {type(error).__name__}: {error}"

    def _outcome(self, cell: Cell, data: Path, follower: Shown) -> dict[str, Any]:
        values, folder = self.plan.values(cell, data), self._cell_folder(cell)
        run = None
        if self.plan.method(cell).asks_users:
            with follower() as follow:
                run = self._run(folder, values, follow)
        with follower() as follow:
            job = Job(cell=cell, values=values, folder=folder, progress=Progress(follow))
            if run is None:
                return REFERENCES[cell.method](job, self.plan, self._measures)
            return self._released(job, run)

    def _run(self, folder: Path, values: Mapping[str, Any], follow: Follower) -> RunDirectory:
        """The finished run of a cell: a new one, a continued one, or the one there is."""
        path = folder / "run"
        if (path / "config.json").is_file() and RunDirectory.open(path).status == "finished":
            return RunDirectory.open(path)
        with variables({environment.CPU_TIME: str(folder / "cpu_time.jsonl")}):
            # What an attempt left that never came to a run is started from again.
            if (path / "config.json").is_file() or OwnerFolder(path).own_file.is_file():
                outcome = resume_run(path, app=self.plan.app, values=values, follow=follow)
            else:
                outcome = run_app(self.plan.app, path, values, follow=follow)
        if outcome.error is not None:
            asked = outcome.error.startswith(STOPPED)
            raise (StoppedError if asked else FederationError)(outcome.error)
        return RunDirectory.open(path)

    def _released(self, job: Job, run: RunDirectory) -> dict[str, Any]:
        """What a finished run gave, spent and cost."""
        found = spent(run, job.folder / "cpu_time.jsonl", len(self.plan.people.private))
        found["run"] = str(run.path.relative_to(self.folder))
        if self.plan.method(job.cell).trains_student:
            quality = self._measures.quality(job, str(run.path / TRAINED_MODEL))
            return {**found, "quality": quality, "texts": None, "samples": []}
        texts = [str(record["text"]) for record in read_json_lines(run.synthetic_jsonl)]
        writer: str | Path = ""
        if self.plan.teaches(self.plan.method(job.cell)):
            writer = writer_of(run, student=self.plan.downstream, folder=job.folder / "writer")
        figures = self._measures.of_text(job, texts, found["costs"], writer=writer)
        shutil.rmtree(job.folder / "writer", ignore_errors=True)
        return {**found, **figures, "labels": self._measures.labels(job, run)}

    # ------------------------------------------------------------------ the document

    def _result(self, cell: Cell) -> dict[str, Any]:
        return read_json(self._cell_folder(cell) / "cell.json")

    def _write(self, cells: Sequence[Cell], *, running: Cell | None) -> dict[str, Any]:
        records = []
        for cell in cells:
            record = self._result(cell) or {**vars(cell), "status": "pending"}
            if record["status"] != "finished" and cell == running:
                record |= {"status": "running", "error": None}
            records.append(record)
        document = document_of(
            self.plan,
            records,
            command=self.command,
            created=read_json(self.document_file).get("created"),
            fixed=self._fixed,
        )
        write_json(self.document_file, document)
        with replacing(self.folder / "comparison.md") as temporary:
            temporary.write_text(markdown(document), encoding="utf-8")
        write_comparison_page(document, self.page_file)
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


# ---------------------------------------------------------------------- from cells to a document


def document_of(
    plan: Plan,
    cells: Sequence[Mapping[str, Any]],
    *,
    command: str,
    created: str | None,
    fixed: Mapping[str, Any],
) -> dict[str, Any]:
    """What `compare.json` holds.

    Args:
        plan: what is compared.
        cells: what is known of each, in the order in which they are run.
        command: how the comparison was asked for.
        created: when it was begun; None for this moment.
        fixed: what continuing it must not change.
    """
    results = [
        {key: cell[key] for key in cell if key not in ("settings", "stamp")} for cell in cells
    ]
    versions = library_versions("flower-privsyn", "flwr", "torch", "transformers", "trl", "peft")
    return {
        "stamp": plan.stamp,
        "created": created or files.now(),
        "command": command,
        "versions": {name: version for name, version in versions.items() if version},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
        "data": {
            "name": plan.people.source,
            "private_users": len(plan.people.private),
            "held_out_users": len(plan.people.held_out),
        },
        "downstream": plan.downstream,
        "delta": plan.delta,
        "seeds": list(plan.seeds),
        "methods": [method.name for method in plan.methods],
        "titles": {method.name: method.title for method in plan.methods},
        "kinds": {method.name: method.kind for method in plan.methods},
        "fixed": fixed,
        "cells": results,
        "summary": summarise(results, plan.methods),
    }


def summarise(
    cells: Sequence[Mapping[str, Any]], methods: Sequence[ComparedMethod]
) -> list[dict[str, Any]]:
    """One row per method and epsilon, in the order of the methods, then of the epsilons.

    Args:
        cells: records of `compare.json`.
        methods: in the order of the table.

    Returns:
        Rows with `method`, `epsilon`, `seeds` (finished), `failed`, figures as
        `{"mean", "standard_error"}` over the finished seeds (the standard error is None for one
        seed), mean costs, and the mean `local_epsilon_sample` and `local_epsilon_user` of methods
        with an epsilon of their own. `gap_closed` is the share of the way from the accuracy of the
        public model (0) to that of private fine-tuning (1), both means over their seeds; None where
        one of them is missing or the second is not above the first. `distilled_accuracy` and
        `distilled_bits_per_byte` are of the students that were taught by the writer of their text;
        `distilled_gap` is their share of the way from public text at random, taught as well, to
        private text, taught as well, and that of the student itself where a method has no other.
        `label_synthetic` and the like are of methods with classes: see `Measures.labels`.
    """
    gap = (_accuracy(cells, "public-only"), _accuracy(cells, "finetune-private"))
    distilled_gap = (
        _accuracy(cells, "distill-public"),
        _accuracy(cells, "finetune-private", part="distilled"),
    )
    rows = []
    for method in methods:
        own = [cell for cell in cells if cell["method"] == method.name]
        budgets = sorted(
            {cell["epsilon"] for cell in own},
            key=lambda value: math.inf if value is None else value,
        )
        for epsilon in budgets:
            here = [cell for cell in own if cell["epsilon"] == epsilon]
            done = [cell for cell in here if cell["status"] == "finished"]
            row: dict[str, Any] = {
                "method": method.name,
                "epsilon": epsilon,
                "seeds": len(done),
                "failed": sum(cell["status"] == "failed" for cell in here),
                "planned": len(here),
            }
            row |= {key: _mean(_column(done, "quality", key)) for key in _QUALITY}
            row |= {key: _mean(_column(done, "texts", key)) for key in _TEXTS}
            own_students = _column(done, "quality", "next_token_accuracy")
            row |= {f"label_{key}": _mean(_column(done, "labels", key)) for key in _LABELS}
            row["gap_closed"] = _gap(own_students, *gap)
            taught = _column(done, "distilled", "next_token_accuracy")
            row["distilled_accuracy"] = _mean(taught)
            row["distilled_bits_per_byte"] = _mean(_column(done, "distilled", "bits_per_byte"))
            # Itself the floor of the taught ones.
            alone = method.trains_student or method.name == "distill-public"
            row["distilled_gap"] = _gap(own_students if alone else taught, *distilled_gap)
            for key in ("sample", "user"):
                local = _mean(_column(done, "local_epsilon", key))
                row[f"local_epsilon_{key}"] = None if local is None else local["mean"]
            for key in _COSTS:
                figure = _mean(_column(done, "costs", key))
                row[key] = None if figure is None else figure["mean"]
            rows.append(row)
    return rows


def _column(cells: Sequence[Mapping[str, Any]], part: str, key: str) -> list[float]:
    found = [(cell.get(part) or {}).get(key) for cell in cells]
    return [float(value) for value in found if value is not None]


def _mean(values: Sequence[float]) -> dict[str, float | None] | None:
    if not values:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "standard_error": error}


def _accuracy(
    cells: Sequence[Mapping[str, Any]], method: str, *, part: str = "quality"
) -> float | None:
    done = [cell for cell in cells if cell["method"] == method and cell["status"] == "finished"]
    figure = _mean(_column(done, part, "next_token_accuracy"))
    return None if figure is None else figure["mean"]


def _gap(
    values: Sequence[float], floor: float | None, ceiling: float | None
) -> dict[str, float | None] | None:
    if floor is None or ceiling is None or ceiling <= floor:
        return None
    return _mean([(value - floor) / (ceiling - floor) for value in values])
