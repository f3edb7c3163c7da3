"""Differentially private synthetic text and its alternatives, as Flower strategies."""
