"""CTCL and what it was compared with as they were published: all records in one place, DP-Adam.

    python central.py records.jsonl --method ctcl --epsilon 4 --output DIR --held-out others.jsonl

The unit of privacy is a RECORD, and whoever runs this sees every one of them: its epsilons stand
on no axis with those of runs, whose unit is a user. Gradients by record, coins, clipping and noise
of DP-Adam are Opacus's own; the accountant that composes its steps with the histogram is ours.
Nothing is published before the model is trained: whoever kills it begins anew in another folder.

    ctcl        a generator of documents after the keywords of their topics, sampled by a histogram
    vanilla     a generator of documents alone (Yue et al., ACL 2023)
    resampled   the same, its texts drawn again by the histogram (Yu et al., ICML 2024)
    downstream  the downstream model itself, without any text

Paper: Tan et al., "Synthesizing Privacy-Preserving Text Data via Finetuning without Finetuning
Billion-Scale LLMs" (CTCL, 2025), sections 4.1.2 and 4.1.3.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset

from flower_privsyn.data import Chunking, load_users
from flower_privsyn.embedding import Embedder, load_embedder
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.generation import SamplingParameters
from flower_privsyn.generation.backends import derive_seed
from flower_privsyn.generation.generators import load_trained_generator
from flower_privsyn.generation.streams import stream
from flower_privsyn.generation.topics import load_topics, quotas
from flower_privsyn.progress import Progress
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    NeighboringRelation,
    Phase,
    Plan,
    PoissonSampling,
    SecureRandom,
)
from flower_privsyn.queries import ModelDelta
from flower_privsyn.queries.nearest_neighbor import NearestNeighborHistogram
from flower_privsyn.strategies.ctcl import write_by_topic
from flower_privsyn.training.causal import CausalTraining, fine_tune

RECORD_LEVEL = "record level, central: not to be compared with the epsilons of runs"

#: Section 4.1.3: the histogram's noise multiplier, and DP-Adam's clip norm, decay and warm-up.
HISTOGRAM_NOISE = 10.0
CLIP_NORM, WEIGHT_DECAY, WARMUP_STEPS = 1.0, 0.1, 100

#: Records in memory at a time.
_TOGETHER = 16
_IGNORED = -100


def planned(records: int, *, epsilon: float, steps: int, rate: float, histogram: bool) -> Plan:
    """The noise that keeps a budget at record level, with delta 1 / (n ln n).

    How many records there are is public; neighbours differ in the text of one, which is there or
    is nothing. In each step every record flips a coin.
    """
    phases = [
        Phase(
            name="steps",
            rounds=steps,
            sampling=PoissonSampling(rate=rate, population=records),
            asks=(ModelDelta(clip_to=CLIP_NORM),),
        )
    ]
    if histogram:
        topics = Phase(
            name="topics",
            rounds=1,
            sampling=FullParticipation(population=records),
            asks=(NearestNeighborHistogram(max_samples=1),),
            noise_multiplier=HISTOGRAM_NOISE,
        )
        phases.insert(0, topics)
    delta = 1.0 / (records * math.log(records))
    plan = Plan(phases=tuple(phases), delta=delta, relation=NeighboringRelation.ZERO_OUT)
    return plan.with_multiplier(plan.calibrated_multiplier(epsilon))


def train(
    model: str,
    before: Sequence[str],
    texts: Sequence[str],
    output: Path,
    *,
    noise_multiplier: float,
    steps: int,
    batch_size: int,
    learning_rate: float,
) -> None:
    """Train all parameters of a causal model on records by Opacus's DP-Adam, and save it.

    Args:
        model: bundled, a folder or a hub name.
        before: (n,) what stands before each record and is not predicted.
        texts: (n,) the records; one that is "" flips its coins and adds zero.
        output: folder of the model.
        noise_multiplier: over the clip norm.
        steps: releases.
        batch_size: records of a step on average: each flips a coin.
        learning_rate: AdamW's at its peak.
    """
    network, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device=None)
    begin = tokenizer.bos_token_id
    begin = tokenizer.eos_token_id if begin is None else begin
    rows = [
        (
            [begin, *tokenizer(head, add_special_tokens=False)["input_ids"]],
            [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            if text
            else [],
        )
        for head, text in zip(before, texts, strict=True)
    ]
    width = max(len(head) + len(row) for head, row in rows)
    tokens = torch.zeros((len(rows), width), dtype=torch.long)
    targets = torch.full((len(rows), width), _IGNORED, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for place, (head, row) in enumerate(rows):
        size = len(head) + len(row)
        tokens[place, :size] = torch.tensor([*head, *row])
        targets[place, len(head) : size] = torch.tensor(row)
        mask[place, :size] = 1
    network.train().requires_grad_(True)
    optimiser: Any = torch.optim.AdamW(
        network.parameters(), lr=learning_rate, weight_decay=WEIGHT_DECAY
    )
    loader: Any = DataLoader(TensorDataset(tokens, targets, mask), batch_size=batch_size)
    graded, optimiser, loader = PrivacyEngine(accountant="rdp").make_private(
        module=network,
        optimizer=optimiser,
        data_loader=loader,
        noise_multiplier=noise_multiplier,
        max_grad_norm=CLIP_NORM,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser.original_optimizer, lambda step: _rate(step, steps)
    )
    # Models that look positions up give them one row for the whole batch unless they are told.
    asks_positions = "position_ids" in inspect.signature(network.forward).parameters
    positions = torch.arange(width, device=network.device)
    done = 0
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    while done < steps:
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=_TOGETHER, optimizer=optimiser
        ) as parts:
            for part in parts:
                of_rows, wanted, seen = (one.to(network.device) for one in part)
                optimiser.zero_grad()
                if len(of_rows):
                    more = {"position_ids": positions.expand(of_rows.shape).contiguous()}
                    logits = graded(
                        input_ids=of_rows,
                        attention_mask=seen,
                        use_cache=False,
                        **(more if asks_positions else {}),
                    ).logits
                    losses = torch.nn.functional.cross_entropy(
                        logits[:, :-1].transpose(1, 2),
                        wanted[:, 1:],
                        ignore_index=_IGNORED,
                        reduction="none",
                    )
                    counts = (wanted[:, 1:] != _IGNORED).sum(dim=1).clamp(min=1)
                    (losses.sum(dim=1) / counts).mean().backward()
                else:  # nobody's coin fell so: the step is noise alone
                    for parameter in graded.parameters():
                        parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
                optimiser.step()
                if not optimiser._is_last_step_skipped:
                    schedule.step()
                    done += 1
                    if done == steps:
                        break
    network.eval()
    network.save_pretrained(output)
    tokenizer.save_pretrained(output)


def _rate(step: int, steps: int) -> float:
    """The share of the peak rate in a step: linear warm-up, then linear decay."""
    warmup = min(WARMUP_STEPS, steps // 2)
    if step < warmup:
        return (step + 1) / warmup
    return (steps - step) / max(1, steps - warmup)


def resampled(
    texts: Sequence[str],
    topics: npt.NDArray[np.int64],
    histogram: npt.NDArray[np.float64],
    *,
    count: int,
    seed: int,
) -> list[str]:
    """Draw texts anew, so that their topics are as often as a histogram says (Yu et al. 2024).

    Of a topic with too few texts some come again; topics of which nothing was written have none.
    """
    there = np.bincount(topics, minlength=len(histogram)) > 0
    weights = np.where(there, histogram, 0.0)
    if not (weights > 0).any():
        weights = there.astype(np.float64)
    random = stream(derive_seed(seed, "resample"))
    found: list[str] = []
    for topic, wanted in enumerate(quotas(weights, count).tolist()):
        own = np.flatnonzero(topics == topic)
        if wanted:
            order = [random.permutation(own) for _ in range(-(-wanted // len(own)))]
            found += [texts[place] for place in np.concatenate(order)[:wanted]]
    return found


def run(asked: argparse.Namespace, embedder: Embedder | None = None) -> None:
    """Train, write, and measure where other people's text is given.

    Args:
        asked: the command line.
        embedder: finds topics; None for all-MiniLM-L6-v2.
    """
    if asked.output.exists() and any(asked.output.iterdir()):
        raise SystemExit(f"--output must be a folder that is new or empty, got {asked.output}")
    uses_topics = asked.method in ("ctcl", "resampled")
    model = asked.downstream if asked.method == "downstream" else asked.model
    _, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device="cpu")
    documents = load_users(asked.data, strict=True).texts
    pieces = Chunking(max_tokens=asked.max_tokens).pieces(documents, tokenizer=tokenizer)
    records = [found[0] if found else "" for found in pieces]
    plan = planned(
        len(records),
        epsilon=asked.epsilon,
        steps=asked.steps,
        # Opacus's coins: one over the number of batches.
        rate=1.0 / math.ceil(len(records) / asked.batch_size),
        histogram=uses_topics,
    )

    conditions, weights = [""], np.ones(1)
    of_records = np.zeros(len(records), dtype=np.int64)
    topics = None
    if uses_topics:
        hierarchy = load_topics(asked.topics)
        embedder = embedder or load_embedder("all-MiniLM-L6-v2")
        hierarchy.check_embedder(embedder, setting="--topics")
        topics = hierarchy.at(asked.num_topics)
        of_records = topics.nearest(embedder.embed(records))
        there = np.array([bool(record) for record in records])
        counts = np.bincount(of_records[there], minlength=len(topics)).astype(np.float64)
        mechanism = GaussianMechanism(noise_multiplier=HISTOGRAM_NOISE, l2_sensitivity=1.0)
        weights = mechanism.release(counts, random=SecureRandom())
        if asked.method == "ctcl":
            conditions = topics.conditions()
    train(
        model,
        [conditions[topic if len(conditions) > 1 else 0] for topic in of_records.tolist()],
        records,
        asked.output / "model",
        noise_multiplier=plan.phases[-1].noise_multiplier or 0.0,
        steps=asked.steps,
        batch_size=asked.batch_size,
        learning_rate=asked.learning_rate,
    )
    privacy = {
        "level": RECORD_LEVEL,
        "method": asked.method,
        "records": len(records),
        "epsilon": asked.epsilon,
        "delta": plan.delta,
        "noise_multipliers": {one.name: one.noise_multiplier for one in plan.phases},
    }
    (asked.output / "privacy.json").write_text(json.dumps(privacy, indent=2))

    trained = asked.output / "model"
    if asked.method != "downstream":
        again = topics is not None and embedder is not None and asked.method == "resampled"
        share = weights if asked.method == "ctcl" and (weights > 0).any() else None
        written, _ = write_by_topic(
            load_trained_generator(trained),
            conditions,
            np.ones(len(conditions)) if share is None else share,
            asked.samples * (2 if again else 1),  # twice as many to draw from
            sampling=SamplingParameters(
                seed=asked.seed,
                max_new_tokens=asked.max_new_tokens,
                temperature=1.0,
                top_p=0.95,
            ),
            source="central",
            kept=asked.output / "written.jsonl",
            progress=Progress(),
        )
        texts = [str(one["text"]) for one in written]
        if again and topics is not None and embedder is not None:
            nearest = topics.nearest(embedder.embed(texts))
            texts = resampled(texts, nearest, weights, count=asked.samples, seed=asked.seed)
        lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
        (asked.output / "synthetic.jsonl").write_text("".join(lines), encoding="utf-8")
        if asked.held_out:
            trained = asked.output / "downstream"
            fine_tune(
                asked.downstream,
                texts,
                settings=CausalTraining(learning_rate=2e-4, max_steps=200, train_on_eos=False),
                output=trained,
                seed=asked.seed,
            )
    print(f"{asked.method}: {len(records):,} records, epsilon {asked.epsilon:g}; {RECORD_LEVEL}")
    if asked.held_out:
        others = load_users(asked.held_out, strict=True)
        found = evaluate_language_model(trained, others.texts, owners=others.owners)
        print(f"next-token accuracy {found.next_token_accuracy.value:.4f}")
        if found.bits_per_byte is not None:
            print(f"bits per byte {found.bits_per_byte.value:.4f}")


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("data", help="a file of documents, each a record, whoever wrote it")
    methods = ["ctcl", "vanilla", "resampled", "downstream"]
    made.add_argument("--method", choices=methods, required=True)
    made.add_argument("--epsilon", type=float, required=True, help="of everything")
    made.add_argument("--output", type=Path, required=True, help="folder; new or empty")
    made.add_argument("--held-out", help="other people's text, to measure downstream models on")
    made.add_argument("--model", default="privsyn-lm", help="generator that is trained")
    made.add_argument("--downstream", default="privsyn-tiny", help="learns from the texts")
    made.add_argument("--steps", type=int, default=2000)
    made.add_argument("--batch-size", type=int, default=4096, help="records of a step on average")
    made.add_argument("--learning-rate", type=float, default=1e-3)
    made.add_argument("--max-tokens", type=int, default=64, help="of a record")
    made.add_argument("--topics", default="bundled", help="or a file that make_topics made")
    made.add_argument("--num-topics", type=int, default=64)
    made.add_argument("--samples", type=int, default=2000, help="texts to write")
    made.add_argument("--max-new-tokens", type=int, default=85, help="of a text; 512 in the paper")
    made.add_argument("--seed", type=int, default=0)
    return made


if __name__ == "__main__":
    run(parser().parse_args())
