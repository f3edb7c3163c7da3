"""Held-out and zero-shot figures of a trained model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from corpus import (
    EOS,
    FIM_MIDDLE,
    MASKED_ROWS,
    PLAIN_ROW,
    PROMPT_ROW,
    SPECIAL,
    Corpus,
    clean,
    tokenize,
)
from networks import Recipe, masked_logits
from private import PrivateCorpus

SEED = 1
_TOKENS_AT_A_TIME = 2048


@dataclass(kw_only=True)
class Tally:
    """Sums over predicted tokens.

    Attributes:
        nats: cross-entropy.
        hits: places where the likeliest token was right.
        tokens: places.
        bytes: of the right tokens; an end token has none.
    """

    nats: float = 0.0
    hits: int = 0
    tokens: int = 0
    bytes: int = 0

    def figures(self) -> dict[str, float]:
        """Cross-entropy per token and per byte, accuracy, and over how many tokens."""
        return {
            "nats_per_token": round(self.nats / self.tokens, 4),
            "bits_per_byte": round(self.nats / math.log(2) / max(self.bytes, 1), 4),
            "accuracy": round(self.hits / self.tokens, 4),
            "tokens": self.tokens,
        }


def byte_lengths(tokenizer: Any) -> np.ndarray:
    """Bytes of each token, (vocabulary,): its symbols, one per byte; none for special tokens."""
    lengths = np.zeros(max(tokenizer.get_vocab().values()) + 1, dtype=np.int64)
    for symbols, number in tokenizer.get_vocab().items():
        lengths[number] = 0 if symbols in SPECIAL else len(symbols)
    return lengths


def prepare_private(work: Path, corpus: PrivateCorpus, *, tokens: int) -> dict[str, int]:
    """Draw documents of a private corpus and tokenize them, as a split of the work folder.

    Args:
        work: the folder of the prepared public corpus.
        corpus: the private one.
        tokens: stop drawing documents when they have at least this many tokens.

    Returns:
        Numbers of `documents`, `tokens` and `bytes` drawn, and `of_documents` there are.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(work / "bpe.json"))
    texts = [text for text in map(clean, corpus.texts()) if text]
    drawn: list[str] = []
    total = 0
    for index in np.random.default_rng(SEED).permutation(len(texts)):
        drawn.append(texts[index])
        total += len(tokenizer.encode(texts[index]).ids) + 1
        if total >= tokens:
            break
    counts = tokenize(work, split_of(corpus), drawn, [0] * len(drawn))
    return {**counts, "of_documents": len(texts)}


def split_of(corpus: PrivateCorpus) -> str:
    """What the files of a private corpus are called in the work folder."""
    return f"private-{corpus.name}"


# ----------------------------------------------------------------------------- rows and their marks


def consecutive(corpus: Corpus, *, tokens: int, length: int = PLAIN_ROW) -> np.ndarray:
    """Rows of the packed stream, evenly spread over it, none overlapping: (rows, length)."""
    available = len(corpus.stream) // length
    if not available:  # a stream shorter than one row is one shorter row
        return np.asarray(corpus.stream[:], dtype=np.int64)[None]
    rows = max(1, min(available, tokens // length))
    chosen = (np.arange(rows) * available) // rows
    return np.stack([corpus.stream[i * length : (i + 1) * length] for i in chosen]).astype(np.int64)


def of_documents(corpus: Corpus, ids: np.ndarray) -> np.ndarray:
    """Mark what follows the keyword header, up to the end token: (rows, length) bool."""
    header = np.asarray(corpus.tokenizer.encode("\nDocument:\n").ids)
    marks = np.zeros(ids.shape, dtype=bool)
    for row, mark in zip(ids, marks, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(row, len(header))
        begin = int(np.flatnonzero((windows == header).all(1))[0]) + len(header)
        ends = np.flatnonzero(row[begin:] == EOS)
        mark[begin : begin + int(ends[0]) + 1 if len(ends) else len(row)] = True
    return marks


def of_holes(ids: np.ndarray) -> np.ndarray:
    """Mark what is written into the hole, the end token included: (rows, length) bool."""
    return np.cumsum(ids == FIM_MIDDLE, axis=1).astype(bool) & (ids != FIM_MIDDLE)


# -------------------------------------------------------------------------------------- measuring


def score_causal(
    model: Any, ids: np.ndarray, lengths: np.ndarray, marks: np.ndarray | None = None
) -> Tally:
    """Predict the next token at every place of some rows.

    Args:
        model: a causal language model.
        ids: (rows, length) token ids.
        lengths: bytes of each token.
        marks: (rows, length) bool, the tokens that count; None counts all but the first of a row.
    """
    import torch

    tally = Tally()
    device = next(model.parameters()).device
    step = max(1, _TOKENS_AT_A_TIME // ids.shape[1])
    for start in range(0, len(ids), step):
        rows = torch.from_numpy(ids[start : start + step]).to(device)
        counted = torch.ones_like(rows, dtype=torch.bool)
        if marks is not None:
            counted = torch.from_numpy(marks[start : start + step]).to(device)
        counted, targets = counted[:, 1:], rows[:, 1:]
        with torch.inference_mode():
            hidden = model.base_model(input_ids=rows).last_hidden_state[:, :-1][counted]
            _add(tally, model.lm_head(hidden).float(), targets[counted], lengths)
    return tally


def score_masked(
    model: Any, batches: Iterator[tuple[np.ndarray, ...]], lengths: np.ndarray
) -> Tally:
    """Predict the masked tokens of some batches of ids, places and targets."""
    import torch

    tally = Tally()
    device = next(model.parameters()).device
    for batch in batches:
        ids, places, targets = (torch.from_numpy(array).to(device) for array in batch)
        used = targets >= 0
        with torch.inference_mode():
            logits = masked_logits(model, ids, places[used]).float()
            _add(tally, logits, targets[used], lengths)
    return tally


def _add(tally: Tally, logits: Any, targets: Any, lengths: np.ndarray) -> None:
    from torch.nn.functional import cross_entropy

    tally.nats += float(cross_entropy(logits, targets, reduction="sum"))
    tally.hits += int((logits.argmax(-1) == targets).sum())
    tally.tokens += len(targets)
    tally.bytes += int(lengths[targets.cpu().numpy()].sum())


def evaluate(
    recipe: Recipe,
    model: Any,
    work: Path,
    corpora: Sequence[PrivateCorpus],
    *,
    tokens: int,
) -> dict[str, Any]:
    """Measure one model on the held-out split and on private corpora it has never seen.

    Args:
        recipe: which model it is.
        model: it, in float32 and evaluation mode.
        work: the folder of the prepared corpora (`prepare`, `prepare_private`).
        corpora: the private ones.
        tokens: about how many tokens of each corpus are read; for each objective that is made of
            rows, on the held-out split, a row of them per 1,024 tokens.

    Returns:
        Per corpus and objective the figures of `Tally`.
    """
    result = {}
    for name, split in [("held_out", "held_out"), *((c.name, split_of(c)) for c in corpora)]:
        texts = Corpus(work, split, SEED)
        if recipe.kind == "masked":
            result[name] = _masked(model, texts, tokens)
        else:
            result[name] = _causal(model, texts, tokens, made=name == "held_out")
    for name, objectives in result.items():
        print(f"[{recipe.name}] {name}: {json.dumps(objectives)}", flush=True)
    return result


def _causal(model: Any, corpus: Corpus, tokens: int, *, made: bool) -> dict[str, Any]:
    """Plain text, and the objectives of training whose rows are made."""
    lengths = byte_lengths(corpus.tokenizer)
    found = {"plain": score_causal(model, consecutive(corpus, tokens=tokens), lengths).figures()}
    if not made:
        return found
    rows = max(1, tokens // 1024)
    makers: dict[str, Callable[[], tuple[np.ndarray, np.ndarray | None]]] = {
        "prompt": lambda: (corpus.prompts(rows, PROMPT_ROW), None),
        "keyword_document": lambda: _marked(corpus.keyword_documents(rows), corpus),
        "fill_in_the_middle": lambda: _with_holes(corpus.fill_in_the_middle(rows)),
    }
    for name, make in makers.items():
        ids, marks = make()
        found[name] = score_causal(model, ids, lengths, marks).figures()
    return found


def _marked(ids: np.ndarray, corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    return ids, of_documents(corpus, ids)


def _with_holes(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return ids, of_holes(ids)


def _masked(model: Any, corpus: Corpus, tokens: int) -> dict[str, Any]:
    """30 % masked, on texts of at most 64 and of at most 126 tokens."""
    lengths = byte_lengths(corpus.tokenizer)
    found = {}
    for length in MASKED_ROWS:
        count = max(1, tokens // (len(MASKED_ROWS) * length * 16))
        batches = (corpus.masked(16, length) for _ in range(count))
        found[f"masked_{length - 2}"] = score_masked(model, batches, lengths).figures()
    return found
