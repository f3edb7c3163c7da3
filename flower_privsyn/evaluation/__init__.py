"""Quality measured against private text: for research, never part of a private run.

Everything here that touches private text returns a `NotPrivate` record, stamped `STAMP`. Importing
this package loads neither PyTorch nor scikit-learn. May import `run` and the rooms below a run
(`data`, `training`, `embedding`, `models`, `privacy`).
"""
