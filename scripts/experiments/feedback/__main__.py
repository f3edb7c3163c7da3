"""How well the server learns preferences: POPri, private evolution and the kernel sketch.

    python -m scripts.experiments.feedback measure --private NAME=FILE... --cache DIR \
        --settings NAME... --prompts K --seeds S [--sweep] --results FILE
    python -m scripts.experiments.feedback show --results FILE --plot PNG

Every method is asked the same question: given J candidate texts to each of K prompts and n users
with private text, which of two candidates of a prompt is the more like what the users write? It
ranks the candidates of each prompt by its noised scores, and its pair is rank 1 against rank 5, as
POPri's is. The answer is held against private text that took no part.

What is real: users, candidates, embeddings, queries, clipping, sensitivities, the accountant and
the mechanism are those of the package. What is not: the noise comes from a seeded generator, so
that the figures can be reproduced, and the references read private text without noise. So nothing
that this script writes is a private release.

`measure` adds what it measured to the results that are there, in place of what they hold about the
same setting and number of prompts. `show` prints the tables and draws the plot from them.
"""

from __future__ import annotations

import argparse
import glob
import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.embedding import Embedder
from flower_privsyn.errors import ConfigError
from flower_privsyn.evaluation import STAMP
from flower_privsyn.files import read_json, replacing
from flower_privsyn.queries import median_bandwidth
from scripts.experiments.feedback.corpus import Corpus, prepare
from scripts.experiments.feedback.measure import measure, summarise
from scripts.experiments.feedback.protocol import Protocol
from scripts.experiments.feedback.show import plot, tables

logger = logging.getLogger("feedback")


def parse_private(tokens: Sequence[str]) -> dict[str, list[Path]]:
    """`NAME=FILE FILE... NAME=...` into files by name; a file may hold wildcards.

    Raises:
        ConfigError: The first token has no name, or nothing is found.
    """
    found: dict[str, list[Path]] = {}
    name = ""
    for token in tokens:
        before, equals, after = token.partition("=")
        if equals:
            name, token = before, after
        if not name:
            raise ConfigError(f"--private must begin with NAME=FILE, got {token!r}")
        files = [Path(file) for file in sorted(glob.glob(token))]  # noqa: PTH207
        if not files:
            raise ConfigError(f"--private {name}={token}: no such file or folder")
        found.setdefault(name, []).extend(files)
    return found


def measured(
    corpus: Corpus, protocol: Protocol, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Rows of the results about the settings asked for, over seeds."""
    bandwidth = median_bandwidth(corpus.public)
    rows: list[dict[str, Any]] = []
    for setting in options.settings:
        found: list[dict[str, Any]] = []
        for seed in range(options.seeds):
            start = time.perf_counter()
            found += measure(
                corpus,
                setting,
                protocol,
                num_prompts=options.prompts,
                seed=seed,
                bandwidth=bandwidth,
                sweep=options.sweep,
            )
            logger.info("%s, seed %d: %.0f s", setting, seed, time.perf_counter() - start)
        rows += summarise(found, setting=setting, prompts=options.prompts, at=protocol.at)
    return rows


def with_rows(
    before: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], common: Mapping[str, Any]
) -> dict[str, Any]:
    """The results with new rows in place of those about the same settings and numbers of prompts.

    Raises:
        ConfigError: What is there was measured with other sizes.
    """
    for key, value in common.items():
        if before and before.get(key) != value:
            raise ConfigError(
                f"--results: its figures were measured with {key} = {before.get(key)}, "
                f"these with {value}"
            )
    new = {(row["setting"], row["prompts"]) for row in rows}
    kept = [row for row in before.get("rows", ()) if (row["setting"], row["prompts"]) not in new]
    return {**common, "rows": [*kept, *rows]}


def write_results(path: Path, document: Mapping[str, Any]) -> None:
    """One JSON object, one line per row, so that a change can be read."""
    *common, _ = (f"{json.dumps(key)}: {json.dumps(document[key])}" for key in document)
    rows = ",\n".join(json.dumps(row) for row in document["rows"])
    with replacing(path) as temporary:
        text = "{" + ",\n".join([*common, f'"rows": [\n{rows}\n]']) + "}\n"
        temporary.write_text(text, encoding="utf-8")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("measure", help="ask, and write the results").add_argument
    add("--private", nargs="+", required=True, help="NAME=FILE... of users")
    add("--cache", type=Path, required=True, help="folder for embeddings")
    add("--settings", nargs="+", required=True, help="names of --private, or mixed")
    add("--prompts", type=int, required=True, help="prompts of a round (K)")
    add("--seeds", type=int, required=True, help="of candidates, users, features and noise")
    add("--sweep", action="store_true", help="every number of users and epsilon")
    add("--results", type=Path, required=True, help="JSON to add to")
    add = commands.add_parser("show", help="tables and plot of the results").add_argument
    add("--results", type=Path, required=True, help="JSON to read")
    add("--plot", type=Path, help="PNG to write")
    return parser.parse_args(arguments)


def main(
    arguments: Sequence[str] | None = None,
    *,
    embedder: Embedder | None = None,
    protocol: Protocol | None = None,
) -> int:
    """Measure, or show what was measured.

    Args:
        arguments: of the command line.
        embedder: in place of the bundled model.
        protocol: other sizes than those of the page.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    options, protocol = parse_options(arguments), protocol or Protocol()
    if options.command == "measure":
        private = parse_private(options.private)
        corpus = prepare(private, protocol, options.cache, embedder=embedder)
        rows = measured(corpus, protocol, options)
        common = {
            "stamp": STAMP,
            "at": list(protocol.at),
            "rounds": protocol.rounds,
            "size": protocol.size,
            "dimension": corpus.public.shape[1],
        }
        write_results(options.results, with_rows(read_json(options.results), rows, common))
        return 0
    document = read_json(options.results)
    if not document:
        raise ConfigError(f"--results: {options.results} holds no results")
    print(*tables(document), sep="\n\n")
    if options.plot is not None:
        plot(document, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
