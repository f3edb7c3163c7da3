"""A student's bias: what the student lacks, and how it is written beside the student."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import ModelError
from flower_privsyn.models.bias import LogitBias, bigram_table
from flower_privsyn.models.library import save_model
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.models.threads import is_small, side_by_side
from flower_privsyn.queries.joint_sketch import find_bigrams
from flower_privsyn.training import storage
from flower_privsyn.training.storage import weight_files
from flower_privsyn.training.tokens import batches_by_length, first_token, next_token_logits

Float64Array = npt.NDArray[np.float64]

#: Occurrences beforehand that speak for a model's being right about a token.
_SURE = 2.0

#: Tokens of public text that a model reads.
_MOST_TOKENS = 2**17

#: Logits at a time: so few stay in memory that is used again, and twice as many texts are read.
_LOGITS = 2**21

_CARD = """# A language model with a bias of its logits

The model inside is of the type `{inside}`. A number is added to the logit of each of its {tokens:,}
tokens, and another one for {pairs:,} pairs of a token and the one before it. The numbers were read
from a release: using them is post-processing, and this folder says nothing about anybody that the
release did not say.

Transformers does not know the type of this folder, `privsyn-biased`, by itself. The package that
defines it must be installed (`pip install 'flower-privsyn[server]'`) and imported:

    import flower_privsyn.models.biased  # makes the type known
    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("this folder")
    tokenizer = AutoTokenizer.from_pretrained("this folder")

The functions, commands and settings of the package that take a model folder need no import.
"""


def beyond_model(
    told: LogitBias,
    model: str | Path,
    rows: Sequence[npt.NDArray[np.int64]],
    *,
    device: str | None = None,
) -> LogitBias:
    """A bias that was told from public texts, with what a model lacks of these texts.

    The model reads texts and says at every place how likely each token is to come next; what it
    expects of a token is the sum of that. Of a token of which it expects k occurrences and there
    are n, the log-ratio is log((n + a) / (k + a)), a = `_SURE`: the posterior mean of n / k where
    as many occurrences beforehand speak for 1. So of each pair of tokens of the bias, of which the
    model is to expect as many as with what its second token gets. Counting costs nothing, and
    counts of few texts are noise: n is of all texts, for as many tokens as the model reads.

    A model's text and what it was trained on differ after few steps of training. The log-ratio of
    users' text to these texts, and of them to what the model says, together are that of users' text
    to what the model says: by that its outputs are adjusted to other priors than it has learnt
    (Saerens, Latinne and Decaestecker 2002).

    Args:
        told: log-ratios of users' text to these texts.
        model: a bundled short name, a folder or a hub name of a causal language model.
        rows: tokens of public texts, of the model's tokenizer, at least one of each.
            The model reads rows drawn from them, up to `_MOST_TOKENS`.
        device: as PyTorch names it; None chooses.

    Returns:
        Of the tokens of the model's output, and the pairs of `LogitBias.for_model`.

    Raises:
        ConfigError: `told` is of more tokens than the model has.
        ModelError: The model cannot be used.
    """
    import torch
    from scipy.sparse import csr_array

    network, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device=device)
    begin = first_token(tokenizer)
    size = int(network.get_output_embeddings().weight.shape[0])
    told = told.for_model(size, first_token=begin)
    drawn = [rows[index] for index in np.random.default_rng(0).permutation(len(rows))]
    written = np.cumsum([len(row) for row in drawn])
    read = int(np.searchsorted(written, _MOST_TOKENS)) + 1
    begun = [[begin, *row.tolist()] for row in drawn[:read]]
    share = written[:read][-1] / written[-1]
    table = bigram_table([], [], [], vocabulary=size) if told.bigrams is None else told.bigrams
    every = table.tocoo()
    numbered = csr_array((np.arange(table.nnz), table.indices, table.indptr), shape=table.shape)
    counts = [np.bincount(np.concatenate(rows), minlength=size)]
    if table.nnz:
        found = np.concatenate([row[:-1] * size + row[1:] for row in rows])
        places, known = find_bigrams(every.row.astype(np.int64) * size + every.col, found)
        counts.append(np.bincount(places[known], minlength=table.nnz))

    def expected_of(batch: list[int]) -> Float64Array:
        texts = [begun[index] for index in batch]
        likely = torch.softmax(next_token_logits(network, texts), dim=-1)
        at = numbered[np.concatenate([text[:-1] for text in texts])].tocoo()
        pairs = np.bincount(at.data, likely[at.row, at.col].double().cpu(), minlength=table.nnz)
        return np.concatenate([likely.sum(0, dtype=torch.float64).cpu(), pairs])

    batches = batches_by_length(begun, range(len(begun)), vocabulary=size, most_logits=_LOGITS)
    parts = (side_by_side if is_small(network) else map)(expected_of, batches)
    expected = sum(parts, start=np.zeros(size + table.nnz))
    observed = np.concatenate(counts) * share + _SURE
    expected[size:] *= (observed / (expected + _SURE))[every.col]
    lacks = np.log(observed / (expected + _SURE)).astype(np.float32)
    values = (table.data + lacks[size:], table.indices, table.indptr)
    return LogitBias(
        tokens=told.tokens + lacks[:size],
        bigrams=None if told.bigrams is None else csr_array(values, shape=table.shape),
    )


def load_plain(model: str | Path) -> tuple[Any, Any]:
    """Load a causal language model that may get a bias, in float32 on the CPU, and its tokenizer.

    Args:
        model: a bundled short name, a folder or a hub name.

    Raises:
        ModelError: The model cannot be loaded, or has a bias.
    """
    network, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device="cpu")
    from flower_privsyn.models.biased import BiasedForCausalLM

    if isinstance(network, BiasedForCausalLM):
        raise ModelError(f"model {str(model)!r} has a bias already: give the model without it")
    return network, tokenizer


def save_biased(model: str | Path, output: Path, bias: LogitBias) -> None:
    """Write a folder with a model and a bias; the plain model stays as it is.

    Formal guarantee:
        Post-processing of what the bias was made from.

    Args:
        model: a bundled short name, a folder or a hub name of a causal language model without a
            bias.
        output: the folder; an older model there is replaced once the new one is complete. It holds
            the tokenizer, and a `README.md` that says how to load it.
        bias: as it is to be added; weights are the caller's (`LogitBias.scaled`). It may have fewer
            tokens than the model's output, and pairs that begin with the token before a text are
            left out.

    Raises:
        ConfigError: The bias is of more tokens than the model has.
        ModelError: The model cannot be loaded or has a bias, or `output` holds something else.
    """
    storage.refuse_other(output, holds=storage.MODEL)
    network, tokenizer = load_plain(model)
    from flower_privsyn.models.biased import with_bias

    size = int(network.get_output_embeddings().weight.shape[0])
    biased = with_bias(network, bias.for_model(size, first_token=first_token(tokenizer)))
    pairs = biased.config.num_bigrams
    card = _CARD.format(inside=network.config.model_type, tokens=size, pairs=pairs)
    built = output.with_name(f"{output.name}.built")
    save_model(biased, tokenizer, built)
    (built / "README.md").write_text(card, encoding="utf-8")
    storage.install(
        built,
        output,
        fingerprint={"kind": "biased", "model": weight_files(model)},
        report={"tokens": size, "bigrams": pairs},
    )
