r"""Of what a model gains on held-out text, how much lies in what a joint sketch asks about.

    python -m scripts.experiments.what_is_gained RUN_DIR --data DIR/data \
        --ceiling DIR/cells/finetune-private-eps-inf-seed-0/downstream

`DIR` is a folder of `privsyn compare`, `RUN_DIR` the run of one of its joint sketches with pairs
(`cells/joint-sketch-eps-1-seed-0/run`). Every token of the held-out text that has one before it is
predicted by the public model, by the run's student and by the student of private text, and counted
where it belongs:

- by its pair with the token before it: one that the sketch asked about, or another;
- by whether it was said before in this passage of 64 tokens, which no count of pairs tells (the
  200 tokens that users write most are left out: they are always there);
- by how often users write it.

What is printed is not private: it is computed from private text outside the privacy budget.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import flower_privsyn.models.biased  # noqa: F401 - registers what `models/final` is
from flower_privsyn.evaluation.language_model import predictions
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.files import read_json_lines
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.training.tokens import first_token, token_rows

#: Tokens of a passage, passages that are read at a time.
_WINDOW, _BATCH = 64, 32
#: Tokens that are in every text, and the bounds of how often others are written, by rank.
_EVERYWHERE, _RANKS = 200, (200, 2000)

Mask = npt.NDArray[np.bool_]


def predicted(
    model: str | Path, windows: Sequence[Sequence[int]]
) -> tuple[Mask, npt.NDArray[np.float64]]:
    """Predict every token of every window but its first two: the beginning, and one before none.

    Args:
        model: a bundled name or a folder.
        windows: of tokens, the beginning token first.

    Returns:
        Which are the model's first choice, and their nats, in the order of the windows.
    """
    network, _ = load_pretrained(model, kind="causal", dtype="float32", device="cpu")
    hits: dict[int, Mask] = {}
    nats: dict[int, npt.NDArray[np.float64]] = {}
    for batch in predictions(network, windows, batch_size=_BATCH):
        for row, place in enumerate(batch.windows):
            counted = slice(1, len(windows[place]) - 1)
            hits[place] = batch.hits[row, counted].numpy()
            nats[place] = batch.losses[row, counted].double().numpy()
    order = range(len(windows))
    return np.concatenate([hits[place] for place in order]), np.concatenate(
        [nats[place] for place in order]
    )


def kinds(
    windows: Sequence[Sequence[int]],
    pairs: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
) -> dict[str, Mask]:
    """Which of the predicted tokens belong where, by what is printed.

    Args:
        windows: as of `predicted`.
        pairs: (K,) that were asked about: the first token times the size of the vocabulary, plus
            the second.
        counts: (V,) how often users write each token.
    """
    rank = np.empty(len(counts), dtype=np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    before = np.concatenate([np.array(row[1:-1]) for row in windows])
    token = np.concatenate([np.array(row[2:]) for row in windows])
    said = np.array([row[place] in row[1:place] for row in windows for place in range(2, len(row))])
    asked = np.isin(before * len(counts) + token, pairs)
    common = rank[token] < _EVERYWHERE
    low, high = _RANKS
    return {
        "all": np.ones(len(token), dtype=np.bool_),
        "in a pair that was asked about": asked,
        "in another pair": ~asked,
        "said before in the passage": said & ~common,
        "not said before": ~said & ~common,
        f"one of the {low} commonest tokens": common,
        f"one of the next {high - low:,}": ~common & (rank[token] < high),
        "a rarer one": rank[token] >= high,
    }


def lines(
    masks: Mapping[str, Mask], found: Sequence[tuple[Mask, npt.NDArray[np.float64]]]
) -> Iterator[str]:
    """A table: a row for each kind there is, of the public model, the student and the ceiling."""
    yield "| tokens | share, % | accuracy: public | student | private text | gap closed, % |" + (
        " bits a token: public | student | private text | gap closed, % |"
    )
    yield "|---|" + "---:|" * 9
    for name, mask in masks.items():
        if not mask.any():
            continue
        accuracy = [100 * float(hits[mask].mean()) for hits, _ in found]
        bits = [float(nats[mask].mean()) / math.log(2) for _, nats in found]
        row = [name, f"{100 * mask.mean():.0f}"]
        row += [f"{value:.2f}" for value in accuracy] + [closed(*accuracy)]
        row += [f"{value:.3f}" for value in bits] + [closed(*bits)]
        yield "| " + " | ".join(row) + " |"


def closed(floor: float, value: float, ceiling: float) -> str:
    """The share of the gap, in percent."""
    return f"{100 * (value - floor) / (ceiling - floor):.0f}" if ceiling != floor else "-"


def texts_of(file: Path) -> list[str]:
    """The texts of a file of users."""
    return [str(record["text"]) for record in read_json_lines(file)]


def main() -> None:
    """Print the table of one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--ceiling", type=Path, required=True)
    arguments = parser.parse_args()
    model = json.loads((arguments.run / "config.json").read_text("utf-8"))["config"]["model"]
    tokenizer = load_pretrained(model, kind="causal", dtype="float32", device="cpu")[1]
    begin = first_token(tokenizer)
    windows = [
        [begin, *row[start : start + _WINDOW]]
        for row in token_rows(tokenizer, texts_of(arguments.data / "held_out.jsonl"))
        for start in range(0, len(row), _WINDOW)
        if len(row) - start > 1
    ]
    written = token_rows(tokenizer, texts_of(arguments.data / "private.jsonl"))
    counts = np.bincount(np.concatenate(written), minlength=len(tokenizer))
    masks = kinds(windows, np.load(arguments.run / "bigrams.npy"), counts)
    models = (model, arguments.run / "models" / "final", arguments.ceiling)
    print(f"> {STAMP}\n")
    for line in lines(masks, [predicted(one, windows) for one in models]):
        print(line)


if __name__ == "__main__":
    main()
