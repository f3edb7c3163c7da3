"""What the script of CTCL's orders reads of a generator."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.data import load_users
from flower_privsyn.evaluation.sealed import sealed
from flower_privsyn.queries import TrainableModel
from flower_privsyn.training.local import LocalModel
from scripts.experiments import ctcl_orders


def test_bits_are_the_loss_of_the_nodes_training(llama: Path, texts: list[str]) -> None:
    """Of the document alone, after a condition or after none, without the token that ends it."""
    model = LocalModel(TrainableModel(name=str(llama)))
    before, chosen = ["Keywords: river\nDocument:\n", ""], texts[:2]
    needed, tokens = ctcl_orders.bits(str(llama), before, chosen)
    for place, (given, own) in enumerate(
        zip(model.encode(before), model.encode(chosen), strict=True)
    ):
        row = model.after_condition(given, own)[:-1]
        assert tokens[place] == len(row) - len(given) == len(own) - 1
        loss = model._loss([(row, len(given))]).item()
        assert needed[place] == pytest.approx(loss * tokens[place] / math.log(2), rel=1e-4)


def test_the_error_of_a_gain_that_is_the_same_everywhere_is_zero() -> None:
    sizes = np.array([10, 20, 30])
    assert ctcl_orders._error(0.1 * sizes, sizes) == pytest.approx(0.0)
    assert ctcl_orders._error(np.array([1.0, 0.0, 3.0]), sizes) > 0


def test_topics_are_made_of_people_who_are_in_no_part_of_the_comparison(tmp_path: Path) -> None:
    """Neither of who takes part, nor of who is held out, nor of who is sealed."""
    names = [f"user {number}" for number in range(60)]

    def write(file: Path, users: list[str]) -> str:
        rows = [json.dumps({"client_id": user, "text": f"of {user}"}) for user in users]
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(rows))
        return str(file)

    write(tmp_path / "data" / "private.jsonl", names[:20])
    write(tmp_path / "data" / "held_out.jsonl", names[20:30])
    users = load_users(write(tmp_path / "all.jsonl", names))
    left = ctcl_orders.outside(tmp_path, users)
    closed = sealed(names)
    expected = [user for user, shut in zip(names, closed, strict=True) if not shut]
    assert set(left.user_ids) == set(expected) - set(names[:30])
    assert closed[30:].any()
    assert left.texts == [f"of {user}" for user in left.user_ids]
