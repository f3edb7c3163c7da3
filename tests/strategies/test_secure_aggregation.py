"""One setting of every strategy: the first release is the central one, up to a little noise."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.training import LocalTraining
from flower_privsyn.messages import wire
from flower_privsyn.strategies.joint_sketch import AskedOnce
from flower_privsyn.testing import LoopbackGrid, hash_embedder
from tests.support import golden_runs
from tests.support.run_files import release, releases

pytestmark = pytest.mark.usefixtures("node_state", "few_weights")

NODES, NOISE = 4, 1e-3

STRATEGIES = {
    "aug-pe": golden_runs.aug_pe,
    "joint-sketch": golden_runs.joint_sketch,
    "private-evolution": golden_runs.evolution,
    "popri": golden_runs.popri,
    "popri of candidates": partial(golden_runs.popri, answer_space="candidates"),
    "fred": golden_runs.fred,
    "dp-fedavg": golden_runs.dp_fedavg,
    # Rounds of correlated noise are refused (tests/run/test_secure.py).
    "ctcl": partial(
        golden_runs.ctcl, sampling="full", first_noise_multiplier=NOISE, max_new_tokens=2
    ),
}
TRAINING = ("dp-fedavg", "ctcl")
#: FreD's paper asks in two rounds, and CTCL the histogram before those that train.
SEVERAL = ("fred", "ctcl")


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_first_release_is_the_central_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What it makes of its one release takes long, and nobody is asked for it.
    monkeypatch.setattr(AskedOnce, "finish", lambda self, state: {})
    load = partial(golden_runs.load, labels=("law", "river") if name == "aug-pe" else ())
    trainer = LocalTraining() if name in TRAINING else None
    cache = tmp_path / "cache"
    app = create_client_app(load, embedder=hash_embedder, cache_directory=cache, trainer=trainer)
    for secure in (False, True):
        grid = LoopbackGrid(app, num_nodes=NODES)
        strategy = STRATEGIES[name](
            tmp_path,
            run_dir=str(tmp_path / str(secure)),
            secure_aggregation=secure,
            num_nodes=NODES,
            epsilon=None,
            noise_multiplier=NOISE,
            **({} if name in SEVERAL else {"num_rounds": 1}),
        )
        strategy.start(grid)
        assert all(wire.unexpected_records(reply) == [] for reply in grid.replies)
    # Both questions of CTCL, of which the second hangs on no release.
    for line in releases(tmp_path / "True")[: 2 if name == "ctcl" else 1]:
        ours, theirs = (release(tmp_path / run, line["round"]) for run in ("True", "False"))
        deviation = NOISE * line["l2_sensitivity"]
        # Twice the noise in variance, and the central one's beside it.
        assert 0 < np.abs(ours - theirs).max() < 6 * 3**0.5 * deviation
        assert np.abs(theirs).max() > 20 * deviation
    assert len(releases(tmp_path / "True")) == len(releases(tmp_path / "False"))
