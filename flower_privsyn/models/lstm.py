"""The on-device LSTM of federated next-word prediction, as a Transformers model.

One LSTM layer of 670 units on word embeddings of 96 dimensions, a projection back to 96, and an
output layer: the architecture of the cross-device experiments of Wang et al. and of the keyboard
baselines before them. Importing this module makes `AutoConfig` and `AutoModelForCausalLM` know it.

References:
    Wang et al., "Can Public Large Language Models Help Private Cross-device Federated Learning?"
    (2023), section 5; Reddi et al., "Adaptive Federated Optimization" (2021), appendix C.
"""

# Transformers leaves most of what a model calls without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutput

__all__ = ["LSTMConfig", "LSTMForCausalLM"]


class LSTMConfig(PretrainedConfig):
    """Shape of an LSTM language model.

    Args:
        vocab_size: number of tokens.
        embedding_size: width of the embeddings and of the projection before the output layer.
        hidden_size: units of each layer.
        num_layers: stacked layers, >= 1.
        max_position_embeddings: longest text it was trained on; the model itself has no limit.
        tie_word_embeddings: use the embeddings as the output layer.
        **kwargs: as for every Transformers configuration.
    """

    model_type = "privsyn-lstm"

    def __init__(
        self,
        vocab_size: int = 8192,
        embedding_size: int = 96,
        hidden_size: int = 670,
        num_layers: int = 1,
        max_position_embeddings: int = 512,
        tie_word_embeddings: bool = False,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.num_hidden_layers = num_layers
        self.max_position_embeddings = max_position_embeddings
        # A recurrent state is no key-value cache: generation reads the text again for each token.
        self.use_cache = False
        super().__init__(**kwargs | {"tie_word_embeddings": tie_word_embeddings})


class LSTMLayers(nn.Module):
    """Embeddings, LSTM layers, projection."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.embed_tokens: nn.Module = nn.Embedding(config.vocab_size, config.embedding_size)
        self.lstm = nn.LSTM(
            config.embedding_size, config.hidden_size, config.num_layers, batch_first=True
        )
        self.projection = nn.Linear(config.hidden_size, config.embedding_size)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Read texts.

        Args:
            input_ids: (rows, length) token ids.
            attention_mask: (rows, length), 0 at padding, which may stand on the left: a text's
                states are the same wherever the padding is. None: no padding.

        Returns:
            (rows, length, embedding_size) states.
        """
        first = None
        if attention_mask is not None and bool((attention_mask[:, 0] == 0).any()):
            # The state must not see padding before the text: start every row with its text.
            length = input_ids.shape[1]
            steps = torch.arange(length, device=input_ids.device)
            first = attention_mask.long().argmax(1, keepdim=True)  # (rows, 1)
            input_ids = input_ids.gather(1, (steps + first) % length)
        states = self.embed_tokens(input_ids)
        if states.device.type == "cuda":
            states = states.to(self.projection.weight.dtype)
        # Under autocast cuDNN's layers compute in float16, whatever precision is asked for, and
        # gradients of a mean over many tokens are too small for it.
        with torch.autocast("cuda", enabled=False):
            states, _ = self.lstm(states)
        hidden: torch.Tensor = self.projection(states)
        if first is not None:
            back = (steps - first) % length
            hidden = hidden.gather(1, back[..., None].expand_as(hidden))
        return hidden


class LSTMForCausalLM(PreTrainedModel, GenerationMixin):
    """The LSTM with an output layer over the vocabulary."""

    config_class = LSTMConfig
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__(config)
        self.model = LSTMLayers(config)
        self.lm_head: nn.Linear = nn.Linear(config.embedding_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        """The output layer."""
        return self.lm_head

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LSTM):
            for name, parameter in module.named_parameters():
                if getattr(parameter, "_is_hf_initialized", False):
                    continue  # it was loaded, of which its chunks know nothing
                if name.startswith("weight_ih"):
                    nn.init.xavier_uniform_(parameter)
                elif name.startswith("weight_hh"):
                    for gate in parameter.chunk(4):
                        nn.init.orthogonal_(gate)
                else:
                    nn.init.zeros_(parameter)
                    # An open forget gate keeps the gradient alive over long texts.
                    if name.startswith("bias_ih"):
                        nn.init.ones_(parameter.chunk(4)[1])

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> CausalLMOutput:
        """Predict the next token at every place.

        Args:
            input_ids: (rows, length) token ids.
            attention_mask: (rows, length), 0 at padding.
            labels: (rows, length), -100 where nothing is to be predicted; shifted here.
            **kwargs: ignored; what `generate` passes to every model.

        Returns:
            `logits` (rows, length, vocab_size) and, with labels, `loss` in nats per token.
        """
        logits = self.lm_head(self.model(input_ids, attention_mask))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=logits.shape[-1])
        return CausalLMOutput(loss=loss, logits=logits)


AutoConfig.register("privsyn-lstm", LSTMConfig, exist_ok=True)
AutoModelForCausalLM.register(LSTMConfig, LSTMForCausalLM, exist_ok=True)
