"""Runs of every method under fixed randomness: what a change of shape must not change.

    python -m tests.support.golden_runs            prints them
    python -m tests.support.golden_runs --write    stores them in tests/golden/runs.json

Everything that leaves or enters the private path is in them: every message, every answer, every
line of the ledger, every release, and what was made from them. Left out are the digests that chain
the ledger's lines, the sizes of messages, and the fields in `RETIRED`.

What is the same on every processor is stored once: the ledger, the texts, how many messages there
were, and of each release its norm and first values. The last bits of a product of matrices are not,
so the digests of messages, releases and models are stored for each kind of machine that they were
recorded on. A run that is recorded anew with other bits loses those of other machines.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from flwr.app import Context, Message

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.training import LocalTraining
from flower_privsyn.data import Users
from flower_privsyn.embedding.machine import processor
from flower_privsyn.privacy import InsecureRandom
from flower_privsyn.strategies import (
    CTCL,
    DPFTRL,
    AugPE,
    AugPEConfig,
    CTCLConfig,
    DPFedAvg,
    DPFedAvgConfig,
    DPFTRLConfig,
    FreD,
    FreDConfig,
    Hybrid,
    HybridConfig,
    JointSketch,
    JointSketchConfig,
    POPri,
    POPriConfig,
    PrivateEvolution,
    PrivateEvolutionConfig,
    PublicMidTraining,
    PublicMidTrainingConfig,
)
from flower_privsyn.testing import (
    EchoGenerator,
    HashEmbedder,
    LoopbackGrid,
    ShuffleWords,
    flower_identity,
    hash_embedder,
)
from tests.support.federation import WORDS
from tests.support.topics import write_topics
from tests.support.words import WordGenerator, train_words

STORED = Path(__file__).parents[1] / "golden" / "runs.json"

#: Fields that no longer travel or are no longer written, and fields that came later.
RETIRED = frozenset(
    {
        "noise",
        "shares-required",
        "shares_required",
        "server_noise_multiplier",
        "previous",
        "reads",
    }
)

#: Runs whose texts a model writes that the run has trained: they differ with its last bits.
LEARNT_WRITERS = frozenset({"ctcl"})

#: What a metric line says of sizes.
SIZES = frozenset({"bytes_down", "bytes_up", "ledger"})


def machine() -> str:
    """What the last bits of a product or a logarithm depend on: each library and its code path.

    Not every library takes the widest instructions that the processor has: torch can use AVX-512
    where the BLAS that NumPy and SciPy bring along takes kernels for an older processor.
    """
    import scipy.linalg  # noqa: F401  loads the BLAS that is looked at below
    import torch
    from threadpoolctl import threadpool_info

    found = processor()
    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    blas = sorted(
        f"{library['internal_api']} {library['version']} {library['architecture']}"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    )
    return ", ".join(
        [
            # MKL chooses by who made it.
            f"{found['machine']} {found.get('vendor_id', '')}",
            f"torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()}",
            f"numpy {np.__version__} {' '.join(simd['baseline'] + simd.get('found', []))}",
            *blas,
        ]
    )


def everybody(count: int = 14) -> Users:
    """Users who write about something each; the last of them nothing."""
    rows = [
        (f"user-{user}", " ".join(WORDS[(user * 3 + i * (sample + 1)) % 26] for i in range(9)))
        for user in range(count - 1)
        for sample in range(1 + user % 3)
    ]
    return Users.from_rows([*rows, (f"user-{count - 1}", "")])


def load(context: Context, labels: Sequence[str] = (), count: int | None = None) -> Users:
    """The users of one of the nodes, with labels in turn."""
    users = everybody() if count is None else everybody(count)
    if labels:
        turn = [labels[place % len(labels)] for place in range(len(users.texts))]
        users = replace(users, labels=turn)
    return users.partition(
        partition_id=int(context.node_config["partition-id"]),
        num_partitions=int(context.node_config["num-partitions"]),
    )


class Recording:
    """One run's digests, filled as it goes."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answered: list[str] = []

    def tamper(self, request: Message, reply: Message) -> list[Message]:
        """Keep both, change nothing."""
        self.asked.append(_digest_of(request))
        self.answered.append(_digest_of(reply))
        return [reply]

    def collect(self, run: Path) -> dict[str, Any]:
        """What the run directory holds beside."""
        return {
            "messages": len(self.asked),
            "ledger": _lines(run / "ledger.jsonl", without=RETIRED),
            "releases": {
                path.parent.name: _outline(np.load(path))
                for path in sorted(run.glob("rounds/*/release.npy"))
            },
            "texts": _hash((run / "synthetic.jsonl").read_bytes())
            if (run / "synthetic.jsonl").exists()
            else None,
            "bits": {
                "asked": _hash(*self.asked),
                "answered": _hash(*self.answered),
                "releases": {
                    path.parent.name: _hash(path.read_bytes())
                    for path in sorted(run.glob("rounds/*/release.npy"))
                },
                "metrics": _hash(
                    json.dumps(_lines(run / "metrics.jsonl", without=RETIRED | SIZES))
                ),
                "model": {
                    path.name: _hash(path.read_bytes())
                    for path in sorted(run.glob("models/final/*.safetensors"))
                },
            },
        }


def _outline(values: np.ndarray) -> dict[str, Any]:
    """Size, norm and first values of a release."""
    flat = values.astype(np.float64).ravel()
    return {"size": flat.size, "norm": float(np.linalg.norm(flat)), "first": flat[:8].tolist()}


def _hash(*parts: str | bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()


def _lines(path: Path, *, without: frozenset[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{key: line[key] for key in sorted(line) if key not in without} for line in found]


def _digest_of(message: Message) -> str:
    if not message.has_content():
        return f"error {message.error.code}"
    content = message.content
    parts: list[str | bytes] = [
        message.metadata.message_type,
        str(message.metadata.src_node_id),
        str(message.metadata.dst_node_id),
    ]
    for name in sorted(content):
        record: Any = content[name]
        parts.append(name)
        for key in sorted(set(record) - RETIRED):
            value = record[key]
            parts.append(key)
            if hasattr(value, "numpy"):
                array = value.numpy()
                parts += [str(array.dtype), str(array.shape), array.tobytes()]
            else:
                parts.append(repr(value))
    return _hash(*parts)


def _public(folder: Path) -> Path:
    path = folder / "public.jsonl"
    texts = [
        " ".join(WORDS[(index * 5 + i * (index % 4 + 1)) % 26] for i in range(10)) + f" w{index}"
        for index in range(60)
    ]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def _by_embeddings(folder: Path, recording: Recording) -> LoopbackGrid:
    app = create_client_app(load, embedder=hash_embedder, cache_directory=folder / "cache")
    return LoopbackGrid(app, num_nodes=3, tamper=recording.tamper)


def _by_labels(folder: Path, recording: Recording) -> LoopbackGrid:
    labelled = partial(load, labels=("law", "river"))
    app = create_client_app(labelled, embedder=hash_embedder, cache_directory=folder / "cache")
    return LoopbackGrid(app, num_nodes=3, tamper=recording.tamper)


def _by_training(folder: Path, recording: Recording) -> LoopbackGrid:
    app = create_client_app(
        load, embedder=hash_embedder, cache_directory=folder / "cache", trainer=LocalTraining()
    )
    return LoopbackGrid(app, num_nodes=3, tamper=recording.tamper)


def _common(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "num_nodes": 3,
        "num_rounds": 2,
        "node_timeout": 1.0,
        "accept_noise": True,
        "run_dir": str(folder / "run"),
        "epsilon": 6.0,
        "delta": 1e-3,
        **changes,
    }


def evolution(folder: Path, **changes: Any) -> PrivateEvolution:
    """Private evolution of shuffled words."""
    values = {"num_candidates": 24, "lookahead": 1, "synthetic_samples": 6, **changes}
    return PrivateEvolution(
        PrivateEvolutionConfig(**_common(folder, public_text=str(_public(folder)), **values)),
        embedder=HashEmbedder(),
        variation=ShuffleWords(),
        generator=EchoGenerator(),
        random=InsecureRandom(7),
    )


_PAIRS = {
    "num_prompts": 6,
    "responses_per_prompt": 5,
    "rejected_rank": 4,
    "synthetic_samples": 6,
}


def popri(folder: Path, **changes: Any) -> POPri:
    """POPri of a generator of words."""
    values = {**_PAIRS, "public_text": str(_public(folder)), **changes}
    return POPri(
        POPriConfig(**_common(folder, **values)),
        embedder=HashEmbedder(),
        generator=WordGenerator(WORDS),
        trainer=train_words,
        random=InsecureRandom(8),
    )


_TRAINING = {
    "model": "privsyn-tiny",
    "max_samples": 2,
    "max_tokens": 16,
    "local_steps": 1,
    "clip_norm": 0.05,
    # What these runs took before the noise could choose a shorter one.
    "server_learning_rate": 1.0,
}


def dp_fedavg(folder: Path, **changes: Any) -> DPFedAvg:
    """Training on the nodes with independent noise."""
    config = DPFedAvgConfig(**_common(folder, **_TRAINING, **changes))
    return DPFedAvg(config, random=InsecureRandom(10))


def dp_ftrl(folder: Path, **changes: Any) -> DPFTRL:
    """Training on the nodes with correlated noise."""
    config = DPFTRLConfig(**_common(folder, **_TRAINING, min_separation=2, **changes))
    return DPFTRL(config, random=InsecureRandom(11))


def aug_pe(folder: Path, **changes: Any) -> AugPE:
    """Aug-PE of two classes, with text that is asked for by a prompt."""
    values = {"num_candidates": 12, "num_variations": 2, "classes": "law; river", **changes}
    return AugPE(
        AugPEConfig(**_common(folder, public_text=str(_public(folder)), **values)),
        embedder=HashEmbedder(),
        generator=WordGenerator(WORDS),
        random=InsecureRandom(12),
    )


def fred(folder: Path, **changes: Any) -> FreD:
    """Moments in the paper's two rounds, and a file that is ranked by them."""
    public = str(_public(folder))
    values = {"moment_dimensions": 4, "public_text": public, "candidates": public, **changes}
    return FreD(
        FreDConfig(**_common(folder, **values)), embedder=HashEmbedder(), random=InsecureRandom(13)
    )


_STUDENT = {
    "model": "privsyn-tiny",
    "teacher": "privsyn-tiny",
    "select_share": 0.3,
    "least_selected": 4,
    "least_row_tokens": 4,
    "most_overlap": 1.0,
    "student_steps": 2,
    "training_batch_size": 2,
}


def train(model: Path, patch: pytest.MonkeyPatch) -> None:
    """Have all runs train another model than the bundled one."""
    for settings in (_TRAINING, _STUDENT):
        for key in {"model", "teacher"} & settings.keys():
            patch.setitem(settings, key, str(model))


def joint_sketch(folder: Path, **changes: Any) -> JointSketch:
    """Counts of tokens and bigrams, a taught student, and the chosen text."""
    values = {**_STUDENT, "num_rounds": 1, "num_bigrams": 100, **changes}
    config = JointSketchConfig(**_common(folder, public_text=str(_public(folder)), **values))
    return JointSketch(config, random=InsecureRandom(14))


def hybrid(folder: Path, **changes: Any) -> Hybrid:
    """The sketch's student, and rounds that train it."""
    values = {**_TRAINING, **_STUDENT, "num_bigrams": 100, "num_rounds": 3, "min_separation": 2}
    config = HybridConfig(
        **_common(folder, public_text=str(_public(folder)), **{**values, **changes})
    )
    return Hybrid(config, random=InsecureRandom(15))


def public_mid_training(folder: Path, **changes: Any) -> PublicMidTraining:
    """Two rounds, a taught student of chosen public text, and two rounds more."""
    values = {**_TRAINING, **_STUDENT, "public_model": _STUDENT["model"], "num_rounds": 4}
    values |= {"min_separation": 2}
    del values["least_selected"], values["most_overlap"]
    config = PublicMidTrainingConfig(
        **_common(folder, public_text=str(_public(folder)), **{**values, **changes})
    )
    return PublicMidTraining(config, random=InsecureRandom(16))


def ctcl(folder: Path, **changes: Any) -> CTCL:
    """A histogram of topics, two rounds that train, and texts by the one of the other."""
    values = {
        **_TRAINING,
        "topics": str(write_topics(folder)),
        "num_topics": 6,
        "num_rounds": 3,
        "min_separation": 2,
        "max_new_tokens": 8,
        "synthetic_samples": 12,
    }
    config = CTCLConfig(**_common(folder, **{**values, **changes}))
    return CTCL(config, embedder=HashEmbedder(), random=InsecureRandom(17))


RUNS: dict[str, tuple[Callable[[Path], Any], Callable[[Path, Recording], LoopbackGrid]]] = {
    "private-evolution": (evolution, _by_embeddings),
    "private-evolution poisson": (
        # The noise of epsilon 6: to find it takes longer than the run.
        lambda folder: evolution(
            folder,
            sampling="poisson",
            sampling_rate=0.5,
            clip="l2",
            epsilon=None,
            noise_multiplier=0.6646385000123113,
        ),
        _by_embeddings,
    ),
    "private-evolution fixed-size": (
        lambda folder: evolution(folder, sampling="fixed-size", sample_size=6, accountant="rdp"),
        _by_embeddings,
    ),
    "popri": (popri, _by_embeddings),
    "popri fred": (
        lambda folder: popri(folder, num_rounds=3, checkpoint="fred", moment_dimensions=4),
        _by_embeddings,
    ),
    "popri as coded": (
        lambda folder: popri(folder, centre="all", scale="unit", answer_space="candidates"),
        _by_embeddings,
    ),
    "pe+sft": (lambda folder: popri(folder, loss="sft"), _by_embeddings),
    "dp-fedavg": (lambda folder: dp_fedavg(folder, adaptive_clipping=True), _by_training),
    "dp-ftrl": (lambda folder: dp_ftrl(folder, num_rounds=4), _by_training),
    "aug-pe": (aug_pe, _by_labels),
    "fred": (fred, _by_embeddings),
    "joint-sketch": (joint_sketch, _by_embeddings),
    "hybrid": (hybrid, _by_training),
    "public-mid-training": (public_mid_training, _by_training),
    "ctcl": (ctcl, _by_training),
}

_LITTLE: dict[str, Any] = {"trainable": "lora", "lora_rank": 1}
#: Those that train on the nodes, where little is to be trained.
TRAINING: dict[str, Callable[[Path], Any]] = {
    "dp-fedavg": lambda folder: dp_fedavg(folder, adaptive_clipping=True, **_LITTLE),
    "dp-ftrl": lambda folder: dp_ftrl(folder, num_rounds=3, **_LITTLE),
    "hybrid": lambda folder: hybrid(folder, **_LITTLE),
    "public-mid-training": lambda folder: public_mid_training(folder, **_LITTLE),
    "ctcl": lambda folder: ctcl(folder, **_LITTLE),
}
#: Every run, as small as it gets.
MAKERS = {**{name: make for name, (make, _) in RUNS.items()}, **TRAINING}


@contextmanager
def fixed() -> Iterator[None]:
    """Names of streams of noise are drawn like everything else: give them out in order."""
    import torch

    numbers = iter(range(1, 1000))

    def token_hex(size: int | None = None) -> str:
        return f"{next(numbers):0{2 * (size or 32)}x}"

    names = mock.patch.object(secrets, "token_hex", token_hex)
    # As on a processor that multiplies no bfloat16: the others round otherwise.
    processor = mock.patch.object(torch.cpu, "get_capabilities", dict, create=True)
    with flower_identity(), names, processor:
        yield


def run(name: str, folder: Path) -> dict[str, Any]:
    """Run one of `RUNS` in an empty folder and return what is recorded of it."""
    import torch

    make, federation = RUNS[name]
    recording = Recording()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with fixed():
            strategy = make(folder)
            strategy.start(federation(folder, recording))
    finally:
        torch.set_num_threads(threads)
    record = recording.collect(folder / "run")
    if name in LEARNT_WRITERS:
        record["bits"]["texts"], record["texts"] = record["texts"], None
    return record


def main() -> None:
    """Print or store what is recorded of all runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    logging.getLogger("flwr").setLevel(logging.ERROR)
    found: dict[str, Any] = {}
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = run(name, Path(folder))
    if not write:
        print(json.dumps(found, indent=1, sort_keys=True))
        return
    here, stored = machine(), json.loads(STORED.read_text("utf-8")) if STORED.exists() else {}
    for name, record in found.items():
        before = stored.get(name, {"bits": {}})["bits"]
        same = before.get(here, record["bits"]) == record["bits"]
        record["bits"] = {**(before if same else {}), here: record["bits"]}
    STORED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
