"""A causal language model with a public bias of its logits, as a Transformers model.

Any causal model inside, and a number that is added to the logit of each token: everywhere, and for
some pairs where the token before is the pair's first one. The bias is a buffer: saved with the
weights, not trained. Importing this module makes `AutoConfig` and `AutoModelForCausalLM` know it.
"""

# Transformers leaves most of what a model calls without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)

import flower_privsyn.models.lstm  # noqa: F401  (which may be the model inside)
from flower_privsyn.models.bias import BIAS_ARRAYS, LogitBias

__all__ = ["BiasedConfig", "BiasedForCausalLM", "biased_logits", "with_bias"]


class BiasedConfig(PretrainedConfig):
    """Shape of a model with a bias.

    Args:
        text_config: configuration of the model inside, as an object or a dictionary with its
            `model_type`. Transformers looks for the vocabulary and the context under this name.
        num_bigrams: pairs of tokens with a value of their own, >= 0.
        **kwargs: as for every Transformers configuration.
    """

    model_type = "privsyn-biased"

    def __init__(
        self,
        text_config: dict[str, Any] | PretrainedConfig | None = None,
        num_bigrams: int = 0,
        **kwargs: Any,
    ) -> None:
        config: Any = text_config
        if isinstance(config, dict):
            config = AutoConfig.for_model(**config)
        if config is not None:
            config._name_or_path = ""  # a path of the machine on which it was made
        self.text_config = config
        self.num_bigrams = num_bigrams
        super().__init__(**kwargs)


class BiasedForCausalLM(PreTrainedModel, GenerationMixin):
    """A causal language model whose logits get a bias."""

    config_class = BiasedConfig
    base_model_prefix = "base"
    _supports_sdpa = True  # whether the model inside does is asked there
    _keep_in_fp32_modules_strict = ["token_bias", "bigram_values"]  # noqa: RUF012

    def __init__(self, config: BiasedConfig, base: PreTrainedModel | None = None) -> None:
        """Make a model without weights, and with a bias of zeros.

        Args:
            config: its shape.
            base: the model inside; None for a new one of the shape that the configuration says.
        """
        super().__init__(config)
        if base is None:
            base = AutoModelForCausalLM.from_config(config.text_config, dtype=config.dtype)
        self.base: Any = base
        config._attn_implementation = base.config._attn_implementation
        vocabulary = int(base.get_output_embeddings().weight.shape[0])
        pairs = config.num_bigrams
        shapes = [(vocabulary, torch.float32)]
        if pairs:
            shapes += [(vocabulary + 1, torch.int64), (pairs, torch.int32), (pairs, torch.float32)]
        for name, (size, dtype) in zip(BIAS_ARRAYS, shapes, strict=False):
            self.register_buffer(name, torch.zeros(size, dtype=dtype))
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The output layer of the model inside."""
        return cast(nn.Module, self.base.get_output_embeddings())

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> Any:
        """Predict the next token at every place.

        Args:
            input_ids: (rows, length) token ids; with a cache those that it does not hold.
            attention_mask: (rows, length), 0 at padding.
            position_ids: (rows, length).
            past_key_values: the cache of the model inside, if it has one.
            labels: (rows, length), -100 where nothing is to be predicted; shifted here.
            use_cache: return a cache.
            logits_to_keep: how many of the last places to predict at, or which; 0 for all.
            **kwargs: for the model inside.

        Returns:
            What the model inside returns, with the bias in its `logits` and, with labels, `loss` in
            nats per token.
        """
        accepted = inspect.signature(self.base.forward).parameters.keys()
        places = {
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "past_key_values": past_key_values,
            "use_cache": use_cache,
            "logits_to_keep": logits_to_keep,
        }
        output = self.base(
            input_ids=input_ids,
            **{name: places[name] for name in places.keys() & accepted},
            **kwargs | {"return_dict": True},
        )
        if isinstance(logits_to_keep, int):  # a model that does not know it predicts everywhere
            read = input_ids[:, -output.logits.shape[1] :]
        else:
            read = input_ids[:, logits_to_keep]
        bias = self.buffers(recurse=False)
        flat = biased_logits(output.logits.flatten(0, -2), read.flatten(), bias)
        output.logits = flat.view(output.logits.shape)
        if labels is not None:
            vocabulary = output.logits.shape[-1]
            output["loss"] = self.loss_function(output.logits, labels, vocab_size=vocabulary)
        return output


def biased_logits(
    logits: torch.Tensor, previous: torch.Tensor, bias: Iterable[torch.Tensor]
) -> torch.Tensor:
    """Add a bias to logits.

    Args:
        logits: (p, V).
        previous: (p,) the token before each predicted one.
        bias: the arrays of `LogitBias.arrays`, in their order, where the logits are.
    """
    everywhere, *pairs = bias
    biased = logits + everywhere
    if pairs:
        starts, tokens, values = pairs
        # Of every pair that begins with one of them: the token's place, and the pair's index.
        first = starts[previous]
        counts = starts[previous + 1] - first
        places = torch.repeat_interleave(counts)
        before = (counts.cumsum(0) - counts)[places]
        entries = first[places] + torch.arange(len(places), device=places.device) - before
        biased.index_put_(
            (places, tokens[entries].long()), values[entries].to(biased.dtype), accumulate=True
        )
    return biased


def with_bias(network: PreTrainedModel, bias: LogitBias) -> BiasedForCausalLM:
    """Put a bias around a model; its weights are used and not copied.

    Args:
        network: a causal language model.
        bias: of as many tokens as its output has rows.
    """
    arrays = bias.arrays()
    config = BiasedConfig(
        text_config=network.config.to_dict(), num_bigrams=len(arrays.get("bigram_values", ()))
    )
    biased = BiasedForCausalLM(config, base=network)
    for buffer, array in zip(biased.buffers(recurse=False), arrays.values(), strict=False):
        buffer.copy_(torch.from_numpy(array))
    biased.generation_config = network.generation_config
    biased.eval()
    return biased


AutoConfig.register("privsyn-biased", BiasedConfig, exist_ok=True)
AutoModelForCausalLM.register(BiasedConfig, BiasedForCausalLM, exist_ok=True)
