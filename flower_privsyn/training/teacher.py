"""What a teacher says of rows of text: read once, kept on disk, and looked up in training.

Of every position a few token ids and their log-probabilities are kept, in two files that are
mapped and not loaded. A reading that was interrupted goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from flower_privsyn.errors import ConfigError
from flower_privsyn.files import read_json, write_json
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.training.distillation import Distillation, Rest
from flower_privsyn.training.tokens import batches_by_length, next_token_logits, text_window

#: Tokens drawn from those that are not kept, at every position, which stand for them.
DRAWS: Final = 16

#: Rows of which like ones are read together.
BLOCK_ROWS = 1024

#: Seconds between notes of how far the teacher has read: what a crash makes it read again.
SAVE_SECONDS = 1.0

#: Begins the seeds of what is drawn from the tokens that are not kept.
_SEED_OF_DRAWS = 0x5EED


class TeacherTargets:
    """What is kept of a teacher's next-token probabilities at every position of some rows, on disk.

    A row of t tokens takes (t - 1) * c * 4 bytes, c being `top_k`, and `DRAWS` with them where
    tokens are drawn: c token ids of 2 bytes and c log-probabilities of 2. Ids take 4 bytes where
    the vocabulary is above 65,536.

    Which rows are read together depends on the rows alone, so that an interruption changes no bit.
    Where all of them were read, the teacher is not loaded.

    Args:
        rows: of token ids, 2 or more each.
        visited: (n,) the rows to read.
        distillation: the teacher, what is kept of it, and how that is used.
        vocabulary: classes of the student's output.
        folder: for these targets of this teacher alone; made if needed.
        device: as PyTorch names it.
        bfloat16: multiply in bfloat16.

    Raises:
        ConfigError: A row is longer than the teacher's context.
        ModelError: The teacher cannot be loaded.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        visited: npt.NDArray[np.int64],
        *,
        distillation: Distillation,
        vocabulary: int,
        folder: Path,
        device: str,
        bfloat16: bool,
    ) -> None:
        self._rows = rows
        self._distillation = distillation
        self._vocabulary = vocabulary
        lengths = np.array([len(rows[index]) - 1 for index in visited], dtype=np.int64)
        self._starts = np.full(len(rows), -1, dtype=np.int64)
        self._starts[visited] = np.cumsum(lengths) - lengths
        self._top_k = min(distillation.top_k, vocabulary)
        drawn = distillation.rest == "drawn" and self._top_k < vocabulary
        self._draws = DRAWS if drawn else 0
        folder.mkdir(exist_ok=True)
        note = folder / "read.json"
        done = read_json(note).get("rows", 0)
        self._ids, self._logs = (
            np.lib.format.open_memmap(
                folder / f"{name}.npy",
                mode="r+" if done else "w+",
                dtype=dtype,
                shape=(int(lengths.sum()), self._top_k + self._draws),
            )
            for name, dtype in (
                ("ids", np.uint16 if vocabulary <= 2**16 else np.int32),
                ("log_probabilities", np.float16),
            )
        )
        if done < len(visited):
            self._read(visited, done, note, device=device, bfloat16=bfloat16)

    def _read(
        self, visited: npt.NDArray[np.int64], done: int, note: Path, *, device: str, bfloat16: bool
    ) -> None:
        """Let the teacher read what is left, and note now and then how far it is."""
        rows, teacher = self._rows, self._distillation.teacher
        longest = max(len(rows[index]) for index in visited)
        network, _ = load_pretrained(teacher, kind="causal", dtype="float32", device=device)
        if text_window(network, longest) < longest - 1:
            raise ConfigError(
                f"distillation setting teacher: {str(teacher)!r} reads at most "
                f"{text_window(network, longest)} tokens after the beginning, and rows of "
                f"{longest - 1} are to be taught: lower max_tokens"
            )
        saved, read = time.monotonic(), 0
        for first in range(0, len(visited), BLOCK_ROWS):
            block = visited[first : first + BLOCK_ROWS].tolist()
            for chosen in batches_by_length(rows, block, vocabulary=self._vocabulary):
                read += len(chosen)
                if read <= done:
                    continue
                found = self._predictions(network, chosen, bfloat16=bfloat16)
                lengths = np.cumsum([len(rows[row]) - 1 for row in chosen])[:-1]
                for row, *said in zip(
                    chosen, *(np.split(part, lengths) for part in found), strict=True
                ):
                    place = self._place(row)
                    self._ids[place], self._logs[place] = said
                if read == len(visited) or time.monotonic() - saved >= SAVE_SECONDS:
                    self._ids.flush()
                    self._logs.flush()
                    write_json(note, {"rows": read})
                    saved = time.monotonic()

    def _place(self, row: int) -> slice:
        """Where what was said of a row is kept."""
        start = self._starts[row]
        return slice(start, start + len(self._rows[row]) - 1)

    def _predictions(
        self, network: Any, chosen: Sequence[int], *, bfloat16: bool
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """`sparse_targets` of the teacher, row after row: (positions, c) each."""
        rows = [self._rows[row] for row in chosen]
        # Of a row alone, so that it does not matter what else is read.
        uniforms = np.concatenate(
            [
                np.random.default_rng([_SEED_OF_DRAWS, row]).random(len(tokens) - 1, np.float32)
                for row, tokens in zip(chosen, rows, strict=True)
            ]
        )
        # A teacher's output may be wider than the vocabulary, for the hardware's sake.
        logits = next_token_logits(network, rows, bfloat16=bfloat16)[:, : self._vocabulary]
        with torch.inference_mode():
            ids, logs = sparse_targets(
                logits,
                torch.from_numpy(uniforms).to(logits.device),
                top_k=self._top_k,
                draws=self._draws,
            )
        return ids.cpu().numpy(), logs.cpu().numpy()

    def losses(
        self, logits: torch.Tensor, tokens: torch.Tensor, rows: Sequence[int]
    ) -> torch.Tensor:
        """The losses of all predicted tokens of some rows, one row after the other.

        Args:
            logits: (positions, vocabulary) float32, the student's.
            tokens: (positions,) the text.
            rows: which rows.

        Returns:
            (positions,) in nats.
        """
        ids = np.concatenate([self._ids[self._place(row)] for row in rows]).astype(np.int64)
        kept = np.concatenate([self._logs[self._place(row)] for row in rows]).astype(np.float32)
        return mixed_losses(
            logits,
            tokens,
            torch.from_numpy(ids).to(logits.device),
            torch.from_numpy(kept).to(logits.device),
            top_k=self._top_k,
            shares=self._distillation.shares,
            rest=self._distillation.rest,
        )


def mixed_losses(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    ids: torch.Tensor,
    log_probabilities: torch.Tensor,
    *,
    top_k: int,
    shares: tuple[float, float],
    rest: Rest = "drawn",
) -> torch.Tensor:
    """Negative log-probability of the text and divergence from the teacher, added up.

    Args:
        logits: (positions, vocabulary) float32, the student's.
        tokens: (positions,) the text.
        ids: (positions, c) the teacher's most probable tokens, then some drawn from the others;
            see `sparse_targets`.
        log_probabilities: (positions, c) what the teacher gives them.
        top_k: how many of them, or more than c, are the most probable ones.
        shares: what the text's loss and the divergence are multiplied by, each at least 0.
        rest: what stands for the tokens that are not kept; see `Distillation`. It says nothing
            where all are kept.

    Returns:
        (positions,) in nats.
    """
    of_text, of_teacher = shares
    wanted = torch.cat([tokens[:, None], ids], dim=-1)  # looked up together: one pass back
    every = torch.log_softmax(logits, dim=-1)
    logs = every.gather(-1, wanted)
    text, log_student = -logs[:, 0], logs[:, 1:]
    # Rounding on disk may have left a mass above 1; "dropped" has the kept ones sum to 1.
    largest = log_probabilities[:, :top_k].exp()
    kept = largest.sum(-1, keepdim=True)
    mass = kept if rest == "dropped" else kept.clamp(min=1.0)
    drawn = ids.shape[1] - largest.shape[1]
    chances = largest / mass
    if drawn:
        left = (1.0 - chances.sum(-1, keepdim=True)).clamp(min=0.0)
        chances = torch.cat([chances, (left / drawn).expand(-1, drawn)], dim=-1)
    divergence = (chances * (log_probabilities - mass.log() - log_student)).sum(-1)
    if rest == "lumped" and ids.shape[1] < logits.shape[-1]:
        left = (1.0 - chances.sum(-1)).clamp(min=0.0)
        others = every.scatter(-1, ids, -torch.inf).logsumexp(dim=-1)
        divergence = divergence + torch.xlogy(left, left) - left * others
    return of_text * text + of_teacher * divergence


def sparse_targets(
    logits: torch.Tensor, uniforms: torch.Tensor, *, top_k: int, draws: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest probabilities, and a systematic sample of the others.

    A token that is not among the largest is drawn `draws` times its share of their mass, on average
    and to the nearest whole number: the least variance there is.

    Args:
        logits: (positions, vocabulary) float32.
        uniforms: (positions,) float32 in [0, 1), which decide what is drawn.
        top_k: how many of the largest, at most the vocabulary.
        draws: how many of the others, >= 0; none where there are no others.

    Returns:
        Tokens and their log-probabilities, both (positions, top_k + draws).
    """
    vocabulary = logits.shape[-1]
    best, ids = logits.topk(top_k, dim=-1)
    total = logits.logsumexp(dim=-1, keepdim=True)
    if top_k == vocabulary or not draws:
        return ids, best - total
    others = (logits - total).exp_().scatter_(-1, ids, 0.0).cumsum(dim=-1)
    points = (torch.arange(draws, device=logits.device) + uniforms[:, None]) / draws
    drawn = torch.searchsorted(others, points * others[:, -1:], right=True)
    ids = torch.cat([ids, drawn.clamp_(max=vocabulary - 1)], dim=-1)
    return ids, logits.gather(-1, ids) - total
