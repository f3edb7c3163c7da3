"""What one user answers, one file per question. Pure numpy, no noise, no input or output."""

from flower_privsyn.queries.nearest_neighbor import NearestNeighborHistogram, nearest_candidates
from flower_privsyn.queries.query import GRID, Broadcast, Cohort, Query

#: Every question a client app answers. A new method adds its query here and nowhere else.
QUERIES: tuple[type[Query], ...] = (NearestNeighborHistogram,)

__all__ = [
    "GRID",
    "QUERIES",
    "Broadcast",
    "Cohort",
    "NearestNeighborHistogram",
    "Query",
    "nearest_candidates",
]
