"""More text from a finished run: post-processing of what it released, free of privacy cost."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import read_json_lines
from flower_privsyn.generation import load_trained_generator
from flower_privsyn.generation.backends import derive_seed
from flower_privsyn.generation.openai_backend import is_address
from flower_privsyn.generation.topics import quotas
from flower_privsyn.models import has_model
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import (
    TRAINED_MODEL,
    named,
    round_texts,
    supervisor_lock,
    writer_in,
)
from flower_privsyn.strategies._population import Population, survivors
from flower_privsyn.strategies._synthesis import ExpansionSettings, expand_resumably
from flower_privsyn.strategies.ctcl import TopicsOfRun, write_by_topic

#: Settings that name what is opened, asked or sent, and what of them is harmless in anybody's run
#: directory: an address, a key, a file or a model that is not here is not.
_NAMES: Final[Mapping[str, Callable[[str], bool]]] = {
    "generator": has_model,
    "prompt": lambda prompt: not prompt.endswith(".json"),
    "generator-parameters": lambda parameters: not parameters,
}


@dataclass(frozen=True, kw_only=True)
class MoreText(ExpansionSettings):
    """How more text is written; the settings of the run under the same names, unless others are.

    Raises:
        ConfigError: a value is out of range, or the generator's name may hold a key.
    """

    generator: str
    """The language model; the run's own unless another is named."""

    @classmethod
    def of(cls, run: RunDirectory, changed: Mapping[str, Any]) -> Self:
        """What a run was set to, and what is to be otherwise.

        Args:
            run: its directory.
            changed: values by the names above; None for the run's.

        Raises:
            ConfigError: the run names no generator, as where an object of its app wrote, and none
                is given; or its directory alone names a generator, parameters or a prompt.
        """
        own = run.config
        values = {name: own[key] for name in cls.declared if (key := name.replace("_", "-")) in own}
        given = {name: value for name, value in changed.items() if value is not None}
        trained = _trained(run) if TopicsOfRun.read(run) is not None else writer_in(run.path)
        if trained is not None:
            values["generator"] = str(trained)  # the run's own, which it has made
        values |= given
        if not values.get("generator"):
            raise ConfigError(
                f"the run in {run.path} has no setting generator: name one with --set "
                "generator=NAME"
            )
        if not values.get("prompt") and values["generator"] != str(trained):
            values.pop("prompt", None)  # "" is for a generator that has learnt what to write
        names = dict(_NAMES)
        if not is_address(values["generator"]) and "generator_parameters" not in given:
            values.pop("generator_parameters", None)  # which were the run's server's
        if trained is not None:
            del names["generator"]
        for key, here in names.items():
            if (name := key.replace("-", "_")) in values and name not in given:
                values[name] = named(run, key, here=here, instead=f"name it with --set {key}=...")
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written.

    Attributes:
        path: the file of texts.
        texts: in it now.
        seeds: different texts of the run that stood in prompts.
        kind: what the seeds are, in words.
        dropped: texts that were not kept, by reason.
        by_class: texts of every class; None where the run's texts have none.
    """

    path: Path
    texts: int
    seeds: int
    kind: str
    dropped: Mapping[str, int]
    by_class: Mapping[str, int] | None = None


def write_more(
    run: RunDirectory, settings: MoreText, *, num_samples: int, seed: int, progress: Progress
) -> Written:
    """Write texts after those of a finished run, into a file of their own in its directory.

    Texts are on the disk batch by batch; the same call goes on with what is there, and other
    settings or another seed have another file. Where a run's texts have classes, a text is written
    after texts of one class and has its label, and there are as many of each class as its share of
    the released votes. The generator that a run has trained to write by topic writes by the run's
    topics; every other one is shown the run's texts.

    Args:
        run: a finished run.
        settings: how to write.
        num_samples: texts in the file in the end, >= 1.
        seed: another one gives other texts.
        progress: where the work reports.

    Formal guarantee:
        Post-processing. What stands in the prompts was released, or made from what was: the
        epsilons of the run hold for these texts with it.

    Raises:
        RunDirectoryError: the run has not finished, or somebody writes to the file.
        ConfigError: the run holds no texts, or a generator that goes on with topics is to answer
            messages.
        GenerationError: the generator failed; what it wrote before stays.
    """
    run.refuse_unfinished()
    topics, round_number = _topics(run, settings), max(run.finished_rounds(), default=0)
    if topics is None:
        seeds, kind = _seeds(run)
    else:
        seeds = Population.create(topics.conditions, round_number=0, source="topic")
        kind = "topics"
    used = {**asdict(settings), "seed": seed, "seeds": seeds.texts}
    digest = hashlib.blake2b(json.dumps(used).encode(), digest_size=4).hexdigest()
    path = run.path / f"expanded-{_short(settings.generator)}-{digest}.jsonl"
    by_class: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    with supervisor_lock(run.path, file=path):
        if topics is None:
            expand = settings.expansion_by(settings.prompt)
            for name, quota in _quotas(run, seeds, num_samples).items():
                own = np.ones(len(seeds)) if name is None else np.array(seeds.labels) == name
                shown = seeds.take(np.flatnonzero(own))
                key = ("more text",) if name is None else ("more text", name)
                records, left_out = expand_resumably(
                    expand,
                    shown.texts,
                    ids=shown.ids,
                    num_samples=quota,
                    kept=path,
                    seed=derive_seed(seed, *key, 0),
                    round_number=round_number,
                    source="expanded",
                    stage="Write more text" if name is None else f"Write more text: {name}",
                    progress=progress,
                    label=name,
                )
                by_class[name or ""] = len(records)
                dropped.update(left_out)
        else:
            records, left_out = write_by_topic(
                load_trained_generator(Path(settings.generator)),
                topics.conditions,
                topics.weights,
                num_samples,
                sampling=settings.sampling_parameters(derive_seed(seed, "more text")),
                source="expanded",
                round_number=round_number,
                kept=path,
                progress=progress,
            )
            by_class[""] = len(records)
            dropped.update(left_out)
    return Written(
        path=path,
        texts=sum(by_class.values()),
        seeds=len(set(seeds.texts)),
        kind=kind,
        dropped=dropped,
        by_class=None if seeds.labels is None else by_class,
    )


def _trained(run: RunDirectory) -> str:
    """The model that a run has trained, as a generator's name."""
    return str(run.path / TRAINED_MODEL)


def _topics(run: RunDirectory, settings: MoreText) -> TopicsOfRun | None:
    """What the generator goes on with that a run has trained to; None for every other one."""
    topics = TopicsOfRun.read(run) if settings.generator == _trained(run) else None
    if topics is not None and settings.generator_interface == "chat":
        raise ConfigError(
            'generator-interface = "chat" is not for the generator that the run has trained, which '
            'goes on with its topics: "completions", or another generator'
        )
    return topics


def _seeds(run: RunDirectory) -> tuple[Population, str]:
    """The texts of a run that may stand in prompts, and what they are."""
    found = survivors(run)
    kind = f"survivors of {len(run.rounds_with_outcome('released'))} rounds"
    if not len(found):
        kind, records = "synthetic texts", list(read_json_lines(run.synthetic_jsonl))
        found = Population(
            texts=[str(record["text"]) for record in records],
            ids=[f"synthetic:{index}" for index in range(len(records))],
            parents=[()] * len(records),
            source=["synthetic"] * len(records),
            labels=[str(record["label"]) for record in records if "label" in record] or None,
        )
    if not len(found):
        raise ConfigError(f"the run in {run.path} holds no texts, only a model: nothing to expand")
    return found, kind


def _quotas(run: RunDirectory, seeds: Population, num_samples: int) -> dict[str | None, int]:
    """How many texts are to be of each class: as the released votes say.

    A class whose noisy votes are below 0 has none; where all are, every class has the same. Only
    classes of which there is a text count.
    """
    if seeds.labels is None:
        return {None: num_samples}
    votes = dict.fromkeys(seeds.labels, 0.0)
    for rows in round_texts(run).values():
        for row in rows:
            if row.get("label") in votes:
                votes[row["label"]] += row["votes"]
    weights = np.maximum(list(votes.values()), 0.0)
    dealt = quotas(weights if weights.any() else weights + 1.0, num_samples)
    return dict(zip(votes, dealt.tolist(), strict=True))


def _short(generator: str) -> str:
    """A generator's name as part of a file's: the model's own, without folder or server."""
    last = re.split(r"[/#\\]", generator.rstrip("/"))[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "generator"
