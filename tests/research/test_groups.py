"""What methods gave to kinds of people, where it is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from research import groups


def test_kinds_are_told_apart(tmp_path: Path) -> None:
    users = [f"{kind}:{number}" for kind in ("many", "few") for number in range(40)]
    (tmp_path / "data").mkdir()
    for file, asked in (("held_out", users), ("private-0", users[:50])):
        lines = "".join(json.dumps({"client_id": user, "text": "a"}) + "\n" for user in asked)
        (tmp_path / "data" / f"{file}.jsonl").write_text(lines)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"client_id": u, "cat": "cs.LG"}) + "\n" for u in users))
    for method, epsilon, nats in (
        ("public-only", 0.0, [4.0, 4.0]),
        ("sketch", 1.0, [3.0, 5.0]),
        ("finetune-private", None, [2.0, 2.0]),
    ):
        folder = tmp_path / "cells" / method
        folder.mkdir(parents=True)
        cell = {"method": method, "title": method, "epsilon": epsilon, "seed": 0}
        cell |= {"status": "finished", "folder": f"cells/{method}"}
        (folder / "cell.json").write_text(json.dumps(cell))
        counts = np.ones((80, 4))
        counts[:, 2] = np.repeat(nats, 40)
        np.save(folder / "held_out.npy", counts)
    rows = [
        "| many | 40 | 40 | 50 [50, 50] (0) |",
        "| few | 10 | 40 | -50 [-50, -50] (100) |",
    ]
    assert list(groups.groups(tmp_path, 0, {}))[2:] == rows
    of_data = list(groups.groups(tmp_path, 0, groups.kinds("cat", data)))
    # Shares of 50 and -50: 1.96 * 50 / sqrt(80) to either side.
    assert of_data[2:] == ["| cs | 50 | 80 | 0 [-11, 11] (50) |"]
