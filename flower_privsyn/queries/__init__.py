"""What one user answers, one file per question. Pure numpy, no noise, no input or output."""

from flower_privsyn.queries.joint_sketch import JointSketch, frequent_bigrams
from flower_privsyn.queries.model_delta import (
    ConditionalDelta,
    ModelDelta,
    TrainableModel,
    conditioned_fingerprint,
    next_clip_norm,
    pack_conditions,
    unpack_conditions,
)
from flower_privsyn.queries.moments import Moments
from flower_privsyn.queries.nearest_neighbor import (
    LabelledHistogram,
    NearestNeighborHistogram,
    nearest_candidates,
)
from flower_privsyn.queries.query import (
    READS,
    TEXT_DIMENSION,
    TEXT_FINGERPRINT,
    Broadcast,
    Cohort,
    Query,
    Reads,
)
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
    "READS",
    "TEXT_DIMENSION",
    "TEXT_FINGERPRINT",
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
    "TrainableModel",
    "conditioned_fingerprint",
    "expand_scores",
    "frequent_bigrams",
    "nearest_candidates",
    "next_clip_norm",
    "pack_conditions",
    "unpack_conditions",
]
