"""What a teacher says of rows of text: read once, kept on disk, and looked up in training.

Of every position a few token ids and their log-probabilities are kept, in two files that are
mapped and not loaded, beside a header that says what they are of: the teacher's weights, the
tokens, the rows and the settings. A reading that was interrupted goes on where it was; one that is
finished serves any number of students.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import ConfigError
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.training.distillation import DRAWS, Distillation, mixed_losses, sparse_targets
from flower_privsyn.training.fingerprint import digest_of_rows, digest_of_tokenizer
from flower_privsyn.training.on_disk import mapped, note_rows_done, rows_done
from flower_privsyn.training.tokens import batches_by_length, padded, text_window

if TYPE_CHECKING:
    import torch

#: Rows of which like ones are read together.
BLOCK_ROWS = 1024

#: Seconds between notes of how far the teacher has read: what a crash makes it read again.
SAVE_SECONDS = 1.0

#: Begins the seeds of what is drawn from the tokens that are not kept.
_SEED_OF_DRAWS = 0x5EED

_WHAT = "a teacher's probabilities"


class TeacherTargets:
    """What is kept of a teacher's next-token probabilities at every position of some rows, on disk.

    A row of t tokens takes (t - 1) * c * 4 bytes, c being `top_k`, and `DRAWS` with them where
    tokens are drawn: c token ids of 2 bytes and c log-probabilities of 2. Ids take 4 bytes where
    the vocabulary is above 65,536.
    """

    def __init__(
        self,
        ids: np.memmap[Any, Any],
        log_probabilities: np.memmap[Any, Any],
        starts: npt.NDArray[np.int64],
        *,
        distillation: Distillation,
    ) -> None:
        """Use stored targets; see `teacher_targets`.

        Args:
            ids: (positions, c), the most probable tokens before those drawn from the others.
            log_probabilities: (positions, c), natural logarithms.
            starts: (rows,) the first position of each row; -1 for one the teacher did not read.
            distillation: how they are used.
        """
        self._ids = ids
        self._log_probabilities = log_probabilities
        self._starts = starts
        self.distillation = distillation

    @property
    def nbytes(self) -> int:
        """Bytes on disk, short of a header."""
        return int(self._ids.nbytes + self._log_probabilities.nbytes)

    def put(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        ids: npt.NDArray[np.int64],
        log_probabilities: npt.NDArray[np.float32],
    ) -> None:
        """Store what the teacher said of some rows.

        Args:
            rows: which rows.
            lengths: positions of each.
            ids: (positions, c) of all of them, one row after the other.
            log_probabilities: (positions, c).
        """
        place = 0
        for row, length in zip(rows, lengths, strict=True):
            stored = slice(self._starts[row], self._starts[row] + length)
            taken = slice(place, place + length)
            self._ids[stored] = ids[taken]
            self._log_probabilities[stored] = log_probabilities[taken]
            place = taken.stop

    def flush(self) -> None:
        """Have everything on the disk."""
        self._ids.flush()
        self._log_probabilities.flush()

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
            top_k=self.distillation.top_k,
            shares=self.distillation.shares,
            rest=self.distillation.rest,
        )


def teacher_targets(
    rows: Sequence[Sequence[int]],
    visited: npt.NDArray[np.int64],
    *,
    distillation: Distillation,
    tokenizer: Any,
    vocabulary: int,
    folder: Path,
    device: str,
    bfloat16: bool,
) -> TeacherTargets:
    """Let the teacher read rows, or those that are left of an interrupted reading.

    Which rows are read together depends on the rows alone, so that an interruption changes no bit.
    Where all of them were read, the teacher is not loaded.

    Args:
        rows: of token ids, 2 or more each.
        visited: (n,) the rows to read.
        distillation: the teacher and what is kept of it.
        tokenizer: the student's, which has the teacher's tokens (`check_same_tokens`).
        vocabulary: classes of the student's output.
        folder: for these targets alone; made if needed.
        device: as PyTorch names it.
        bfloat16: multiply in bfloat16.

    Raises:
        ConfigError: A row is longer than the teacher's context, or the folder holds what was read
            of something else.
        ModelError: The teacher cannot be loaded, or the folder's files are damaged.
    """
    lengths = np.array([len(rows[index]) - 1 for index in visited], dtype=np.int64)
    starts = np.full(len(rows), -1, dtype=np.int64)
    starts[visited] = np.cumsum(lengths) - lengths
    kept = min(distillation.top_k, vocabulary)
    width = kept + (_draws(distillation) if kept < vocabulary else 0)
    shape = (int(lengths.sum()), width)
    header = {
        **distillation.reading(),
        "tokenizer": digest_of_tokenizer(tokenizer),
        "rows": digest_of_rows(rows[index] for index in visited),
        # What is drawn at a row depends on its place among all of them.
        "places": digest_of_rows([visited.tolist()]),
        "vocabulary": vocabulary,
        "bfloat16": bfloat16,
    }
    done = rows_done(folder, header, what=_WHAT)
    mode: Any = "r" if done == len(visited) else "r+" if done else "w+"
    id_type = np.uint16 if vocabulary <= 2**16 else np.int32
    targets = TeacherTargets(
        mapped(folder / "ids.npy", id_type, shape, mode=mode),
        mapped(folder / "log_probabilities.npy", np.dtype(np.float16), shape, mode=mode),
        starts,
        distillation=distillation,
    )
    if done == len(visited):
        return targets
    _read(
        targets,
        reading_batches(rows, visited, vocabulary=vocabulary),
        rows,
        done=done,
        folder=folder,
        network=_loaded(distillation, device, longest=max(len(rows[index]) for index in visited)),
        vocabulary=vocabulary,
        bfloat16=bfloat16,
    )
    return targets


def _read(
    targets: TeacherTargets,
    batches: Sequence[list[int]],
    rows: Sequence[Sequence[int]],
    *,
    done: int,
    folder: Path,
    network: Any,
    vocabulary: int,
    bfloat16: bool,
) -> None:
    """Let the teacher read what is left of the batches, and note now and then how far it is."""
    saved = time.monotonic()
    total = sum(map(len, batches))
    read = 0
    for chosen in batches:
        read += len(chosen)
        if read <= done:
            continue
        found = _predictions(
            network,
            [rows[index] for index in chosen],
            # Of a row alone, so that it does not matter what else is read.
            [np.random.default_rng([_SEED_OF_DRAWS, index]) for index in chosen],
            distillation=targets.distillation,
            vocabulary=vocabulary,
            bfloat16=bfloat16,
        )
        targets.put(chosen, [len(rows[index]) - 1 for index in chosen], *found)
        if read == total or time.monotonic() - saved >= SAVE_SECONDS:
            targets.flush()
            note_rows_done(folder, read)
            saved = time.monotonic()


def _draws(distillation: Distillation) -> int:
    return DRAWS if distillation.rest == "drawn" else 0


def _loaded(distillation: Distillation, device: str, *, longest: int) -> Any:
    """The teacher, once it is known to have the context for the longest row."""
    teacher = distillation.teacher
    network, _ = load_pretrained(teacher, kind="causal", dtype="float32", device=device)
    if text_window(network, longest) < longest - 1:
        raise ConfigError(
            f"distillation setting teacher: {str(teacher)!r} reads at most "
            f"{text_window(network, longest)} tokens after the beginning, and rows of "
            f"{longest - 1} are to be taught: lower max_tokens"
        )
    return network


def reading_batches(
    rows: Sequence[Sequence[int]], visited: npt.NDArray[np.int64], *, vocabulary: int
) -> list[list[int]]:
    """The rows that a teacher reads together, in the order in which it does.

    Args:
        rows: of token ids.
        visited: (n,) the rows to read.
        vocabulary: classes of the output.
    """
    return [
        chosen
        for first in range(0, len(visited), BLOCK_ROWS)
        for chosen in batches_by_length(
            rows, visited[first : first + BLOCK_ROWS].tolist(), vocabulary=vocabulary
        )
    ]


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
            logits,
            torch.from_numpy(uniforms).to(device),
            top_k=min(distillation.top_k, vocabulary),
            draws=_draws(distillation),
        )
    return ids.cpu().numpy(), logs.cpu().numpy()
