"""The bundled models: small, whole, made from public text, and read without the network."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ModelError
from flower_privsyn.models import BUNDLED_MODELS, resolve_model

SENTENCES = [
    "The committee met in the spring of the following year to discuss the report.",
    "Most of the cells in the human body contain the same genetic material.",
    "She looked at him for a moment, and then she turned away without a word.",
    "The river flows through the northern part of the country and into the sea.",
]


@pytest.fixture(scope="module", autouse=True)
def _no_network() -> Iterator[None]:
    """Every connection attempt fails: a bundled model must load from its folder alone."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a bundled model asked for the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", refuse)
        yield


CAUSAL = ("privsyn-lm", "privsyn-tiny", "privsyn-lstm")
PARAMETERS = {  # millions, on a CPU and on a GPU
    "privsyn-lm": (4, 20),
    "privsyn-mlm": (4, 10),
    "privsyn-tiny": (1.5, 2.5),
    "privsyn-lstm": (3, 4),
}


def _load(name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    auto = AutoModelForCausalLM if name in CAUSAL else AutoModelForMaskedLM
    path = resolve_model(name)
    model, report = auto.from_pretrained(path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval(), AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[Any, Any]]:
    return {name: _load(name) for name in BUNDLED_MODELS}


def _log(name: str) -> dict[str, Any]:
    return json.loads((Path(resolve_model(name)) / "training_log.json").read_text())


@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_a_bundled_folder_is_small_and_complete(name: str) -> None:
    from safetensors import safe_open

    folder = Path(resolve_model(name))
    card = (folder / "README.md").read_text(encoding="utf-8")
    log = _log(name)
    said = ["CC BY-SA", "Wikipedia", "held out", "wall time", "must not be used for", "zero-shot"]
    said += ["No GPU was used", "CPU time"] if log["device"] == "cpu" else [log["device"]]
    for words in said:
        assert words in card, words
    parameters = 0
    for file in folder.glob("*.safetensors"):
        assert file.stat().st_size <= 15 * 2**20
        with safe_open(file, framework="np") as stored:
            for key in stored.keys():  # noqa: SIM118  # not a mapping
                tensor = stored.get_slice(key)
                assert tensor.get_dtype() == "F16"
                parameters += math.prod(tensor.get_shape())
    assert parameters == log["parameters"]
    least, most = PARAMETERS[name]
    assert least * 1e6 < parameters < most * 1e6


@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_no_private_text_was_trained_on(name: str) -> None:
    """The card's proof: identical and half-seen documents of each private corpus."""
    card = (Path(resolve_model(name)) / "README.md").read_text(encoding="utf-8")
    table = card.split("## Unseen")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 2
    for row in rows:
        assert row[2:4] == ["0", "0"]


def _nats(model: Any, tokenizer: Any, text: str, after: str = "") -> float:
    """Mean cross-entropy of a text's tokens, given what stands before it."""
    import torch

    before = tokenizer(after)["input_ids"]
    ids = torch.tensor([before + tokenizer(text)["input_ids"]])
    labels = ids.clone()
    labels[0, : len(before)] = -100
    with torch.inference_mode():
        return float(model(input_ids=ids, labels=labels).loss)


@pytest.mark.parametrize("name", CAUSAL)
def test_the_causal_models_have_learned_english(models: dict[str, Any], name: str) -> None:
    model, tokenizer = models[name]
    for sentence in SENTENCES:
        assert _nats(model, tokenizer, sentence) < 0.75 * math.log(8192)
        backwards = " ".join(reversed(sentence.split()))
        assert _nats(model, tokenizer, sentence) < _nats(model, tokenizer, backwards)


def test_names_paths_and_hub_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(tmp_path) == str(tmp_path)
    assert resolve_model(str(tmp_path)) == str(tmp_path)
    assert resolve_model("owner/name-1.5B") == "owner/name-1.5B"
    assert resolve_model("gpt2") == "gpt2"


@pytest.mark.parametrize(
    "name", ["", "/nowhere/model", "./model", "a/b/c", "privsyn-large", Path("model"), "two words"]
)
def test_an_unknown_model_is_one_sentence(name: str | Path) -> None:
    with pytest.raises(ModelError, match="privsyn-lm"):
        resolve_model(name)
