r"""A teacher that learnt from public text nobody chose: a control for one that a release made.

    python -m research.random_teacher public.jsonl.gz teacher
    privsyn compare ... --methods joint-sketch with-trained-teacher \
        --set joint-sketch.teacher=teacher --set joint-sketch.teacher-steps=1

`teacher-steps = 400` has the teacher of a joint sketch learn from the rows that the release chose,
and adds to its logits what it lacks. This one has read as many rows for as many steps, drawn by
lot; with `teacher-steps = 1` it gets the logits as well, and one step on what was chosen. What
differs then is what it has read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flower_privsyn.data.public_rows import PublicRows
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import PrivsynError
from flower_privsyn.files import located
from flower_privsyn.strategies import JointSketchConfig
from flower_privsyn.training.causal import fine_tune


def main(words: Sequence[str] | None = None) -> int:
    """Train it, and say on how much."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("public_text", type=Path, help="JSON lines with `text`")
    parser.add_argument("output", type=Path, help="folder of the model")
    parser.add_argument("--model", default="privsyn-lm", help="that begins")
    parser.add_argument("--tokens-of", default="privsyn-tiny", help="model whose tokens rows have")
    parser.add_argument("--rows", type=int, default=6_049, help="as many as a release chooses")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    # As the teacher of a joint sketch learns from what a release chose.
    training = JointSketchConfig(epsilon=1.0, student_steps=options.steps).student_training()
    try:
        public = PublicRows.of(
            str(options.public_text),
            tokenizer=load_tokenizer(located(options.tokens_of))[0],
            max_tokens=training.max_tokens,
            setting="public_text",
        )
        texts = public.drawn(options.rows, np.random.default_rng(options.seed))
        fine_tune(
            located(options.model),
            texts,
            settings=training,
            output=options.output,
            seed=options.seed,
        )
    except PrivsynError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    print(f"{options.output}: {options.steps} steps on {len(texts):,} of {len(public):,} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
