"""POPri (Hou et al., ICML 2025), PE+SFT and the kernel sketch as one Flower app."""
