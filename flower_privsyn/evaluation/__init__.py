"""Quality measured against private text: for research, never part of a private run.

Everything here that touches private text stamps its output `STAMP`.
"""

STAMP = "evaluation, not private: computed from private text outside the privacy budget"

__all__ = ["STAMP"]
