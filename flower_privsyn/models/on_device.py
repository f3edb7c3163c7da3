"""On-device language models of cross-device federated learning, as folders that runs start from.

One LSTM layer of 670 units on embeddings of 96 dimensions, or one transformer layer of that width
with 670 units in its feed-forward part. What Wang et al. print of them is "one-layer LSTM and
transformer. Both LSTM and transformer has a hidden size of 670 and embedding size of 96" (their
appendix B.2), texts of at most 20 tokens and a vocabulary of 32 K. What is not printed is chosen
here: `OnDeviceModel` says what.

Papers:
    Wang et al., "Can Public Large Language Models Help Private Cross-device Federated Learning?"
        (NAACL 2024), section 2 and appendix B.2.
    Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), table 9: the LSTM, layer by layer.
"""

# Transformers leaves most of what is called without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from flower_privsyn.checks import PositiveInt, Settings
from flower_privsyn.errors import ConfigError, ModelError
from flower_privsyn.models.library import quiet_transformers

Architecture = Literal["lstm", "transformer"]


@dataclass(frozen=True, kw_only=True)
class OnDeviceModel(Settings):
    """Shape of an on-device language model.

    The LSTM has a projection of its states back to the width of the embeddings before the output
    layer, as in Reddi et al. The transformer is GPT-2's: layer norms first, learned positions,
    GELU, no dropout. Whether output layers share their weights with embeddings, the number of
    heads, and which width of a transformer the 670 are, is not printed.

    Raises:
        ConfigError: A value is out of range, or heads do not divide the width.
    """

    architecture: Annotated[Architecture, '"lstm" or "transformer".']
    embedding_size: Annotated[
        PositiveInt, "width of the embeddings; of a transformer the width of all its layers."
    ] = 96
    hidden_size: Annotated[
        PositiveInt, "units of an LSTM layer, or of a transformer's feed-forward part."
    ] = 670
    num_layers: Annotated[PositiveInt, "layers of the architecture."] = 1
    num_heads: Annotated[PositiveInt, "attention heads of a transformer."] = 8
    tied: Annotated[bool, "use the embeddings as the output layer."] = False
    max_tokens: Annotated[
        int,
        Ge(1),
        "tokens of a text that it reads, besides the beginning token; a transformer has no "
        "positions for more.",
    ] = 20

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.architecture == "transformer" and self.embedding_size % self.num_heads:
            raise ConfigError(
                f"{self._called('num_heads')} must divide embedding_size = {self.embedding_size}, "
                f"got {self.num_heads}"
            )

    def _called(self, name: str) -> str:
        return f"model setting {name}"

    def network(self, tokenizer: Any, *, seed: int) -> Any:
        """The model with random weights.

        Args:
            tokenizer: whose tokens it reads and writes.
            seed: of the weights; PyTorch's own random numbers stay as they were.
        """
        import torch
        from transformers import AutoModelForCausalLM

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return AutoModelForCausalLM.from_config(self._config(tokenizer))

    def _config(self, tokenizer: Any) -> Any:
        from transformers import GPT2Config

        from flower_privsyn.models.lstm import LSTMConfig

        shared: dict[str, Any] = {
            "vocab_size": len(tokenizer),
            "tie_word_embeddings": self.tied,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        }
        if self.architecture == "lstm":
            return LSTMConfig(
                embedding_size=self.embedding_size,
                hidden_size=self.hidden_size,
                num_layers=self.num_layers,
                max_position_embeddings=self.max_tokens + 1,
                **shared,
            )
        return GPT2Config(
            n_embd=self.embedding_size,
            n_inner=self.hidden_size,
            n_layer=self.num_layers,
            n_head=self.num_heads,
            n_positions=self.max_tokens + 1,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **shared,
        )


def write_model(folder: Path, shape: OnDeviceModel, tokenizer: Any, *, seed: int) -> int:
    """Write a model with random weights, as Transformers and every run here load it.

    The same arguments and versions of the libraries give the same weights.

    Args:
        folder: to become the model; must not exist, or be empty.
        shape: of the model.
        tokenizer: whose tokens it reads and writes; saved beside it.
        seed: of the weights, 0 <= seed < 2**63.

    Returns:
        How many parameters it has; tied ones once.

    Raises:
        ConfigError: The folder holds something.
        ModelError: The folder cannot be written.
    """
    from transformers import GenerationConfig

    network = shape.network(tokenizer, seed=seed)
    built = folder.with_name(f".{folder.name}.partial")
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"output must be a folder that is new or empty, got {folder}")
        if built.exists():
            shutil.rmtree(built)  # of a command that was killed
        built.mkdir(parents=True)
        ends = tokenizer.eos_token_id
        with quiet_transformers():
            # The whole vocabulary at temperature 1, but for what ends nothing.
            network.generation_config = GenerationConfig(
                do_sample=True,
                top_k=0,
                max_new_tokens=shape.max_tokens,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=ends,
                suppress_tokens=[token for token in tokenizer.all_special_ids if token != ends],
            )
            network.save_pretrained(built)
            tokenizer.save_pretrained(built)
        if folder.exists():
            folder.rmdir()
        built.rename(folder)
    except OSError as error:
        raise ModelError(f"{folder} cannot be written: {error.strerror or error}") from error
    return sum(parameter.numel() for parameter in network.parameters())
