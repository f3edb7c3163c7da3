"""Knowledge distillation: a student learns from a teacher's probabilities besides the text.

A token of text says which word came next; a teacher says how likely every word was. The teacher
reads each row once (`flower_privsyn.training.teacher`), and of its probabilities the largest are
kept. What becomes of the others is a setting: a few tokens drawn from them stand for them, so that
the divergence and its gradient are right on average; or all of them count as one class, of which
only the mass is taught; or they are left out, which teaches that they never follow.

Papers:
    Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network" (2015).
    Kim and Rush, "Sequence-Level Knowledge Distillation" (EMNLP 2016): of language models, by word.
    Wang et al., "Can Public Large Language Models Help Private Cross-device Federated Learning?"
        (NAACL 2024): cross-entropy plus beta times distillation of the ten largest logits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from flower_privsyn.checks import PositiveInt, Settings
from flower_privsyn.errors import ConfigError
from flower_privsyn.models import resolve_model
from flower_privsyn.models.pretrained import load_tokenizer
from flower_privsyn.training.fingerprint import weight_files
from flower_privsyn.training.tokens import first_token

Rest = Literal["drawn", "lumped", "dropped"]


@dataclass(frozen=True)
class Distillation(Settings):
    """How a model is taught by another one with the same tokens.

    The loss of a token is `(1 - weight)` times its negative log-probability plus `weight` times the
    divergence KL(teacher || student) of their probabilities of the next token; with `beta`, it is
    the negative log-probability plus `beta` times the divergence. With `rest = "drawn"` the
    divergence is an unbiased estimate, which may be below 0, most of all for rows that were seen
    often; with "lumped" it is that of the coarser question which of the kept tokens or none of them
    follows, and at most the whole one.

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
    beta: Annotated[
        float | None,
        Ge(0),
        "of the teacher beside the whole loss of the text, in place of `weight`; None for "
        "`weight`.",
    ] = field(default=None, kw_only=True)
    top_k: Annotated[
        PositiveInt,
        "largest probabilities of the teacher that are kept at every position. The vocabulary or "
        "more keeps all: the divergence is then exact.",
    ] = field(default=48, kw_only=True)
    rest: Annotated[
        Rest,
        'what becomes of the tokens that are not kept. "drawn": some drawn from them stand for '
        'them; "lumped": they count as one class; "dropped": the kept ones are scaled to a sum of '
        "1, and a student is taught that no other token follows.",
    ] = field(default="drawn", kw_only=True)

    def _called(self, name: str) -> str:
        return f"distillation setting {name}"

    @property
    def shares(self) -> tuple[float, float]:
        """What the loss of the text and the divergence are multiplied by."""
        return (1.0 - self.weight, self.weight) if self.beta is None else (1.0, self.beta)

    def fingerprint(self) -> dict[str, Any]:
        """What a student depends on besides its own training, as JSON can hold it."""
        return asdict(self) | {"teacher": weight_files(resolve_model(self.teacher))}


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
    same = known == taught and first_token(ours) == first_token(theirs)
    if not same:
        shared = sum(taught.get(token) == number for token, number in known.items())
        raise ConfigError(
            f"{setting} must have the tokens of {str(student)!r}, whose "
            f"vocabulary is {len(known)} tokens: {str(teacher)!r} has {len(taught)}, of which "
            f"{shared} are the same"
        )
