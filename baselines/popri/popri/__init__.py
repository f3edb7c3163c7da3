"""POPri (Hou et al., ICML 2025) and PE+SFT as one Flower app."""
