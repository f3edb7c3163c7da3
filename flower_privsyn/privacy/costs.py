"""What releases cost, in the few kinds that accountants tell apart."""

from __future__ import annotations

from typing import TypeAlias

# What a release costs, with everything that costs the same made equal: (kind, effective noise
# multiplier, rate, coins of one user). The kinds are "gaussian", "poisson", "poisson-replace",
# "poisson-nodes" and "fixed".
Cost: TypeAlias = tuple[str, float, float, int]
Costs: TypeAlias = tuple[tuple[Cost, int], ...]
