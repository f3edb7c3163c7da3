"""PrE-Text (Hou et al., ICML 2024) as a Flower app."""
