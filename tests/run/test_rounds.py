"""The files of a round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.run import RunDirectory


def test_rounds_count_once_their_state_is_written(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, config={})
    assert run.finished_rounds() == []
    for number in (0, 1, 2):
        (run.round_dir(number) / "population.parquet").write_bytes(b"")
    run.finish_round(0)
    run.finish_round(1, {"seed": np.int64(5)})
    assert run.finished_rounds() == [0, 1]
    assert run.round_state(1) is not None
    assert run.round_state(1)["seed"] == 5  # type: ignore[index]
    assert run.round_state(2) is None
    (run.round_dir(2) / "state.json").write_text('{"status": "fini')
    assert run.finished_rounds() == [0, 1]
    with pytest.raises(ValueError, match="cannot be negative, got -1"):
        run.round_dir(-1)
