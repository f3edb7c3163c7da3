"""Choosing public text that a private and a public language model both find likely.

The private model is a checkpoint that training under differential privacy released, so scores are
post-processing and cost nothing; with a model that was trained on private text without noise there
is no guarantee whatever.

Paper:
    Wang et al., "Can Public Large Language Models Help Private Cross-device Federated Learning?"
        (NAACL 2024), Algorithm 1: the rows with the largest average log-probability of a token
        by the private model plus that by the public one, a share q of the corpus.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from annotated_types import Gt, Le

from flower_privsyn.checks import PositiveInt, Settings
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import read_json, write_json
from flower_privsyn.models import resolve_model
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.training.fingerprint import digest_of_rows, weight_files
from flower_privsyn.training.selection import Float64Array, IntArray, Rows, Scorer
from flower_privsyn.training.tokens import (
    batches_by_length,
    first_token,
    next_token_logits,
    text_window,
)

#: Rows that are scored together, and between two notes of how far the scoring is.
BLOCK_ROWS = 1024


class TokenRows(Protocol):
    """Rows of token ids that can be looked up, in memory or on disk (`PublicRows`)."""

    def __len__(self) -> int:
        """Number of rows."""

    def __getitem__(self, index: int, /) -> Any:
        """The tokens of a row."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LanguageModelScorer:
    """Average log-probability of the tokens of a row by a causal language model.

    A row is what follows the beginning token, without an end token unless it has one. A row of
    more tokens than the model's context holds is scored in pieces, each after a beginning token,
    as training splits it.

    Attributes:
        model: a bundled short name, a folder or a hub name; its tokens are those of the rows.
        device: as PyTorch names it; None chooses.
        bfloat16: multiply in bfloat16.
    """

    model: str | Path
    device: str | None = None
    bfloat16: bool = False

    @cached_property
    def _loaded(self) -> tuple[Any, int]:
        """The model, and the token that stands before a row."""
        network, tokenizer = load_pretrained(
            self.model, kind="causal", dtype="float32", device=self.device
        )
        return network, first_token(tokenizer)

    def fingerprint(self) -> dict[str, Any]:
        """What scores depend on besides the rows, as JSON can hold it."""
        return {
            "model": weight_files(resolve_model(self.model)),
            "bfloat16": self.bfloat16,
        }

    def __call__(self, rows: Rows) -> Float64Array:
        """Score rows; one without tokens has no score (minus infinity).

        Raises:
            ConfigError: A row holds a token that the model does not have.
            ModelError: The model cannot be loaded.
        """
        network, begin = self._loaded
        vocabulary = int(network.get_output_embeddings().weight.shape[0])
        lengths = np.array([len(row) for row in rows.tokens], dtype=np.int64)
        window = text_window(network, max(1, int(lengths.max(initial=1))))
        pieces: list[list[int]] = []
        owners: list[int] = []
        for index, row in enumerate(rows.tokens):
            tokens = np.asarray(row, dtype=np.int64)
            if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocabulary:
                raise ConfigError(
                    f"{str(self.model)!r} has {vocabulary:,} tokens and cannot score rows with a "
                    f"token {max(tokens.max(), -tokens.min()):,}: they are of another tokenizer"
                )
            for start in range(0, len(tokens), window):
                pieces.append([begin, *tokens[start : start + window].tolist()])
                owners.append(index)
        sums = np.zeros(len(pieces))
        for chosen in batches_by_length(pieces, range(len(pieces)), vocabulary=vocabulary):
            sums[chosen] = _log_probabilities(
                network, [pieces[index] for index in chosen], bfloat16=self.bfloat16
            )
        scores = np.zeros(len(rows))
        np.add.at(scores, owners, sums)
        scores[lengths == 0] = -np.inf
        return scores / np.maximum(lengths, 1)


def _log_probabilities(
    network: Any, rows: Sequence[Sequence[int]], *, bfloat16: bool
) -> Float64Array:
    """Log-probability of what follows the first token of each row: (n,)."""
    import torch

    logits = next_token_logits(network, rows, bfloat16=bfloat16)
    following = torch.tensor([token for row in rows for token in row[1:]], device=logits.device)
    losses = torch.nn.functional.cross_entropy(logits, following, reduction="none")
    starts = np.cumsum([0, *(len(row) - 1 for row in rows[:-1])])
    found: Float64Array = -np.add.reduceat(losses.double().cpu().numpy(), starts)
    return found


def stored_scores(
    rows: TokenRows,
    scorer: Scorer,
    *,
    folder: Path,
    fingerprint: Mapping[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> Float64Array:
    """Score a corpus, or what is left of it after an interruption.

    Which rows are scored together depends on the rows alone, so that an interruption changes no
    bit. Scores of the public model can be kept for every private one: give it a folder of its own
    and add the two.

    Args:
        rows: the n rows of public text, as token ids.
        scorer: such as a `LanguageModelScorer`; not called where all rows have scores already.
        folder: for scores; made if needed. Others there are left as they are.
        fingerprint: what the scorer depends on, as JSON can hold it (`fingerprint()` of it).
        progress: called with how many rows have scores, and with n.

    Returns:
        (n,) mapped from the disk.
    """
    made_of = {"scorer": fingerprint, "rows": digest_of_rows(rows[i] for i in range(len(rows)))}
    digest = hashlib.blake2b(json.dumps(made_of, sort_keys=True).encode(), digest_size=16)
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / f"{digest.hexdigest()}.json"
    done = read_json(note).get("rows", 0)
    scores = np.lib.format.open_memmap(
        note.with_suffix(".npy"), mode="r+" if done else "w+", dtype=np.float64, shape=(len(rows),)
    )
    if progress is not None:
        progress(done, len(rows))
    while done < len(rows):
        block = range(done, min(done + BLOCK_ROWS, len(rows)))
        scores[block.start : block.stop] = scorer(Rows(tokens=[rows[index] for index in block]))
        scores.flush()
        done = block.stop
        write_json(note, {"rows": done})
        if progress is not None:
            progress(done, len(rows))
    return scores


@dataclass(frozen=True, kw_only=True)
class TokenShare(Settings):
    """How much of a corpus is kept, by its tokens.

    Rows differ in length, and training costs tokens: of the paper's rows, which are all as long,
    the same share of rows is the same share of tokens.
    """

    share: Annotated[
        float, Gt(0), Le(1), "of the tokens of all rows that the kept ones have at most."
    ]
    least_rows: Annotated[
        PositiveInt, "fewer rows are refused: a batch of the training that follows."
    ] = 1

    def _called(self, name: str) -> str:
        return f"distribution matching setting {name}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Matched:
    """The rows that are kept, best first.

    Attributes:
        indices: (k,) their places in the corpus.
        scores: (k,).
        tokens: how many all of them have.
        all_tokens: how many the corpus has.
        duplicates: rows passed over because they equal one that is kept.
    """

    indices: IntArray
    scores: Float64Array
    tokens: int
    all_tokens: int
    duplicates: int


def keep_share(rows: TokenRows, scores: Float64Array, rule: TokenShare) -> Matched:
    """Keep the best rows, as many as have a share of the corpus's tokens at most.

    Rows are taken in the order of their scores, equal scores in the order of the corpus. A row
    with the same tokens as one that is kept is passed over and takes nothing of the share; nor can
    a row without a finite score be kept. The first other row that would go beyond the share ends
    it: a shorter one further down is not taken in its place.

    Args:
        rows: the n rows of the corpus, as token ids.
        scores: (n,) the higher, the more wanted.
        rule: how much is kept.

    Raises:
        ConfigError: No row is left, or fewer than `least_rows`.
    """
    if len(scores) != len(rows):
        raise ValueError(f"{len(rows)} rows have {len(scores)} scores")
    values = np.asarray(scores, dtype=np.float64)
    usable = np.flatnonzero(np.isfinite(values))
    if not len(usable):
        raise ConfigError("distribution matching has nothing to choose from: no row has a score")
    all_tokens = sum(len(rows[index]) for index in range(len(rows)))
    left = int(rule.share * all_tokens)
    known: set[bytes] = set()
    kept: list[int] = []
    duplicates = 0
    for index in _best_first(values, usable):
        row = np.asarray(rows[index], dtype="<i8")
        digest = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
        if digest in known:
            duplicates += 1
            continue
        if len(row) > left:
            break
        known.add(digest)
        kept.append(index)
        left -= len(row)
    if len(kept) < rule.least_rows:
        raise ConfigError(
            f"distribution matching setting share = {rule.share:g} of {all_tokens:,} tokens leaves "
            + (f"{len(kept):,} rows, fewer than a batch of {rule.least_rows:,}" if kept else
               "no row: the best one alone has more")
            + ": raise it, or give more public text"
        )  # fmt: skip
    return Matched(
        indices=np.array(kept, dtype=np.int64),
        scores=values[kept],
        tokens=int(rule.share * all_tokens) - left,
        all_tokens=all_tokens,
        duplicates=duplicates,
    )


def _best_first(values: Float64Array, usable: IntArray) -> Iterator[int]:
    yield from usable[np.lexsort((usable, -values[usable]))].tolist()
