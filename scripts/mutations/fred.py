"""Mistakes in FreD: in the moments that users answer, and in what is made of their release."""

from __future__ import annotations

from mutation import Mutation

QUERY = "flower_privsyn/queries/moments.py"
QUERY_TESTS = "tests/queries/test_moments.py"
READING = "flower_privsyn/strategies/parts/moments.py"
FRED = "flower_privsyn/strategies/fred.py"
FRED_TESTS = "tests/strategies/test_fred.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="embeddings are clipped before they are centred",
        file=QUERY,
        function="clipped_points",
        before="""\
    points -= broadcast["centre"].astype(np.float64)
    _clip(points, radius)
    if""",
        after="""\
    _clip(points, radius)
    points -= broadcast["centre"].astype(np.float64)
    if""",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="what the second round centres is not clipped again",
        file=QUERY,
        function="clipped_points",
        before="""\
        points -= broadcast["shift"].astype(np.float64)
        _clip(points, radius)""",
        after="""\
        points -= broadcast["shift"].astype(np.float64)""",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="second moments get the whole norm beside the mean",
        file=QUERY,
        function="Moments.weights",
        before="math.sqrt(left * self.covariance_share),",
        after="1.0,",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="numbers off the diagonal are not scaled by the root of 2",
        file=QUERY,
        function="_triangle",
        before="np.where(first == other, 1.0, math.sqrt(2.0))",
        after="np.ones(len(first))",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="a user's records are added up where a user counts once",
        file=QUERY,
        function="Moments.statistic",
        before='if self.unit == "record":',
        after="if True:",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="records of a user count without a bound",
        file=QUERY,
        function="Moments.max_records",
        before="return self.max_samples or None",
        after="return None",
        tests=(QUERY_TESTS,),
    ),
    Mutation(
        name="a user who adds many records is charged as one of them",
        file=QUERY,
        function="Moments.clip_norm",
        before='return float(self.max_samples) if self.unit == "record" else 1.0',
        after="return 1.0",
        tests=(QUERY_TESTS, FRED_TESTS),
    ),
    Mutation(
        name="the printed noise needs no leave",
        file=FRED,
        function="FreDConfig.__post_init__",
        before="if printed != self.research:",
        after="if False:",
        tests=(FRED_TESTS,),
    ),
    Mutation(
        name="the printed noise is charged as if it were enough",
        file=FRED,
        function="ReleasedMoments.phases",
        before='if config.noise_calibration == "as-accounted":',
        after="if True:",
        tests=(FRED_TESTS,),
    ),
    Mutation(
        name="a record that takes another's place moves the sum as one that comes or goes",
        file=FRED,
        function="ReleasedMoments._epsilon_of_a_record",
        before="moved = 1.0 if relation is NeighboringRelation.REPLACE_ONE else 2.0",
        after="moved = 1.0",
        tests=(FRED_TESTS,),
    ),
    Mutation(
        name="a record counts noise that the colluding may take out",
        file=FRED,
        function="ReleasedMoments._epsilon_of_a_record",
        before='noise_multiplier=line["noise_multiplier"] * line["l2_sensitivity"] / moved',
        after="noise_multiplier=self.releases()[0].noise_std / moved",
        tests=(FRED_TESTS,),
    ),
    Mutation(
        name="the noise in the square of the mean stays in the covariance",
        file=READING,
        function="MomentSketch.of_joint",
        before="second - np.outer(mean, mean) + mean_noise**2 * np.eye(len(mean))",
        after="second - np.outer(mean, mean)",
        tests=(FRED_TESTS,),
    ),
    Mutation(
        name="the released moments are everybody's to read",
        file=READING,
        function="MomentSketch.save",
        before="replacing(target, for_the_owner=True)",
        after="replacing(target)",
        tests=(FRED_TESTS,),
    ),
)
