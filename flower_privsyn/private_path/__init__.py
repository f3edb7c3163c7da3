"""The one private path: from a question to a released, accounted, noisy sum."""
