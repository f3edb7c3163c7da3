"""Rounds of secure aggregation, to be measured: see `benchmarks/secure_rounds.py`."""
