"""PyTorch is loaded where it pays, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flower_privsyn.models import on_demand


@pytest.mark.parametrize(
    ("content", "fast"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16\n", True),
        ("flags : fpu amx_tile amx_bf16\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("model name : bf16\nflags : fpu avx512f\n", False),
        ("", False),
        (None, False),
    ],
)
def test_processors_say_what_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, fast: bool
) -> None:
    processors = tmp_path / "cpuinfo"
    if content is not None:
        processors.write_text(content)
    monkeypatch.setattr(on_demand, "_PROCESSORS", processors)
    on_demand.multiplies_bfloat16.cache_clear()
    try:
        assert on_demand.multiplies_bfloat16() is fast
    finally:
        on_demand.multiplies_bfloat16.cache_clear()


PROGRAM = """
import sys
import numpy as np
from pathlib import Path
from flower_privsyn.models import on_demand
from flower_privsyn.queries import nearest_candidates, nearest_neighbor
generator = np.random.default_rng(0)
records, candidates = (generator.standard_normal((n, 16), dtype=np.float32) for n in (700, 512))
wanted = nearest_neighbor._by_product(records, candidates)
on_demand._AS_LONG_AS_LOADING = 2.5 * 2 * 700 * 512 * 16
on_demand._PROCESSORS = Path(sys.argv[1])
loaded = []
for flags in ("avx512_bf16", "avx512_bf16", "avx2", "avx512_bf16"):
    on_demand._PROCESSORS.write_text(f"flags : {flags}\\n")
    on_demand.multiplies_bfloat16.cache_clear()
    assert (nearest_candidates(records, candidates) == wanted).all()
    loaded.append("torch" in sys.modules)
print(*map(int, loaded))
"""


def test_votes_load_it_once_they_have_taken_as_long_as_loading(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "cpuinfo")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["0", "0", "0", "1"]
