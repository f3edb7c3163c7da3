"""Which model users train, and which of its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from flower_privsyn.checks import PositiveInt, Settings
from flower_privsyn.errors import ConfigError

LocalPrecision = Literal["float32", "bfloat16"]
#: A node makes adapters of the rank that a server names.
LoraRank = Annotated[int, Ge(1), Le(1024)]


@dataclass(frozen=True, kw_only=True)
class TrainableModel(Settings):
    """A language model, and which of its parameters are trained."""

    name: str
    """A bundled short name, a folder, or a hub name; server and nodes may know the same model by
    different names, their fingerprints are compared.
    """
    trainable: str = "full"
    """What is trained: "full": every parameter; "lora": low-rank adapters on all linear layers but
    the output; else patterns of parameter names separated by commas, such as
    "lm_head.*,model.layers.3.*".
    """
    lora_rank: LoraRank = 4
    """For "lora": rank of the adapters."""
    lora_alpha: PositiveInt = 8
    """For "lora": their scale times their rank."""
    precision: LocalPrecision = "float32"
    """Precision: "bfloat16": activations and products of local training in bfloat16, twice as fast
    on CPUs that have it; parameters and updates stay float32.
    """

    def __post_init__(self) -> None:
        """Validate the parameters."""
        super().__post_init__()
        if not self.name.strip():
            raise ConfigError(f"model must name a causal language model, got {self.name!r}")
        if not self.patterns:
            raise ConfigError(
                'trainable must be "full", "lora", or patterns of parameter names, got '
                f'"{self.trainable}"'
            )

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of names in `trainable`, where it is neither "full" nor "lora"."""
        return tuple(part.strip() for part in self.trainable.split(",") if part.strip())
