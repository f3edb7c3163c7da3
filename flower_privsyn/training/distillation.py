"""Knowledge distillation: a student learns from a teacher's probabilities besides the text.

A token of text says which word came next; a teacher says how likely every word was. The teacher
reads each row once. Of its probabilities the largest are kept on disk, and for all others stand a
few tokens drawn from them, each with an equal share of their mass. So the divergence and its
gradient are right on average, whatever is left out: to keep the largest alone would teach that the
other tokens, a quarter of the mass, are all alike.

Papers:
    Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network" (2015).
    Kim and Rush, "Sequence-Level Knowledge Distillation" (EMNLP 2016): of language models, by word.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from flower_privsyn.checks import PositiveFloat, PositiveInt, Settings
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import write_json
from flower_privsyn.models import resolve_model
from flower_privsyn.models.pretrained import load_pretrained, load_tokenizer
from flower_privsyn.training.fingerprint import weight_files
from flower_privsyn.training.tokens import first_token, padded, text_window

if TYPE_CHECKING:
    import torch

#: Rows that the teacher has read before an interruption costs nothing of them.
BLOCK_ROWS = 1024

#: Logits of one forward pass of the teacher held at a time.
_LOGITS = 2**24

#: Begins the seeds of what is drawn from the tokens that are not kept.
_DRAWS = 0x5EED


@dataclass(frozen=True)
class Distillation(Settings):
    """How a model is taught by another one with the same tokens.

    The loss of a token is `(1 - weight)` times its negative log-probability plus `weight` times an
    unbiased estimate of the divergence KL(teacher || student) of their probabilities of the next
    token. The estimate may be below 0, most of all for rows that were seen often.

    Raises:
        ConfigError: A value is out of range; the message names the key.
    """

    teacher: Annotated[
        str | Path,
        "a bundled short name, a folder or a hub name of a causal language model with the "
        "student's vocabulary.",
    ]
    weight: Annotated[
        float,
        Ge(0),
        Le(1),
        "of the teacher. 0 is the text alone and needs no teacher; 1 is the teacher alone.",
    ] = field(default=0.5, kw_only=True)
    top_k: Annotated[
        PositiveInt,
        "largest probabilities of the teacher that are kept at every position. The vocabulary or "
        "more keeps all: the divergence is then exact.",
    ] = field(default=48, kw_only=True)
    draws: Annotated[
        PositiveInt,
        "tokens drawn from the others at every position, which stand for them.",
    ] = field(default=16, kw_only=True)
    temperature: Annotated[
        PositiveFloat,
        "what both models' logits are divided by before they are compared; the divergence is "
        "multiplied by its square, which keeps the size of the gradient.",
    ] = field(default=1.0, kw_only=True)

    def _called(self, name: str) -> str:
        return f"distillation setting {name}"

    def fingerprint(self) -> dict[str, Any]:
        """What a student depends on besides its own training, as JSON can hold it."""
        return {
            "teacher": weight_files(resolve_model(self.teacher)),
            "weight": float(self.weight),
            "top_k": self.top_k,
            "draws": self.draws,
            "temperature": float(self.temperature),
        }


def check_same_tokens(student: str | Path, teacher: str | Path) -> None:
    """Refuse a teacher that speaks of other tokens; loads tokenizers and no weights.

    Raises:
        ConfigError: The two vocabularies differ, or texts begin with another token.
        ModelError: A tokenizer cannot be loaded.
    """
    ours, theirs = load_tokenizer(student), load_tokenizer(teacher)
    known, taught = ours.get_vocab(), theirs.get_vocab()
    same = known == taught and first_token(ours) == first_token(theirs)
    if not same:
        shared = sum(taught.get(token) == number for token, number in known.items())
        raise ConfigError(
            f"distillation setting teacher must have the tokens of {str(student)!r}, whose "
            f"vocabulary is {len(known)} tokens: {str(teacher)!r} has {len(taught)}, of which "
            f"{shared} are the same"
        )


class TeacherTargets:
    """What is kept of a teacher's next-token probabilities at every position of some rows, on disk.

    A row of t tokens takes (t - 1) * c * 4 bytes with c = `top_k` + `draws`: c token ids of 2 bytes
    and c log-probabilities of 2 (float16: to 0.05 %). Ids take 4 bytes where the vocabulary is
    above 65,536.
    """

    def __init__(
        self,
        ids: npt.NDArray[Any],
        log_probabilities: npt.NDArray[np.float16],
        starts: npt.NDArray[np.int64],
        *,
        distillation: Distillation,
    ) -> None:
        """Use stored targets; see `teacher_targets`.

        Args:
            ids: (positions, c), the most probable tokens before those drawn from the others.
            log_probabilities: (positions, c), natural logarithms at the temperature.
            starts: (rows,) the first position of each row; -1 for one the teacher did not read.
            distillation: how they are used.
        """
        self._ids = ids
        self._log_probabilities = log_probabilities
        self._starts = starts
        self._distillation = distillation

    def losses(
        self, logits: torch.Tensor, tokens: torch.Tensor, rows: Sequence[int], lengths: list[int]
    ) -> torch.Tensor:
        """The losses of all predicted tokens of some rows, one row after the other.

        Args:
            logits: (positions, vocabulary) float32, the student's.
            tokens: (positions,) the text.
            rows: which rows.
            lengths: positions of each.

        Returns:
            (positions,) in nats.
        """
        import torch

        places = [
            slice(self._starts[row], self._starts[row] + length)
            for row, length in zip(rows, lengths, strict=True)
        ]
        ids = np.concatenate([self._ids[place] for place in places]).astype(np.int64)
        kept = np.concatenate([self._log_probabilities[place] for place in places])
        return mixed_losses(
            logits,
            tokens,
            torch.from_numpy(ids).to(logits.device),
            torch.from_numpy(kept.astype(np.float32)).to(logits.device),
            top_k=self._distillation.top_k,
            weight=self._distillation.weight,
            temperature=self._distillation.temperature,
        )


def mixed_losses(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    ids: torch.Tensor,
    log_probabilities: torch.Tensor,
    *,
    top_k: int,
    weight: float,
    temperature: float,
) -> torch.Tensor:
    """Negative log-probability of the text, mixed with the divergence from the teacher.

    Args:
        logits: (positions, vocabulary) float32, the student's.
        tokens: (positions,) the text.
        ids: (positions, c) the teacher's most probable tokens, then some drawn from the others;
            see `sparse_targets`.
        log_probabilities: (positions, c) what the teacher gives them at the temperature.
        top_k: how many of them, or more than c, are the most probable ones.
        weight: of the divergence, in [0, 1].
        temperature: > 0.

    Returns:
        (positions,) in nats.
    """
    import torch

    wanted = torch.cat([tokens[:, None], ids], dim=-1)  # looked up together: one pass back
    logs = torch.log_softmax(logits, dim=-1).gather(-1, wanted)
    softened = logs
    if temperature != 1.0:
        softened = torch.log_softmax(logits / temperature, dim=-1).gather(-1, wanted)
    text, log_student = -logs[:, 0], softened[:, 1:]
    # Rounding on disk may have left a mass above 1.
    largest = log_probabilities[:, :top_k].exp()
    mass = largest.sum(-1, keepdim=True).clamp(min=1.0)
    drawn = ids.shape[1] - largest.shape[1]
    shares = largest / mass
    if drawn:
        rest = (1.0 - shares.sum(-1, keepdim=True)).clamp(min=0.0)
        shares = torch.cat([shares, (rest / drawn).expand(-1, drawn)], dim=-1)
    divergence = (shares * (log_probabilities - mass.log() - log_student)).sum(-1)
    return (1.0 - weight) * text + weight * temperature**2 * divergence


def sparse_targets(
    logits: torch.Tensor, uniforms: torch.Tensor, *, top_k: int, draws: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest probabilities, and a systematic sample of the others.

    A token that is not among the largest is drawn `draws` times its share of their mass, on average
    and to the nearest whole number: the least variance there is.

    Args:
        logits: (positions, vocabulary) float32, at the temperature.
        uniforms: (positions,) float32 in [0, 1), which decide what is drawn.
        top_k: how many of the largest, at most the vocabulary.
        draws: how many of the others; none where there are no others.

    Returns:
        Tokens and their log-probabilities, both (positions, top_k + draws).
    """
    import torch

    vocabulary = logits.shape[-1]
    best, ids = logits.topk(top_k, dim=-1)
    total = logits.logsumexp(dim=-1, keepdim=True)
    if top_k == vocabulary:
        return ids, best - total
    others = (logits - total).exp_().scatter_(-1, ids, 0.0).cumsum(dim=-1)
    points = (torch.arange(draws, device=logits.device) + uniforms[:, None]) / draws
    drawn = torch.searchsorted(others, points * others[:, -1:], right=True)
    ids = torch.cat([ids, drawn.clamp_(max=vocabulary - 1)], dim=-1)
    return ids, logits.gather(-1, ids) - total


def teacher_targets(
    rows: Sequence[Sequence[int]],
    visited: npt.NDArray[np.int64],
    *,
    distillation: Distillation,
    vocabulary: int,
    folder: Path,
    device: str,
    bfloat16: bool,
) -> TeacherTargets:
    """Let the teacher read rows, or those that are left of an interrupted reading.

    Which rows are read together depends on the rows alone, so that an interruption changes no bit.

    Args:
        rows: of token ids, 2 or more each.
        visited: (n,) the rows to read.
        distillation: the teacher and what is kept of it.
        vocabulary: classes of the student's output.
        folder: for the targets of this training alone; made if needed.
        device: as PyTorch names it.
        bfloat16: multiply in bfloat16.

    Raises:
        ConfigError: A row is longer than the teacher's context.
        ModelError: The teacher cannot be loaded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lengths = np.array([len(rows[index]) - 1 for index in visited], dtype=np.int64)
    starts = np.full(len(rows), -1, dtype=np.int64)
    starts[visited] = np.cumsum(lengths) - lengths
    kept = min(distillation.top_k, vocabulary)
    id_type = np.uint16 if vocabulary <= 2**16 else np.int32
    done = _rows_done(folder)
    shape = (int(lengths.sum()), kept + (distillation.draws if kept < vocabulary else 0))
    ids = _stored(folder / "ids.npy", id_type, shape, kept=done > 0)
    log_probabilities = _stored(folder / "log_probabilities.npy", np.float16, shape, kept=done > 0)
    if done < len(visited):
        teacher = distillation.teacher
        network, _ = load_pretrained(teacher, kind="causal", dtype="float32", device=device)
        longest = max(len(rows[index]) for index in visited)
        if text_window(network, longest) < longest - 1:
            raise ConfigError(
                f"distillation setting teacher: {str(teacher)!r} reads at most "
                f"{text_window(network, longest)} tokens after the beginning, and rows of "
                f"{longest - 1} are to be taught: lower max_tokens"
            )
        for first in range(done, len(visited), BLOCK_ROWS):
            block = visited[first : first + BLOCK_ROWS].tolist()
            for chosen in _batches(rows, block, vocabulary):
                best, logs = _predictions(
                    network,
                    [rows[index] for index in chosen],
                    # Of a row alone, so that it does not matter what else is read.
                    [np.random.default_rng([_DRAWS, index]) for index in chosen],
                    distillation=distillation,
                    vocabulary=vocabulary,
                    bfloat16=bfloat16,
                )
                place = 0
                for index in chosen:
                    stored = slice(starts[index], starts[index] + len(rows[index]) - 1)
                    taken = slice(place, place + len(rows[index]) - 1)
                    ids[stored], log_probabilities[stored] = best[taken], logs[taken]
                    place = taken.stop
            ids.flush()
            log_probabilities.flush()
            write_json(folder / "done.json", {"rows": first + len(block)})
    return TeacherTargets(ids, log_probabilities, starts, distillation=distillation)


def _batches(rows: Sequence[Sequence[int]], block: list[int], vocabulary: int) -> list[list[int]]:
    """Rows to read together: of like lengths, so that a batch is hardly padded."""
    order = sorted(block, key=lambda index: -len(rows[index]))
    found = []
    start = 0
    while start < len(order):
        size = max(1, _LOGITS // (len(rows[order[start]]) * vocabulary))
        found.append(order[start : start + size])
        start += size
    return found


def _predictions(
    network: Any,
    rows: Sequence[Sequence[int]],
    generators: Sequence[np.random.Generator],
    *,
    distillation: Distillation,
    vocabulary: int,
    bfloat16: bool,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """`sparse_targets` of the teacher, row after row: (positions, c) each."""
    import torch

    tokens, attention = padded(rows)
    device = network.device
    drawn = zip(rows, generators, strict=True)
    uniforms = np.concatenate([random.random(len(row) - 1, np.float32) for row, random in drawn])
    with (
        torch.inference_mode(),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16),
    ):
        logits = network(
            input_ids=tokens.to(device), attention_mask=attention.to(device), use_cache=False
        ).logits[:, :-1]
        # A teacher's output may be wider than the vocabulary, for the hardware's sake.
        logits = logits[attention[:, 1:].bool().to(device)][:, :vocabulary].float()
        ids, logs = sparse_targets(
            logits / distillation.temperature,
            torch.from_numpy(uniforms).to(device),
            top_k=min(distillation.top_k, vocabulary),
            draws=distillation.draws,
        )
    return ids.cpu().numpy(), logs.cpu().numpy()


def _rows_done(folder: Path) -> int:
    try:
        return int(json.loads((folder / "done.json").read_text(encoding="utf-8"))["rows"])
    except (OSError, ValueError, KeyError):
        return 0


def _stored(path: Path, dtype: Any, shape: tuple[int, int], *, kept: bool) -> np.memmap[Any, Any]:
    """A file of numbers as an array; what it holds is kept, or it is made anew."""
    return np.lib.format.open_memmap(
        path, mode="r+" if kept else "w+", **({} if kept else {"dtype": dtype, "shape": shape})
    )
