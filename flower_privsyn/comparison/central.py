"""CTCL and what it was compared with as they were published: all records in one place.

The unit of privacy is a RECORD, and whoever runs this sees every one of them. Nothing here is
private in the sense of the rest of this package, whose unit is a user: the figures stand in a table
of their own, which says so.

Papers:
    Tan et al., "Synthesizing Privacy-Preserving Text Data via Finetuning without Finetuning
    Billion-Scale LLMs" (CTCL, 2025), section 4.1.2: the baselines.
    Yue et al., "Synthetic Text Generation with Differential Privacy: A Simple and Practical
    Recipe" (ACL 2023): a generator fine-tuned by DP-Adam.
    Yu et al., "Privacy-Preserving Instructions for Aligning Large Language Models" (ICML 2024):
    texts resampled by a private histogram after they were written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import NonNegativeFloat, NonNegativeInt, PositiveInt, Settings
from flower_privsyn.data import Cut
from flower_privsyn.embedding import (
    Embedder,
    default_cache_directory,
    load_embedder,
    require_company,
)
from flower_privsyn.errors import ConfigError, DataError, ModelError
from flower_privsyn.files import (
    append_json_lines,
    located,
    plain,
    read_json,
    read_json_lines,
    replacing,
    write_json,
)
from flower_privsyn.generation import SamplingParameters, load_trained_generator
from flower_privsyn.generation.streams import derive_seed, stream
from flower_privsyn.generation.topics import Topics, check_document_type, load_topics, quotas
from flower_privsyn.host.progress import ProgressReporter
from flower_privsyn.privacy import GaussianMechanism, Plan, RandomSource, SecureRandom
from flower_privsyn.queries import TrainableModel
from flower_privsyn.queries.model_delta import Trainable
from flower_privsyn.runs import lock_file
from flower_privsyn.strategies.parts.topic_texts import TopicWriter, WordFilter, check_room
from flower_privsyn.training.dp_adam import RECORD_LEVEL, DPAdam, Example, RecordModel
from flower_privsyn.training.fingerprint import digest_of_texts

CentralMethod = Literal["ctcl", "vanilla", "resampled", "downstream"]
CENTRAL_METHODS: Final[tuple[str, ...]] = get_args(CentralMethod)

#: In a folder: what it was begun with, the noisy counts of topics, and who is at work.
_BEGUN: Final = "begun.json"
_HISTOGRAM: Final = "histogram.json"
_LOCK: Final = ".lock"

#: Public texts of different lengths, on which gradients by record are tried.
_PROBES: Final = (
    "The river rises in the mountains and flows to the sea.",
    "A short one.",
    "Members of the committee met again in the afternoon, and the chair thanked them for coming.",
)


@dataclass(frozen=True, kw_only=True)
class CentralBaseline(Settings):
    """One method with all records in one place.

    References:
        Tan et al. 2025, sections 4.1.2 and 4.1.3, whose values the defaults are where models of
        this package allow it.
    """

    method: Annotated[
        CentralMethod,
        '"ctcl": a generator of documents after the keywords of their topics, sampled by the '
        'histogram; "vanilla": of documents alone; "resampled": the same, its texts drawn again '
        'by the histogram; "downstream": the downstream model itself, without any text.',
    ]
    epsilon: Annotated[float, Gt(0), Le(math.inf), "budget of everything, at record level."]
    delta: Annotated[NonNegativeFloat, "0 for 1 / (n ln n) of the n records."] = 0.0
    histogram_noise_multiplier: Annotated[
        float, Gt(0), Le(1e6), "of the histogram, to which a record adds 1."
    ] = 10.0
    model: Annotated[
        str, "model that is trained: causal, or an encoder-decoder such as BART or T5."
    ] = "privsyn-lm"
    trainable: Annotated[Trainable, 'what of it: "full" or "lora".'] = "full"
    lora_rank: Annotated[PositiveInt, "of adapters."] = 4
    max_tokens: Annotated[
        PositiveInt, "tokens of a record; the rest of a document is not read."
    ] = 64
    topics: Annotated[str, '"bundled", or a file that `make_topics` made.'] = "bundled"
    num_topics: Annotated[PositiveInt, "which coarseness of them."] = 64
    document_type: Annotated[str, "what the documents are, in public words."] = ""
    synthetic_samples: Annotated[PositiveInt, "texts to write."] = 2000
    max_new_tokens: Annotated[PositiveInt, "of a text."] = 85
    top_p: Annotated[float, Gt(0), Le(1), "the nucleus."] = 0.95
    repetition_penalty: Annotated[
        float, Ge(1), Le(100), "of what is written; 1.5 in the released code."
    ] = 1.0
    word_filter: Annotated[
        WordFilter, '"released": leave out what the released code leaves out.'
    ] = "none"
    seed: Annotated[NonNegativeInt, "of what is written."] = 0
    optimiser: DPAdam = field(default_factory=DPAdam)

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        check_document_type("--document-type", self.document_type)

    def _called(self, name: str) -> str:
        return f"--{name.replace('_', '-')}"

    @property
    def has_histogram(self) -> bool:
        """Whether records vote for topics."""
        return self.method in ("ctcl", "resampled")

    def plan(self, records: int) -> Plan:
        """What is released of so many records, and with which noise.

        Raises:
            ConfigError: no noise keeps the budget.
        """
        return self.optimiser.plan(
            records,
            delta=self.delta or 1.0 / (records * math.log(records)),
            epsilon=self.epsilon,
            histogram_multiplier=self.histogram_noise_multiplier if self.has_histogram else None,
        )


@dataclass(frozen=True, kw_only=True)
class CentralResult:
    """What a central baseline made.

    Attributes:
        model: folder of the trained model.
        texts: what it wrote; none of "downstream".
        privacy: what `privacy.json` beside the model says.
    """

    model: Path
    texts: tuple[str, ...]
    privacy: dict[str, Any]


class CentralRun:
    """A baseline at work.

    Args:
        baseline: the settings.
        output: folder to become the result.
        progress: where the work reports.
        embedder: finds topics; None for all-MiniLM-L6-v2.
        random: source of noise and coins; only tests pass one.

    Raises:
        ConfigError: the topics were made with another embedding model, or the folder holds
            something else, or this method with other settings or topics.
        ModelError: gradients by record of the model are not to be had.
    """

    def __init__(
        self,
        baseline: CentralBaseline,
        output: Path,
        *,
        progress: ProgressReporter,
        embedder: Embedder | None = None,
        random: RandomSource | None = None,
    ) -> None:
        self.baseline, self._output, self._progress = baseline, output, progress
        self._random: RandomSource = random or SecureRandom()
        self._refuse_other_settings()
        self._embedder: Embedder | None = None
        self._topics: Topics | None = None
        if baseline.has_histogram:
            hierarchy = load_topics(located(baseline.topics))
            self._topics = hierarchy.at(baseline.num_topics)
            self._refuse_other_topics(self._topics)
            self._embedder = embedder or load_embedder("all-MiniLM-L6-v2")
            hierarchy.check_embedder(self._embedder, setting=f'topics = "{baseline.topics}"')
            # A record moves the histogram by its own topic alone, and no other record's.
            require_company(self._embedder, default_cache_directory())
        self._model = self._public_model()
        self._asked = False  # whether records may have moved it
        if self._model.encoder_decoder and self._writes_nothing:
            raise ModelError(
                f"model {baseline.model!r} is an encoder-decoder, which has no next token of a "
                "document alone: downstream models are causal"
            )
        check_room(
            self._model,
            self._conditions(),
            name=baseline.model,
            tokens={
                "--max-tokens": baseline.max_tokens,
                # Of what writes nothing, nothing has to fit.
                "--max-new-tokens": 0 if self._writes_nothing else baseline.max_new_tokens,
            },
        )
        self._model.check_gradients(
            [
                Example(tokens=tuple(row), given=min(given, len(row) - 1))
                for given, row in enumerate(self._model.encode(_PROBES), start=1)
            ]
        )

    def _public_model(self) -> RecordModel:
        """The model as it is before any record is seen."""
        baseline = self.baseline
        return RecordModel(
            TrainableModel(
                name=located(baseline.model),
                trainable=baseline.trainable,
                lora_rank=baseline.lora_rank,
                lora_alpha=2 * baseline.lora_rank,
            )
        )

    def _refuse_other_topics(self, topics: Topics) -> None:
        counted = read_json(self._output / _BEGUN).get("topics")  # an older version wrote none
        if counted and counted != topics.digest():
            raise ConfigError(
                f"--output {self._output} was begun with other topics than those of --topics "
                f"{self.baseline.topics} now: name another folder"
            )

    def _refuse_other_settings(self) -> None:
        begun = read_json(self._output / _BEGUN)
        if not begun:
            folder = self._output
            if folder.exists() and any(one.name != _LOCK for one in folder.iterdir()):
                raise ConfigError(f"--output {self._output} is not empty: name another folder")
            return
        asked = _settings(self.baseline)
        for key in sorted(asked):
            before = begun["settings"].get(key)
            if before != asked[key]:
                raise ConfigError(
                    f"--output {self._output} was begun with {self.baseline._called(key)} = "
                    f"{before}, got {asked[key]}: name another folder"
                )

    def check(self, documents: Sequence[str]) -> Plan:
        """What `run` would spend on documents, or why it cannot.

        Raises:
            DataError: there are fewer than two, or the folder was begun with others.
            ConfigError: no noise keeps the budget, or the folder was begun with other settings
                since this object was made.
        """
        if len(documents) < 2:
            raise DataError(f"there must be at least 2 records, got {len(documents)}")
        self._refuse_other(documents)
        return self.baseline.plan(len(documents))

    def _refuse_other(self, documents: Sequence[str]) -> None:
        """Refuse a folder that was begun otherwise, or whose model is gone."""
        self._refuse_other_settings()
        if self._topics is not None:
            self._refuse_other_topics(self._topics)
        begun = read_json(self._output / _BEGUN)
        if begun and begun["digest"] != digest_of_texts(documents):
            raise DataError(f"--output {self._output} was begun with other records")
        there = self._trained.exists() or self._waiting.exists() or self._has_texts
        if begun.get("trained") and not there:
            raise DataError(
                f"{self._trained} is gone: another model of these records would cost as much "
                "again, and what is said of the first would be said of both; name another folder"
            )

    def run(self, documents: Sequence[str]) -> CentralResult:
        """Train on the records and write what is to be written.

        Killed while it trains, it begins to train anew, of which nothing was written, and keeps the
        histogram that was. Killed while it writes, it goes on with what is written; finished, it is
        read.

        Formal guarantee:
            Unit: RECORD, one document of which the first `max_tokens` tokens count; relation:
            zero-out, its text is replaced by nothing. How many documents there are is public, and
            in `privacy.json`; which of them have text is not, so that all of them flip coins. The
            steps of DP-Adam and the histogram compose to (epsilon, delta) by privacy loss
            distributions (`DPAdam.plan`). What is written is post-processing. The topics are
            public: made of none of these records.

        Args:
            documents: the records, those without text included.

        Raises:
            DataError: fewer than two have any text, or the folder was begun with others, or its
                model is gone.
            ConfigError: no noise keeps the budget, or another process has begun in the folder with
                other settings since this object was made.
            RunDirectoryError: another process is at work in the folder.
            GenerationError: the model writes nothing that can be kept; what it wrote is.
        """
        plan = self.check(documents)
        model = self._trained
        self._output.mkdir(parents=True, exist_ok=True)
        with lock_file(self._output / _LOCK, what=f"the folder {self._output}"):
            # Nobody held it until now: another process may have begun here with other settings.
            self._refuse_other(documents)
            begun = read_json(self._output / _BEGUN)
            if not (begun.get("trained") or model.exists() or self._has_texts):
                self._train(plan, documents)
                begun = read_json(self._output / _BEGUN)
            # Noted before the model is where somebody may take it: whoever trains again must know.
            write_json(self._output / _BEGUN, {**begun, "trained": True}, for_the_owner=True)
            if self._waiting.exists() and not model.exists():
                self._waiting.rename(model)
            texts = self._write(model)
        privacy = read_json(self._output / "privacy.json")
        return CentralResult(model=model, texts=tuple(texts), privacy=privacy)

    @property
    def _has_texts(self) -> bool:
        """Whether all texts are written, so that nothing needs the model any more."""
        return not self._writes_nothing and (self._output / "synthetic.jsonl").exists()

    @property
    def _trained(self) -> Path:
        """The model; once it is there, the records have been asked."""
        return self._output / "model"

    @property
    def _waiting(self) -> Path:
        """The same until it is noted that they have been."""
        return self._output / ".model"

    def _train(self, plan: Plan, documents: Sequence[str]) -> None:
        """Say what it costs, then ask the records for each part once; the model comes last."""
        examples, of_records = self._read(documents)
        if len(of_records) < 2:
            raise DataError(f"{len(of_records)} records have text to learn, at least 2 are needed")
        begun = {
            "settings": _settings(self.baseline),
            "digest": digest_of_texts(documents),
            "topics": None if self._topics is None else self._topics.digest(),
        }
        write_json(self._output / _BEGUN, begun, for_the_owner=True)
        noise = {phase.name: phase.noise_multiplier or 0.0 for phase in plan.phases}
        optimiser = self.baseline.optimiser
        write_json(self._output / "privacy.json", self._said(plan, len(examples)))
        counted = self._output / _HISTOGRAM
        if self._topics is not None and not counted.exists():
            histogram = self._histogram(of_records, noise["topics"], size=len(self._topics))
            write_json(counted, {"counts": histogram.tolist()}, for_the_owner=True)
        if self._asked:
            # Of an attempt that failed: its steps would be in the model, and in no account.
            self._model = self._public_model()
        self._asked = True
        title = "Train by DP-Adam, at record level"
        with self._progress.stage(title, optimiser.steps) as stage:
            self._model.fit(
                examples,
                optimiser,
                noise_multiplier=noise["steps"],
                random=self._random,
                progress=stage.update,
            )
        self._model.save(self._waiting, self._model.parameters)

    def _said(self, plan: Plan, records: int) -> dict[str, Any]:
        epsilon = plan.epsilon()
        return {
            **asdict(self.baseline),
            "unit": "record",
            "says": RECORD_LEVEL,
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "delta": plan.delta,
            "relation": plan.relation.value,
            "accountant": plan.accountant,
            "records": records,
            "secure_randomness": self._random.secure,
            "phases": [
                {
                    "name": phase.name,
                    "releases": phase.rounds,
                    "sampling": str(phase.sampling),
                    "noise_multiplier": phase.noise_multiplier,
                }
                for phase in plan.phases
            ],
        }

    # ------------------------------------------------------------------ records

    def _read(self, documents: Sequence[str]) -> tuple[list[Example], npt.NDArray[np.int64]]:
        """What each document is trained on, and the topics of those that have text to learn."""
        pieces = Cut(max_tokens=self.baseline.max_tokens).pieces(
            documents, tokenizer=self._model.tokenizer
        )
        places = [place for place, found in enumerate(pieces) if found]
        records = [pieces[place][0] for place in places]
        of_records = self._topics_of(records)
        found = self._examples(records, of_records)
        examples = [Example(tokens=())] * len(documents)
        for place, example in zip(places, found, strict=True):
            examples[place] = example
        there = np.array([example.usable for example in found], dtype=np.bool_)
        return examples, of_records[there]

    def _topics_of(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """(n,) the topic of each text; all 0 without topics."""
        if self._topics is None or self._embedder is None:
            return np.zeros(len(texts), dtype=np.int64)
        with self._progress.stage("Find topics", len(texts)) as stage:
            vectors = self._embedder.embed(texts, progress=stage.update)
        return self._topics.nearest(vectors)

    def _histogram(
        self, of_records: npt.NDArray[np.int64], multiplier: float, *, size: int
    ) -> npt.NDArray[np.float64]:
        """(size,) The noisy counts of the topics."""
        counts = np.bincount(of_records, minlength=size).astype(np.float64)
        mechanism = GaussianMechanism(noise_multiplier=multiplier, l2_sensitivity=1.0)
        return mechanism.release(counts, random=self._random)

    def _conditions(self) -> list[str]:
        """What stands before a document of each topic; nothing where the model is told none."""
        if self.baseline.method != "ctcl" or self._topics is None:
            return [""]
        return self._topics.conditions(document_type=self.baseline.document_type)

    def _examples(self, records: Sequence[str], of_records: npt.NDArray[np.int64]) -> list[Example]:
        model = self._model
        rows = model.encode(records)
        if self.baseline.method == "downstream":
            return [Example(tokens=tuple(row)) for row in rows]
        before = model.encode(self._conditions())
        chosen = of_records if len(before) > 1 else np.zeros_like(of_records)
        least = 0 if model.encoder_decoder else 1
        return [
            Example(
                tokens=tuple(model.after_condition(before[topic], row)),
                given=max(least, len(before[topic])),
            )
            for topic, row in zip(chosen.tolist(), rows, strict=True)
        ]

    # ------------------------------------------------------------------ texts

    @property
    def _writes_nothing(self) -> bool:
        return self.baseline.method == "downstream"

    def _write(self, model: Path) -> list[str]:
        """The texts, of which those of an earlier attempt stay."""
        baseline, finished = self.baseline, self._output / "synthetic.jsonl"
        if finished.exists():
            return [str(row["text"]) for row in read_json_lines(finished)]
        texts: list[str] = []
        if not self._writes_nothing:
            counts = read_json(self._output / _HISTOGRAM).get("counts")
            histogram = None if counts is None else np.array(counts, dtype=np.float64)
            texts = self._written(model, histogram)
            if baseline.method == "resampled" and histogram is not None:
                texts = resampled(
                    texts,
                    self._topics_of(texts),
                    histogram,
                    count=baseline.synthetic_samples,
                    seed=baseline.seed,
                )
        with replacing(finished) as temporary:
            append_json_lines(temporary, [{"text": text} for text in texts])
        return texts

    def _written(self, model: Path, histogram: npt.NDArray[np.float64] | None) -> list[str]:
        baseline = self.baseline
        writer = TopicWriter(
            generator=load_trained_generator(model),
            conditions=self._conditions(),
            sampling=SamplingParameters(
                seed=baseline.seed,
                max_new_tokens=baseline.max_new_tokens,
                temperature=1.0,
                top_p=baseline.top_p,
                repetition_penalty=baseline.repetition_penalty,
            ),
            word_filter=baseline.word_filter,
            source="central",
        )
        weights = np.ones(1)
        if baseline.method == "ctcl" and histogram is not None and self._topics is not None:
            weights = histogram if (histogram > 0).any() else self._topics.shares
        # Twice as many to draw from, where texts are drawn again.
        wanted = baseline.synthetic_samples * (2 if baseline.method == "resampled" else 1)
        records, _ = writer.write(
            weights, wanted, kept=self._output / "written.jsonl", progress=self._progress
        )
        return [str(record["text"]) for record in records]


def _settings(baseline: CentralBaseline) -> dict[str, Any]:
    """What a baseline was asked for, those of DP-Adam beside the others, as JSON has them."""
    values = asdict(baseline)
    optimiser = values.pop("optimiser")
    return dict(plain(values | optimiser))


def resampled(
    texts: Sequence[str],
    topics: npt.NDArray[np.int64],
    histogram: npt.NDArray[np.float64],
    *,
    count: int,
    seed: int,
) -> list[str]:
    """Draw texts anew, so that their topics are as often as a histogram says.

    Args:
        texts: (n,) that were written, at least one.
        topics: (n,) of each.
        histogram: (k,) noisy counts of topics; below zero is zero, and topics of which nothing was
            written have none.
        count: texts to draw.
        seed: of the draw.

    Returns:
        As many texts; of a topic with too few of them some come again.

    References:
        Yu et al. 2024 (post-generation resampling).
    """
    there = np.bincount(topics, minlength=len(histogram)) > 0
    weights = np.where(there, histogram, 0.0)
    if not (weights > 0).any():
        weights = there.astype(np.float64)
    random = stream(derive_seed(seed, "resample"))
    found: list[str] = []
    for topic, wanted in enumerate(quotas(weights, count).tolist()):
        own = np.flatnonzero(topics == topic)
        if wanted:
            order = [random.permutation(own) for _ in range(-(-wanted // len(own)))]
            found += [texts[place] for place in np.concatenate(order)[:wanted]]
    return found
