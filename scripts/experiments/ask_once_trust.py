"""How far to trust a joint sketch: what ranking text by it finds, by how much the release tells.

    python -m scripts.experiments.ask_once_trust --corpus DIR [--kind standardebooks]
        [--users 300 1300] [--of 2600] [--epsilon 0.1 0.3 1 7] [--seeds 2]

One kind of public text plays the users, as in `ask_once_tuning.py`: a group of the corpus, which is
then no public text. The truth is what all `--of` documents of it say without noise, as a score of
each public row in standard deviations over them. A release of the first users, with the noise of
epsilon, ranks the rows by what is known of their items (trust 0), by all that they may be (1), and
as a run does; of the 3 % that come first the mean of the true score is printed, and the mean
surprisal of their tokens, in standard deviations too. No private text is read.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.queries import Cohort
from flower_privsyn.strategies import JointSketchConfig
from flower_privsyn.strategies.parts.token_sketch import TokenSketch
from flower_privsyn.training.selection import Rows, SelectionRule
from scripts.experiments.ask_once_tuning import Split, noise_of, released

Scores = npt.NDArray[np.float64]

#: Of the public rows, those that come first.
_BEST: Final = 0.03


def standardised(scores: Scores) -> Scores:
    """Scores in standard deviations over all rows."""
    found: Scores = (scores - scores.mean()) / scores.std()
    return found


class Ranking:
    """Public rows, and how near each truly is to the text of one kind.

    Args:
        split: documents of that kind as users, all of them.
        config: of the sketch.
    """

    def __init__(self, split: Split, config: JointSketchConfig) -> None:
        self._split, self._config = split, config
        public = split.public
        least = config.least_row_tokens
        rows = [row for row in map(public.row, range(len(public))) if len(row) >= least]
        self._rows = Rows(tokens=rows)
        self._most = SelectionRule.count_of(_BEST, len(rows))
        self._broadcast = split.broadcast(config)
        everybody = self._read(split.cohort, noise=0.0, seed=0)
        self._true = standardised(self._scores(everybody, trust=0.0))
        tokens = everybody.reading.tokens
        assert tokens is not None
        surprisal = -np.log(tokens.public / tokens.public.sum())
        self._rare = standardised(np.array([surprisal[row].mean() for row in rows]))

    def _read(self, cohort: Cohort, *, noise: float, seed: int) -> TokenSketch:
        release = released(self._config, self._broadcast, cohort, noise=noise, seed=seed)
        return self._split.read(self._config, self._broadcast, [release])

    def _scores(self, sketch: TokenSketch, *, trust: float) -> Scores:
        scorer = sketch.scorer(
            bigram_weight=self._config.bigram_score_weight,
            surprisal_power=self._config.surprisal_power,
            trust=trust,
        )
        return scorer(self._rows)

    def measure(self, users: int, epsilon: float, seed: int) -> list[float]:
        """Trust, and at trust 0, 1 and that one the true score and the surprisal of the best."""
        noise = noise_of(users, epsilon)
        sketch = self._read(self._split.first(users), noise=noise, seed=seed)
        found = [sketch.trust]
        for trust in (0.0, 1.0, sketch.trust):
            best = np.argsort(-self._scores(sketch, trust=trust), kind="stable")[: self._most]
            found += [float(self._true[best].mean()), float(self._rare[best].mean())]
        return found


def main() -> None:
    """Print a row for every number of users, every epsilon, with pairs and without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--kind", default="standardebooks")
    parser.add_argument("--users", type=int, nargs="+", default=[300, 1300])
    parser.add_argument("--of", type=int, default=2600)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 0.3, 1.0, 7.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--most-public", type=int, default=4000)
    arguments = parser.parse_args()
    config = JointSketchConfig(epsilon=1.0)
    print("pairs | users | epsilon | trust | known: true, rare | all: true, rare | trusted so far")
    with tempfile.TemporaryDirectory() as folder:
        split = Split(
            arguments.corpus,
            arguments.kind,
            users=arguments.of,
            most_public=arguments.most_public,
            work=Path(folder),
        )
        for asked in (config, replace(config, num_bigrams=0, bigram_share=0.0)):
            ranking = Ranking(split, asked)
            for users in arguments.users:
                for epsilon in arguments.epsilon:
                    cells = [ranking.measure(users, epsilon, n) for n in range(arguments.seeds)]
                    trust, *pairs = np.mean(cells, axis=0)
                    told = [
                        f"{a:.2f}, {b:+.2f}" for a, b in zip(pairs[::2], pairs[1::2], strict=True)
                    ]
                    row = [asked.num_bigrams, users, f"{epsilon:g}", f"{trust:.2f}", *told]
                    print(" | ".join(map(str, row)), flush=True)


if __name__ == "__main__":
    main()
