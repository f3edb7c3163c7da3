"""How well the server learns preferences: POPri, private evolution and the kernel sketch.

    python -m scripts.experiments.feedback measure --private NAME FILE... --cache DIR \
        --settings NAME... --prompts K --seeds S [--sweep] --results JSONL
    python -m scripts.experiments.feedback show --results JSONL --plot PNG

Every method is asked the same question: given J candidate texts to each of K prompts and n users
with private text, which of two candidates of a prompt is the more like what the users write? It
ranks the candidates of each prompt by its noised scores, and its pair is rank 1 against rank 5, as
POPri's is. The answer is held against private text that took no part.

What is real: users, candidates, embeddings, queries, clipping, sensitivities, the accountant and
the mechanism are those of the package. What is not: the noise comes from a seeded generator, so
that the figures can be reproduced, and the references read private text without noise. So nothing
that this script writes is a private release.

`measure` adds what it measured to the results, one line per method; what is measured again takes
the place of what was before. `show` prints the tables and draws the plot from them.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.embedding import Embedder
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import append_json_lines, read_json_lines
from flower_privsyn.queries import median_bandwidth
from scripts.experiments.feedback.corpus import Corpus, prepare
from scripts.experiments.feedback.measure import measure, summarise
from scripts.experiments.feedback.protocol import Protocol
from scripts.experiments.feedback.show import plot, tables

logger = logging.getLogger("feedback")


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


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("measure", help="ask, and write the results").add_argument
    add("--private", nargs="+", action="append", required=True, metavar=("NAME", "FILE"))
    add("--cache", type=Path, required=True, help="folder for embeddings")
    add("--settings", nargs="+", required=True, help="names of --private, or mixed")
    add("--prompts", type=int, required=True, help="prompts of a round (K)")
    add("--seeds", type=int, required=True, help="of candidates, users, features and noise")
    add("--sweep", action="store_true", help="every number of users and epsilon")
    add("--results", type=Path, required=True, help="JSON lines to add to")
    add = commands.add_parser("show", help="tables and plot of the results").add_argument
    add("--results", type=Path, required=True, help="JSON lines to read")
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
        private = {name: [Path(file) for file in files] for name, *files in options.private}
        corpus = prepare(private, protocol, options.cache, embedder=embedder)
        append_json_lines(options.results, measured(corpus, protocol, options))
        return 0
    results = list(read_json_lines(options.results))
    if not results:
        raise ConfigError(f"--results: {options.results} holds no results")
    print(*tables(results, protocol), sep="\n\n")
    if options.plot is not None:
        plot(results, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
