"""Texts one behind the other, without padding: BERT's layers on blocks of one number of tokens.

What a library computes for a row of a product can depend on how many rows there are, and hardly on
anything else of them. Here every product with a matrix of the model has `BLOCK` rows, whatever is
embedded: the tokens of all texts are written one behind the other and cut into blocks, across
texts, and only the last block of a pass is filled up, with tokens that nobody reads. Attention, the
one step in which tokens of a text meet, is computed for each text by itself, in a shape that its
own length gives. So is the pooling. A text's vector therefore never depends on the others' lengths,
and nothing is padded but the last block: a pass of 8 rows wastes a fifth with 240 texts, and most
of itself with three.

Rows begin at multiples of 64 bytes wherever a text begins (`aligned` asks for it), because a
library may take other steps at other addresses.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Tokens in every product with a matrix. It decides the last bits of an embedding, as the form of
#: other passes does (`embedder.ROWS`), and is part of the fingerprint.
BLOCK: Final = 256
#: Tokens of one pass: enough that the last block is a small part of it, and a layer's weights stay
#: in the cache for several blocks.
_PASS: Final = 8 * BLOCK
_ALIGNED: Final = 64  # bytes
_BEHIND: Final = frozenset({"Pooling", "Normalize", "Dense", "LayerNorm", "Dropout"})


@dataclass(frozen=True)
class Bert:
    """The weights of an encoder of BERT's form, on the CPU.

    Attributes:
        weights: By the names that transformers gives those of a ``BertModel``.
        heads: Of attention, in each layer.
        layers: Their number.
        epsilon: What a normalisation adds to the variance.
        bend: The function between the two products of a layer.
    """

    weights: Mapping[str, Any]
    heads: int
    layers: int
    epsilon: float
    bend: Callable[[Any], Any]


def aligned(bert: Bert) -> bool:
    """Whether the part of a row that is a head's begins at a multiple of 64 bytes."""
    weight = bert.weights["embeddings.word_embeddings.weight"]
    bytes_of_head = int(weight.shape[1]) // bert.heads * int(weight.element_size())
    return bytes_of_head % _ALIGNED == 0


def shapes(sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The weights of an encoder of BERT's form, and how large they are.

    Args:
        sizes: By the names of transformers' configuration: "hidden_size", "intermediate_size",
            "num_hidden_layers", "vocab_size", "max_position_embeddings", "type_vocab_size".
    """
    wide, inner = sizes["hidden_size"], sizes["intermediate_size"]
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (sizes["vocab_size"], wide),
        "embeddings.position_embeddings.weight": (sizes["max_position_embeddings"], wide),
        "embeddings.token_type_embeddings.weight": (sizes["type_vocab_size"], wide),
    }
    norms = ["embeddings.LayerNorm"]
    for number in range(sizes["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        square = [f"{layer}.attention.self.{part}" for part in ("query", "key", "value")]
        for name in (*square, f"{layer}.attention.output.dense"):
            found |= {f"{name}.weight": (wide, wide), f"{name}.bias": (wide,)}
        name = f"{layer}.intermediate.dense"
        found |= {f"{name}.weight": (inner, wide), f"{name}.bias": (inner,)}
        name = f"{layer}.output.dense"
        found |= {f"{name}.weight": (wide, inner), f"{name}.bias": (wide,)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    return found | {f"{name}.{part}": (wide,) for name in norms for part in ("weight", "bias")}


def of_library(modules: Sequence[Any]) -> Bert | None:
    """The encoder of a loaded model of BERT's form, on the CPU, with pooling alone behind, or None.

    Args:
        modules: Those of the loaded sentence-transformers model; the first is the transformer.
    """
    bert: Any = getattr(modules[0], "auto_model", None)
    behind = {type(module).__name__ for module in itertools.islice(modules, 1, None)}
    # Others may ask for what single texts have not, such as the states of all layers.
    if type(bert).__name__ != "BertModel" or not behind <= _BEHIND or "Pooling" not in behind:
        return None
    if bert.device.type != "cpu" or bert.config.is_decoder or not len(bert.encoder.layer):
        return None
    weights = bert.state_dict()
    known = shapes(bert.config.to_dict())
    # An adapter is beside the weights, under names of its own, and has its part in each product.
    if any(name not in weights or weights[name].shape != known[name] for name in known):
        return None
    found = Bert(
        weights=weights,
        heads=int(bert.config.num_attention_heads),
        layers=len(bert.encoder.layer),
        epsilon=float(bert.config.layer_norm_eps),
        bend=bert.encoder.layer[0].intermediate.intermediate_act_fn,
    )
    return found if aligned(found) else None


def passes(lengths: Sequence[int]) -> list[list[int]]:
    """Which texts go through the model together, by their numbers.

    The longest that still fits comes next, so that a pass is nearly full.

    Args:
        lengths: Tokens of each text.
    """
    numbers = sorted(range(len(lengths)), key=lambda number: lengths[number])
    left = [lengths[number] for number in numbers]
    found: list[list[int]] = []
    while left:
        room, members = _PASS, list[int]()
        while left and (left[0] <= room or not members):
            at = max(0, bisect.bisect_right(left, room) - 1)
            room -= left.pop(at)
            members.append(numbers.pop(at))
        found.append(members)
    return found


class PackedEncoder:
    """The layers of a BERT model, applied to texts one behind the other.

    The weights are copied into the layout in which products read them, where oneDNN offers one.

    Args:
        bert: An encoder that is `aligned`.
    """

    def __init__(self, bert: Bert) -> None:
        given = bert.weights
        self._words, self._places, self._types = (
            given[f"embeddings.{name}_embeddings.weight"].detach()
            for name in ("word", "position", "token_type")
        )
        self._norm = _norm(bert, "embeddings.LayerNorm")
        self._heads = bert.heads
        self._layers = [_Layer(bert, f"encoder.layer.{number}") for number in range(bert.layers)]

    @property
    def places(self) -> int:
        """The most tokens that a text may have."""
        return int(self._places.shape[0])

    def __call__(self, rows: Sequence[Mapping[str, Sequence[int]]]) -> list[Any]:
        """Hidden states of each text.

        Args:
            rows: The texts: "input_ids", special tokens included, and "token_type_ids" or none.

        Returns:
            One (tokens, d) tensor per text, in the precision of the weights.
        """
        import torch

        ends = list(itertools.accumulate(len(row["input_ids"]) for row in rows))
        spans = list(zip([0, *ends[:-1]], ends, strict=True))
        slots = -(-max(1, ends[-1]) // BLOCK) * BLOCK
        # What fills the last block up is token 0 at place 0, again and again.
        ids, places, types = torch.zeros((3, slots), dtype=torch.long)
        for row, (start, stop) in zip(rows, spans, strict=True):
            ids[start:stop] = torch.tensor(row["input_ids"])
            places[start:stop] = torch.arange(stop - start)
            if "token_type_ids" in row:
                types[start:stop] = torch.tensor(row["token_type_ids"])
        blocks = [slice(start, start + BLOCK) for start in range(0, slots, BLOCK)]
        states = [self._first(ids[block], places[block], types[block]) for block in blocks]
        wide = states[0].shape[1]
        asked = states[0].new_empty((slots, 3 * wide))
        # Zeros: nobody attends where the last block is filled up.
        met = states[0].new_zeros((slots, wide))
        for layer in self._layers:
            for block, state in zip(blocks, states, strict=True):
                asked[block] = layer.asked(state)
            self._attend(asked, met, spans)
            states = [
                layer.behind(met[block], state) for block, state in zip(blocks, states, strict=True)
            ]
        together = torch.cat(states)
        return [together[start:stop] for start, stop in spans]

    def _first(self, ids: Any, places: Any, types: Any) -> Any:
        """What enters the first layer for one block."""
        from torch.nn.functional import embedding

        state = embedding(ids, self._words) + embedding(types, self._types)
        return self._norm(state.add_(embedding(places, self._places)))

    def _attend(self, asked: Any, met: Any, spans: Sequence[tuple[int, int]]) -> None:
        """Attention of every text by itself, into `met`."""
        import torch

        slots, wide = met.shape
        shape = (slots, 3, self._heads, wide // self._heads)
        # (3, 1, heads, slots, numbers of a head)
        queries, keys, values = asked.view(shape).permute(1, 2, 0, 3)[:, None]
        result = met.view(slots, self._heads, -1).transpose(0, 1)
        for start, stop in spans:
            result[:, start:stop] = torch.nn.functional.scaled_dot_product_attention(
                queries[:, :, start:stop], keys[:, :, start:stop], values[:, :, start:stop]
            )[0]


class _Layer:
    """One layer: what is asked of attention, and what comes behind it."""

    def __init__(self, bert: Bert, name: str) -> None:
        import torch

        def product(part: str) -> Callable[[Any], Any]:
            at = f"{name}.{part}.dense"
            return _product(bert.weights[f"{at}.weight"], bert.weights[f"{at}.bias"])

        asking = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        weight, bias = (
            torch.cat([bert.weights[f"{part}.{kind}"] for part in asking])
            for kind in ("weight", "bias")
        )
        self.asked = _product(weight, bias)
        self._joined = product("attention.output")
        self._first_norm = _norm(bert, f"{name}.attention.output.LayerNorm")
        self._wider = product("intermediate")
        self._bent = bert.bend
        self._back = product("output")
        self._second_norm = _norm(bert, f"{name}.output.LayerNorm")

    def behind(self, met: Any, state: Any) -> Any:
        """The layer's result for one block, from what attention gave and what the layer got."""
        state = self._first_norm(self._joined(met).add_(state))
        return self._second_norm(self._back(self._bent(self._wider(state))).add_(state))


def _norm(bert: Bert, name: str) -> Callable[[Any], Any]:
    import torch

    weight, bias = (bert.weights[f"{name}.{part}"].detach() for part in ("weight", "bias"))
    shape, epsilon = weight.shape, bert.epsilon  # what is returned must not keep all weights

    def normed(state: Any) -> Any:
        return torch.nn.functional.layer_norm(state, shape, weight, bias, epsilon)

    return normed


def _product(weight: Any, bias: Any) -> Callable[[Any], Any]:
    """States times a matrix, plus a bias; the matrix is reordered once where oneDNN can."""
    import torch

    operators: Any = torch.ops.mkldnn
    library: Any = torch.backends.mkldnn
    weight, bias = weight.detach(), bias.detach()
    usable = library.is_available() and hasattr(operators, "_linear_pointwise")
    if usable and weight.dtype == torch.bfloat16:
        usable = operators._is_mkldnn_bf16_supported()
    if not usable:
        return lambda states: torch.nn.functional.linear(states, weight, bias)
    reordered = operators._reorder_linear_weight(weight, BLOCK)
    return lambda states: operators._linear_pointwise(states, reordered, bias, "none", [], "")
