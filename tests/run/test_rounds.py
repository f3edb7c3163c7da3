"""The files of a round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.errors import RunDirectoryError
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


def test_a_file_in_a_rounds_place_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, config={})
    run.round_dir(1)
    (tmp_path / "rounds" / "0007").touch()
    run.unlock()
    assert run.finished_rounds() == []
    said = "rounds/0007 is a file where the folder of a round belongs"
    with pytest.raises(RunDirectoryError, match=said):
        run.round_dir(7)
    with pytest.raises(RunDirectoryError, match=said), run.session():
        pytest.fail("the work has begun")
    assert said in str(run.error)
