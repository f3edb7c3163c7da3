"""Writing the synthetic corpus batch by batch, so that nothing that was written is lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_privsyn.errors import GenerationError
from flower_privsyn.files import append_json_lines, read_json_lines
from flower_privsyn.generation import Expand
from flower_privsyn.generation.generators import ExpandingSettings
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import EXPANDED

logger = logging.getLogger("flwr.privsyn")


@dataclass(frozen=True, kw_only=True)
class ExpansionSettings(ExpandingSettings):
    """How a generator writes more text after the texts of a run.

    Raises:
        ConfigError: a value is out of range, or the generator's name may hold a key.
    """

    prompt: str = "pre-text"
    """The expansion prompt, a bundled name or a JSON file."""


def expand_resumably(
    expand: Expand,
    seeds: Sequence[str],
    *,
    ids: Sequence[str],
    num_samples: int,
    kept: Path,
    seed: int,
    round_number: int,
    source: str,
    stage: str,
    progress: Progress,
    adapter: Path | None = None,
    label: str | None = None,
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Expand until `num_samples` texts are kept; what an earlier attempt kept counts.

    Texts are written down batch by batch, so that a generator that fails, or a run that is killed,
    loses none; a resumed run writes the ones that are missing, and they are the same ones.

    Args:
        expand: the generator, its prompt and how it samples.
        seeds: the texts that stand in the prompts.
        ids: one identifier per seed; they become the parents of a text.
        num_samples: texts to keep, earlier attempts included, >= 0.
        kept: JSON-lines file of the texts kept so far.
        seed: of what is written.
        round_number: stored with every text.
        source: stored with every text.
        stage: what the progress calls the work.
        progress: where the work reports.
        adapter: folder of a LoRA adapter for the generator.
        label: the class of the seeds and of what is written, of which there are to be so many
            texts in the file; None where texts have no classes.

    Returns:
        The records for `RunDirectory.write_synthetic`, and how many texts were dropped, by reason.

    Raises:
        GenerationError: the generator failed; what it wrote before is in `kept`.
    """
    before = list(read_json_lines(kept))
    records = [record for record in before if label is None or record.get("label") == label]
    of_class = {} if label is None else {"label": label}

    def keep(texts: Sequence[str], parents: Sequence[tuple[int, ...]], attempts: int) -> None:
        fresh = [
            {
                "text": text,
                "round": round_number,
                "parent": [ids[index] for index in group],
                "source": source,
                "attempts": attempts,
                **of_class,
            }
            for text, group in zip(texts, parents, strict=True)
        ]
        append_json_lines(kept, fresh)
        records.extend(fresh)
        reporter.update(len(fresh))

    with progress.stage(stage, num_samples) as reporter:
        reporter.update(len(records))
        result = expand.run(
            seeds,
            num_samples=num_samples,
            seed=seed,
            adapter=adapter,
            on_batch=keep,
            kept=len(records),
            attempts=max((int(record.get("attempts", 0)) for record in records), default=0),
            known=[str(record["text"]) for record in before],
        )
    # Where a resumed run goes on is of no interest to who reads the texts.
    texts = [{key: record[key] for key in record if key != "attempts"} for record in records]
    return texts, dict(result.dropped)


def refuse_nothing(
    records: Sequence[object], dropped: Mapping[str, int], *, num_samples: int, generator: str
) -> None:
    """Refuse a corpus that holds no text, and say in the log what is missing of one that does.

    A run that ended without a text would have spent its budget and could not be resumed.

    Args:
        records: what was kept.
        dropped: how many texts were not, by reason.
        num_samples: how many were asked for, >= 0.
        generator: who was asked, by name.

    Raises:
        GenerationError: nothing was kept of what was asked for.
    """
    if len(records) >= num_samples:
        return
    why = ", ".join(f"{count} {reason}" for reason, count in dropped.items() if count)
    if not records:
        raise GenerationError(
            f"the generator {generator} was asked for {num_samples} texts and wrote none that can "
            f"be kept (dropped: {why or 'none'}): what was released stays, and the run can be "
            "resumed with another generator, prompt or temperature; the same ones are asked for "
            "the same texts again"
        )
    logger.warning(
        "the generator %s was asked for %d texts, and %d could be kept (dropped: %s)",
        generator,
        num_samples,
        len(records),
        why or "none",
    )


def write_corpus(
    expand: Expand,
    seeds: Sequence[str],
    *,
    num_samples: int,
    run: RunDirectory,
    **how: Any,
) -> dict[str, Any]:
    """Write `synthetic.jsonl`, which a killed run may have begun.

    Args:
        expand: as of `expand_resumably`.
        seeds: the same.
        num_samples: the same.
        run: the run directory.
        how: the other arguments of `expand_resumably`.

    Returns:
        `synthetic_texts` and `dropped`, for the end of the run.

    Raises:
        GenerationError: the generator failed, or nothing that it wrote can be kept; a resumed run
            goes on with what is there.
    """
    kept = run.path / EXPANDED
    records, dropped = expand_resumably(expand, seeds, num_samples=num_samples, kept=kept, **how)
    refuse_nothing(records, dropped, num_samples=num_samples, generator=expand.generator.name)
    run.write_synthetic(records)
    kept.unlink(missing_ok=True)
    return {"synthetic_texts": len(records), "dropped": dropped}
