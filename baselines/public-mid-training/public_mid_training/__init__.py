"""Public mid-training: a language model trained on the devices, with public text in the middle."""
