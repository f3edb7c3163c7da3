"""Sizes that the papers count with."""

from __future__ import annotations

#: Parameters of DistilGPT2, which both papers train on the device.
DISTILGPT2_PARAMETERS = 81_912_576
