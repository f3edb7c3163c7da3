"""Cells of comparisons in one table, and which cannot stand in one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.evaluation.sealed import OPENED
from scripts.experiments import ask_once_tables

ROOT = Path(__file__).parents[2]


def comparison(
    folder: Path, accuracies: dict[str, list[float]], *, stamp: str = STAMP, delta: float = 1e-5
) -> Path:
    """A folder as `privsyn compare` leaves it, as far as tables go."""
    fixed = {"users": "a digest", "delta": delta}
    for method, found in accuracies.items():
        for seed, accuracy in enumerate(found):
            place = folder / "cells" / f"{method}-{seed}"
            place.mkdir(parents=True)
            cell = {
                "stamp": stamp,
                "method": method,
                "epsilon": None if method == "finetune-private" else 1.0,
                "seed": seed,
                "status": "finished",
                "quality": {"next_token_accuracy": accuracy, "bits_per_byte": 2.0},
                "costs": {"bytes_up": 98_304, "floats_up": 24_576},
                "settings": {"public-text": "not kept"},
            }
            (place / "cell.json").write_text(json.dumps(cell), encoding="utf-8")
    document = {"data": {"private_users": 30}, "fixed": fixed}
    (folder / "compare.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def tables(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ask_once_tables", *words])
    return ask_once_tables.main()


def test_cells_of_several_folders_stand_in_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = comparison(tmp_path / "a", {"public-only": [0.16], "finetune-private": [0.24]})
    method = comparison(tmp_path / "b", {"joint-sketch": [0.19, 0.21]})
    kept = tmp_path / "cells.jsonl"
    assert tables(monkeypatch, f"law={ends}", f"law={method}", "--results", str(kept)) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"> {STAMP}")
    assert "law, 30 users" in shown
    assert "| `joint-sketch` | 1 | 2 | 20.00 ± 1.00 | 50 | 2.0000 ± 0.0000 | 98 |" in shown
    assert "| law | 30 | with pairs | 20.00 ± 1.00 (50 %) | 24.00 |" in shown
    assert "not kept" not in kept.read_text(encoding="utf-8")
    assert tables(monkeypatch, str(kept)) == 0
    assert capsys.readouterr().out == shown
    # Of other public text, beside the same ends.
    with kept.open("a", encoding="utf-8") as file:
        line = json.loads(kept.read_text(encoding="utf-8").splitlines()[-1])
        file.write(json.dumps(line | {"public_text": "bundled"}) + "\n")
    assert tables(monkeypatch, str(kept)) == 0
    other = capsys.readouterr().out.split("law; public text: bundled, 30 users")[1]
    assert "| `joint-sketch` | 1 | 1 | 21.00 | 62 | 2.0000 | 98 |" in other


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"delta": 1e-6}, "are of other users or settings"),
        ({"stamp": f"{STAMP}; {OPENED}"}, "cannot stand in one table"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, float | str],
    sentence: str,
) -> None:
    one = comparison(tmp_path / "a", {"public-only": [0.16]})
    other = comparison(tmp_path / "b", {"joint-sketch": [0.2]}, **changes)  # type: ignore[arg-type]
    assert tables(monkeypatch, f"law={one}", f"law={other}") == 2
    assert sentence in capsys.readouterr().err


def test_the_page_prints_what_the_file_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every row of the pages' tables that the script prints is printed alike."""
    assert tables(monkeypatch, str(ROOT / "docs" / "joint_sketch.jsonl")) == 0
    shown = capsys.readouterr().out
    page = (ROOT / "docs" / "joint_sketch.md").read_text(encoding="utf-8").replace("**", "")
    begin = page.index("## What it gives")
    rows = [
        line
        for line in page[begin : page.index("## What it cannot do")].splitlines()
        if (line.startswith("| `") and line.count("|") == 8 and "," not in line)
        or (line.endswith(" |") and (" with pairs " in line or " tokens alone " in line))
    ]
    assert len(rows) > 25
    missing = [row for row in rows if row not in shown]
    assert not missing
