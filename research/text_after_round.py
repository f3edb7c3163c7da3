r"""The text of a POPri run as its generator writes after one of its rounds.

    python -m research.text_after_round RUN_DIR ROUND --samples 1600 --output FILE

A run writes its text after its last round. Where it ended before that, or where rounds are to be
compared, this writes as it would have: from its public text, by its prompt and its settings, with
the adapter of that round. It asks nobody; what was released until that round is in the ledger.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from flower_privsyn.errors import PrivsynError
from flower_privsyn.files import append_json_lines, read_json
from flower_privsyn.generation.streams import derive_seed
from flower_privsyn.strategies import POPriConfig
from flower_privsyn.strategies._embedder import embedder_of
from flower_privsyn.strategies._responses import Responses


def main(words: Sequence[str] | None = None) -> int:
    """Write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("round", type=int, help="0 for the generator before any")
    parser.add_argument("--samples", type=int, default=1600)
    parser.add_argument("--output", type=Path, required=True, help="JSON lines with `text`")
    options = parser.parse_args(words)
    try:
        values = read_json(options.run / "config.json")["config"]
        known = {key.replace("-", "_"): value for key, value in values.items()}
        config = POPriConfig(
            epsilon=known["epsilon"],
            **{
                key: known[key]
                for key in (
                    "seed",
                    "embedding_model",
                    "max_tokens",
                    "generator",
                    "prompt",
                    "public_text",
                    "max_new_tokens",
                    "temperature",
                    "top_p",
                )
            },
        )
        public = Responses.load(config, tokenizer=embedder_of(config, None).tokenizer)
        adapter = options.run / "rounds" / f"{options.round:04}" / "adapter"
        result = public.expansion().run(
            public.samples,
            num_samples=options.samples,
            seed=derive_seed(config.seed, "corpus", 0),
            adapter=adapter if options.round else None,
            on_batch=lambda texts, *_: append_json_lines(
                options.output, [{"text": text, "round": options.round} for text in texts]
            ),
        )
    except PrivsynError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    print(f"{options.output}: {len(result.texts):,} texts after round {options.round}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
