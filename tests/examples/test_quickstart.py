"""The quickstart itself, as printed in docs/quickstart.md; minutes long."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from flower_privsyn.data.sentences import is_whole
from flower_privsyn.errors import MissingExtraError
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.host.launch import run_app
from flower_privsyn.models import packaged
from flower_privsyn.run import RunDirectory

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_texts_after_one_question(tmp_path: Path) -> None:
    try:
        packaged.folder(packaged.PACKAGED["smollm2-135m"])
    except MissingExtraError as error:
        pytest.skip(str(error))
    app = load_app(ROOT / "examples" / "quickstart")
    assert run_app(app, tmp_path / "run", resolve_config(app)).error is None
    run = RunDirectory.open(tmp_path / "run")
    ledger = [json.loads(line) for line in run.ledger_file.read_text().splitlines()]
    (release,) = [line for line in ledger if line["event"] == "release"]
    assert release["epsilon_release"] == pytest.approx(1.0, abs=1e-3)
    records = [json.loads(line) for line in run.synthetic_jsonl.read_text().splitlines()]
    assert len({record["text"] for record in records}) == 100
    sources = Counter(record["source"] for record in records)
    assert sources == {"written": 50, "selected": 50}
    assert all(is_whole(record["text"]) for record in records)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_existing_federation(tmp_path: Path) -> None:
    app = load_app(ROOT / "examples" / "existing-federation")
    assert run_app(app, tmp_path / "run", resolve_config(app)).error is None
    log = (tmp_path / "run.owner" / "flower.log").read_text()
    found = re.findall(r"trained model: predicts ([\d.]+)% .* untrained: ([\d.]+)%", log)
    assert len(found) == 2  # of the averaged model, and of the one from private text
    for trained, untrained in found:
        assert float(trained) > float(untrained) + 1
