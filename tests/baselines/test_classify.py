"""The script by which the Aug-PE paper says what labels are worth, for real, on small data."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path
from typing import Any

from tests.support.labelled_runs import texts_of

FILE = Path(__file__).parents[2] / "baselines" / "aug-pe" / "classify.py"
_SPEC = util.spec_from_file_location("aug_pe_classify", FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
SCRIPT: Any = util.module_from_spec(_SPEC)
sys.modules["aug_pe_classify"] = SCRIPT
_SPEC.loader.exec_module(SCRIPT)


def test_the_bundled_encoder_learns_a_class() -> None:
    learn = SCRIPT.fine_tuned_encoder(
        "privsyn-mlm",
        num_classes=3,
        num_train_epochs=3,
        learning_rate=1e-3,
        per_device_train_batch_size=16,
    )
    training, asked = texts_of(96, 6), texts_of(60, 7)
    assert training.labels is not None
    found = learn(training.texts, training.labels, asked.texts)
    assert (found == asked.labels).mean() > 0.8
