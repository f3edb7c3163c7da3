"""How many threads compute, and that none of them waits for another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from flower_privsyn.environment import THREADS
from flower_privsyn.models import threads
from flower_privsyn.models.pretrained import load_pretrained


def test_the_share_of_a_group_bounds_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(threads, "_QUOTA", quota)
    assert threads.most_threads() == 8
    for content, cores in (("max 100000", 8), ("150000 100000", 2), ("900000 100000", 8), ("", 8)):
        quota.write_text(content)
        assert threads.most_threads() == cores


@pytest.fixture
def three() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("most", "used"), [("1", 1), ("2", 2), ("9", 3)])
def test_each_piece_of_work_is_computed_by_one_thread(
    most: str, used: int, three: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(THREADS, most)
    together = threading.Barrier(used, timeout=20)

    def work(piece: int) -> tuple[int, int]:
        together.wait()  # as many at a time as there are threads
        return piece, torch.get_num_threads()

    pieces = list(range(2 * used))
    assert list(threads.side_by_side(work, pieces)) == [(piece, 1) for piece in pieces]
    assert torch.get_num_threads() == 3


def test_a_model_computes_on_no_more(three: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS, "2")
    load_pretrained("privsyn-tiny", kind="causal", dtype="float32", device="cpu")
    assert torch.get_num_threads() == 2


def test_whoever_imports_the_package_has_threads_that_sleep() -> None:
    """Asked of PyTorch's OpenMP, which is GNU's: how often a thread looks before it sleeps."""
    rest = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    asked = subprocess.run(
        [sys.executable, "-c", "import flower_privsyn, torch"],
        env=rest | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", asked.stderr) == ["0"]
