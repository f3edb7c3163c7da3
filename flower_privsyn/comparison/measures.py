"""What is measured of every cell, the same for all: figures about users who took no part.

Everything here is computed from private text without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flower_privsyn.comparison.plan import Cell, Plan
from flower_privsyn.comparison.teachers import teaching
from flower_privsyn.data import Chunking, Samples, Users
from flower_privsyn.embedding import Embedder, load_embedder
from flower_privsyn.errors import DataError
from flower_privsyn.evaluation.classification import classify_run
from flower_privsyn.evaluation.copies import copy_rates
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.evaluation.run import (
    LEAST_TEXTS,
    TextComparison,
    compare_texts,
    measured,
    run_samples,
    tuned,
)
from flower_privsyn.files import located, read_json_lines
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.progress import ShownProgress
from flower_privsyn.run.summary import RunSummary

if TYPE_CHECKING:
    from flower_privsyn.training.distillation import Distillation

#: Folder of the model that a cell has fine-tuned, in that of the cell.
STUDENT: Final = "downstream"

#: Most texts on either side of a comparison of distributions.
MAX_TEXTS: Final = 1000

#: Texts of a cell that the report shows.
_SAMPLES: Final = 8


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell at work.

    Attributes:
        cell: what is run and measured.
        values: its run configuration.
        folder: where it is written.
        progress: where steps are shown.
    """

    cell: Cell
    values: Mapping[str, Any]
    folder: Path
    progress: ShownProgress


class Measures:
    """Measures cells of one comparison.

    Args:
        plan: of the comparison.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._common = plan.common_values()
        self._embedders: dict[tuple[str, str], _Remembering] = {}
        self._held_out_copies: float | None = None

    def of_text(
        self,
        job: Job,
        texts: Sequence[str],
        costs: Mapping[str, Any],
        *,
        writer: str | Path = "",
    ) -> dict[str, Any]:
        """The figures of a cell that wrote text.

        Args:
            job: the cell.
            texts: what it wrote.
            costs: of writing them.
            writer: the model that did, to teach a second student where the plan has one; "" for
                the `teacher` of the settings.

        Raises:
            DataError: There is no text.
        """
        if not texts:
            raise DataError("the run wrote no synthetic text to fine-tune on")
        step = max(1, len(texts) // _SAMPLES)
        return {
            "quality": self.tuned(job, texts),
            "distilled": self.distilled(job, texts, writer=writer),
            "texts": self._compared(job, texts),
            "costs": dict(costs),
            "samples": list(texts[::step][:_SAMPLES]),
        }

    def distilled(
        self, job: Job, texts: Sequence[str], *, writer: str | Path = ""
    ) -> dict[str, Any] | None:
        """The figures of a second student of the same texts, taught; None where the plan has none.

        Args:
            job: the cell.
            texts: to fine-tune on.
            writer: who teaches; "" for the `teacher` of the settings.
        """
        if not self._plan.teaches(self._plan.method(job.cell)):
            return None
        taught = teaching(job.values, teacher=writer)
        return self.tuned(job, texts, distillation=taught, student="distilled")

    def labels(self, job: Job, run: RunDirectory) -> dict[str, float | None] | None:
        """How often a classifier that learned from a run's labelled text is right about others'.

        Args:
            job: the cell.
            run: its finished run.

        Returns:
            Shares of held-out samples: of one that learned from the "synthetic" text, beside one
            that always says the commonest class ("majority"), and those that learned from the run's
            "public" text before any vote and from the users' own ("private"). None of a run whose
            texts have no classes.
        """
        if not Chunking.of(run.config).classes:
            return None
        embedder = self.embedder(job.values)
        held_out, private = (
            run_samples(run.config, users, tokenizer=embedder.tokenizer)
            for users in (self._plan.people.held_out, self._plan.people.private)
        )
        (found,) = classify_run(
            run,
            held_out,
            private=private,
            embedder=embedder,
            encoder=None,
            seed=job.cell.seed,
            progress=job.progress,
        )
        scores = {"synthetic": found.synthetic, "public": found.public, "private": found.private}
        shares: dict[str, float | None] = {"majority": found.majority.value}
        for name, score in scores.items():
            shares[name] = None if score is None else score.accuracy.value
        return shares

    def tuned(
        self,
        job: Job,
        texts: Sequence[str],
        *,
        distillation: Distillation | None = None,
        student: str = STUDENT,
    ) -> dict[str, Any]:
        """The figures of the downstream model, fine-tuned on texts.

        Args:
            job: the cell.
            texts: to fine-tune on.
            distillation: a teacher on them; None for the texts alone.
            student: folder of the model that it becomes, in that of the cell.
        """
        return self.quality(job, self.trained(job, texts, distillation, student=student))

    def trained(
        self,
        job: Job,
        texts: Sequence[str],
        distillation: Distillation | None = None,
        *,
        student: str = STUDENT,
    ) -> str:
        """Fine-tune the downstream model, as `tuned` does; the folder that it is in."""
        reads_private_text = self._plan.method(job.cell).kind == "private text"
        output = tuned(
            self._plan.downstream,
            texts,
            settings=self._plan.training,
            output=job.folder / student,
            seed=job.cell.seed,
            progress=job.progress,
            distillation=distillation,
            stamp=STAMP if reads_private_text else "",
        )
        return str(output)

    def quality(self, job: Job, model: str) -> dict[str, Any]:
        """The figures of a language model on held-out text."""
        figures = measured(
            model,
            self.samples(self._plan.people.held_out),
            max_tokens=self._plan.training.max_tokens,
            progress=job.progress,
        )
        accuracy, bits = figures.next_token_accuracy, figures.bits_per_byte
        return {
            "next_token_accuracy": accuracy.value,
            "next_token_accuracy_interval": [accuracy.low, accuracy.high],
            "cross_entropy": figures.cross_entropy.value,
            "perplexity": figures.perplexity.value,
            "bits_per_byte": None if bits is None else bits.value,
            "user_next_token_accuracy": figures.user_next_token_accuracy.value,
        }

    def _compared(self, job: Job, texts: Sequence[str]) -> dict[str, Any] | None:
        held_out = self.samples(self._plan.people.held_out).texts
        if min(len(texts), len(held_out)) < LEAST_TEXTS:
            return None  # too few for a distance between distributions
        private = self.samples(self._plan.people.private).texts
        found = compare_texts(
            texts,
            held_out,
            embedder=self.embedder(self._common),
            embedding_model=str(self._common["embedding-model"]),
            private=private,
            max_texts=MAX_TEXTS,
            progress=job.progress,
        )
        if self._held_out_copies is None:
            self._held_out_copies = copy_rates(held_out, private).any
        return {**_figures(found), "copies_held_out": self._held_out_copies}

    def samples(self, users: Users, *, max_tokens: int | None = None) -> Samples:
        """All text of some users, cut as nodes cut it.

        Args:
            users: whose.
            max_tokens: of a sample; None for what no method has for itself, by which all are
                measured.
        """
        cut = Chunking(max_tokens=max_tokens or int(self._common["max-tokens"]))
        return cut.samples(cut.documents(users), tokenizer=self.embedder(self._common).tokenizer)

    def embedder(self, values: Mapping[str, Any]) -> _Remembering:
        """The embedding model of a run configuration."""
        key = (str(values["embedding-model"]), str(values["embedding-precision"]))
        if key not in self._embedders:
            self._embedders[key] = _Remembering(
                load_embedder(located(key[0]), precision=values["embedding-precision"])
            )
        return self._embedders[key]


def spent(run: RunDirectory, cpu_time: Path, users: int) -> dict[str, Any]:
    """What a run spent, as its ledger says, and what it cost one of its users, and its server.

    Args:
        run: a finished run.
        cpu_time: what its nodes wrote of their CPU time.
        users: that took part.
    """
    summary = RunSummary.of(run)
    # Answers alone: which run of a comparison finds the users' text already embedded, by the
    # one before it, says nothing about a method. Nodes that cannot write the file still answer.
    answered = [
        float(line["cpu_seconds"])
        for line in read_json_lines(cpu_time)
        if line["message"] != "query.prepare"
    ]
    times = [line["seconds_server"] for line in run.owner.times() if line.get("seconds_server")]
    costs: dict[str, Any] = {
        # Charged or not, nothing was made of them: the method had fewer than another one.
        "rounds_lost": len(summary.rounds_lost),
        "client_cpu_seconds": sum(answered) / users if answered else None,
        "server_seconds": sum(times) if times else None,
    }
    if (counted := summary.costs) is not None:
        costs["rounds"] = counted.rounds
        # What a user may expect: nobody is in all rounds where users are drawn or take turns.
        costs |= {name: round(counted.expected[name]) for name in sorted(counted.expected)}
    return {
        "epsilon_release": summary.epsilon_release,
        "epsilon_known_cohorts": summary.epsilon_known_cohorts,
        "delta": summary.delta,
        "spent": [[line.get("round"), line.get("epsilon_release")] for line in summary.charged],
        "costs": costs,
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
        "copies": copies.any,
    }


class _Remembering:
    """An embedding model that embeds no text twice: held-out text is compared with in every cell.

    Args:
        embedder: the model.

    Attributes:
        fingerprint: of the model.
        dimension: of an embedding.
        tokenizer: of the model.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[str, Any] = {}
        self.fingerprint = embedder.fingerprint
        self.dimension = embedder.dimension
        self.tokenizer = embedder.tokenizer

    def embed(self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None) -> Any:
        fresh = list(dict.fromkeys(text for text in texts if text not in self._known))
        if progress is not None:
            progress(len(texts) - len(fresh))
        if fresh:
            self._known |= zip(fresh, self._embedder.embed(fresh, progress=progress), strict=True)
        return np.stack([self._known[text] for text in texts])
