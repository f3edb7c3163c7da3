"""What a method needs at the server, said without loading any of it, for a check before a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from flower_privsyn.queries import TrainableModel

ModelKind = Literal["embedding", "masked", "causal", "generator"]


@dataclass(frozen=True, kw_only=True)
class NeededModel:
    """A model that a run loads or asks.

    Attributes:
        setting: the key that names it.
        name: as the setting has it.
        kind: what it is used as; a "generator" may also be a server.
        max_tokens: the setting `max-tokens`, where the model refuses more than it reads; 0 where
            that is not so.
    """

    setting: str
    name: str
    kind: ModelKind
    max_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class ChosenRows:
    """Rows of public text of which a run chooses some.

    Attributes:
        model: the setting `model`, whose tokens they are cut by.
        max_tokens: of a row, at most.
        least_tokens: of a row that may be chosen.
        fewest: rows that are chosen at least, where there are so many.
    """

    model: str
    max_tokens: int
    least_tokens: int
    fewest: int


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a run uses at the server besides the nodes.

    Attributes:
        models: that are loaded or asked.
        libraries: names under which they are imported.
        public_text: the setting `public-text`; "" where none is read.
        rows: of it, where rows of public text are chosen; None elsewhere.
        prompt: the setting `prompt`; "" where none is read.
        variation_prompt: the setting `variation-prompt`; "" where none is read.
        initial_prompt: the setting `initial-prompt`; "" where none is read.
        reads: what reads other public files as the run will, given the tokenizer of the embedding
            model and no more; each raises what the run would.
    """

    models: tuple[NeededModel, ...] = ()
    libraries: tuple[str, ...] = ()
    public_text: str = ""
    rows: ChosenRows | None = None
    prompt: str = ""
    variation_prompt: str = ""
    initial_prompt: str = ""
    reads: tuple[Callable[[Any], object], ...] = ()


class Look(Protocol):
    """What the files of models say of their sizes.

    Each raises a `ModelError` where the model is not on this machine.
    """

    def dimension(self, embedder: str) -> int:
        """Numbers in an embedding."""

    def vocabulary(self, model: str) -> int:
        """Tokens of a model's tokenizer."""

    def parameters(self, model: TrainableModel) -> int:
        """Parameters that are trained."""
