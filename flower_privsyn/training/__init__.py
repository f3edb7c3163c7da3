"""Training of language models. Importing this package loads neither PyTorch nor TRL.

May import `data`, `queries`, `models` and `privacy`.

What runs at the server sees no private text: preferences are made of public and generated text and
of released, noised scores. What nodes train is in `flower_privsyn.training.local`.
"""
