"""What a joint sketch needs and asks, said without loading any of it."""

from __future__ import annotations

import numpy as np

from flower_privsyn.private_path.method import Outline, Question, RecordSource
from flower_privsyn.private_path.needs import ChosenRows, Look, NeededModel, Needs
from flower_privsyn.queries import JointSketch


def sketch_needs(
    *,
    model: str,
    teacher: str,
    generator: str,
    public_text: str,
    rows: ChosenRows,
    prompt: str,
) -> Needs:
    """The student of a joint sketch, its teacher, public text; and what writes.

    Args:
        model: the student.
        teacher: "" for none.
        generator: "" where nothing is written.
        public_text: what is chosen from.
        rows: of it.
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
        rows=rows,
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
