"""Which two collections of users count as neighbours."""

from __future__ import annotations

from enum import StrEnum


class NeighboringRelation(StrEnum):
    """What may differ between two neighbouring collections of users.

    The relation is a part of every sensitivity and of every epsilon: the same noise on the same
    sum is worth different epsilons under different relations. With contributions of L2 norm at
    most ``C``, the sum over users moves by at most

    - ``C`` under ``ZERO_OUT``: the roster is public, one user's contribution becomes zero (Kairouz
      et al. 2021, "Practical and Private (Deep) Learning Without Sampling or Shuffling",
      arXiv:2103.00039, Definition 1.1). It fits a server that sees who takes part.
    - ``C`` under ``ADD_REMOVE``: one user joins or leaves.
    - ``2 C`` under ``REPLACE_ONE``: one user's data becomes any other data. The accountants of
      this package double the sensitivity themselves; a mechanism always states ``C``.
    """

    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
