"""CTCL (Tan et al. 2025): topics by a private histogram, texts by a generator adapted to them."""
