"""`privsyn topics`: topics of one's own public text, for CTCL."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from flower_privsyn.cli.options import Seed, option
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located, user_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flower_privsyn.generation.topic_model import Supported, TopicModel
    from flower_privsyn.generation.topics import TopicHierarchy

#: One document in so many is looked up in the topics and not clustered.
_APART = 50


def topics(
    text: Annotated[
        str, option("CORPUS", "public: a file, a folder, bundled, or a data set by name")
    ],
    output: Annotated[Path, option("FILE", "to become the topics, such as topics.npz")],
    counts: Annotated[
        list[int] | None,
        option("N ...", "topics of each level, ascending (default: 32 64 128 256)"),
    ] = None,
    clustering: Annotated[
        Literal["k-means", "hdbscan"],
        option(
            "k-means|hdbscan",
            "hdbscan, as in the paper, decides itself how many topics the finest level has",
        ),
    ] = "k-means",
    least_texts: Annotated[int, option("N", "with hdbscan: passages of the smallest topic")] = 30,
    max_tokens: Annotated[int, option("N", "tokens of a passage; the run's max-tokens")] = 64,
    embedding_model: Annotated[
        str, option("NAME", "the run's embedding-model")
    ] = "all-MiniLM-L6-v2",
    seed: Seed = 0,
) -> int:
    """Make topics of public text, each with ten keywords, for `topics` of a run of ctcl.

    Take text of the kind that your users write: the generator learns to write after keywords, and
    those of topics that do not fit say nothing. One passage of each document is clustered; one
    document in 50 is kept apart, and how often both its halves fall into one topic is printed, so
    that it can be seen how many topics there is text for.
    """
    from flower_privsyn.data.public_text import public_documents
    from flower_privsyn.generation.topic_model import TopicModel

    file = user_path(output)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ConfigError(f"--output must be a file in a folder that is there, got {output}")
    model = TopicModel(
        counts=tuple(counts or (32, 64, 128, 256)),
        clustering=clustering,
        least_texts=least_texts,
        seed=seed,
    )
    documents = list(dict.fromkeys(public_documents(text, setting="--text")))
    made = _made(model, documents, embedding_model, max_tokens=max_tokens, source=text)
    made.hierarchy.save(file)
    _show(made)
    print(f"Written: {output}; a run takes it with --set topics={output} --set num-topics=N")
    return 0


@dataclass(frozen=True, kw_only=True)
class _Made:
    """Topics, the number of passages that they are made of, and what was looked up in them."""

    hierarchy: TopicHierarchy
    passages: int
    looked_up: int
    rows: list[Supported]


def _made(
    model: TopicModel,
    documents: Sequence[str],
    embedding_model: str,
    *,
    max_tokens: int,
    source: str,
) -> _Made:
    """Embed passages of the documents, and cluster those of all that are not kept apart."""
    from flower_privsyn.embedding import load_embedder
    from flower_privsyn.generation.topic_model import (
        passage_of_each,
        supported,
        two_passages_of_each,
    )
    from flower_privsyn.generation.topics import probe_of
    from flower_privsyn.host.progress import ShownProgress
    from flower_privsyn.host.terminal import follower

    parts: tuple[list[str], list[str]] = ([], [])
    for document in documents:
        parts[_is_apart(document)].append(document)
    model.check(len(parts[0]))
    embedder = load_embedder(located(embedding_model))
    cut: dict[str, Any] = {"tokenizer": embedder.tokenizer, "max_tokens": max_tokens}
    passages = passage_of_each(parts[0], seed=model.seed, **cut)
    model.check(len(passages))
    first, second = two_passages_of_each(parts[1], seed=model.seed, **cut)
    with follower() as follow:
        progress = ShownProgress(follow)
        with progress.stage("Embed passages", len(passages) + 2 * len(first)) as stage:
            vectors = embedder.embed(passages, progress=stage.update)
            halves = [embedder.embed(half, progress=stage.update) for half in (first, second)]
        with progress.stage("Cluster them"):
            found = model.fit(
                passages,
                vectors,
                probe=probe_of(embedder),
                about=f"{model.clustering} of {len(passages)} passages of {source}",
            )
    rows = [
        supported(level, passages=len(passages), first=halves[0], second=halves[1])
        for level in found.levels
        if first
    ]
    return _Made(hierarchy=found, passages=len(passages), looked_up=len(first), rows=rows)


def _is_apart(document: str) -> bool:
    """Whether a document is one of those that topics are not made of: by its text alone."""
    digest = hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _APART == 0


def _show(made: _Made) -> None:
    """Print what the topics are made of, and some of their keywords."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(
        title=f"Topics of {made.passages:,} passages; {made.looked_up:,} other documents looked up",
        title_justify="left",
        pad_edge=False,
    )
    for heading in ("topics", "smallest", "median", "both halves in one", "by chance"):
        table.add_column(heading, justify="right")
    for row in made.rows:
        figures = (f"{size:,}" for size in (row.topics, row.smallest, row.median))
        table.add_row(*figures, f"{row.same:.1%}", f"{row.chance:.1%}")
    if made.rows:
        console.print(table)
    for words in made.hierarchy.levels[0].keywords[:8]:
        console.print(", ".join(words), markup=False, highlight=False, soft_wrap=True)
