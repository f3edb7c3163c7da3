"""Writing texts by topic, as many of each as a histogram says, so that nothing written is lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.files import append_json_lines, read_json, read_json_lines, write_json
from flower_privsyn.generation import SamplingParameters, TextGenerator
from flower_privsyn.generation.streams import derive_seed
from flower_privsyn.generation.topics import quotas
from flower_privsyn.host.progress import ProgressReporter
from flower_privsyn.runs import RunDirectory

if TYPE_CHECKING:
    from flower_privsyn.training.local import LocalModel

#: The topics of a run, in its directory: what its texts are conditioned on, and how often.
TOPICS_FILE: Final = "topics.json"

_PARENT: Final = "topic:"
_WORD: Final = re.compile(r"\w+")

#: Which texts are not kept for their words, beside empty ones and duplicates.
WordFilter = Literal["none", "released"]

#: Of the filter in the code that Tan et al. released: words and marks, how long and how often one
#: may be, and those that may come as often as they like.
_WORD_OR_MARK: Final = re.compile(r"[\w'-]+|[^\w\s]")
_LONGEST_WORD: Final = 25
_MOST_TIMES: Final = 20
_ANY_NUMBER: Final = frozenset({"the", "a", ",", "."})

#: Texts asked for at a time: what a killed process loses.
_BATCH: Final = 256

#: Batches one after the other of which nothing could be kept.
_MOST_IN_VAIN: Final = 20


def check_room(
    model: LocalModel, conditions: Sequence[str], *, name: str, tokens: Mapping[str, int]
) -> None:
    """Refuse texts that do not fit a model behind their conditions, before anything is spent.

    Args:
        model: that is trained, and writes.
        conditions: what stands before a text.
        name: of the model, as it was named.
        tokens: of a text, by the settings that say so.

    Raises:
        ConfigError: one is more than the model takes.
    """
    room = model.max_tokens
    if room is None:
        return
    longest = max(map(len, model.encode(conditions)))
    for key, count in tokens.items():
        if longest + count > room:
            raise ConfigError(
                f"{key} = {count} and conditions of up to {longest} tokens are more than the "
                f"{room} tokens that model {name!r} takes"
            )


@dataclass(frozen=True, kw_only=True)
class TopicsOfRun:
    """The topics of a run as they stand in its directory.

    Attributes:
        about: where they come from, in words.
        digest: of their centres.
        conditions: (k,) what stands before a text of each.
        weights: (k,) of the texts, once they are written; what a release said, or public shares.
    """

    about: str
    digest: str
    conditions: tuple[str, ...]
    weights: tuple[float, ...] = ()

    @classmethod
    def read(cls, run: RunDirectory) -> TopicsOfRun | None:
        """Those of a run; None where it has none."""
        stored = read_json(run.path / TOPICS_FILE)
        if not stored:
            return None
        return cls(
            about=str(stored["about"]),
            digest=str(stored["digest"]),
            conditions=tuple(stored["conditions"]),
            weights=tuple(stored["weights"]),
        )

    def write(self, run: RunDirectory) -> None:
        """Keep them in the directory of a run, for its owner alone: the weights are a release."""
        write_json(run.path / TOPICS_FILE, asdict(self), for_the_owner=True)


@dataclass(frozen=True, kw_only=True)
class TopicWriter:
    """Writes texts after conditions, an exact number after each.

    Attributes:
        generator: what writes.
        conditions: (k,) texts that the generator goes on with.
        sampling: how it draws; its seed is that of the first batch.
        word_filter: "released" drops texts with a word of more than 25 characters, without a
            word in letters, or with one word or mark more than 20 times ("the", "a", comma and
            full stop may be there as often as they like).
        source: stored with every text.
        round_number: stored with every text.
    """

    generator: TextGenerator
    conditions: Sequence[str]
    sampling: SamplingParameters
    word_filter: WordFilter = "none"
    source: str = "topic"
    round_number: int = 1

    def write(
        self,
        weights: Sequence[float] | npt.NDArray[np.float64],
        num_samples: int,
        *,
        kept: Path,
        progress: ProgressReporter,
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Write until every topic has its texts; what an earlier attempt kept counts.

        Texts are written down batch by batch. Empty ones and exact duplicates are dropped, and
        others written in their place.

        Args:
            weights: (k,) by which the texts are dealt to topics.
            num_samples: texts in all, >= 1.
            kept: JSON-lines file of the texts kept so far.
            progress: where the work reports.

        Returns:
            The records, as many of each topic as `quotas` says, and how many texts were dropped, by
            reason.

        Raises:
            ConfigError: no topic has a weight above zero.
            GenerationError: the generator failed, or writes nothing that can be kept; what it wrote
                before is in `kept`.
        """
        wanted = quotas(np.asarray(weights), num_samples)
        records, extra = self._kept_before(kept, wanted)
        dropped: Counter[str] = Counter()
        vain: Counter[str] = Counter()  # of the batches since the last one of which a text was kept
        known = {str(record["text"]) for record in (*records, *extra)}
        written = len(known)
        in_vain = 0
        with progress.stage("Write texts by topic", num_samples) as stage:
            stage.update(len(records))
            while pending := self._pending(wanted, records):
                seed = derive_seed(self.sampling.seed, "texts by topic", written, in_vain)
                reasons: Counter[str] = Counter()
                texts = self.generator.generate(
                    [self.conditions[topic] for topic in pending],
                    sampling=replace(self.sampling, seed=seed),
                )
                fresh = []
                for topic, (text,) in zip(pending, texts, strict=True):
                    flat = " ".join(text.split())
                    if reason := self._refused(flat, known):
                        reasons[reason] += 1
                        continue
                    known.add(flat)
                    fresh.append(self._record(flat, topic))
                append_json_lines(kept, fresh)
                records += fresh
                written += len(fresh)
                stage.update(len(fresh))
                dropped += reasons
                vain = Counter() if fresh else vain + reasons
                in_vain = 0 if fresh else in_vain + 1
                if in_vain == _MOST_IN_VAIN:
                    raise GenerationError(
                        f"the generator {self.generator.name} writes nothing that can be kept: of "
                        f"the last {vain.total()} texts each was {' or '.join(vain)}; "
                        f"{len(records)} of {num_samples} texts are kept in {kept}"
                    )
        return records, dict(dropped)

    def _kept_before(
        self, kept: Path, wanted: npt.NDArray[np.int64]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """What earlier attempts kept: as many of each topic as are wanted now, and the rest."""
        records: list[dict[str, Any]] = []
        extra: list[dict[str, Any]] = []
        seen: Counter[int] = Counter()
        for record in read_json_lines(kept):
            topic = _topic_of(record)
            seen[topic] += 1
            inside = topic < len(wanted) and seen[topic] <= wanted[topic]
            (records if inside else extra).append(record)
        return records, extra

    def _pending(
        self, wanted: npt.NDArray[np.int64], records: Sequence[dict[str, Any]]
    ) -> list[int]:
        """The topics of the texts that are still to be written, in one batch."""
        missing = wanted - np.bincount(
            [_topic_of(record) for record in records], minlength=len(wanted)
        )
        return [int(topic) for topic in np.repeat(np.arange(len(missing)), missing)[:_BATCH]]

    def _refused(self, text: str, known: set[str]) -> str:
        """Why a text is not kept; "" for one that is."""
        if not text or "\ufffd" in text:
            return "empty or broken"
        if text in known:
            return "a duplicate"
        if self.word_filter == "released":
            return _by_released_filter(text)
        return ""

    def _record(self, text: str, topic: int) -> dict[str, Any]:
        return {
            "text": text,
            "round": self.round_number,
            "parent": [f"{_PARENT}{topic}"],
            "source": self.source,
        }


def _by_released_filter(text: str) -> str:
    """Why the authors' code would leave a text out; "" for one that it keeps."""
    words = [word.lower() for word in _WORD_OR_MARK.findall(text)]
    if not any(word.isalpha() for word in words):
        return "without a word in letters"
    if max(map(len, words)) > _LONGEST_WORD:
        return "with an overlong word"
    often = Counter(word for word in words if word not in _ANY_NUMBER)
    if not often:
        return "without a word of its own"
    return "one word over and over" if max(often.values()) > _MOST_TIMES else ""


def _topic_of(record: dict[str, Any]) -> int:
    return int(record["parent"][0].removeprefix(_PARENT))
