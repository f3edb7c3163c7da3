"""The accuracy that the tables of PrE-Text and POPri print, for comparing with those tables only.

The published evaluation tokenizes every text twice (`flower_privsyn.training.retokenize`). About
half of the positions it scores are the constant tokens that a space turns into, so rules without
any model reach 0.54 to 0.59 on the papers' kind of text, and an untuned DistilGPT2 is printed with
0.606. `evaluate_language_model` measures the text itself.

A model that was fine-tuned on text is a stranger to text that was tokenized twice: to compare with
a printed row, fine-tune with `CausalTraining.distilgpt2(retokenize=True)`, as the papers did.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flower_privsyn.errors import ConfigError
from flower_privsyn.evaluation.language_model import IntArray, predict
from flower_privsyn.evaluation.result import NotPrivate
from flower_privsyn.training.retokenize import PAPER_TOKENS, retokenized, space_tokens


@dataclass(frozen=True, kw_only=True)
class PaperAccuracy(NotPrivate):
    """Accuracy over positions of text that was tokenized twice.

    Attributes:
        accuracy: share of positions where the model's first choice is right. Compare it with the
            rules below, not with zero.
        without_model: the same for rules that know no language. "space": the next piece of a space,
            or its first piece after anything else. "space_word": the same, but after a space the
            most frequent beginning of a word. "pair": the most frequent successor of the token.
            Frequencies are counted on other, public text.
        space_share: share of positions that are a piece of a space.
        positions: scored.
        texts: how many.
        model: as it was named.
    """

    accuracy: float
    without_model: dict[str, float]
    space_share: float
    positions: int
    texts: int
    model: str


def paper_accuracy(
    model: str | Path,
    texts: Sequence[str],
    *,
    public: Sequence[str],
    batch_size: int = 32,
    device: str | None = None,
    precision: str = "float32",
    progress: Callable[[int], None] | None = None,
) -> PaperAccuracy:
    """Measure the published accuracy of a model with a byte-level tokenizer.

    Args:
        model: a bundled short name, a folder, or a hub name of a causal language model.
        texts: held-out private text, at least one text with a token; cut to 64 tokens of the
            second kind, as published.
        public: text in which the rules' frequencies are counted.
        batch_size: texts per forward pass.
        device: as PyTorch names it; None chooses.
        precision: "float32", "bfloat16", "float16" or "auto".
        progress: called with the number of texts just done.

    Raises:
        ConfigError: An argument is out of range, or there is nothing to predict.
        ModelError: The model cannot be used or its tokenizer is not byte-level.
        MissingExtraError: PyTorch or Transformers is not installed.

    References:
        Hou et al. 2024 (PrE-Text), tables 2 and 3; Hou et al. 2025 (POPri), table 1.
    """
    from flower_privsyn.models.pretrained import load_pretrained

    network, tokenizer = load_pretrained(model, kind="causal", dtype=precision, device=device)
    # The beginning and the end of an empty text are all that is left of it.
    rows = [row for row in retokenized(tokenizer, texts, max_tokens=PAPER_TOKENS) if len(row) > 2]
    if not rows:
        raise ConfigError("there is nothing to predict: no text has a token")

    def finished(done: IntArray) -> None:
        if progress is not None:
            progress(len(done))

    correct, *_ = predict(network, rows, batch_size=batch_size, finished=finished)
    positions = sum(len(row) - 1 for row in rows)
    spaces = space_tokens(tokenizer)
    rules = rules_without_model(
        retokenized(tokenizer, public, max_tokens=PAPER_TOKENS), spaces=spaces
    )
    return PaperAccuracy(
        accuracy=int(correct.sum()) / positions,
        without_model={name: rule_accuracy(rule, rows) for name, rule in rules.items()},
        space_share=sum(row[1:].count(piece) for row in rows for piece in set(spaces)) / positions,
        positions=positions,
        texts=len(rows),
        model=str(model),
    )


Rule = Callable[[int], int]


def rules_without_model(
    rows: Iterable[Sequence[int]], *, spaces: Sequence[int]
) -> Mapping[str, Rule]:
    """The three rules: from a token to the guess of the next one.

    Args:
        rows: public text, tokenized twice, in which successors are counted.
        spaces: the tokens a space becomes.
    """
    successors: dict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        for token, following in itertools.pairwise(row):
            successors[token][following] += 1
    # The smallest of equally frequent ones, so that the order of the text does not matter.
    frequent = {
        token: min(counts, key=lambda other: (-counts[other], other))
        for token, counts in successors.items()
    }
    pieces: dict[int, int] = dict(itertools.pairwise(spaces))
    words = {spaces[-1]: frequent.get(spaces[-1], spaces[0]), **pieces}
    return {
        "space": lambda token: pieces.get(token, spaces[0]),
        "space_word": lambda token: words.get(token, spaces[0]),
        "pair": lambda token: frequent.get(token, spaces[0]),
    }


def rule_accuracy(rule: Rule, rows: Iterable[Sequence[int]]) -> float:
    """Share of all tokens but the first of each row that a rule guesses from the one before."""
    right = [
        rule(token) == following for row in rows for token, following in itertools.pairwise(row)
    ]
    return float(np.mean(right))
