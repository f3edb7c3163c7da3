"""Knowledge distillation: a student learns from a teacher's probabilities besides the text.

A token of text says which word came next; a teacher says how likely every word was. The teacher
reads every batch beside the student, so that the divergence is exact and nothing of it is kept.

Papers:
    Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network" (2015).
    Kim and Rush, "Sequence-Level Knowledge Distillation" (EMNLP 2016): of language models, by word.
    Wang et al., "Can Public Large Language Models Help Private Cross-device Federated Learning?"
        (NAACL 2024): cross-entropy plus beta times distillation of the ten largest logits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge

from flower_privsyn.checks import NonNegativeInt, PositiveFloat, Settings
from flower_privsyn.errors import ConfigError
from flower_privsyn.models.pretrained import load_pretrained, load_tokenizer
from flower_privsyn.training.storage import weight_files
from flower_privsyn.training.tokens import check_window, first_token

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Distillation(Settings):
    """How a model is taught by another one with the same tokens.

    The loss of a token is `of_text` times its negative log-probability plus `of_teacher` times the
    divergence KL(teacher || student) of their probabilities of the next token.

    Raises:
        ConfigError: A value is out of range; the message names the key.
    """

    teacher: str | Path
    """A bundled short name, a folder or a hub name of a causal language model with the student's
    vocabulary.
    """
    of_text: Annotated[float, Ge(0)] = field(default=0.5, kw_only=True)
    """Weight of the text; 0 is the teacher alone."""
    of_teacher: PositiveFloat = field(default=0.5, kw_only=True)
    """Weight of the teacher; Wang et al.'s beta, beside `of_text` = 1."""
    top_k: NonNegativeInt = field(default=0, kw_only=True)
    """Largest probabilities of the teacher that are taught, scaled to a sum of 1: nothing is said
    of the other tokens. 0 teaches all.
    """

    _noun: ClassVar = "distillation setting"

    def fingerprint(self) -> dict[str, Any]:
        """What a student depends on besides its own training, as JSON can hold it."""
        return asdict(self) | {"teacher": weight_files(self.teacher)}


def divergence(student: torch.Tensor, teacher: torch.Tensor, *, top_k: int = 0) -> torch.Tensor:
    """KL(teacher || student) of the next token, summed over positions.

    Args:
        student: (positions, tokens) float32 logits.
        teacher: (positions, tokens) of the same tokens. Either output may be wider than the
            vocabulary, for the hardware's sake.
        top_k: how many of the teacher's largest logits are its distribution; 0 for all.

    Returns:
        A number, in nats.
    """
    import torch

    width = min(student.shape[-1], teacher.shape[-1])
    learnt = student[:, :width].log_softmax(-1)
    taught = teacher[:, :width]
    if 0 < top_k < width:
        taught, kept = taught.topk(top_k, dim=-1)
        learnt = learnt.gather(-1, kept)
    return torch.nn.functional.kl_div(
        learnt, taught.log_softmax(-1), reduction="sum", log_target=True
    )


def check_same_tokens(
    student: str | Path, teacher: str | Path, *, setting: str = "distillation setting teacher"
) -> None:
    """Refuse a teacher that speaks of other tokens; loads tokenizers and no weights.

    Args:
        student: a bundled short name, a folder or a hub name.
        teacher: the same.
        setting: what named the teacher, for the sentence that refuses it.

    Raises:
        ConfigError: The two vocabularies differ, or texts begin with another token.
        ModelError: A tokenizer cannot be loaded.
    """
    ours, theirs = load_tokenizer(student), load_tokenizer(teacher)
    known, taught = ours.get_vocab(), theirs.get_vocab()
    if known != taught or first_token(ours) != first_token(theirs):
        shared = sum(taught.get(token) == number for token, number in known.items())
        raise ConfigError(
            f"{setting} must have the tokens of {str(student)!r}, whose "
            f"vocabulary is {len(known)} tokens: {str(teacher)!r} has {len(taught)}, of which "
            f"{shared} are the same"
        )


def load_teacher(teacher: str | Path, *, longest: int, max_tokens: int, device: str = "cpu") -> Any:
    """Load a teacher that can read the rows of a training.

    Args:
        teacher: a bundled short name, a folder or a hub name.
        longest: tokens of the longest row, without the first one.
        max_tokens: the setting that the length of a row follows from.
        device: as PyTorch names it.

    Raises:
        ConfigError: its context is shorter.
        ModelError: it cannot be loaded.
    """
    network, _ = load_pretrained(teacher, kind="causal", dtype="float32", device=device)
    check_window(network, longest, called=f'teacher = "{teacher}"', max_tokens=max_tokens)
    return network
