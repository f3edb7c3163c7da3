"""Rounds of questions, to be measured: see `benchmarks/scale.py`."""
