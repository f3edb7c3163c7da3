"""The server's half, one file per method."""

from flower_privsyn.strategies.private_evolution import PrivateEvolution, PrivateEvolutionConfig
from flower_privsyn.strategies.private_sum import PrivateSumStrategy, ReleasedSum
from flower_privsyn.strategies.settings import CLIENT_KEYS, PrivateSumConfig

__all__ = [
    "CLIENT_KEYS",
    "PrivateEvolution",
    "PrivateEvolutionConfig",
    "PrivateSumConfig",
    "PrivateSumStrategy",
    "ReleasedSum",
]
