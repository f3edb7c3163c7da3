"""A next-word model, before differentially private synthetic text."""
