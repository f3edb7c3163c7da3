"""The networks: shapes, starting weights, losses and optimisers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from corpus import BOS, CONTEXT, EOS, MASKED_ROWS, PAD, PROMPT_ROW, VOCABULARY


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One model: its shape, and how it is trained.

    Attributes:
        name: what users call it.
        kind: "causal", "masked" or "lstm".
        width: of the residual stream; for the LSTM the embedding.
        blocks: number of transformer blocks, or LSTM layers.
        hidden: width of the feed-forward layers, or the LSTM's hidden state.
        rows: rows of each batch of a step: (prompts, mixed) or (short, long) masked rows.
        share: part of the CPU minutes of a run.
        muon_lr: learning rate of the matrices inside the blocks; 0 leaves them to AdamW.
        adam_lr: learning rate of everything else.
        passes: training also ends after reading the corpus so often: beyond a few times a pass
            brings little (Muennighoff et al., "Scaling Data-Constrained Language Models", 2023).
    """

    name: str
    kind: str
    width: int
    blocks: int
    hidden: int
    rows: tuple[int, int]
    share: float
    muon_lr: float = 0.02
    adam_lr: float = 0.003
    passes: float = 8.0


#: What two CPU cores can train well in two hours: a step of a bigger model costs more than it
#: gains while the number of tokens is what limits all of them (README.md has the arithmetic).
RECIPES = (
    Recipe(
        name="privsyn-lm", kind="causal", width=256, blocks=4, hidden=704, rows=(4, 7), share=0.58
    ),
    Recipe(
        name="privsyn-mlm",
        kind="masked",
        width=256,
        blocks=4,
        hidden=1024,
        rows=(28, 14),
        share=0.26,
    ),
    Recipe(
        name="privsyn-tiny", kind="causal", width=128, blocks=4, hidden=384, rows=(4, 7), share=0.07
    ),
    Recipe(
        name="privsyn-lstm",
        kind="lstm",
        width=96,
        blocks=1,
        hidden=670,
        rows=(4, 7),
        share=0.09,
        muon_lr=0.0,
    ),
)


def build(recipe: Recipe) -> Any:
    """A Llama-style decoder, a RoBERTa with the layer norm first, or the LSTM."""
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        LlamaConfig,
        RobertaPreLayerNormConfig,
    )

    heads = recipe.width // 64
    if recipe.kind == "causal":
        return AutoModelForCausalLM.from_config(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=recipe.width,
                intermediate_size=recipe.hidden,
                num_hidden_layers=recipe.blocks,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                head_dim=64,
                max_position_embeddings=CONTEXT,
                rms_norm_eps=1e-5,
                tie_word_embeddings=True,
                pad_token_id=PAD,
                bos_token_id=EOS,
                eos_token_id=EOS,
            )
        )
    if recipe.kind == "masked":
        return AutoModelForMaskedLM.from_config(
            RobertaPreLayerNormConfig(
                vocab_size=VOCABULARY,
                hidden_size=recipe.width,
                intermediate_size=recipe.hidden,
                num_hidden_layers=recipe.blocks,
                num_attention_heads=heads,
                max_position_embeddings=MASKED_ROWS[-1] + PAD + 2,
                type_vocab_size=1,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                layer_norm_eps=1e-5,
                tie_word_embeddings=True,
                pad_token_id=PAD,
                bos_token_id=BOS,
                eos_token_id=EOS,
            )
        )
    from flower_privsyn.models.lstm import LSTMConfig, LSTMForCausalLM

    return LSTMForCausalLM(
        LSTMConfig(
            vocab_size=VOCABULARY,
            embedding_size=recipe.width,
            hidden_size=recipe.hidden,
            num_layers=recipe.blocks,
            max_position_embeddings=CONTEXT,
            pad_token_id=PAD,
            bos_token_id=EOS,
            eos_token_id=EOS,
        )
    )


def flops_per_token(model: Any, recipe: Recipe) -> float:
    """Multiply-adds of forward and backward, times two, per token; a third of it is the forward.

    Six per weight of every matrix product, and the attention's scores and sums at the mean length
    of a row. The masked model's head sees 30 % of the tokens.
    """
    embedding = model.get_input_embeddings().weight.numel()
    blocks = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n)
    if recipe.kind == "lstm":
        return 6.0 * blocks
    length = sum(MASKED_ROWS) / 2 if recipe.kind == "masked" else PROMPT_ROW / 1.3
    attention = 12.0 * recipe.blocks * recipe.width * length
    head = 0.3 * embedding if recipe.kind == "masked" else embedding
    return 6.0 * (blocks + head) + attention


# ------------------------------------------------------------------------------- starting weights


def word_vectors(work: Path, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Start embeddings that already know which tokens occur together.

    Positive pointwise mutual information of tokens at most four apart, factorised by a randomised
    singular value decomposition. It costs half a CPU minute and saves the first million tokens.

    Returns:
        Vectors of shape (vocabulary, dimension) with unit mean square, and log frequencies.

    References:
        Levy and Goldberg, "Neural Word Embedding as Implicit Matrix Factorization", 2014.
    """
    cached = work / f"vectors_{dimension}.npz"
    if cached.exists():
        with np.load(cached) as stored:
            return stored["vectors"], stored["log_frequency"]
    stream = np.load(work / "train.npy")
    tokens = stream[:8_000_000].astype(np.int64)
    counts = np.zeros(VOCABULARY * VOCABULARY, dtype=np.float32)
    for distance in range(1, 5):
        codes = tokens[:-distance] * VOCABULARY + tokens[distance:]
        counts += np.bincount(codes, minlength=len(counts)).astype(np.float32) / distance
    matrix = counts.reshape(VOCABULARY, VOCABULARY)
    matrix = matrix + matrix.T
    margin = matrix.sum(1)
    # The 0.75 power keeps rare tokens from dominating.
    smooth = np.maximum(margin, 1.0) ** 0.75
    with np.errstate(divide="ignore"):
        matrix = np.log(matrix * smooth.sum() / (np.maximum(margin, 1.0)[:, None] * smooth))
    matrix = np.maximum(matrix, 0.0, dtype=np.float32)
    random = np.random.default_rng(0)
    basis = random.standard_normal((VOCABULARY, dimension + 32)).astype(np.float32)
    for _ in range(4):
        basis, _ = np.linalg.qr(matrix @ basis)
    left, values, _ = np.linalg.svd((matrix @ basis).astype(np.float32), full_matrices=False)
    vectors = left[:, :dimension] * np.sqrt(values[:dimension])
    vectors /= np.sqrt((vectors**2).mean(1, keepdims=True)) + 1e-6
    frequency = np.bincount(stream, minlength=VOCABULARY) + 0.5
    log_frequency = np.log(frequency / frequency.sum())
    # Written under another name first: models that train side by side both want them.
    partial = cached.with_name(f"{cached.stem}.{np.random.default_rng().integers(2**62)}.npz")
    np.savez(partial, vectors=vectors.astype(np.float32), log_frequency=log_frequency)
    partial.rename(cached)
    return vectors, log_frequency


def initialise(model: Any, recipe: Recipe, seed: int, work: Path) -> None:
    """Blocks start as the identity, embeddings as word vectors, output biases as frequencies."""
    import torch

    torch.manual_seed(seed)
    embedding = model.get_input_embeddings().weight
    vectors, log_frequency = word_vectors(work, embedding.shape[1])
    frequencies = torch.from_numpy(log_frequency - log_frequency.mean()).float()
    with torch.no_grad():
        if recipe.kind == "lstm":
            model.apply(model._init_weights)
            model.lm_head.bias.copy_(frequencies)
            embedding.copy_(0.1 * torch.from_numpy(vectors))
            return
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", "output.dense.weight")):
                parameter.zero_()
            elif parameter.ndim == 2 and ".layer" in name:
                parameter.normal_(0.0, 0.6 / math.sqrt(parameter.shape[1]))
        embedding.copy_(0.02 * torch.from_numpy(vectors))
        bias = getattr(getattr(model, "lm_head", None), "bias", None)
        if bias is not None:
            bias.copy_(frequencies)
            start_locally(model)


def start_locally(model: Any) -> None:
    """Let the masked LM's first block begin with what most of a gap's prediction rests on.

    From a random start a small masked LM spends its first million tokens on the frequencies of
    tokens before it looks at their neighbours. Here the position embeddings are sinusoids in 64 of
    the dimensions; the four heads of the first block look one and two places back and ahead
    (a shift is a rotation of sine and cosine) and copy the word vectors found there. All of it is
    trained further.
    """
    import torch

    embeddings = model.base_model.embeddings
    width = embeddings.position_embeddings.weight.shape[1]
    half = 32
    position = torch.arange(embeddings.position_embeddings.weight.shape[0]).float()[:, None]
    angle = torch.exp(torch.linspace(math.log(0.6 * math.pi), math.log(0.01 * math.pi), half))
    waves = torch.cat([torch.sin(position * angle), torch.cos(position * angle)], 1)
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(width, 2 * half, generator=generator))[0]
    others = torch.eye(width) - basis @ basis.T
    attention = model.base_model.encoder.layer[0].attention
    index = torch.arange(half)
    with torch.no_grad():
        embeddings.position_embeddings.weight.copy_(0.02 * waves @ basis.T)
        for head, (offset, sharpness) in enumerate(((-1, 0.5), (1, 0.5), (-2, 0.2), (2, 0.2))):
            shift = torch.zeros(2 * half, 2 * half)
            shift[index, index] = shift[index + half, index + half] = torch.cos(angle * offset)
            shift[index, index + half] = torch.sin(angle * offset)
            shift[index + half, index] = -torch.sin(angle * offset)
            rows = slice(64 * head, 64 * head + 64)
            attention.self.query.weight[rows] = sharpness * shift @ basis.T
            attention.self.key.weight[rows] = basis.T
        attention.self.value.weight.copy_(torch.eye(width))
        attention.output.dense.weight.copy_(others)
        model.lm_head.dense.weight.copy_(others)
        model.lm_head.layer_norm.weight.fill_(0.5)


# ---------------------------------------------------------------------------- losses, optimisers


def causal_loss(model: Any, ids: Any) -> Any:
    """Mean cross-entropy of the next token, nats."""
    import torch

    hidden = model.base_model(input_ids=ids).last_hidden_state[:, :-1]
    logits = model.lm_head(hidden.reshape(-1, hidden.shape[-1]))
    return torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:].reshape(-1))


def masked_logits(model: Any, ids: Any, places: Any) -> Any:
    """Logits at the masked places only: the head costs as much as the blocks.

    Args:
        model: The masked LM.
        ids: Token ids with the masks put in, (rows, length).
        places: Flat indices into rows * length.
    """
    hidden = model.base_model(input_ids=ids, attention_mask=(ids != PAD).long())[0]
    return model.lm_head(hidden.reshape(-1, hidden.shape[-1])[places])


def masked_loss(model: Any, ids: Any, places: Any, targets: Any) -> Any:
    """Mean cross-entropy at the masked places, nats; target -100 does not count."""
    import torch

    logits = masked_logits(model, ids, places).float()
    return torch.nn.functional.cross_entropy(logits, targets)


def optimisers(model: Any, recipe: Recipe) -> list[Any]:
    """Muon for the matrices inside the blocks, AdamW for embeddings, heads, norms and biases.

    Args:
        model: the network.
        recipe: the learning rates.
    """
    import torch

    hidden, rest, plain = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and ".layer" in name and recipe.muon_lr:
            hidden.append(parameter)
        elif parameter.ndim == 2:
            rest.append(parameter)
        else:
            plain.append(parameter)
    groups = [
        {"params": rest, "lr": recipe.adam_lr, "weight_decay": 0.01},
        {"params": plain, "lr": recipe.adam_lr, "weight_decay": 0.0},
    ]
    found: list[Any] = [torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9)]
    if hidden:
        found.append(
            torch.optim.Muon(
                hidden, lr=recipe.muon_lr, weight_decay=0.01, momentum=0.95, ns_steps=4
            )
        )
    for optimiser in found:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return found


def rate(fraction: float) -> float:
    """Warm-up over 2 % of the budget, constant to 40 %, then linear to zero."""
    if fraction < 0.02:
        return max(0.02, fraction / 0.02)
    return min(1.0, max(0.0, (1.0 - fraction) / 0.6))
