"""Aug-PE (Xie et al., ICML 2024) as a Flower app."""
