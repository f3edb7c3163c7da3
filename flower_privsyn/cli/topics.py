"""`privsyn topics`: topics of one's own public text, for CTCL."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from flower_privsyn.cli.destination import file_to_write
from flower_privsyn.cli.options import Seed, option
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flower_privsyn.generation.topic_model import MadeTopics, Supported

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
        option("k-means|hdbscan", "hdbscan, as in the paper, adds a finest level of its own size"),
    ] = "k-means",
    least_texts: Annotated[int, option("N", "with hdbscan: passages of the smallest topic")] = 30,
    max_tokens: Annotated[int, option("N", "tokens of a passage; the run's max-tokens")] = 64,
    embedding_model: Annotated[
        str, option("NAME", "the run's embedding-model")
    ] = "all-MiniLM-L6-v2",
    seed: Seed = 0,
) -> int:
    """Make topics of public text, each with up to ten keywords, for `topics` of a run of ctcl.

    The text must be nobody's private text: its words are sent to every node and stand before every
    text that is written, and no noise protects it. Take public text of the kind that your users
    write, some thousands of documents: a generator told keywords of topics that do not fit is
    worse off than one told none. Keywords are words of four letters or more between blanks.

    One passage of each document is clustered. One document in 50 is kept apart, and how often a
    passage of either half falls into one topic is printed: for as many topics as that is well above
    chance there is text enough.
    """
    from flower_privsyn.data.public_text import public_documents
    from flower_privsyn.embedding import load_embedder
    from flower_privsyn.generation.topic_model import COUNTS, TopicModel, make_topics
    from flower_privsyn.host.progress import ShownProgress
    from flower_privsyn.host.terminal import follower

    model = TopicModel(
        counts=tuple(counts or COUNTS), clustering=clustering, least_texts=least_texts, seed=seed
    )
    file = file_to_write(output, corpus=text)
    embedder = load_embedder(located(embedding_model))
    clustered: list[str] = []
    apart: list[str] = []
    for document in dict.fromkeys(public_documents(text, setting="--text")):
        (apart if _is_apart(document) else clustered).append(document)
    with follower() as follow:
        made, rows = make_topics(
            model,
            clustered,
            apart,
            embedder=embedder,
            source=text,
            max_tokens=max_tokens,
            progress=ShownProgress(follow),
        )
    try:
        made.hierarchy.save(file)
    except OSError as error:
        raise ConfigError(f"--output {output} cannot be written: {error.strerror}") from error
    show(made, rows)
    sizes = ", ".join(map(str, made.hierarchy.counts))
    print(f"Written: {output}; for a run --set topics={output} and --set num-topics= {sizes}")
    return 0


def _is_apart(document: str) -> bool:
    """Whether a document is one of those that topics are not made of: by its text alone."""
    digest = hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _APART == 0


def show(made: MadeTopics, rows: Sequence[Supported]) -> None:
    """Print what topics are made of, what there is for them to go by, and some keywords.

    Args:
        made: the topics.
        rows: one of every level; none where no document was looked up.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(pad_edge=False)
    for heading in ("topics", "smallest", "median", "both halves in one", "by chance"):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = (f"{size:,}" for size in (row.topics, row.smallest, row.median))
        table.add_row(*figures, f"{row.same:.1%}", f"{row.chance:.1%}")
    told = f"{made.inside:,} passages are in topics"
    if made.outside:
        told += f", {made.outside:,} in none"
    console.print(told, highlight=False)
    if rows:
        console.print(table)
    else:
        console.print("No document was kept apart that has two halves to be looked up.")
    for words in made.hierarchy.levels[0].keywords[:8]:
        console.print(", ".join(words), markup=False, highlight=False, soft_wrap=True)
