"""A causal language model with a public bias of its logits, as a Transformers model.

Any causal model inside, and a number that is added to the logit of each token: everywhere, and for
some pairs where the token before is the pair's first one. The bias is a buffer: saved with the
weights, not trained. Importing this module makes `AutoConfig` and `AutoModelForCausalLM` know it.
"""

# Transformers leaves most of what a model calls without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
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
from flower_privsyn.models.bias import LogitBias

__all__ = ["BiasedConfig", "BiasedForCausalLM", "PlacedBias", "with_bias"]


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
        self.token_bias: torch.Tensor
        self.register_buffer("token_bias", torch.zeros(vocabulary, dtype=torch.float32))
        if pairs:
            self.bigram_starts: torch.Tensor
            self.bigram_tokens: torch.Tensor
            self.bigram_values: torch.Tensor
            self.register_buffer("bigram_starts", torch.zeros(vocabulary + 1, dtype=torch.int64))
            self.register_buffer("bigram_tokens", torch.zeros(pairs, dtype=torch.int32))
            self.register_buffer("bigram_values", torch.zeros(pairs, dtype=torch.float32))
        self.post_init()

    @property
    def accepted_arguments(self) -> frozenset[str]:
        """The arguments that the forward pass of the model inside has a use for."""
        return frozenset(inspect.signature(self.base.forward).parameters)

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings of the model inside."""
        found: nn.Module = self.base.get_input_embeddings()
        return found

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace them."""
        self.base.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        """The output layer of the model inside."""
        found: nn.Module = self.base.get_output_embeddings()
        return found

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace it."""
        self.base.set_output_embeddings(value)

    def set_attn_implementation(
        self, attn_implementation: str | dict[Any, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Change how the model inside computes attention."""
        self.base.set_attn_implementation(attn_implementation, *args, **kwargs)
        self.config._attn_implementation = self.base.config._attn_implementation

    def _init_weights(self, module: nn.Module) -> None:
        self.base._init_weights(module)

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
        accepted = self.accepted_arguments
        places = {
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "cache" if "cache" in accepted else "past_key_values": past_key_values,
            "use_cache": use_cache,
            "logits_to_keep": logits_to_keep,
        }
        given = {name: value for name, value in places.items() if value is not None}
        output = self.base(
            input_ids=input_ids,
            **{name: value for name, value in given.items() if name in accepted},
            **kwargs | {"return_dict": True},
        )
        read = input_ids
        if "logits_to_keep" in accepted:
            whole = isinstance(logits_to_keep, int)
            read = read[:, slice(-logits_to_keep, None) if whole else logits_to_keep]
        output.logits = self._biased(output.logits, read)
        if labels is not None:
            output["loss"] = nn.functional.cross_entropy(
                output.logits[:, :-1].flatten(0, 1).float(),
                labels[:, 1:].flatten(),
                ignore_index=-100,
            )
        return output

    def _biased(self, logits: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """Add the bias to logits.

        Args:
            logits: (rows, places, vocabulary).
            read: (rows, places) the token at each place, the one before the predicted one.
        """
        pairs = None
        if self.config.num_bigrams:
            pairs = (self.bigram_starts, self.bigram_tokens, self.bigram_values)
        placed = PlacedBias(tokens=self.token_bias, pairs=pairs)
        return placed.added_to(logits.flatten(0, -2), read.flatten()).view(logits.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedBias:
    """A bias where the logits are.

    Attributes:
        tokens: (V,) added everywhere.
        pairs: starts, tokens and values as in `Bigrams`, added after the pairs' first tokens; None
            for none.
    """

    tokens: torch.Tensor
    pairs: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None

    @classmethod
    def of(cls, bias: LogitBias, *, device: torch.device) -> Self:
        """A copy of a bias on a device."""
        tokens, *pairs = (
            torch.from_numpy(np.array(one)).to(device) for one in bias.arrays().values()
        )
        return cls(tokens=tokens, pairs=(pairs[0], pairs[1], pairs[2]) if pairs else None)

    def added_to(self, logits: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """New logits.

        Args:
            logits: (p, V).
            previous: (p,) the token before each predicted one.
        """
        biased = logits + self.tokens
        if self.pairs is not None:
            starts, tokens, values = self.pairs
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
    pairs = bias.bigrams
    config = BiasedConfig(
        text_config=network.config.to_dict(), num_bigrams=0 if pairs is None else len(pairs.tokens)
    )
    biased = BiasedForCausalLM(config, base=network)
    biased.token_bias.copy_(torch.from_numpy(bias.tokens))
    if config.num_bigrams and pairs is not None:
        biased.bigram_starts.copy_(torch.from_numpy(pairs.starts))
        biased.bigram_tokens.copy_(torch.from_numpy(pairs.tokens))
        biased.bigram_values.copy_(torch.from_numpy(pairs.values))
    biased.generation_config = network.generation_config
    biased.eval()
    return biased


AutoConfig.register("privsyn-biased", BiasedConfig, exist_ok=True)
AutoModelForCausalLM.register(BiasedConfig, BiasedForCausalLM, exist_ok=True)
