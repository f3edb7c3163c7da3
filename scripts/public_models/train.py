"""Train the bundled public models from a public corpus: tokenizer, causal LM, masked LM, cards.

One command does everything (about fifty CPU minutes with the defaults, and less than half an hour
where two cores are free)::

    python scripts/public_models/train.py --corpus DIR --output flower_privsyn/models

See README.md beside this file for the corpus format and the choices made.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from flower_privsyn.generation.prompts import Prompt, load_prompt  # noqa: E402

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
PAD, BOS, EOS, UNK, MASK = range(5)
VOCABULARY = 8192
HELD_OUT_ONE_IN = 50  # 2 % of the documents
SAMPLE_TOKENS = 64
PROMPT_ROW = 448  # six samples of 64 tokens, their markers and the heading: 442 tokens
MASKED_LENGTHS = (66, 128)
CONTEXT = 512
WIDTH = 256
SECONDS_BETWEEN_LINES = 15.0


# ---------------------------------------------------------------------------------------- corpus


def read_corpus(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the documents of ``public-*.jsonl.gz`` in file order."""
    shards = sorted(folder.glob("public-*.jsonl.gz"))
    if not shards:
        raise SystemExit(f"no public-*.jsonl.gz in {folder}")
    for shard in shards:
        with gzip.open(shard, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def is_held_out(document: dict[str, str]) -> bool:
    """Choose 2 % of the works by a hash of their name; the parts of a work stay together."""
    work = document["source"] + "/" + document["doc_id"].split("#")[0]
    digest = hashlib.blake2b(work.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


def train_tokenizer(texts: list[str], prompt: Prompt) -> Any:
    """Train a byte-level BPE; the prompt's own words take part, so that a marker stays short."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    scaffold = prompt.render_document([str(number) for number in range(1, 7)])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *[scaffold] * 2000], trainer)
    return tokenizer


def prepare(corpus: Path, work: Path) -> None:
    """Split, train the tokenizer, and tokenize once into flat uint16 arrays."""
    started = time.process_time()
    train: list[str] = []
    held_out: list[str] = []
    groups: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    for document in read_corpus(corpus):
        (held_out if is_held_out(document) else train).append(document["text"])
        groups[document["group"]] += 1
        sources[document["source"]] += 1
    print(f"[prepare] {len(train)} training and {len(held_out)} held-out documents", flush=True)
    tokenizer = train_tokenizer(train, load_prompt("pre-text"))
    tokenizer.save(str(work / "bpe.json"))
    print(f"[prepare] tokenizer done at {time.process_time() - started:.0f} CPU s", flush=True)
    facts: dict[str, Any] = {"groups": dict(groups), "sources": dict(sources)}
    for name, texts in (("train", train), ("held_out", held_out)):
        # A document's bounds exclude the end token that follows it in the stream.
        bounds = np.zeros((len(texts), 2), dtype=np.int64)
        pieces: list[np.ndarray] = []
        position = 0
        for start in range(0, len(texts), 1000):
            for offset, encoded in enumerate(tokenizer.encode_batch(texts[start : start + 1000])):
                ids = np.asarray([*encoded.ids, EOS], dtype=np.uint16)
                bounds[start + offset] = position, position + len(ids) - 1
                position += len(ids)
                pieces.append(ids)
        np.save(work / f"{name}.npy", np.concatenate(pieces))
        np.save(work / f"{name}_bounds.npy", bounds)
        facts[name] = {
            "documents": len(texts),
            "tokens": position,
            "bytes": sum(len(text.encode()) for text in texts),
        }
    word_vectors(work, WIDTH)  # once, before two processes want them
    facts["cpu_seconds"] = round(time.process_time() - started, 1)
    (work / "facts.json").write_text(json.dumps(facts, indent=2))
    print(f"[prepare] {facts['train']} {facts['held_out']}", flush=True)


class Corpus:
    """The tokenized corpus and a random stream of training rows."""

    def __init__(self, work: Path, split: str, seed: int) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(work / "bpe.json"))
        self.stream = np.load(work / f"{split}.npy", mmap_mode="r")
        self.bounds = np.load(work / f"{split}_bounds.npy")
        self.random = np.random.default_rng(seed)
        lengths = self.bounds[:, 1] - self.bounds[:, 0]
        # Six samples of 64 tokens must fit, half as much again so that the choice is not fixed.
        self.long = np.flatnonzero(lengths >= 6 * SAMPLE_TOKENS)
        self.weights = lengths[self.long] / lengths[self.long].sum()
        self.prompt = load_prompt("pre-text")
        self._prompts: list[list[int]] = []

    def plain(self, rows: int, length: int) -> np.ndarray:
        """Rows of the packed stream at random offsets, documents separated by the end token."""
        starts = self.random.integers(0, len(self.stream) - length, size=rows)
        return np.stack([self.stream[start : start + length] for start in starts]).astype(np.int64)

    def prompts(self, rows: int, length: int = PROMPT_ROW) -> np.ndarray:
        """Expansion prompts with six samples of one document; what is left is plain text."""
        while len(self._prompts) < rows:
            self._prompts += self._make_prompts(256)
        out = np.empty((rows, length), dtype=np.int64)
        for row in out:
            ids = self._prompts.pop()
            if len(ids) < length:
                ids = [*ids, *self.plain(1, length - len(ids))[0]]
            row[:] = ids[:length]
        return out

    def _make_prompts(self, count: int) -> list[list[int]]:
        documents = self.random.choice(self.long, size=count, p=self.weights)
        slices: list[list[int]] = []
        for document in documents:
            begin, end = self.bounds[document]
            pieces = (end - begin) // SAMPLE_TOKENS
            chosen = self.random.permutation(pieces)[:6]
            # Most private samples are full 64-token chunks; the others end earlier.
            full = self.random.random() < 0.7
            shift = self.random.integers(0, end - begin - pieces * SAMPLE_TOKENS + 1)
            for piece in chosen:
                at = begin + shift + piece * SAMPLE_TOKENS
                size = SAMPLE_TOKENS if full else self.random.integers(20, SAMPLE_TOKENS + 1)
                slices.append(self.stream[at : at + size].tolist())
        texts = self.tokenizer.decode_batch(slices)
        documents_text = [
            self.prompt.render_document(
                [text if text.strip() else "..." for text in texts[6 * i : 6 * i + 6]]
            )
            for i in range(count)
        ]
        return [[*encoded.ids, EOS] for encoded in self.tokenizer.encode_batch(documents_text)]

    def masked(self, rows: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows ``<s> text </s>`` with 30 % of the text's tokens masked.

        Returns:
            Ids (rows, length) with the masks in; flat places and targets, both (rows * most,)
            with ``most`` the number of masks of a full row; unused targets are -100.
        """
        starts = self.random.integers(0, len(self.stream) - length, size=rows)
        slices = []
        for start in starts:
            piece = self.stream[start : start + length - 2]
            ends = np.flatnonzero(piece == EOS)
            if len(ends):  # the longer side of a document border
                cut = int(ends[0])
                piece = piece[:cut] if cut > len(piece) // 2 else piece[int(ends[-1]) + 1 :]
            slices.append(piece.tolist())
        texts = [text.strip() or "..." for text in self.tokenizer.decode_batch(slices)]
        ids = np.full((rows, length), PAD, dtype=np.int64)
        most = round(0.3 * (length - 2))
        places = np.zeros((rows, most), dtype=np.int64)
        targets = np.full((rows, most), -100, dtype=np.int64)
        for row, encoded in enumerate(self.tokenizer.encode_batch(texts)):
            tokens = encoded.ids[: length - 2]
            ids[row, : len(tokens) + 2] = [BOS, *tokens, EOS]
            count = max(1, round(0.3 * len(tokens)))
            chosen = 1 + self.random.permutation(len(tokens))[:count]
            places[row, :count] = row * length + chosen
            targets[row, :count] = ids[row, chosen]
            ids[row, chosen] = MASK
        return ids, places.reshape(-1), targets.reshape(-1)


# ---------------------------------------------------------------------------------------- models


def build(kind: str) -> Any:
    """A causal LM (Llama) or a masked LM (RoBERTa with the layer norm first), about 5 M each."""
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        LlamaConfig,
        RobertaPreLayerNormConfig,
    )

    if kind == "causal":
        return AutoModelForCausalLM.from_config(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=WIDTH,
                intermediate_size=704,
                num_hidden_layers=4,
                num_attention_heads=4,
                num_key_value_heads=4,
                head_dim=64,
                max_position_embeddings=CONTEXT,
                rms_norm_eps=1e-5,
                tie_word_embeddings=True,
                pad_token_id=PAD,
                bos_token_id=EOS,
                eos_token_id=EOS,
            )
        )
    return AutoModelForMaskedLM.from_config(
        RobertaPreLayerNormConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=1024,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=MASKED_LENGTHS[-1] + PAD + 2,
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


def word_vectors(work: Path, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Start embeddings that already know which tokens occur together.

    Positive pointwise mutual information of tokens at most four apart, factorised by a randomised
    singular value decomposition. It costs half a CPU minute and saves the first million tokens.

    Returns:
        Vectors of shape (vocabulary, dimension) with unit mean square, and log frequencies.

    References:
        Levy and Goldberg, "Neural Word Embedding as Implicit Matrix Factorization", 2014.
    """
    cached = work / "vectors.npz"
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
    np.savez(cached, vectors=vectors.astype(np.float32), log_frequency=log_frequency)
    return vectors, log_frequency


def initialise(model: Any, seed: int, work: Path) -> None:
    """Blocks start as the identity, embeddings as word vectors, output biases as frequencies."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", "output.dense.weight")):
                parameter.zero_()
            elif parameter.ndim == 2 and ".layer" in name:
                parameter.normal_(0.0, 0.6 / math.sqrt(parameter.shape[1]))
        embedding = model.get_input_embeddings().weight
        vectors, log_frequency = word_vectors(work, embedding.shape[1])
        embedding.copy_(0.02 * torch.from_numpy(vectors))
        bias = getattr(getattr(model, "lm_head", None), "bias", None)
        if bias is not None:
            bias.copy_(torch.from_numpy(log_frequency - log_frequency.mean()))
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


def optimisers(model: Any, muon_lr: float, adam_lr: float) -> list[Any]:
    """Muon for the matrices inside the blocks, AdamW for embeddings, heads, norms and biases."""
    import torch

    hidden, rest, plain = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and ".layer" in name:
            hidden.append(parameter)
        elif parameter.ndim == 2:
            rest.append(parameter)
        else:
            plain.append(parameter)
    groups = [
        {"params": rest, "lr": adam_lr, "weight_decay": 0.01},
        {"params": plain, "lr": adam_lr, "weight_decay": 0.0},
    ]
    found: list[Any] = [torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9)]
    found.append(torch.optim.Muon(hidden, lr=muon_lr, weight_decay=0.01, momentum=0.95, ns_steps=4))
    for optimiser in found:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return found


def rate(fraction: float) -> float:
    """Warm-up over 2 % of the budget, constant to 40 %, then linear to zero."""
    if fraction < 0.02:
        return max(0.02, fraction / 0.02)
    return min(1.0, max(0.0, (1.0 - fraction) / 0.6))


def causal_loss(model: Any, ids: Any) -> Any:
    """Mean cross-entropy of the next token, nats."""
    import torch

    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
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


# ------------------------------------------------------------------------------------- evaluation


def evaluate(kind: str, model: Any, work: Path, facts: dict[str, Any], rows: int) -> dict[str, Any]:
    """Held-out figures in float32: nats per token, bits per byte, accuracy."""
    import torch
    from torch.nn.functional import cross_entropy

    corpus = Corpus(work, "held_out", seed=1)
    model.eval()
    result: dict[str, Any] = {}
    with torch.no_grad():
        if kind == "causal":
            for name, make in (
                ("plain", lambda: corpus.plain(8, 256)),
                ("prompt", lambda: corpus.prompts(4)),
            ):
                total = hits = count = 0.0
                for _ in range(max(1, rows // 8)):
                    ids = torch.from_numpy(make())
                    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
                    logits = model.lm_head(hidden.reshape(-1, hidden.shape[-1])).float()
                    target = ids[:, 1:].reshape(-1)
                    total += float(cross_entropy(logits, target, reduction="sum"))
                    hits += float((logits.argmax(-1) == target).sum())
                    count += len(target)
                result[f"{name}_nats_per_token"] = round(total / count, 4)
                result[f"{name}_next_token_accuracy"] = round(hits / count, 4)
            per_byte = facts["held_out"]["tokens"] / facts["held_out"]["bytes"]
            bits = result["plain_nats_per_token"] / math.log(2) * per_byte
            result["plain_bits_per_byte"] = round(bits, 4)
        else:
            for length in MASKED_LENGTHS:
                total = hits = count = 0.0
                for _ in range(max(1, rows // 8)):
                    arrays = corpus.masked(16, length)
                    ids, places, targets = (torch.from_numpy(array) for array in arrays)
                    logits = masked_logits(model, ids, places).float()
                    total += float(cross_entropy(logits, targets, reduction="sum"))
                    hits += float((logits.argmax(-1) == targets).sum())
                    count += int((targets >= 0).sum())
                result[f"masked_nats_per_token_{length}"] = round(total / count, 4)
                result[f"masked_accuracy_{length}"] = round(hits / count, 4)
    model.train()
    return result


# --------------------------------------------------------------------------------------- training


def train(kind: str, work: Path, options: argparse.Namespace) -> None:
    """Train one model until its CPU or wall budget is spent and leave it in the work folder."""
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    facts = json.loads((work / "facts.json").read_text())
    corpus = Corpus(work, "train", options.seed + (kind == "masked"))
    model = build(kind)
    initialise(model, options.seed, work)
    model.train()
    optimisers_ = optimisers(model, options.muon_lr, options.adam_lr)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"[{kind}] {parameters:,} parameters", flush=True)
    loss_of = causal_loss if kind == "causal" else masked_loss
    # A third faster on CPUs; --no-compile does without a C++ compiler.
    compiled = torch.compile(loss_of, dynamic=False) if options.compile else loss_of
    cpu_budget, wall_budget = options.max_minutes * 60, options.max_wall_minutes * 60
    cpu_start, wall_start = time.process_time(), time.monotonic()
    said, step, tokens, window = -1e9, 0, 0, []
    curve: list[dict[str, Any]] = []
    while True:
        cpu, wall = time.process_time() - cpu_start, time.monotonic() - wall_start
        fraction = max(cpu / cpu_budget, wall / wall_budget)
        if fraction >= 1.0:
            break
        for optimiser in optimisers_:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * rate(fraction)
        losses = []
        batches: list[Any] = []
        if kind == "causal":
            # About 3,600 tokens a step: one part plain text, one part prompts.
            batches = [[corpus.prompts(4)], [corpus.plain(7, 256)]]
        else:
            # Smaller steps: a masked LM learns from 30 % of the tokens and needs many of them.
            batches = [corpus.masked(28, 66) if step % 2 else corpus.masked(14, 128)]
        for batch in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                tensors = [torch.from_numpy(array) for array in batch]
                loss = compiled(model, *tensors)
                tokens += int((tensors[0] != PAD).sum())
            (loss / len(batches)).backward()
            losses.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers_:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        step += 1
        window.append(losses)
        if wall - said >= SECONDS_BETWEEN_LINES:
            said = wall
            means = [round(float(value), 4) for value in np.mean(window[-50:], axis=0)]
            curve.append({"step": step, "tokens": tokens, "cpu_seconds": round(cpu, 1)})
            curve[-1]["loss"] = means
            speed = tokens / max(cpu, 1e-9)
            print(
                f"[{kind}] {100 * fraction:5.1f} % step {step} tokens {tokens:,} "
                f"loss {means} {speed:.0f} tokens/CPU s",
                flush=True,
            )
    spent = time.process_time() - cpu_start
    figures = evaluate(kind, model, work, facts, options.eval_rows)
    log = {
        "kind": kind,
        "parameters": parameters,
        "steps": step,
        "tokens": tokens,
        "train_cpu_minutes": round(spent / 60, 1),
        "wall_minutes": round((time.monotonic() - wall_start) / 60, 1),
        "prepare_cpu_minutes": round(facts["cpu_seconds"] / 60, 1),
        "tokens_per_cpu_second": round(tokens / spent),
        "held_out": figures,
        "seed": options.seed,
        "threads": options.threads,
        "optimiser": {"muon_lr": options.muon_lr, "adamw_lr": options.adam_lr},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "loss_names": ["prompt", "plain"] if kind == "causal" else ["masked"],
        "curve": curve,
    }
    print(f"[{kind}] {json.dumps({k: v for k, v in log.items() if k != 'curve'})}", flush=True)
    folder = work / kind
    folder.mkdir(exist_ok=True)
    model.half().save_pretrained(folder)
    (folder / "training_log.json").write_text(json.dumps(log, indent=1) + "\n")


# ----------------------------------------------------------------------------------------- export


def wrap_tokenizer(kind: str, work: Path) -> Any:
    """The same vocabulary for both; the masked LM's puts ``<s>`` and ``</s>`` around a text."""
    from tokenizers import Tokenizer, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_file(str(work / "bpe.json"))
    if kind == "causal":
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token="<pad>",
            bos_token="</s>",
            eos_token="</s>",
            unk_token="<unk>",
            model_max_length=CONTEXT,
            padding_side="left",
            clean_up_tokenization_spaces=False,
        )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<s> $A </s>",
                pair="<s> $A </s> $B </s>",
                special_tokens=[("<s>", BOS), ("</s>", EOS)],
            ),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=MASKED_LENGTHS[-1],
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def quote(text: str) -> str:
    """Show a sample as one Markdown quotation, whatever it holds."""
    return "> " + " ".join(text.split()).replace("<", "\\<").replace("*", "\\*")


def show_causal(model: Any, tokenizer: Any, work: Path) -> tuple[str, dict[str, float]]:
    """Sample continuations for the card, and measure how often a sample ends at its marker."""
    import torch

    prompt = load_prompt("pre-text")
    corpus = Corpus(work, "held_out", seed=2)
    torch.manual_seed(0)

    def sample(prompts: list[str], length: int) -> list[str]:
        batch = tokenizer(prompts, return_tensors="pt", padding=True)
        batch.pop("token_type_ids", None)
        with torch.no_grad():
            out = model.generate(**batch, max_new_tokens=length)
        continuations = out[:, batch["input_ids"].shape[1] :]
        return tokenizer.batch_decode(continuations, skip_special_tokens=True)

    opened = ["The city is", "In this paper, we", "Mr. Speaker, I rise to", "It was a"]
    parts = ["Plain continuations (temperature 1, the whole vocabulary):", ""]
    for start, end in zip(opened, sample(opened, 60), strict=True):
        parts += [quote(f"{start}{end}"), ""]
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in corpus.prompts(64)]
    given: list[list[str]] = []
    for text in texts:
        body = text.split("Original Text Sample 4\n")[0].splitlines()
        given.append([body[2], body[4], body[6]])
    prompts = [prompt.render(examples) for examples in given]
    written = [text for i in range(0, 64, 32) for text in sample(prompts[i : i + 32], 85)]
    ended = [prompt.is_complete(text) for text in written]
    copies = [
        any(prompt.parse(text) in example for example in examples)
        for text, examples in zip(written, given, strict=True)
    ]
    parts += ["The expansion prompt with three samples of a held-out document:", ""]
    for i in range(3):
        parts += [f"Examples {i + 1}:", ""]
        for example in given[i]:
            parts += [quote(example), ">"]
        parts += ["", "Written:", "", quote(prompt.parse(written[i])), ""]
    figures = {
        "prompts": len(ended),
        "share_ending_at_the_marker": round(sum(ended) / len(ended), 3),
        "share_of_exact_copies": round(sum(copies) / len(copies), 3),
    }
    return "\n".join(parts), figures


def show_masked(model: Any, tokenizer: Any, work: Path) -> tuple[str, dict[str, float]]:
    """Fill 30 % of a few held-out texts, sampled at temperature 1."""
    import torch

    corpus = Corpus(work, "held_out", seed=2)
    torch.manual_seed(0)
    ids, places, targets = (torch.from_numpy(array) for array in corpus.masked(4, 66))
    with torch.no_grad():
        logits = masked_logits(model, ids, places)
    logits[:, : len(SPECIAL)] = -torch.inf
    drawn = torch.distributions.Categorical(logits=logits).sample()
    filled, original = ids.clone().reshape(-1), ids.clone().reshape(-1)
    used = targets >= 0
    filled[places[used]], original[places[used]] = drawn[used], targets[used]
    parts = []
    for before, after in zip(original.view_as(ids), filled.view_as(ids), strict=True):
        for name, row in (("Text", before), ("Filled", after)):
            parts += [f"{name}:", "", quote(tokenizer.decode(row, skip_special_tokens=True)), ""]
    return "\n".join(parts), {}


def card(kind: str, log: dict[str, Any], facts: dict[str, Any], samples: str) -> str:
    """Write the model card; every number comes from the run."""
    name, base, task = {
        "causal": ("privsyn-lm", "Llama-style decoder", "text-generation"),
        "masked": ("privsyn-mlm", "RoBERTa-style encoder, layer norm first", "fill-mask"),
    }[kind]
    attribution = Path(__file__).with_name("ATTRIBUTION.md").read_text(encoding="utf-8")
    groups = ", ".join(f"{group} {count:,}" for group, count in sorted(facts["groups"].items()))
    held = "\n".join(
        f"| {key.replace('_', ' ')} | {value} |" for key, value in log["held_out"].items()
    )
    epochs = log["tokens"] / facts["train"]["tokens"]
    shape = {
        "causal": "4 blocks, width 256, 4 heads of 64, SwiGLU 704, rotary positions, context "
        f"{CONTEXT} (trained on rows of at most {PROMPT_ROW}), tied embeddings",
        "masked": "4 blocks, width 256, 4 heads of 64, feed-forward 1,024, learned positions, "
        f"at most {MASKED_LENGTHS[-1]} tokens with the two special ones, tied embeddings",
    }[kind]
    objective = {
        "causal": "Next token, loss on every token. Each step is half plain packed text and half "
        "the `pre-text` expansion prompt with six samples of one document (at most "
        f"{SAMPLE_TOKENS} tokens each), closed by the end token, so that the model learns to "
        "imitate the examples and to end a sample at the next marker line.",
        "masked": "Masked tokens, 30 % of each text, always replaced by `<mask>`, on texts of at "
        f"most {MASKED_LENGTHS[0] - 2} and {MASKED_LENGTHS[1] - 2} tokens.",
    }[kind]
    return f"""---
language: en
pipeline_tag: {task}
library_name: transformers
---

# {name}

A small English {base} for offline runs, examples and tests of flower-privsyn: it stands in for
the public language model of a server where no larger one can be had. It is trained on public
text only. **It is small and trained briefly: its texts are locally fluent and hold no
dependable facts.** On a machine with a GPU name a real model instead; the code path is the same.

- Parameters: {log["parameters"]:,} ({shape}); weights stored in float16.
- Tokenizer: byte-level BPE, {VOCABULARY:,} tokens, trained on the training split.
- Load: `flower_privsyn.models.resolve_model("{name}")` gives the folder for
  `AutoTokenizer` and `{"AutoModelForCausalLM" if kind == "causal" else "AutoModelForMaskedLM"}`.

## Training

| | |
|---|---|
| corpus | {facts["train"]["documents"]:,} documents, {facts["train"]["tokens"]:,} tokens |
| held out | {
        facts["held_out"]["documents"]:,} documents (2 % of the works, by a hash of the name) |
| steps | {log["steps"]:,} |
| tokens seen | {log["tokens"]:,} ({epochs:.2f} passes) |
| optimiser | Muon ({log["optimiser"]["muon_lr"]}) inside the blocks, AdamW ({
        log["optimiser"]["adamw_lr"]
    }) elsewhere; bfloat16 autocast; gradient norm clipped at 1 |
| schedule | warm-up 2 %, constant to 40 %, then linear to zero, by the share of the time budget |
| hardware | 2-core CPU, shared with other work; {log["threads"]} thread |
| CPU time | {log["train_cpu_minutes"]} minutes (preparation for both models: {
        log["prepare_cpu_minutes"]
    }) |
| wall time | {log["wall_minutes"]} minutes |
| speed | {log["tokens_per_cpu_second"]:,} tokens per CPU second |
| seed | {log["seed"]} |

{objective}

Embeddings start from a factorisation of token co-occurrences in the training split. The
loss curve is in `training_log.json`. Because the schedule follows the clock, a rerun gives a
model of the same quality, not the same bits.

## Held-out figures

| measure | value |
|---|---|
{held}

Uniform guessing costs {math.log(VOCABULARY):.2f} nats per token.

## Samples, not chosen

{samples}
## Intended use, and what it must not be used for

Intended: trying the methods of flower-privsyn end to end without a network or a GPU, tests, and
comparisons in which every method has the same generator.

Not for: any use where the text is read as true, advice of any kind, text shown to the public as
if a person wrote it, decisions about people, or privacy claims about the corpus itself — the
training was *not* differentially private, all of its text is public, and the model can repeat
passages and names from it. Biases of the sources are not removed.

## Data, licences and attribution

Documents per group: {groups}.

{attribution}"""


def export(work: Path, output: Path) -> None:
    """Put models, tokenizers, logs and cards where the package looks for them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, GenerationConfig

    facts = json.loads((work / "facts.json").read_text())
    for kind, name, load, show in (
        ("causal", "privsyn-lm", AutoModelForCausalLM, show_causal),
        ("masked", "privsyn-mlm", AutoModelForMaskedLM, show_masked),
    ):
        folder = output / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("config.json", "model.safetensors"):
            shutil.copyfile(work / kind / file, folder / file)
        # Stored as float16, loaded as float32: half precision is slow and coarse on CPUs.
        config = json.loads((folder / "config.json").read_text())
        config["dtype"] = "float32"
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        tokenizer = wrap_tokenizer(kind, work)
        tokenizer.save_pretrained(folder)
        if kind == "causal":
            # The default of generate() is the 50 likeliest tokens; the methods want them all.
            GenerationConfig(
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=85,
                pad_token_id=PAD,
                bos_token_id=EOS,
                eos_token_id=EOS,
            ).save_pretrained(folder)
        model = load.from_pretrained(folder, dtype=torch.float32).eval()
        log = json.loads((work / kind / "training_log.json").read_text())
        samples, figures = show(model, tokenizer, work)
        log["held_out"] |= figures
        (folder / "training_log.json").write_text(json.dumps(log, indent=1) + "\n")
        text = card(kind, log, facts, samples)
        (folder / "README.md").write_text(text, encoding="utf-8")
        size = (folder / "model.safetensors").stat().st_size / 2**20
        print(f"[export] {folder}: {size:.1f} MiB, {log['held_out']}", flush=True)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of public-*.jsonl.gz")
    parser.add_argument("--output", type=Path, default=ROOT / "flower_privsyn" / "models")
    parser.add_argument("--work", type=Path, help="folder for intermediate files (kept)")
    parser.add_argument("--max-minutes", type=float, default=26.0, help="CPU minutes per model")
    parser.add_argument("--max-wall-minutes", type=float, default=240.0, help="wall, per model")
    parser.add_argument("--threads", type=int, default=1, help="threads per model")
    parser.add_argument("--seed", type=int, default=20240601)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.003)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--eval-rows", type=int, default=256)
    parser.add_argument(
        "--stage", choices=("all", "prepare", "causal", "masked", "export"), default="all"
    )
    return parser.parse_args()


def main() -> None:
    """Run the stages; the two models train side by side, each in its own process."""
    options = parse_arguments()
    work = options.work or Path(tempfile.mkdtemp(prefix="public-models-"))
    work.mkdir(parents=True, exist_ok=True)
    if options.stage in ("all", "prepare"):
        prepare(options.corpus, work)
    if options.stage == "all":
        command = [sys.executable, __file__, *sys.argv[1:], "--work", str(work), "--stage"]
        running = [subprocess.Popen([*command, kind]) for kind in ("causal", "masked")]
        if sum(process.wait() != 0 for process in running):
            raise SystemExit("training failed; the lines above say why")
    if options.stage in ("causal", "masked"):
        train(options.stage, work, options)
    if options.stage in ("all", "export"):
        export(work, options.output)


if __name__ == "__main__":
    main()
