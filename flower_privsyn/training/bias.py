"""A student's bias: how strong it is to be, tuned on public text, and written beside the student.

What is tuned on is a public split that plays the private one: log-ratios of some public users,
measured with the noise of a real run, and text of other users of the same kind.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import ConfigError, ModelError
from flower_privsyn.models import resolve_model
from flower_privsyn.models.bias import LogitBias
from flower_privsyn.models.library import quiet_transformers
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.training import storage
from flower_privsyn.training.fingerprint import weight_files
from flower_privsyn.training.tokens import MOST_LOGITS, first_token, padded, text_window, token_rows

if TYPE_CHECKING:
    import torch

Float64Array = npt.NDArray[np.float64]

#: Weights that are tried unless others are given.
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)

#: Occurrences beforehand that speak for a model's being right about a token.
_SURE = 2.0

_CARD = """# A language model with a bias of its logits

The model inside is of the type `{inside}`. A number is added to the logit of each of its {tokens:,}
tokens{pairs}. The numbers were read from a release: using them is post-processing, and this folder
says nothing about anybody that the release did not say.

Transformers does not know the type of this folder, `privsyn-biased`, by itself. The package that
defines it must be installed (`pip install 'flower-privsyn[server]'`) and imported:

    import flower_privsyn.models.biased  # makes the type known
    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("this folder")
    tokenizer = AutoTokenizer.from_pretrained("this folder")

The functions, commands and settings of the package that take a model folder need no import.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class BiasScores:
    """What a bias is worth on some text at every pair of weights.

    Attributes:
        token_weights: (a,) weights of the tokens' numbers.
        bigram_weights: (b,) weights of the pairs' numbers.
        nats: (a, b) negative log-probability of the text, summed.
        tokens: predicted.
        bytes: of the text in UTF-8.
    """

    token_weights: tuple[float, ...]
    bigram_weights: tuple[float, ...]
    nats: Float64Array
    tokens: int
    bytes: int

    @property
    def bits_per_byte(self) -> Float64Array:
        """(a, b)."""
        bits: Float64Array = self.nats / math.log(2) / self.bytes
        return bits


def score_bias(
    model: str | Path,
    bias: LogitBias,
    texts: Sequence[str],
    *,
    token_weights: Sequence[float] = WEIGHTS,
    bigram_weights: Sequence[float] = WEIGHTS,
    max_tokens: int = 64,
    device: str | None = None,
) -> BiasScores:
    """Score a bias at all pairs of weights on public text; the model reads every text once.

    As in `evaluate_language_model`, texts are read in windows of `max_tokens` from a fresh
    beginning, every token is predicted once, and the end of a text is none.

    Args:
        model: a bundled short name, a folder or a hub name of a causal language model without a
            bias.
        bias: log-ratios, unscaled.
        texts: public text on which weights may be chosen; at least one with a token.
        token_weights: ascending, each >= 0.
        bigram_weights: ascending, each >= 0; only 0 is tried where the bias has no pairs.
        max_tokens: tokens of text in a window, >= 1.
        device: as PyTorch names it; None chooses.

    Raises:
        ConfigError: A weight is out of range, the bias does not fit, or there is no text.
        ModelError: The model cannot be used.
    """
    if bias.bigrams is None:
        bigram_weights = (0.0,)
    for name, weights in (("token", token_weights), ("bigram", bigram_weights)):
        sound = all(math.isfinite(weight) and weight >= 0 for weight in weights)
        if not weights or not sound or list(weights) != sorted(set(weights)):
            raise ConfigError(
                f"{name} weights of a bias must be numbers >= 0 in ascending order, got "
                f"{', '.join(map(str, weights)) or 'none'}"
            )
    import torch

    network, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device=device)
    begin = first_token(tokenizer)
    size = int(network.get_output_embeddings().weight.shape[0])
    grid = _Grid(
        bias.for_model(size, first_token=begin),
        token_weights=token_weights,
        bigram_weights=bigram_weights,
        device=network.device,
    )
    window = text_window(network, max_tokens)
    rows = [
        [begin, *row[start : start + window]]
        for row in token_rows(tokenizer, texts)
        for start in range(0, len(row), window)
    ]
    if not rows:
        raise ConfigError("there is nothing to choose weights by: no text has a token")
    with torch.inference_mode():
        for _, *batch in _read(network, rows, size=size):
            grid.add(*batch)
    return BiasScores(
        token_weights=tuple(map(float, token_weights)),
        bigram_weights=tuple(map(float, bigram_weights)),
        nats=grid.nats,
        tokens=sum(len(row) - 1 for row in rows),
        bytes=sum(len(text.encode("utf-8", "surrogatepass")) for text in texts),
    )


def _read(
    network: Any, rows: list[list[int]], *, size: int
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Read rows in batches; sorts them, for a batch of like lengths is hardly padded.

    Args:
        network: the model.
        rows: tokens, the beginning one first.
        size: of its output.

    Yields:
        How many rows there are, and of their n predictions the logits, (n, size) float32, the token
        before each and the token itself.
    """
    rows.sort(key=len, reverse=True)
    start = 0
    while start < len(rows):
        step = max(1, MOST_LOGITS // (len(rows[start]) * size))
        batch = rows[start : start + step]
        tokens, attention = (part.to(network.device) for part in padded(batch))
        held = attention[:, 1:].bool()
        logits = network(input_ids=tokens, attention_mask=attention).logits[:, :-1]
        yield len(batch), logits[held].float(), tokens[:, :-1][held], tokens[:, 1:][held]
        start += step


class _Grid:
    """Sums of negative log-probabilities at all pairs of weights, from the logits without bias.

    With p the model's probabilities, u the tokens' numbers and v those of the pairs, the constant
    that normalises the biased ones is sum(p exp(a u)) + sum(p exp(a u) (exp(b v) - 1)), the second
    sum over the few tokens with a pair: the first is one matrix product for all a.
    """

    def __init__(
        self,
        bias: LogitBias,
        *,
        token_weights: Sequence[float],
        bigram_weights: Sequence[float],
        device: Any,
    ) -> None:
        import torch

        self._bias = torch.from_numpy(bias.tokens).to(device)
        self._token_weights = torch.tensor(token_weights, dtype=torch.float32, device=device)
        self._bigram_weights = torch.tensor(bigram_weights, dtype=torch.float32, device=device)
        self._factors = (self._bias[:, None] * self._token_weights).exp()  # (v, a)
        pairs = bias.bigrams
        self._pairs = None
        if pairs is not None and len(pairs.tokens):
            arrays = (pairs.starts, pairs.tokens.astype(np.int64), pairs.values)
            self._pairs = tuple(torch.from_numpy(array).to(device) for array in arrays)
        self.nats = np.zeros((len(token_weights), len(bigram_weights)))

    def add(self, logits: torch.Tensor, previous: torch.Tensor, targets: torch.Tensor) -> None:
        """Add the tokens of a batch.

        Args:
            logits: (n, v) float32.
            previous: (n,) the token before each predicted one.
            targets: (n,) the predicted one.
        """
        import torch

        logs = torch.log_softmax(logits, dim=-1)
        p = logs.exp()
        mass = (p @ self._factors)[:, :, None].repeat(1, 1, len(self._bigram_weights))
        written = self._bias[targets][:, None, None] * self._token_weights[:, None]  # (n, a, 1)
        if self._pairs is not None:
            from flower_privsyn.models.biased import bigram_entries

            starts, tokens, values = self._pairs
            places, entries = bigram_entries(starts, previous)
            columns, numbers = tokens[entries], values[entries]
            weighted = p[places, columns][:, None] * self._factors[columns]  # (m, a)
            growth = (numbers[:, None] * self._bigram_weights).expm1()  # (m, b)
            for index in range(len(self._bigram_weights)):
                if float(self._bigram_weights[index]):
                    mass[:, :, index].index_add_(0, places, weighted * growth[:, index, None])
            came = columns == targets[places]
            pair = torch.zeros_like(self._bias[targets])
            pair[places[came]] = numbers[came]
            written = written + pair[:, None, None] * self._bigram_weights  # (n, a, b)
        chosen = logs.gather(-1, targets[:, None])[:, :, None] + written - mass.log()
        self.nats -= chosen.double().sum(0).cpu().numpy()


def unlearnt(
    model: str | Path,
    rows: Sequence[npt.NDArray[np.int64]],
    *,
    most_tokens: int = 2**17,
    seed: int = 0,
    device: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Float64Array:
    """How much more often public texts have each token than a model expects in them.

    The model reads the texts and says at every place how likely each token is to come next; what it
    expects of a token is the sum of that. Of a token of which it expects k occurrences and there
    are n, the log-ratio is log((n + a) / (k + a)), a = `_SURE`: the posterior mean of n / k where
    as many occurrences beforehand speak for 1.

    A model's text and what it was trained on differ after few steps of training. With the log-ratio
    of users' text to these texts added, it is the log-ratio of users' text to what the model says:
    by that its outputs are adjusted to other priors than it has learnt (Saerens, Latinne and
    Decaestecker 2002).

    Args:
        model: a bundled short name, a folder or a hub name of a causal language model.
        rows: tokens of public texts, of the model's tokenizer; at least one token.
        most_tokens: after which no further row is read; rows are drawn by the seed.
        seed: of the draw.
        device: as PyTorch names it; None chooses.
        progress: is told of rows as they are read.

    Returns:
        (V,) of the model's output.

    Raises:
        ConfigError: There is no token.
        ModelError: The model cannot be used.
    """
    import torch

    network, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device=device)
    begin = first_token(tokenizer)
    size = int(network.get_output_embeddings().weight.shape[0])
    order = np.random.default_rng(seed).permutation(len(rows))
    read = np.cumsum([len(rows[index]) for index in order.tolist()])
    chosen = [rows[index] for index in order[: int(np.searchsorted(read, most_tokens)) + 1]]
    chosen = [row for row in chosen if len(row)]
    if not chosen:
        raise ConfigError("there is nothing to compare a model with: no text has a token")
    counts = np.bincount(np.concatenate(chosen), minlength=size).astype(np.float64)
    expected = torch.zeros(size, dtype=torch.float64, device=network.device)
    begun = [[begin, *row.tolist()] for row in chosen]
    with torch.inference_mode():
        for count, logits, _, _ in _read(network, begun, size=size):
            expected += torch.softmax(logits, dim=-1).sum(0, dtype=torch.float64)
            if progress is not None:
                progress(count)
    found: Float64Array = np.log((counts + _SURE) / (expected.cpu().numpy() + _SURE))
    return found


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


def save_biased(model: str | Path, output: str | Path, bias: LogitBias) -> None:
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
    output = Path(output)
    storage.refuse_other(output)
    network, tokenizer = load_plain(model)
    from flower_privsyn.models.biased import with_bias

    size = int(network.get_output_embeddings().weight.shape[0])
    biased = with_bias(network, bias.for_model(size, first_token=first_token(tokenizer)))
    pairs = biased.config.num_bigrams
    said = (
        f", and another one for {pairs:,} pairs of a token and the one before it" if pairs else ""
    )
    card = _CARD.format(inside=network.config.model_type, tokens=size, pairs=said)
    output.parent.mkdir(parents=True, exist_ok=True)
    built = output.with_name(f"{output.name}.built")
    if built.exists():
        shutil.rmtree(built)
    with quiet_transformers():
        biased.save_pretrained(built)
        tokenizer.save_pretrained(built)
    (built / "README.md").write_text(card, encoding="utf-8")
    storage.install(
        built,
        output,
        fingerprint={"kind": "biased", "model": weight_files(resolve_model(model))},
        report={"tokens": size, "bigrams": pairs},
    )
