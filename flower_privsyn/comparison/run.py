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
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from flower_privsyn import clock
from flower_privsyn.client_apps.cpu_time import CPU_TIME_FILE
from flower_privsyn.comparison.picture import Picture
from flower_privsyn.comparison.plan import Cell, Plan, settings_of
from flower_privsyn.comparison.summary import summarise
from flower_privsyn.comparison.table import markdown
from flower_privsyn.data import Samples, Users, chunk_users
from flower_privsyn.embedding import Embedder, load_embedder
from flower_privsyn.errors import (
    ConfigError,
    DataError,
    FederationError,
    PrivsynError,
    RunDirectoryError,
)
from flower_privsyn.evaluation.costs import client_costs, run_costs, run_times
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.evaluation.run import TRAINED_MODEL, TextComparison, compare_texts
from flower_privsyn.files import located, read_json_lines, replacing, write_json
from flower_privsyn.host.progress import ShownProgress
from flower_privsyn.host.simulation import Outcome, resume_run, run_app
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.runs import RunDirectory, lock_file
from flower_privsyn.training.causal import fine_tune

Follow = Callable[[Sequence[Mapping[str, Any]]], None]
Follower = Callable[[], contextlib.AbstractContextManager[Follow]]
"""Opens a display of stages, as `flower_privsyn.host.terminal.follower` does."""

#: Texts of a cell that the report shows.
_SAMPLES = 8

#: Of a method that asks nobody.
_NO_COSTS = {
    "rounds": 0,
    "floats_up": 0,
    "bytes_up": 0,
    "floats_down": 0,
    "bytes_down": 0,
    "client_cpu_seconds": 0.0,
    "server_seconds": 0.0,
}


class Comparison:
    """A comparison in a folder.

    Args:
        plan: what is compared.
        folder: where it is written; an earlier comparison of the same users and settings there is
            continued, also with more methods, epsilons or seeds.
        command: how it was asked for, for the report.

    Raises:
        ConfigError: the folder holds a comparison of other users, another downstream model or
            other settings.
        RunDirectoryError: the folder cannot be written.
    """

    def __init__(self, plan: Plan, folder: Path, *, command: str = "") -> None:
        self.plan = plan
        self.folder = folder.expanduser().absolute()
        self.command = command
        self._embedders: dict[tuple[str, str], _Remembering] = {}
        self._texts_per_user = 0.0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(
                f"The folder {self.folder} cannot be written: {error.strerror or error}."
            ) from error
        self._fixed = {
            "users": plan.fingerprint(),
            "downstream": plan.downstream,
            "training": dict(vars(plan.training)),
            "max_texts": plan.max_texts,
            "delta": plan.delta,
        }
        self._refuse_other()
        self.picture = Picture(self.folder / "picture.json")

    # ------------------------------------------------------------------ files

    @property
    def document_file(self) -> Path:
        """`compare.json`."""
        return self.folder / "compare.json"

    def _cell_folder(self, cell: Cell) -> Path:
        return self.folder / "cells" / cell.name

    def _refuse_other(self) -> None:
        try:
            before = json.loads(self.document_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if any(self.folder.iterdir()) and not (self.folder / ".lock").exists():
                raise ConfigError(
                    f"{self.folder} is not empty and holds no comparison: choose another --output"
                ) from None
            return
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.document_file} cannot be read: {error}") from error
        for key, value in self._fixed.items():
            if before.get("fixed", {}).get(key) != json.loads(json.dumps(value)):
                what = "other users" if key == "users" else f"another value of {key}"
                raise ConfigError(
                    f"{self.folder} holds a comparison with {what}: choose another --output, or "
                    "ask for the same to continue it"
                )

    # ------------------------------------------------------------------ running

    def run(self, *, follower: Follower, say: Callable[[str], None]) -> dict[str, Any]:
        """Run every cell that is not finished, and write the report after each.

        Args:
            follower: opens a display of what is being done.
            say: told of every cell in a sentence.

        Returns:
            The document of `compare.json`.

        Raises:
            ModelError: the downstream model cannot be loaded.
            ConfigError: a cell was run with other settings.
            RunDirectoryError: another process works on this comparison.
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
                if self._result(cell).get("status") == "finished":
                    continue
                title = self.plan.method(cell).title
                budget = "infinity" if cell.epsilon is None else f"{cell.epsilon:g}"
                say(f"[{number}/{len(cells)}] {title}, epsilon {budget}, seed {cell.seed}")
                self._write(cells, running=cell)
                record = self._attempt(cell, data, follower)
                write_json(self._cell_folder(cell) / "cell.json", record)
                if record["status"] == "failed":
                    say(f"    failed: {record['error']}")
                else:
                    accuracy = record["quality"]["next_token_accuracy"]
                    say(f"    next-token accuracy {accuracy:.4f} on held-out users ({STAMP})")
            return self._write(cells, running=None)

    def _write_users(self) -> Path:
        """Both groups of users as files; the private one is what the nodes read."""
        folder = self.folder / "data"
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, users in (("private", self.plan.private), ("held_out", self.plan.held_out)):
            file = folder / f"{name}.jsonl"
            if file.exists():
                continue
            with replacing(file) as temporary:
                temporary.write_text(
                    "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in _rows(users)),
                    encoding="utf-8",
                )
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

    def _attempt(self, cell: Cell, data: Path, follower: Follower) -> dict[str, Any]:
        """Run and measure a cell; a failure is a result as well."""
        folder = self._cell_folder(cell)
        folder.mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {
            "stamp": STAMP,
            "method": cell.method,
            "epsilon": cell.epsilon,
            "seed": cell.seed,
            "status": "failed",
            "error": None,
            "settings": settings_of(self.plan.values(cell, data)),
        }
        # Of a cell that goes on where an earlier attempt ended, the time would be a part of it.
        begun = None if (folder / "run").exists() else time.monotonic()
        try:
            record |= self._outcome(cell, data, follower)
            record["status"] = "finished"
        except PrivsynError as error:
            record["error"] = str(error)
        except Exception as error:  # any library's: the other cells go on
            record["error"] = f"unexpected {type(error).__name__}: {error}"
            if os.environ.get("PRIVSYN_TRACEBACK"):
                raise
        if record.get("costs") is not None:
            record["costs"]["wall_seconds"] = None if begun is None else time.monotonic() - begun
        return record

    def _outcome(self, cell: Cell, data: Path, follower: Follower) -> dict[str, Any]:
        values = self.plan.values(cell, data)
        if not self.plan.method(cell).asks_users:
            with follower() as follow:
                return self._reference(cell, values, ShownProgress(follow))
        with follower() as follow:
            run = self._run(cell, values, follow)
        with follower() as follow:
            return self._released(cell, values, run, ShownProgress(follow))

    def _reference(
        self, cell: Cell, values: Mapping[str, Any], progress: ShownProgress
    ) -> dict[str, Any]:
        """The floor, the ceiling, and public text alone: nobody is asked."""
        if cell.method == "public-only":
            quality = self._quality(self.plan.downstream, progress, values)
            return {"quality": quality, "texts": None, "costs": dict(_NO_COSTS), "samples": []}
        if cell.method == "finetune-private":
            # No costs: the text itself is what leaves. No samples: they would be the users' own.
            own = self._samples(self.plan.private, values).texts
            quality = self._tuned(own, cell, values, progress)
            return {"quality": quality, "texts": None, "costs": None, "samples": []}
        begun = time.monotonic()
        texts = _expanded(values, self._cell_folder(cell), progress)
        costs = {**_NO_COSTS, "server_seconds": time.monotonic() - begun}
        return {
            "quality": self._tuned(texts, cell, values, progress),
            "texts": self._compared(texts, values, progress),
            "costs": costs,
            "samples": _spread(texts),
        }

    def _released(
        self, cell: Cell, values: Mapping[str, Any], run: RunDirectory, progress: ShownProgress
    ) -> dict[str, Any]:
        """What a finished run gave, spent and cost."""
        found: dict[str, Any] = {
            "run": str(run.path.relative_to(self.folder)),
            **_privacy(run),
            "costs": _costs(
                run, self._cell_folder(cell) / "cpu_time.jsonl", len(self.plan.private)
            ),
        }
        if self.plan.method(cell).kind == "on-device training":
            quality = self._quality(str(run.path / TRAINED_MODEL), progress, values)
            return {**found, "quality": quality, "texts": None, "samples": []}
        texts = [str(record["text"]) for record in read_json_lines(run.synthetic_jsonl)]
        self.picture.add(run, cell, self._embedder(values), progress)
        return {
            **found,
            "quality": self._tuned(texts, cell, values, progress),
            "texts": self._compared(texts, values, progress),
            "samples": _spread(texts),
        }

    def _run(self, cell: Cell, values: Mapping[str, Any], follow: Follow) -> RunDirectory:
        """The finished run of a cell: a new one, a continued one, or the one there is."""
        path = self._cell_folder(cell) / "run"
        with _environment(CPU_TIME_FILE, str(self._cell_folder(cell) / "cpu_time.jsonl")):
            if (path / "config.json").is_file():
                run = RunDirectory.open(path)
                if run.status == "finished":
                    return run
                outcome = resume_run(path, follow=follow)
            else:
                outcome = _begun(self.plan, path, values, follow)
        if outcome.error is not None:
            raise FederationError(outcome.error)
        return RunDirectory.open(path)

    # ------------------------------------------------------------------ measuring

    def _tuned(
        self,
        texts: Sequence[str],
        cell: Cell,
        values: Mapping[str, Any],
        progress: ShownProgress,
    ) -> dict[str, Any]:
        """The figures of the downstream model, fine-tuned on texts."""
        if not texts:
            raise DataError("the run wrote no synthetic text to fine-tune on")
        output = self._cell_folder(cell) / "downstream"
        with progress.stage("Fine-tune the downstream model") as stage:

            def step(done: int, total: int) -> None:
                stage.total = total
                stage.update(done - stage.done)

            fine_tune(
                self.plan.downstream,
                texts,
                settings=self.plan.training,
                output=output,
                seed=cell.seed,
                progress=step,
            )
        return self._quality(str(output), progress, values)

    def _quality(
        self, model: str, progress: ShownProgress, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        samples = self._samples(self.plan.held_out, values)
        with progress.stage("Read held-out text", len(samples)) as stage:
            figures = evaluate_language_model(
                model,
                samples.texts,
                owners=samples.owners,
                max_tokens=self.plan.training.max_tokens,
                progress=stage.update,
            )
        bits = figures.bits_per_byte
        return {
            "next_token_accuracy": figures.next_token_accuracy.value,
            "next_token_accuracy_interval": [
                figures.next_token_accuracy.low,
                figures.next_token_accuracy.high,
            ],
            "cross_entropy": figures.cross_entropy.value,
            "perplexity": figures.perplexity.value,
            "bits_per_byte": None if bits is None else bits.value,
            "user_next_token_accuracy": figures.user_next_token_accuracy.value,
        }

    def _compared(
        self, texts: Sequence[str], values: Mapping[str, Any], progress: ShownProgress
    ) -> dict[str, Any] | None:
        held_out = self._samples(self.plan.held_out, values).texts
        if min(len(texts), len(held_out)) < 10:
            return None  # too few for a distance between distributions
        return _figures(
            compare_texts(
                texts,
                held_out,
                embedder=self._embedder(values),
                embedding_model=str(values["embedding-model"]),
                private=self._samples(self.plan.private, values).texts,
                max_tokens=int(values["max-tokens"]),
                max_texts=self.plan.max_texts,
                progress=progress,
            )
        )

    def _samples(self, users: Users, values: Mapping[str, Any]) -> Samples:
        """All text of the users, cut as the nodes cut it."""
        samples = chunk_users(
            users,
            tokenizer=self._embedder(values).tokenizer,
            max_tokens=int(values["max-tokens"]),
            max_samples=None,
            seed=0,
        )
        self._texts_per_user = len(samples) / len(users)
        return samples

    def _embedder(self, values: Mapping[str, Any]) -> _Remembering:
        key = (str(values["embedding-model"]), str(values["embedding-precision"]))
        if key not in self._embedders:
            self._embedders[key] = _Remembering(
                load_embedder(located(key[0]), precision=values["embedding-precision"])
            )
        return self._embedders[key]

    # ------------------------------------------------------------------ the document

    def _result(self, cell: Cell) -> dict[str, Any]:
        try:
            record = json.loads((self._cell_folder(cell) / "cell.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def _write(self, cells: Sequence[Cell], *, running: Cell | None) -> dict[str, Any]:
        from flower_privsyn.report import write_comparison_page

        plan = self.plan
        results = []
        for cell in cells:
            record = self._result(cell) or {
                "method": cell.method,
                "epsilon": cell.epsilon,
                "seed": cell.seed,
                "status": "pending",
                "error": None,
            }
            if cell == running:
                record = {**record, "status": "running", "error": None}
            results.append({key: record.get(key) for key in _CELL})
        complete = all(record["status"] in ("finished", "failed") for record in results)
        document: dict[str, Any] = {
            "stamp": STAMP,
            "created": self._created(),
            "finished": clock.now() if complete else None,
            "command": self.command,
            "versions": _versions(),
            "machine": _machine(),
            "data": {
                "name": plan.source,
                "private_users": len(plan.private),
                "private_texts": len(plan.private.texts),
                "held_out_users": len(plan.held_out),
                "held_out_texts": len(plan.held_out.texts),
                "newer_than": plan.newer_than or None,
            },
            "downstream": plan.downstream,
            "max_tokens": plan.training.max_tokens,
            "delta": plan.delta,
            "epsilons": list(plan.epsilons),
            "seeds": list(plan.seeds),
            "methods": [method.name for method in plan.methods],
            "titles": {method.name: method.title for method in plan.methods},
            "kinds": {method.name: method.kind for method in plan.methods},
            "embedding_cpu_seconds": self._embedding_seconds(),
            "fixed": self._fixed,
            "cells": results,
            "summary": summarise(results, plan.methods),
            "embedding": self.picture.to_dict(self._held_out_vectors),
        }
        write_json(self.document_file, document)
        with replacing(self.folder / "comparison.md") as temporary:
            temporary.write_text(markdown(document), encoding="utf-8")
        write_comparison_page(document, self.folder / "report.html")
        return document

    def _created(self) -> str:
        try:
            created = json.loads(self.document_file.read_text(encoding="utf-8"))["created"]
        except (OSError, ValueError, KeyError):
            return clock.now()
        return str(created)

    def _embedding_seconds(self) -> float | None:
        """CPU seconds in which the text of one user is embedded, as measured on held-out text."""
        measured = self.folder / "embedding_cost.json"
        for (model, precision), embedder in self._embedders.items():
            if embedder.texts:
                record = {
                    "model": model,
                    "precision": precision,
                    "cpu_seconds_per_text": embedder.cpu_seconds / embedder.texts,
                    "texts_per_user": self._texts_per_user,
                }
                write_json(measured, record)
        try:
            record = json.loads(measured.read_text(encoding="utf-8"))
            return float(record["cpu_seconds_per_text"]) * float(record["texts_per_user"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _held_out_vectors(self, model: str, precision: str) -> Any:
        """Embeddings of some held-out texts, for the picture."""
        values = {"embedding-model": model, "embedding-precision": precision, "max-tokens": 64}
        texts = self._samples(self.plan.held_out, values).texts
        return self._embedder(values).embed(texts[:: max(1, len(texts) // 400)])


_CELL = (
    "method",
    "epsilon",
    "seed",
    "status",
    "error",
    "run",
    "epsilon_release",
    "epsilon_known_cohorts",
    "delta",
    "quality",
    "texts",
    "costs",
    "spent",
    "samples",
)


class _Remembering:
    """An embedding model that embeds no text twice: held-out text is compared with in every cell.

    Args:
        embedder: the model.

    Attributes:
        texts: embedded so far.
        cpu_seconds: of this process, for them.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[str, Any] = {}
        self.texts = 0
        self.cpu_seconds = 0.0

    @property
    def fingerprint(self) -> str:
        return self._embedder.fingerprint

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    @property
    def tokenizer(self) -> Any:
        return self._embedder.tokenizer

    def embed(self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None) -> Any:
        fresh = list(dict.fromkeys(text for text in texts if text not in self._known))
        if progress is not None:
            progress(len(texts) - len(fresh))
        if fresh:
            begun = time.process_time()
            vectors = self._embedder.embed(fresh, progress=progress)
            self.cpu_seconds += time.process_time() - begun
            self.texts += len(fresh)
            self._known |= dict(zip(fresh, vectors, strict=True))
        return np.stack([self._known[text] for text in texts])


def _begun(plan: Plan, path: Path, values: Mapping[str, Any], follow: Follow) -> Outcome:
    """Start a run; what an attempt left that never came to a run is started from again."""
    if (path / ".flower" / "launch.json").is_file():
        return resume_run(path, follow=follow)
    return run_app(plan.app, path, values, follow=follow)


def _expanded(values: Mapping[str, Any], folder: Path, progress: ShownProgress) -> list[str]:
    """Public text, expanded by the generator: what private evolution does without any votes."""
    from flower_privsyn.data import public_texts
    from flower_privsyn.generation import Expand, SamplingParameters, load_generator, load_prompt
    from flower_privsyn.strategies.parts.synthesis import expand_resumably

    seed = int(values["seed"])
    embedder = load_embedder(
        located(str(values["embedding-model"])), precision=values["embedding-precision"]
    )
    known = public_texts(
        located(str(values["public-text"])),
        tokenizer=embedder.tokenizer,
        max_tokens=int(values["max-tokens"]),
    )
    drawn = np.random.default_rng([seed, 1]).permutation(len(known))
    seeds = [known[index] for index in drawn[: int(values["num-candidates"])]]

    def seed_after(kept: int) -> int:
        return int(np.random.SeedSequence([seed, 2, kept]).generate_state(1, np.uint64)[0])

    expand = Expand(
        load_generator(
            located(str(values["generator"])), api_key_env=str(values["generator-api-key-env"])
        ),
        prompt=load_prompt(located(str(values["prompt"]))),
        sampling=SamplingParameters(
            seed=seed_after(0),
            max_new_tokens=int(values["max-new-tokens"]),
            temperature=float(values["temperature"]),
            top_p=float(values["top-p"]),
        ),
    )
    records, _ = expand_resumably(
        expand,
        seeds,
        ids=[f"public-{index}" for index in drawn[: len(seeds)]],
        num_samples=int(values["expand-samples"]),
        kept=folder / "expanded.jsonl",
        seed_after=lambda kept: seed_after(1 + kept),
        round_number=0,
        source="expanded",
        stage="Expand public text",
        progress=progress,
    )
    return [str(record["text"]) for record in records]


def _privacy(run: RunDirectory) -> dict[str, Any]:
    """What the run's ledger says was spent."""
    lines = [line for line in run.ledger_lines() if line.get("event") == "release"]
    last: Mapping[str, Any] = lines[-1] if lines else {}
    return {
        "epsilon_release": last.get("epsilon_release"),
        "epsilon_known_cohorts": last.get("epsilon_known_cohorts"),
        "delta": last.get("delta"),
        "spent": [[line.get("round"), line.get("epsilon_release")] for line in lines],
    }


def _costs(run: RunDirectory, cpu_time: Path, users: int) -> dict[str, Any]:
    costs, times = run_costs(run), run_times(run)
    try:
        # Answers alone: which run of a comparison finds the users' text already embedded, by the
        # one before it, says nothing about a method.
        seconds = client_costs(cpu_time, users=users).cpu_seconds_rounds / users
    except PrivsynError:
        seconds = None  # nodes that cannot write the file still answer
    # What a user may expect: nobody is in all rounds where users are drawn or take turns.
    share = costs.participation
    return {
        "rounds": costs.rounds,
        "floats_up": round(share * costs.floats_up),
        "bytes_up": round(share * costs.bytes_up),
        "floats_down": round(share * costs.floats_down),
        "bytes_down": round(share * costs.bytes_down),
        "client_cpu_seconds": seconds,
        "server_seconds": None if times is None else times.seconds_server,
    }


def _figures(found: TextComparison) -> dict[str, Any]:
    copies = found.private_copies or found.held_out_copies
    return {
        "frechet": found.frechet.squared,
        "mmd": found.discrepancy.squared,
        "precision": found.precision_recall.precision,
        "recall": found.precision_recall.recall,
        "mauve": found.mauve.score,
        "self_similarity": found.synthetic_diversity.self_similarity,
        "distinct_2": found.synthetic_diversity.distinct[2],
        "copies_exact": copies.exact,
        "copies_near": copies.near,
    }


def _spread(texts: Sequence[str]) -> list[str]:
    """A few texts from all over the corpus."""
    step = max(1, len(texts) // _SAMPLES)
    return list(texts[::step][:_SAMPLES])


def _rows(users: Users) -> Iterator[dict[str, str]]:
    """One row per document; a user without any keeps an empty one, and so stays in the roster."""
    seen = set(users.owners.tolist())
    for number, user in enumerate(users.user_ids):
        if number not in seen:
            yield {"client_id": user, "text": ""}
    for owner, text in zip(users.owners.tolist(), users.texts, strict=True):
        yield {"client_id": users.user_ids[owner], "text": text}


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _versions() -> dict[str, str]:
    found = {}
    for name in ("flower-privsyn", "flwr", "torch", "transformers", "trl", "peft"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.machine()}, {cores} cores, Python {platform.python_version()}"
