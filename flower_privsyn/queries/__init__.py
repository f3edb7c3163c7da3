"""What one user answers, one file per question. Pure numpy, no noise, no input or output.

May import `privacy` and `models`, and neither Flower nor a model library.
"""

from flower_privsyn.queries.arrays import Broadcast, Reads
from flower_privsyn.queries.joint_sketch import JointSketch
from flower_privsyn.queries.model_delta import ConditionalDelta, ModelDelta
from flower_privsyn.queries.moments import Moments
from flower_privsyn.queries.nearest_neighbor import (
    LabelledHistogram,
    NearestNeighborHistogram,
    nearest_candidates,
)
from flower_privsyn.queries.query import Cohort, Query
from flower_privsyn.queries.similarity import MeanSimilarity, expand_scores

#: Every question a client app answers. A new method adds its query here and nowhere else.
QUERIES: tuple[type[Query], ...] = (
    NearestNeighborHistogram,
    MeanSimilarity,
    ModelDelta,
    JointSketch,
    LabelledHistogram,
    Moments,
    ConditionalDelta,
)

__all__ = [
    "QUERIES",
    "Broadcast",
    "Cohort",
    "ConditionalDelta",
    "JointSketch",
    "LabelledHistogram",
    "MeanSimilarity",
    "ModelDelta",
    "Moments",
    "NearestNeighborHistogram",
    "Query",
    "Reads",
    "expand_scores",
    "nearest_candidates",
]
