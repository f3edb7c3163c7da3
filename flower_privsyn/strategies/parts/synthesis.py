"""Writing the synthetic corpus batch by batch, so that nothing that was written is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.files import append_json_lines, read_json_lines
from flower_privsyn.generation import Expand
from flower_privsyn.host.progress import Progress


def expand_resumably(
    expand: Expand,
    seeds: Sequence[str],
    *,
    ids: Sequence[str],
    num_samples: int,
    kept: Path,
    seed_after: Callable[[int], int],
    round_number: int,
    source: str,
    stage: str,
    progress: Progress,
    adapter: Path | None = None,
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Expand until `num_samples` texts are kept; what an earlier attempt kept counts.

    Texts are written down batch by batch, so that a generator that fails, or a run that is killed,
    loses none; a resumed run writes the ones that are missing.

    Args:
        expand: the generator, its prompt and how it samples.
        seeds: the texts that stand in the prompts.
        ids: one identifier per seed; they become the parents of a text.
        num_samples: texts to keep, earlier attempts included, >= 0.
        kept: JSON-lines file of the texts kept so far.
        seed_after: from the number of texts kept before to the seed of this attempt; it must differ
            from those of earlier attempts, which would write the same texts again.
        round_number: stored with every text.
        source: stored with every text.
        stage: what the progress calls the work.
        progress: where the work reports.
        adapter: folder of a LoRA adapter for the generator.

    Returns:
        The records for `RunDirectory.write_synthetic`, and how many texts were dropped, by reason.

    Raises:
        GenerationError: the generator failed; what it wrote before is in `kept`.
    """
    records = list(read_json_lines(kept))
    known = {record["text"] for record in records}
    repeated = 0

    def keep(texts: Sequence[str], parents: Sequence[tuple[int, ...]]) -> None:
        nonlocal repeated
        fresh = [
            {
                "text": text,
                "round": round_number,
                "parent": [ids[index] for index in group],
                "source": source,
            }
            for text, group in zip(texts, parents, strict=True)
            if text not in known
        ]
        repeated += len(texts) - len(fresh)
        known.update(str(record["text"]) for record in fresh)
        append_json_lines(kept, fresh)
        records.extend(fresh)

    with progress.stage(stage, num_samples) as reporter:
        reporter.update(len(records))
        result = expand.run(
            seeds,
            num_samples=max(0, num_samples - len(records)),
            seed=seed_after(len(records)),
            adapter=adapter,
            progress=reporter.update,
            on_batch=keep,
        )
    dropped = dict(result.dropped)
    if repeated:
        dropped["duplicate of an earlier attempt"] = repeated
    return records, dropped
