"""More text from a finished run: post-processing of what it released, free of privacy cost."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from flower_privsyn.errors import ConfigError, RunDirectoryError
from flower_privsyn.files import read_json, read_json_lines, write_json
from flower_privsyn.generation.openai_backend import is_address
from flower_privsyn.generation.topics import quotas
from flower_privsyn.locks import lock_file
from flower_privsyn.models import has_model
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory, how_to_resume
from flower_privsyn.run.changes import object_of_the_app, same_model_elsewhere
from flower_privsyn.run.directory import TRAINED_MODEL, named, writer_in
from flower_privsyn.strategies._population import Population, released_texts, survivors
from flower_privsyn.strategies._synthesis import ExpansionSettings, expand_resumably
from flower_privsyn.strategies.ctcl import TopicsOfRun, TopicWriter

if TYPE_CHECKING:
    from flower_privsyn.generation import Expand, TextGenerator

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
            ConfigError: the run names no generator, or had an object of its app write, and none is
                given; or its directory alone names a generator, parameters or a prompt.
        """
        own = run.config
        values = {name: own[key] for name in cls.declared if (key := name.replace("_", "-")) in own}
        given = {name: value for name, value in changed.items() if value is not None}
        trained = _trained(run) if TopicsOfRun.read(run) is not None else writer_in(run.path)
        if trained is not None:
            values["generator"] = str(trained)  # the run's own, which it has made
        elif "generator" not in given and (written := object_of_the_app(run)) is not None:
            raise ConfigError(
                f"the texts of the run in {run.path} were written by an object of its app, "
                f'"{written}", which is not at hand: name a generator with --set generator=NAME'
            )
        values |= given
        if not values.get("generator"):
            raise ConfigError(
                f"the run in {run.path} has no setting generator: name one with --set "
                "generator=NAME"
            )
        names = dict(_NAMES)
        if not is_address(values["generator"]) and "generator_parameters" not in given:
            values.pop("generator_parameters", None)  # which were the run's server's
        if trained is not None:
            del names["generator"]
        for key, here in names.items():
            if (name := key.replace("-", "_")) in values and name not in given:
                values[name] = named(run, key, here=here, instead=f"name it with --set {key}=...")
        return cls(**values)

    def topic_writer(
        self,
        run: RunDirectory,
        topics: TopicsOfRun,
        *,
        seed: int,
        generator: TextGenerator | None = None,
    ) -> TopicWriter:
        """What writes by the topics of a run.

        Args:
            run: whose generator it is.
            topics: of the run.
            seed: another one gives other texts than the run has.
            generator: in place of the one that is named.

        Raises:
            PrivsynError: the generator cannot be loaded.
        """
        from flower_privsyn.generation import load_trained_generator
        from flower_privsyn.generation.streams import derive_seed

        return TopicWriter(
            generator=generator or load_trained_generator(Path(self.generator)),
            conditions=topics.conditions,
            sampling=self.sampling_parameters(derive_seed(seed, "more text")),
            source="expanded",
            round_number=max(run.finished_rounds(), default=0),
        )


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


@dataclass(frozen=True, kw_only=True)
class _Seeds:
    """The texts that may stand in prompts.

    Attributes:
        found: the texts, and their classes where they have some.
        kind: what they are, in words.
        shares: of every class that has a text; empty where there are none.
    """

    found: Population
    kind: str
    shares: Mapping[str, float] = field(default_factory=dict)

    def of_class(self, name: str | None) -> Population:
        """The texts of a class; all of them where there are no classes."""
        if self.found.labels is None:
            return self.found
        return self.found.take(np.flatnonzero(np.array(self.found.labels) == name))

    def quotas(self, num_samples: int) -> dict[str | None, int]:
        """How many texts of each class are to be written: whole numbers next to its share."""
        if self.found.labels is None:
            return {None: num_samples}
        found = quotas(np.array(list(self.shares.values())), num_samples)
        return dict(zip(self.shares, found.tolist(), strict=True))


def write_more(
    run: RunDirectory,
    settings: MoreText,
    *,
    num_samples: int,
    seed: int,
    output: Path | None,
    progress: Progress,
    generator: TextGenerator | None = None,
) -> Written:
    """Write texts after those of a finished run, into a file of their own.

    Texts are on the disk batch by batch; the same call goes on with what is there. Where a run's
    texts have classes, a text is written after texts of one class and has its label, and there are
    as many of each class as its share of the released votes. The generator that a run has trained
    to write by topic writes by the run's topics; every other one is shown the run's texts.

    Args:
        run: a finished run.
        settings: how to write.
        num_samples: texts in the file in the end, >= 1.
        seed: another one gives other texts.
        output: the file; None for one in the run directory, named by generator and seed.
        progress: where the work reports.
        generator: in place of `settings.generator`.

    Formal guarantee:
        Post-processing. What stands in the prompts was released, or made from what was: the
        epsilons of the run hold for these texts with it.

    Raises:
        RunDirectoryError: the run has not finished, or somebody writes to the file.
        ConfigError: the run holds no texts, the file is of something else, or a generator that goes
            on with topics is to answer messages.
        GenerationError: the generator failed; what it wrote before stays.
    """
    if run.status != "finished":
        raise RunDirectoryError(
            f"the run in {run.path} has not finished (it is {run.standing}): "
            f"{how_to_resume(run.path)} finishes it, and its own texts come first"
        )
    topics = _topics(run, settings)
    seeds = _seeds(run) if topics is None else _conditions(topics)
    path = output or run.path / f"expanded-{_short(settings.generator)}-{seed}.jsonl"
    _refuse_own_files(run, path)
    used = _used(run, settings, seeds, seed)
    note = path.with_name(f"{path.name}.settings.json")
    with lock_file(path.with_name(f".{path.name}.lock"), what=f"the file {path}"):
        _refuse_other(path, note, used)
        # Whatever writes is loaded before the note says that something is written.
        if topics is None:
            expand = settings.expansion(generator)
            write_json(note, used)
            by_class, dropped = _expanded(
                expand,
                seeds,
                quotas=seeds.quotas(num_samples),
                seed=seed,
                kept=path,
                round_number=max(run.finished_rounds(), default=0),
                progress=progress,
            )
        else:
            writer = settings.topic_writer(run, topics, seed=seed, generator=generator)
            write_json(note, used)
            records, dropped = writer.write(
                topics.weights, num_samples, kept=path, progress=progress
            )
            by_class = {"": len(records)}
    return Written(
        path=path,
        texts=sum(by_class.values()),
        seeds=len(set(seeds.found.texts)),
        kind=seeds.kind,
        dropped=dropped,
        by_class=None if seeds.found.labels is None else by_class,
    )


def _expanded(
    expand: Expand,
    seeds: _Seeds,
    *,
    quotas: Mapping[str | None, int],
    seed: int,
    kept: Path,
    round_number: int,
    progress: Progress,
) -> tuple[dict[str, int], dict[str, int]]:
    """Write what is missing, class after class.

    Returns:
        How many texts of each class the file holds ("" where there are no classes), and how many
        were dropped, by reason.
    """
    from flower_privsyn.generation.streams import derive_seed

    by_class: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    for name, quota in quotas.items():
        shown = seeds.of_class(name)
        key = ("more text",) if name is None else ("more text", name)
        records, left_out = expand_resumably(
            expand,
            shown.texts,
            ids=shown.ids,
            num_samples=quota,
            kept=kept,
            seed=derive_seed(seed, *key, 0),
            round_number=round_number,
            source="expanded",
            stage="Write more text" if name is None else f"Write more text: {name}",
            progress=progress,
            label=name,
        )
        by_class[name or ""] = len(records)
        dropped.update(left_out)
    return by_class, dict(dropped)


def _used(run: RunDirectory, settings: MoreText, seeds: _Seeds, seed: int) -> dict[str, Any]:
    """What the settings beside a file say of its texts."""
    used: dict[str, Any] = {
        "run": run.path.name,
        "seed": seed,
        "seeds": _digest(seeds.found.texts),
        **asdict(settings),
    }
    if seeds.shares:
        used["shares"] = dict(seeds.shares)
    return used


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


def _conditions(topics: TopicsOfRun) -> _Seeds:
    """What a generator that was trained to write by topic goes on with."""
    found = Population.create(topics.conditions, round_number=0, source="topic")
    return _Seeds(found=found, kind="topics")


def _seeds(run: RunDirectory) -> _Seeds:
    """The texts of a run that may stand in prompts, and what they are."""
    weights = str(run.config.get("survivor-weights", "distinct"))
    found = survivors(run, counted=weights == "counted")
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
    shares = {} if found.labels is None else _shares(run, found.labels)
    return _Seeds(found=found, kind=kind, shares=shares)


def _shares(run: RunDirectory, labels: Sequence[str]) -> dict[str, float]:
    """How much of the text is to be of each class: as the released votes say.

    A class whose noisy votes are below 0 has none; where all are, every class has the same. Only
    classes of which there is a text count.
    """
    names = list(dict.fromkeys(labels))
    votes = dict.fromkeys(names, 0.0)
    for _, row in released_texts(run):
        if row.get("label") in votes:
            votes[row["label"]] += row["votes"]
    positive = {name: max(0.0, total) for name, total in votes.items()}
    total = sum(positive.values())
    return {name: positive[name] / total if total else 1 / len(names) for name in names}


def _short(generator: str) -> str:
    """A generator's name as part of a file's: the model's own, without folder or server."""
    last = re.split(r"[/#\\]", generator.rstrip("/"))[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "generator"


def _digest(texts: Sequence[str]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def _refuse_own_files(run: RunDirectory, path: Path) -> None:
    taken = {run.synthetic_jsonl, run.synthetic_parquet, run.ledger_file, run.metrics_file}
    if path.resolve() in {file.resolve() for file in taken}:
        raise ConfigError(f"{path} is a file of the run itself: choose another --output")
    if not path.parent.is_dir():
        raise ConfigError(f"the folder {path.parent} of --output does not exist")


def _refuse_other(path: Path, note: Path, used: Mapping[str, Any]) -> None:
    """Refuse to add to a file that was written otherwise.

    Where the model is reached is no part of how texts are written.
    """
    if not path.exists():
        return
    before = read_json(note)
    changed = sorted(
        key
        for key in used
        if before.get(key) != used[key]
        and not (key == "generator" and same_model_elsewhere(before.get(key), used[key]))
    )
    if not before:
        raise ConfigError(f"{path} exists and was not written by `privsyn expand`")
    if changed:
        key = changed[0]
        raise ConfigError(
            f"{path} was written with {key} = {before.get(key)!r}, not {used[key]!r}: "
            "give another --output, or another --seed"
        )
