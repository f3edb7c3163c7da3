"""What methods need and ask, said without loading any of it."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from flower_privsyn.private_path.method import Outline, Question, RecordSource
from flower_privsyn.private_path.needs import Look, NeededModel, Needs
from flower_privsyn.queries import JointSketch, Query


class EvolvesText(Protocol):
    """The settings that are looked at."""

    @property
    def embedding_model(self) -> str:
        """What embeds texts."""

    @property
    def variation(self) -> Literal["mask-fill", "prompt"]:
        """How they are varied."""

    @property
    def variation_model(self) -> str:
        """What fills masks."""

    @property
    def variation_prompt(self) -> str:
        """What a generator is asked in their place."""

    @property
    def public_text(self) -> str:
        """What they begin with."""


def evolution_needs(config: EvolvesText, *, generator: str, judge: str = "") -> Needs:
    """Embedder, what varies texts, public text; and what writes.

    Args:
        config: the settings.
        judge: that says how likely texts are; "" where nobody does.
        generator: that writes; "" where nothing is written.
    """
    models = [
        NeededModel(setting="embedding-model", name=config.embedding_model, kind="embedding"),
    ]
    if config.variation == "mask-fill":
        name = config.variation_model
        models.append(NeededModel(setting="variation-model", name=name, kind="masked"))
    if judge:
        models.append(NeededModel(setting="likelihood-model", name=judge, kind="causal"))
    if generator:
        models.append(NeededModel(setting="generator", name=generator, kind="generator"))
    return Needs(
        models=tuple(models),
        libraries=("sentence_transformers", "torch", "transformers"),
        public_text=config.public_text,
        variation_prompt=config.variation_prompt if config.variation == "prompt" else "",
    )


def about_candidates(
    query: Query, *, candidates: int, dimension: int, labelled: bool = False
) -> Outline:
    """As many candidates in every round.

    Args:
        query: what is asked about them.
        candidates: how many.
        dimension: of an embedding.
        labelled: whether each has a class.
    """
    broadcast: dict[str, npt.NDArray[Any]] = {
        "candidates": np.zeros((candidates, dimension), dtype=np.float32)
    }
    if labelled:
        broadcast["classes"] = np.zeros(candidates, dtype=np.int32)
    question = Question(query, broadcast)
    source = RecordSource(fingerprint="", dimension=dimension)
    return Outline(sources=(source,), question=lambda _: question)


def sketch_needs(
    *, model: str, teacher: str, generator: str, public_text: str, prompt: str
) -> Needs:
    """The student of a joint sketch, its teacher, public text; and what writes.

    Args:
        model: the student.
        teacher: "" for none.
        generator: "" where nothing is written.
        public_text: what is chosen from.
        prompt: of the generator.
    """
    models = [NeededModel(setting="model", name=model, kind="causal")]
    if teacher:
        models.append(NeededModel(setting="teacher", name=teacher, kind="causal"))
    if generator:
        models.append(NeededModel(setting="generator", name=generator, kind="generator"))
    return Needs(
        models=tuple(models),
        libraries=("tokenizers", "torch", "transformers"),
        public_text=public_text,
        prompt=prompt if generator else "",
    )


def about_tokens(query: JointSketch, *, num_bigrams: int, model: str, look: Look) -> Outline:
    """Counts of tokens and of bigrams, in every round.

    Which bigrams are frequent, public text says when it is read; here they lie evenly among all
    pairs, and take no less room on their way than those that are close together.

    Args:
        query: what is asked about them.
        num_bigrams: how many are counted; 0 for tokens alone.
        model: whose tokens they are.
        look: what the files of models say of their sizes.

    Raises:
        ModelError: the model is not on this machine.
    """
    vocabulary = look.vocabulary(model)
    bigrams = None
    if num_bigrams:
        most = min(num_bigrams, vocabulary**2)
        bigrams = np.linspace(0, vocabulary**2 - 1, most).astype(np.int64)
    question = Question(query, query.broadcast(vocabulary, bigrams))
    source = RecordSource(fingerprint="", dimension=vocabulary, reads="tokens", model=model)
    return Outline(sources=(source,), question=lambda _: question, at_most=bool(num_bigrams))
