"""A next-word model, with differentially private synthetic text."""
