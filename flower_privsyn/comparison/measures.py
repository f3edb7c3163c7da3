"""What is measured of every cell, the same for all: figures about users who took no part.

What methods are compared with is made here, too: floors, which ask nobody, and ceiling. Everything
here is computed from private text without noise.

Every student that learns at the server has the steps and the rate that suit it best, whatever gave
the text: it is trained in 100, 300, 900 ... steps, each time anew with a schedule of that length,
until the next is no better on tuning users, by bits; then from the best length on at four times the
rate. The held-out users are read once, with the best.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_privsyn.comparison.paraphrase import Paraphraser, TokenChoice
from flower_privsyn.comparison.plan import Cell, Plan
from flower_privsyn.data import Chunking, Samples, Users, public_texts
from flower_privsyn.data.chunking import token_ids
from flower_privsyn.data.public_rows import PublicRows
from flower_privsyn.embedding import load_embedder, load_tokenizer
from flower_privsyn.errors import DataError, FederationError, TrainingError
from flower_privsyn.evaluation.copies import copy_rates
from flower_privsyn.evaluation.language_model import (
    LanguageModelEvaluation,
    evaluate_language_model,
)
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.evaluation.run import (
    LEAST_TEXTS,
    RememberingEmbedder,
    compare_texts,
    random_public_text,
    tuned,
)
from flower_privsyn.files import read_json, read_json_lines
from flower_privsyn.generation.generators import ExpandingSettings
from flower_privsyn.privacy.randomness import SecureRandom
from flower_privsyn.progress import Progress
from flower_privsyn.report.summary import RunSummary
from flower_privsyn.run import RunDirectory
from flower_privsyn.strategies._synthesis import ExpansionSettings, expand_resumably
from flower_privsyn.training.causal import CausalTraining
from flower_privsyn.training.distillation import Distillation
from flower_privsyn.training.selection import LogRatioScorer, choose, long_rows, surprisal_weights

#: Folder of a model that a cell has trained, in that of the cell; steps and rate follow.
STUDENT: Final = "student-"

#: Rates that a student is trained at, in those of the plan.
RATES: Final = (1, 4)

#: How many tokens of each held-out user it finds: in the folder of a cell.
USERS_FILE: Final = "held_out.npy"

#: Most texts on either side of a comparison of distributions.
MAX_TEXTS: Final = 1000

#: Texts of a cell that the report shows.
_SAMPLES: Final = 8


#: Of what asks nobody.
_NO_COSTS: Final[Mapping[str, float]] = {
    "rounds": 0,
    "floats_up": 0,
    "bytes_up": 0,
    "floats_down": 0,
    "bytes_down": 0,
    "client_cpu_seconds": 0.0,
    "server_seconds": 0.0,
}


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
    progress: Progress

    @property
    def file(self) -> Path:
        """`cell.json`: what was measured, and of which settings."""
        return self.folder / "cell.json"

    @property
    def record(self) -> dict[str, Any]:
        """What it holds; nothing before the cell was begun."""
        return read_json(self.file)


class Measures:
    """Measures cells of one comparison.

    Attributes:
        plan: of the comparison.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._common: Mapping[str, Any] = plan.common_values()
        self._held_out_copies: dict[int, float] = {}

    def of_text(self, job: Job, texts: Sequence[str], costs: Mapping[str, Any]) -> dict[str, Any]:
        """The figures of a cell that wrote text.

        Args:
            job: the cell.
            texts: what it wrote.
            costs: of writing them.

        Raises:
            DataError: There is no text.
        """
        if not texts:
            raise DataError("the run wrote no synthetic text to fine-tune on")
        step = max(1, len(texts) // _SAMPLES)
        return {
            "quality": self.tuned(job, texts),
            "texts": self._compared(job, texts),
            "costs": dict(costs),
            "samples": list(texts[::step][:_SAMPLES]),
        }

    def tuned(
        self, job: Job, texts: Sequence[str], distillation: Distillation | None = None
    ) -> dict[str, Any]:
        """The figures of the downstream model, fine-tuned on texts.

        Args:
            job: the cell.
            texts: to fine-tune on.
            distillation: a teacher on them; None for the texts alone.
        """

        def train(how: CausalTraining, output: Path) -> None:
            tuned(
                self.plan.downstream,
                texts,
                settings=how,
                output=output,
                seed=job.cell.seed,
                progress=job.progress,
                distillation=distillation,
                stamp=STAMP if job.cell.method.kind == "private text" else "",
            )

        return self.of_best(job, train)

    def of_best(self, job: Job, train: Callable[[CausalTraining, Path], None]) -> dict[str, Any]:
        """The figures of a student of the steps and the rate that are best on tuning users.

        Longer and longer at the rate of the plan while that helps, then from the best of the
        lengths on at four times the rate: much text is learnt better so, and few texts worse.

        Args:
            job: the cell.
            train: trains it so, and writes it to a folder, unless that is there.
        """
        own: CausalTraining = self.plan.training
        bits: dict[str, float] = {}
        tuning = self.samples(self.plan.people.tuning)
        steps, best = self.plan.lengths[0], ""
        for times in RATES:
            for longer in [one for one in self.plan.lengths if one >= steps]:
                how = replace(own, max_steps=longer, learning_rate=times * own.learning_rate)
                name = f"{STUDENT}{longer}" + (f"-{times}x" if times > 1 else "")
                try:
                    train(how, job.folder / name)
                except (TrainingError, FederationError):
                    if not bits:
                        raise
                    break  # at a rate at which it comes to nothing
                student = str(job.folder / name)
                bits[name] = self._evaluated(job, student, tuning).cross_entropy.value
                if bits[name] > min(bits.values()):
                    break
                steps, best = longer, name
        found = self.quality(job, str(job.folder / best))
        return {**found, "steps": steps, "student": best, "tried": list(bits)}

    def _evaluated(
        self, job: Job, model: str, samples: Samples, users_file: Path | None = None
    ) -> LanguageModelEvaluation:
        return evaluate_language_model(
            model,
            samples.texts,
            owners=samples.owners,
            max_tokens=self.plan.training.max_tokens,
            users_file=users_file,
            progress=job.progress,
        )

    def quality(self, job: Job, model: str) -> dict[str, Any]:
        """The figures of a language model on held-out text."""
        held_out = self.samples(self.plan.people.held_out)
        figures = self._evaluated(job, model, held_out, job.folder / USERS_FILE)
        accuracy, bits = figures.next_token_accuracy, figures.bits_per_byte
        return {
            "next_token_accuracy": accuracy.value,
            "next_token_accuracy_interval": [accuracy.low, accuracy.high],
            "bits_per_byte": None if bits is None else bits.value,
        }

    def _compared(self, job: Job, texts: Sequence[str]) -> dict[str, Any] | None:
        held_out = self.samples(self.plan.people.held_out).texts
        if min(len(texts), len(held_out)) < LEAST_TEXTS:
            return None  # too few for a distance between distributions
        people, seed = self.plan.people, job.cell.seed
        asked = people.private(seed)
        private = [*self.samples(asked).texts, *asked.texts]  # a copy may go across a cut
        found = compare_texts(
            texts,
            held_out,
            embedder=self.embedder,
            embedding_model=str(self._common["embedding-model"]),
            max_texts=MAX_TEXTS,
            progress=job.progress,
        )
        if (group := people.group_of(seed)) not in self._held_out_copies:
            self._held_out_copies[group] = copy_rates(held_out, private).any
        return {
            "frechet": found.frechet.squared,
            "mauve": found.mauve.score,
            "copies": copy_rates(texts, private).any,
            "copies_held_out": self._held_out_copies[group],
        }

    def samples(self, users: Users, *, max_tokens: int | None = None) -> Samples:
        """All text of some users, cut as nodes cut it.

        Args:
            users: whose.
            max_tokens: of a sample; None for what no method has for itself, by which all are
                measured.
        """
        chunking = Chunking(max_tokens=max_tokens or int(self._common["max-tokens"]))
        return chunking.samples(chunking.documents(users), tokenizer=self.embedder.tokenizer)

    @cached_property
    def embedder(self) -> RememberingEmbedder:
        """What all text is embedded and cut by."""
        model, precision = (self._common[f"embedding-{of}"] for of in ("model", "precision"))
        return RememberingEmbedder(load_embedder(model, precision=precision))


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
        costs["rounds"] = counted["rounds"]
        # What a user may expect: nobody is in all rounds where users are drawn or take turns.
        costs |= {name: round(value) for name, value in sorted(counted["expected"].items())}
    return {
        "epsilon_release": summary.epsilon_release,
        "epsilon_known_cohorts": summary.epsilon_known_cohorts,
        "delta": summary.delta,
        "costs": costs,
    }


# ---------------------------------------------------------------------- references


def floor(job: Job, measures: Measures) -> dict[str, Any]:
    """The downstream model as it is."""
    quality = measures.quality(job, measures.plan.downstream)
    return {"quality": quality, "costs": dict(_NO_COSTS)}


def ceiling(job: Job, measures: Measures) -> dict[str, Any]:
    """The model fine-tuned on the private text itself."""
    own = measures.samples(measures.plan.people.private(job.cell.seed)).texts
    return {"quality": measures.tuned(job, own)}


def expanded_public(job: Job, measures: Measures) -> dict[str, Any]:
    """The model fine-tuned on public text that the generator has expanded."""
    begun, values = time.monotonic(), job.values
    known = public_texts(
        str(values["public-text"]),
        tokenizer=load_tokenizer(str(values["embedding-model"]))[0],
        max_tokens=int(values["max-tokens"]),
        whole_sentences=True,
    )
    texts = _expanded(job, known, source="public")
    return measures.of_text(job, texts, {**_NO_COSTS, "server_seconds": time.monotonic() - begun})


def expanded_private(job: Job, measures: Measures) -> dict[str, Any]:
    """The same of the private text itself: the ceiling of private evolution, without privacy."""
    own = measures.samples(measures.plan.people.private(job.cell.seed)).texts
    return measures.of_text(job, _expanded(job, own, source="private"), {})


def random_text(job: Job, measures: Measures) -> dict[str, Any]:
    """The model fine-tuned on public text that nobody chose, as much as is read, by the seed.

    Taught, it is by the larger public model that teaches the joint sketch's student.
    """
    taught = None
    if job.cell.method.name == "distill-public":
        taught = Distillation(str(job.values["teacher"]))
    begun = time.monotonic()
    with job.progress.stage("Read the public text"):
        texts = random_public_text(
            str(job.values["public-text"]),
            measures.plan.downstream,
            settings=measures.plan.training,
            seed=job.cell.seed,
        )
    quality = measures.tuned(job, texts, taught)
    costs = {**_NO_COSTS, "server_seconds": time.monotonic() - begun}
    return {"quality": quality, "costs": costs}


def told_domain(job: Job, measures: Measures) -> dict[str, Any]:
    """The model fine-tuned on what the generator writes when it is told the `domain`, no more."""
    begun = time.monotonic()
    texts = _told(job)
    return measures.of_text(job, texts, {**_NO_COSTS, "server_seconds": time.monotonic() - begun})


def prompt_chosen(job: Job, measures: Measures) -> dict[str, Any]:
    """The model fine-tuned on public text that is like what the generator writes of the `domain`.

    Rows are scored by the log-ratio of their tokens in that text to public text (DSIR, Xie et al.,
    NeurIPS 2023), and as many are chosen as a joint sketch chooses.
    """
    begun, values, like = time.monotonic(), job.values, _told(job)
    tokenizer = load_tokenizer(measures.plan.downstream)[0]
    public = PublicRows.of(
        str(values["public-text"]),
        tokenizer=tokenizer,
        max_tokens=int(values["max-tokens"]),
    )
    size = public.vocabulary
    parts = [np.bincount(chunk.tokens, minlength=size) for chunk in public.chunks()]
    there = np.sum(parts, axis=0)
    written = np.bincount(np.concatenate(token_ids(tokenizer, like)), minlength=size)
    ratios = np.log((written + 0.5) / written.sum()) - np.log((there + 0.5) / there.sum())
    scorer = LogRatioScorer(tokens=ratios, weights=surprisal_weights(there))
    chosen = choose(
        public,
        long_rows(scorer, int(values["least-row-tokens"])),
        share=float(values["select-share"]),
        least=int(values["least-selected"]),
        progress=job.progress,
    )
    texts = [public.text_of(int(index)) for index in chosen.indices]
    quality = measures.tuned(job, texts)
    costs = {**_NO_COSTS, "server_seconds": time.monotonic() - begun}
    return {"quality": quality, "costs": costs}


def _told(job: Job) -> list[str]:
    """What the generator writes of the domain: once for all cells that are told the same."""
    said = {key: job.values[key] for key in _TOLD} | {"prompt": "", "num-candidates": 1}
    told = hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=8).hexdigest()
    once = replace(job, values={**said, "seed": 0})
    return _expanded(once, [], source="told", kept=job.folder.parent / f"told-{told}.jsonl")


def paraphrases(job: Job, measures: Measures) -> dict[str, Any]:
    """The model fine-tuned on users' texts in other words, each told by its owner (DP-Prompt).

    The epsilon is pure, local and of one sample of text, and follows from the `temperature`:
    `flower_privsyn.comparison.paraphrase`. As many samples are told as other methods write texts
    (`synthetic-samples`), drawn among all users' by the seed.

    Raises:
        ConfigError: The generator is no model that runs here, or cannot hold the text.
    """
    values = job.values
    private = measures.plan.people.private(job.cell.seed)
    samples = measures.samples(private, max_tokens=int(values["max-tokens"]))
    random = np.random.default_rng([job.cell.seed, 4])
    wanted = min(int(values["synthetic-samples"]), len(samples))
    drawn = np.sort(random.choice(len(samples), wanted, replace=False)).tolist()
    begun = time.process_time()
    paraphraser = Paraphraser(
        str(values["generator"]),
        max_document_tokens=int(values["max-tokens"]),
        max_new_tokens=int(values["max-new-tokens"]),
    )
    low, high = paraphraser.logit_bounds()
    choice = TokenChoice(
        low=low,
        high=high,
        temperature=float(values["temperature"]),
        vocabulary=paraphraser.vocabulary,
    )
    epsilon = paraphraser.epsilon(choice)
    chosen, texts = [samples.texts[place] for place in drawn], []
    with job.progress.stage("Tell the users' text in other words", wanted) as stage:
        for batch in paraphraser.paraphrase(chosen, choice, random=SecureRandom()):
            texts += batch
            stage.update(len(batch))
    people = len(private)
    costs = {
        **_NO_COSTS,
        # A message of the text itself; of those whose text was not drawn, none.
        "bytes_up": round(sum(len(text.encode()) for text in texts) / people),
        "client_cpu_seconds": (time.process_time() - begun) / people,
    }
    most = int(np.bincount(samples.owners[drawn]).max(initial=0))
    local = {"sample": epsilon, "user": most * epsilon}
    found = measures.of_text(job, [text for text in texts if text], costs)
    return {**found, "local_epsilon": local}


#: The part of a cell's record that says what was measured, by the method's name.
REFERENCES: Final[Mapping[str, Callable[[Job, Measures], dict[str, Any]]]] = {
    "public-only": floor,
    "expand-only": expanded_public,
    "random-public": random_text,
    "distill-public": random_text,
    "told-domain": told_domain,
    "prompt-chosen": prompt_chosen,
    "dp-prompt": paraphrases,
    "expand-private": expanded_private,
    "finetune-private": ceiling,
}

#: Settings that the text of a generator depends on that is told the domain.
_TOLD: Final = ExpandingSettings.of_lists() - {"prompt"} | {"synthetic-samples"}

#: By method the settings that its figures depend on, besides `MEASURED`.
READ: Final[Mapping[str, Set[str]]] = {
    "public-only": set(),
    "expand-only": _TOLD | {"num-candidates", "prompt", "public-text"},
    "random-public": {"public-text"},
    "distill-public": {"public-text", "teacher"},
    "told-domain": _TOLD,
    "prompt-chosen": _TOLD | {"public-text", "least-row-tokens", "least-selected", "select-share"},
    "dp-prompt": {"generator", "max-new-tokens", "synthetic-samples", "temperature"},
    "expand-private": _TOLD | {"num-candidates", "prompt"},
    "finetune-private": set(),
}

#: Settings that all are measured by.
MEASURED: Final = {"embedding-model", "embedding-precision", "max-tokens"}


def _expanded(
    job: Job, known: Sequence[str], *, source: str, kept: Path | None = None
) -> list[str]:
    """Text, expanded by the generator: what private evolution does without any votes.

    Args:
        job: the cell.
        known: texts to show the generator, of which as many as there are candidates are drawn.
        source: what they are called.
        kept: where the texts are written down; None for a file of the cell's.
    """
    values, kept = job.values, kept or job.folder / "expanded.jsonl"
    kept.touch(mode=0o600)  # for its owner's eyes, whatever it is made of
    seed = int(values["seed"])
    drawn = np.random.default_rng([seed, 1]).permutation(len(known))
    seeds = [known[index] for index in drawn[: int(values["num-candidates"])]]

    given = ExpandingSettings.of_lists() & values.keys()
    settings = ExpansionSettings(**{key.replace("-", "_"): values[key] for key in given})
    records, _ = expand_resumably(
        settings.expansion_by(settings.prompt),
        seeds,
        ids=[f"{source}-{index}" for index in drawn[: len(seeds)]],
        num_samples=int(values["synthetic-samples"]),
        kept=kept,
        seed=int(np.random.SeedSequence([seed, 2, 1]).generate_state(1, np.uint64)[0]),
        round_number=0,
        source="expanded",
        stage=f"Expand {source} text",
        progress=job.progress,
    )
    return [str(record["text"]) for record in records]
