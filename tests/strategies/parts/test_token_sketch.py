"""What is made of a release that has been read: a score, a bias, a table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from flower_privsyn.data.public_rows import TokenRows
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.report.sketch_file import SKETCH_FILE, read_sketch
from flower_privsyn.strategies._sketch_reading import BlockReading, TokenSketch


def block(log_ratio: np.ndarray, error: float, keys: np.ndarray | None = None) -> BlockReading:
    """What is known of items that public text has one as often as another."""
    public = np.full(len(log_ratio), 0.1)
    return BlockReading(
        keys=keys,
        public=public,
        rate=public * np.exp(log_ratio),
        log_ratio=log_ratio,
        standard_error=np.full(len(public), error),
        centre=0.0,
    )


@pytest.fixture(scope="module")
def sketch() -> TokenSketch:
    """Token 40 is written three times as often, token 41 half as often, and 40 41 ten times."""
    size = load_tokenizer("privsyn-tiny")[0].get_vocab_size()
    tokens = np.zeros(size)
    tokens[40], tokens[41] = np.log(3.0), np.log(0.5)
    keys = np.array([40 * size + 41, 149 * size + 238])  # the bytes of a letter
    return TokenSketch(
        vocabulary=size,
        tokens=block(tokens, 0.1),
        bigrams=block(np.array([np.log(10.0), 0.0]), 0.2, keys),
        num_users=10.0,
        noise_std=1.0,
        tokens_per_user=8,
    )


def test_bias_says_how_much_likelier_a_token_is_after_the_one_before(sketch: TokenSketch) -> None:
    bias = sketch.bias()
    assert bias.bigrams is not None
    # r(40 41) - r(40): the token's own number is in it and is not added again.
    added = bias.tokens[41] + bias.bigrams[40, 41]
    assert added == pytest.approx(np.log(10.0) - np.log(3.0), abs=1e-6)


def test_score_is_the_mean_log_ratio_of_a_row(sketch: TokenSketch) -> None:
    rows = TokenRows.of([[40, 60], [40, 41], [60, 61]])
    alone = dataclasses.replace(sketch, bigrams=None)
    np.testing.assert_allclose(
        alone.scorer()(rows), [np.log(3.0) / 2, np.log(1.5) / 2, 0.0], atol=1e-12
    )
    np.testing.assert_allclose(
        sketch.scorer()(rows), [np.log(3.0) / 2, np.log(10.0) / 2, 0.0], atol=1e-12
    )


@pytest.mark.parametrize(("error", "way"), [(0.0, 0.0), (100.0, 1.0)])
def test_where_little_is_told_texts_rank_by_what_is_known(
    sketch: TokenSketch, error: float, way: float
) -> None:
    """How much of the way from what may be to what is known tokens' and pairs' ratios go."""
    assert sketch.bigrams is not None
    more = 2.0  # all of them might be twice as frequent as is known
    told = dataclasses.replace(
        sketch,
        tokens=hoped(block(sketch.tokens.log_ratio, error), more),
        bigrams=hoped(block(sketch.bigrams.log_ratio, error, sketch.bigrams.keys), more),
    )
    scorer = told.scorer()
    assert scorer.bigrams is not None
    for ratios, known in (
        (scorer.tokens, sketch.tokens.log_ratio),
        (scorer.bigrams, sketch.bigrams.log_ratio),
    ):
        gone = 1.0 - (ratios - known) / np.log(more)
        np.testing.assert_allclose(gone, way, atol=0.01)


def hoped(block: BlockReading, more: float) -> BlockReading:
    """The same block, whose items may all be so many times as frequent."""
    return dataclasses.replace(block, rate=block.rate * more)


def test_what_is_sure_is_shown(sketch: TokenSketch, tmp_path: Path) -> None:
    tokenizer, _ = load_tokenizer("privsyn-tiny")
    sketch.save(tmp_path, tokenizer=tokenizer)
    shown = read_sketch(tmp_path / SKETCH_FILE, most=5)
    assert [row["text"] for row in shown["token"]["more"]] == [tokenizer.decode([40])]
    assert [row["text"] for row in shown["token"]["less"]] == [tokenizer.decode([41])]
    (bigram,) = shown["bigram"]["more"]
    assert pq.read_table(tmp_path / SKETCH_FILE)["text"][-1].as_py() == "ш"
    assert bigram["ratio"] == pytest.approx(10.0, rel=1e-5)
    assert bigram["low"] == pytest.approx(10.0 * np.exp(-0.4), rel=1e-5)
    assert shown["bigram"]["less"] == []
    (tmp_path / SKETCH_FILE).write_bytes(b"PAR1 and no more")
    with pytest.raises(RunDirectoryError, match=r"sketch\.parquet cannot be read"):
        read_sketch(tmp_path / SKETCH_FILE, most=5)
