"""Which method wins on my data, at my epsilon, and what does it cost: `privsyn compare`.

Every method runs on the same users through Flower, and one downstream model is measured on users
who took no part. All figures are computed from private text without noise, and stamped so.
May import every room but `cli`.
"""

from flower_privsyn.comparison.people import People
from flower_privsyn.comparison.plan import APP, make_plan
from flower_privsyn.comparison.run import Comparison

__all__ = [
    "APP",
    "Comparison",
    "People",
    "make_plan",
]
