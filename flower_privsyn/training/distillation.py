"""Knowledge distillation: a student learns from a teacher's probabilities besides the text.

A token of text says which word came next; a teacher says how likely every word was. The teacher
reads each row once. Of its probabilities the largest are kept, on disk, and the mass of all other
tokens is one more class: two distributions over the same classes, whose divergence is never
negative and 0 only where the student agrees.

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

#: Least probability of a class for which a logarithm is taken: what float32 can tell from 0.
_LEAST = 1e-7


@dataclass(frozen=True)
class Distillation(Settings):
    """How a model is taught by another one with the same tokens.

    The loss of a token is `(1 - weight)` times its negative log-probability plus `weight` times the
    divergence KL(teacher || student) of their probabilities of the next token.

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
        "probabilities of the teacher that are kept at every position; the others count by their "
        "sum. More than the vocabulary keeps all.",
    ] = field(default=64, kw_only=True)
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
    """A teacher's largest next-token probabilities at every position of some rows, on disk.

    A row of t tokens takes (t - 1) * k * 4 bytes: k token ids of 2 bytes and k log-probabilities of
    2 (float16: at most 0.05 % of one, as far as it matters). Ids take 4 bytes where the vocabulary
    is above 65,536.
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
            ids: (positions, k).
            log_probabilities: (positions, k), natural logarithms at the temperature.
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
            weight=self._distillation.weight,
            temperature=self._distillation.temperature,
        )


def mixed_losses(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    ids: torch.Tensor,
    log_probabilities: torch.Tensor,
    *,
    weight: float,
    temperature: float,
) -> torch.Tensor:
    """Negative log-probability of the text, mixed with the divergence from the teacher.

    Args:
        logits: (positions, vocabulary) float32, the student's.
        tokens: (positions,) the text.
        ids: (positions, k) the teacher's most probable tokens, each once.
        log_probabilities: (positions, k) what it gives them at the temperature.
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
    mass = log_probabilities.exp().sum(-1, keepdim=True).clamp(min=1.0)
    log_teacher = log_probabilities - mass.log()
    teacher = log_teacher.exp()
    rest = (1.0 - teacher.sum(-1)).clamp(min=0.0)
    student_rest = (1.0 - log_student.exp().sum(-1)).clamp(min=_LEAST)
    divergence = (teacher * (log_teacher - log_student)).sum(-1)
    divergence = divergence + torch.xlogy(rest, rest) - rest * student_rest.log()
    return (1.0 - weight) * text + weight * temperature**2 * divergence


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
    shape = (int(lengths.sum()), kept)
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
                    kept=kept,
                    vocabulary=vocabulary,
                    temperature=distillation.temperature,
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
    *,
    kept: int,
    vocabulary: int,
    temperature: float,
    bfloat16: bool,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The teacher's best tokens and their log-probabilities, row after row: (positions, kept)."""
    import torch

    tokens, attention = padded(rows)
    device = network.device
    with (
        torch.inference_mode(),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16),
    ):
        logits = network(
            input_ids=tokens.to(device), attention_mask=attention.to(device), use_cache=False
        ).logits[:, :-1]
        # A teacher's output may be wider than the vocabulary, for the hardware's sake.
        logits = logits[attention[:, 1:].bool().to(device)][:, :vocabulary].float() / temperature
        best, ids = logits.topk(kept, dim=-1)
        logs = best - logits.logsumexp(dim=-1, keepdim=True)
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
