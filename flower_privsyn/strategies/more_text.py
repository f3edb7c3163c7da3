"""More text from a finished run: post-processing of what it released, free of privacy cost."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from annotated_types import Gt, Le

from flower_privsyn.checks import NonNegativeFloat, NonNegativeInt, PositiveInt, Settings
from flower_privsyn.errors import ConfigError, RunDirectoryError
from flower_privsyn.files import located, read_json, read_json_lines, write_json
from flower_privsyn.generation.api_key import API_KEY_VARIABLE, check_generator
from flower_privsyn.host.progress import ProgressReporter
from flower_privsyn.runs import RESEARCH_STAMP, RunDirectory
from flower_privsyn.runs.locks import lock_file
from flower_privsyn.strategies.parts.population import survivors

if TYPE_CHECKING:
    from flower_privsyn.generation import Expand, TextGenerator


@dataclass(frozen=True, kw_only=True)
class MoreText(Settings):
    """How more text is written; the settings of the run under the same names, unless others are.

    Raises:
        ConfigError: a value is out of range, or the generator's name may hold a key.
    """

    generator: Annotated[str, "the language model; the run's own unless another is named."]
    generator_api_key_env: Annotated[str, "where its key is."] = API_KEY_VARIABLE
    prompt: Annotated[str, "a bundled name or a JSON file."] = "pre-text"
    max_new_tokens: Annotated[PositiveInt, "tokens per text."] = 85
    temperature: Annotated[NonNegativeFloat, "of sampling."] = 1.0
    top_p: Annotated[float, Gt(0), Le(1), "the nucleus."] = 1.0
    opening_words: Annotated[NonNegativeInt, "words of a seed that a text begins with."] = 0
    whole_sentences: Annotated[bool, "end texts with a sentence."] = False
    refuse_repetition: Annotated[bool, "drop texts that repeat three words."] = False

    def __post_init__(self) -> None:
        """Check every value."""
        check_generator(self.generator, self.generator_api_key_env)
        super().__post_init__()

    @classmethod
    def of(cls, run: RunDirectory, changed: Mapping[str, Any]) -> Self:
        """What a run was set to, and what is to be otherwise.

        Args:
            run: its directory.
            changed: values by the names above; None for the run's.

        Raises:
            ConfigError: the run names no generator, and none is given.
        """
        own = run.config | run.changed_settings()
        values = {
            field.name: own[key]
            for field in fields(cls)
            if (key := field.name.replace("_", "-")) in own
        }
        values |= {name: value for name, value in changed.items() if value is not None}
        if not values.get("generator"):
            raise ConfigError(
                f"the run in {run.path} has no setting generator: name one with --generator"
            )
        return cls(**values)

    @classmethod
    def like(cls, settings: object) -> Self:
        """The same of settings that hold all of it under the same names."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})

    def expansion(self, generator: TextGenerator | None = None) -> Expand:
        """What writes so.

        Args:
            generator: in place of the one that is named.

        Raises:
            PrivsynError: the generator or the prompt cannot be loaded.
        """
        from flower_privsyn.generation import (
            Expand,
            SamplingParameters,
            load_generator,
            load_prompt,
        )

        return Expand(
            generator
            or load_generator(located(self.generator), api_key_env=self.generator_api_key_env),
            prompt=load_prompt(located(self.prompt)),
            opening_words=self.opening_words,
            whole_sentences=self.whole_sentences,
            refuse_repetition=self.refuse_repetition,
            sampling=SamplingParameters(
                seed=0,
                max_new_tokens=self.max_new_tokens,
                temperature=self.temperature,
                top_p=self.top_p,
            ),
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
    """

    path: Path
    texts: int
    seeds: int
    kind: str
    dropped: Mapping[str, int]


def write_more(
    run: RunDirectory,
    settings: MoreText,
    *,
    num_samples: int,
    seed: int,
    output: Path | None,
    progress: ProgressReporter,
    generator: TextGenerator | None = None,
) -> Written:
    """Write texts after those of a finished run, into a file of their own.

    Texts are on the disk batch by batch; the same call goes on with what is there.

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
        epsilons of the run hold for these texts with it. Where they do not cover the run's result
        (`research = true`), they do not cover these texts, and the settings beside them say so.

    Raises:
        RunDirectoryError: the run has not finished, or somebody writes to the file.
        ConfigError: the run holds no texts, or the file is of something else.
        GenerationError: the generator failed; what it wrote before stays.
    """
    from flower_privsyn.generation.streams import derive_seed
    from flower_privsyn.strategies.parts.synthesis import expand_resumably

    if run.status != "finished":
        raise RunDirectoryError(
            f"the run in {run.path} has not finished (it is {run.standing}): `privsyn resume` "
            "finishes it, and its own texts come first"
        )
    seeds, ids, kind = _seeds(run)
    path = output or run.path / f"expanded-{_short(settings.generator)}-{seed}.jsonl"
    _refuse_own_files(run, path)
    used: dict[str, Any] = {
        "run": str(run.path.name),
        "seed": seed,
        "seeds": _digest(seeds),
        **asdict(settings),
    }
    if run.config.get("research"):
        used["stamp"] = RESEARCH_STAMP
    note = path.with_name(f"{path.name}.settings.json")
    with lock_file(path.with_name(f".{path.name}.lock"), what=f"the file {path}"):
        _refuse_other(path, note, used)
        expand = settings.expansion(generator)
        write_json(note, used)
        records, dropped = expand_resumably(
            expand,
            seeds,
            ids=ids,
            num_samples=num_samples,
            kept=path,
            seed_after=lambda kept: derive_seed(seed, "more text", kept),
            round_number=max(run.finished_rounds(), default=0),
            source="expanded",
            stage="Write more text",
            progress=progress,
        )
    return Written(path=path, texts=len(records), seeds=len(set(seeds)), kind=kind, dropped=dropped)


def _seeds(run: RunDirectory) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """The texts of a run that may stand in prompts, their ids, and what they are."""
    weights = str(run.config.get("survivor-weights", "distinct"))
    found = survivors(run, counted=weights == "counted")
    if len(found):
        rounds = len(run.rounds_with_outcome("released"))
        return found.texts, found.ids, f"survivors of {rounds} rounds"
    texts = tuple(str(record["text"]) for record in read_json_lines(run.synthetic_jsonl))
    if not texts:
        raise ConfigError(f"the run in {run.path} holds no texts, only a model: nothing to expand")
    ids = tuple(f"synthetic:{index}" for index in range(len(texts)))
    return texts, ids, "synthetic texts"


def _short(generator: str) -> str:
    """A generator's name as part of a file's: the model's own, without folder or server."""
    last = re.split(r"[/#\\]", generator.rstrip("/"))[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "generator"


def _digest(texts: tuple[str, ...]) -> str:
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
    """Refuse to add to a file that was written otherwise."""
    if not path.exists():
        return
    before = read_json(note)
    changed = sorted(key for key in used if before.get(key) != used[key])
    if not before:
        raise ConfigError(f"{path} exists and was not written by `privsyn expand`")
    if changed:
        key = changed[0]
        raise ConfigError(
            f"{path} was written with {key} = {before.get(key)!r}, not {used[key]!r}: "
            "give another --output, or another --seed"
        )
