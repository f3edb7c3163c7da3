"""How many samples a generator is asked for at a time.

Little enough that an interruption costs a minute, enough that what computes is kept busy: a CPU is
with 64 texts, a GPU takes about as long for a thousand as for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flower_privsyn.generation.backends import TextGenerator

USUAL: Final = 64
"""Of a generator that says nothing else."""

_MOST: Final = 1024

#: Bytes a sample needs for each token of the vocabulary while one is drawn: logits, probabilities,
#: their sums, and the places they are sorted to.
_DRAWING: Final = 24

#: Tokens of prompt and continuation that memory is kept for.
_TOKENS: Final = 1024

#: Of the device's memory, this share; the model, and whoever else computes there, has the rest.
_SHARE: Final = 0.25


def at_once(generator: TextGenerator) -> int:
    """Samples to ask of a generator at a time: what its attribute `at_once` says, else `USUAL`."""
    return int(getattr(generator, "at_once", USUAL))


def samples_of_device(model: Any) -> int:
    """Samples that a PyTorch model takes through a forward pass side by side.

    The same on the same kind of device, whatever else it is doing: the size of a batch is in the
    rounding of what is written.

    Args:
        model: a Transformers model, on its device.

    Returns:
        `USUAL` on a CPU. On a GPU a power of two from 1 to 1,024: as many as a quarter of its
        memory holds, of texts of 1,024 tokens with their prompt.
    """
    import torch

    if model.device.type != "cuda":
        return USUAL
    memory = int(torch.cuda.get_device_properties(model.device).total_memory)
    return samples_that_fit(
        model.config.get_text_config(decoder=True), _SHARE * memory, itemsize=model.dtype.itemsize
    )


def samples_that_fit(config: Any, memory: float, *, itemsize: int) -> int:
    """The power of two, 1 to 1,024, of samples that so many bytes hold.

    Args:
        config: of a decoder, as Transformers has it.
        memory: bytes.
        itemsize: bytes of a number of the key-value cache.
    """

    def number(name: str) -> int:
        """What the configuration says; 0 where models of its kind have no such thing."""
        return int(getattr(config, name, None) or 0)

    heads = number("num_attention_heads")
    width = number("head_dim") or number("hidden_size") // max(1, heads)
    keys = (number("num_key_value_heads") or heads) * width
    cache = 2 * number("num_hidden_layers") * keys * itemsize * _TOKENS
    fits = int(memory // (cache + _DRAWING * config.vocab_size))
    return max(1, min(_MOST, 1 << max(0, fits.bit_length() - 1)))
