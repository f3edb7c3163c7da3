"""The bundled models: small, whole, made from public text, and read without the network."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ModelError
from flower_privsyn.generation.prompts import load_prompt
from flower_privsyn.models import BUNDLED_MODELS, resolve_model

SENTENCES = [
    "The committee met in the spring of the following year to discuss the report.",
    "Most of the cells in the human body contain the same genetic material.",
    "She looked at him for a moment, and then she turned away without a word.",
    "The river flows through the northern part of the country and into the sea.",
]
EXAMPLES = [
    "The village lies on the river and has a population of about two thousand people.",
    "The town was founded in the nineteenth century and is known for its old church.",
    "It is a small city in the north of the country, close to the border.",
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


@pytest.fixture(scope="module")
def causal(models: dict[str, Any]) -> tuple[Any, Any]:
    return models["privsyn-lm"]


@pytest.fixture(scope="module")
def masked(models: dict[str, Any]) -> tuple[Any, Any]:
    return models["privsyn-mlm"]


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


def test_all_models_together_are_small_and_were_trained_in_two_hours() -> None:
    folders = [Path(resolve_model(name)) for name in BUNDLED_MODELS]
    size = sum(file.stat().st_size for folder in folders for file in folder.iterdir())
    assert size <= 60 * 2**20
    assert sum(_log(name)["train_minutes"] for name in BUNDLED_MODELS) <= 121


@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_no_private_text_was_trained_on(name: str) -> None:
    """The card's proof: identical and half-seen documents of each private corpus."""
    card = (Path(resolve_model(name)) / "README.md").read_text(encoding="utf-8")
    table = card.split("## Unseen")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 2
    for row in rows:
        assert row[2:4] == ["0", "0"]


def test_float16_weights_load_as_float32_and_are_finite(models: dict[str, Any]) -> None:
    import torch

    for model, _ in models.values():
        for parameter in model.parameters():
            assert parameter.dtype == torch.float32
            assert bool(torch.isfinite(parameter).all())


def test_tokenizers_round_trip_any_text_and_share_a_vocabulary(models: dict[str, Any]) -> None:
    texts = [
        "Plain words.",
        " leading and  double  blanks ",
        "naïve café — 日本 🙂\n\ttabs",
        "\x00\x7f",
    ]
    vocabulary = models["privsyn-lm"][1].get_vocab()
    for _, tokenizer in models.values():
        assert len(tokenizer) == 8192
        assert tokenizer.get_vocab() == vocabulary
        for text in texts:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", CAUSAL)
def test_special_tokens_of_causal_models(models: dict[str, Any], name: str) -> None:
    model, tokenizer = models[name]
    assert tokenizer("a b")["input_ids"] == tokenizer("a b", add_special_tokens=False)["input_ids"]
    assert tokenizer.padding_side == "left"
    assert sorted(tokenizer.all_special_ids) == list(range(8))
    for marker in ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"):
        assert tokenizer.convert_tokens_to_ids(marker) in tokenizer.all_special_ids
    ends = tokenizer.eos_token_id
    assert set(model.generation_config.suppress_tokens) == set(range(8)) - {ends}


def test_special_tokens_of_the_masked_model(masked: Any) -> None:
    ids = masked[1]("a b")["input_ids"]
    assert (ids[0], ids[-1]) == (masked[1].cls_token_id, masked[1].sep_token_id)
    assert masked[1].mask_token_id is not None
    assert masked[1].model_max_length == 128
    assert sorted(masked[1].all_special_ids) == list(range(8))


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


# Not the LSTM: it is trained on few tokens, for devices, where nothing is conditioned on keywords.
@pytest.mark.parametrize("name", ["privsyn-lm", "privsyn-tiny"])
def test_keywords_make_their_document_likelier(models: dict[str, Any], name: str) -> None:
    model, tokenizer = models[name]
    documents = {
        "cells, genetic, body": "Most of the cells in the body hold the same genetic material.",
        "river, northern, sea": "The river flows through the northern part and into the sea.",
        "church, village, population": "The village has a population of 200, and an old church.",
    }
    right = wrong = 0.0
    for keywords in documents:
        header = f"Document Type: encyclopedia article\nKeywords: {keywords}\nDocument:\n"
        for other, document in documents.items():
            nats = _nats(model, tokenizer, document, after=header)
            right, wrong = (right + nats, wrong) if other == keywords else (right, wrong + nats / 2)
    assert right < wrong - 0.3


@pytest.mark.parametrize("name", ["privsyn-lm", "privsyn-tiny"])
def test_a_hole_is_filled_with_what_fits(models: dict[str, Any], name: str) -> None:
    model, tokenizer = models[name]
    before, after = " She looked at him for a moment,", " turned away without a word."
    hole = f"<fim_prefix>{before}<fim_suffix>{after}<fim_middle>"
    fitting = _nats(model, tokenizer, " and then she", after=hole)
    for other in (" of the genetic", " population in 19", " she and then"):
        assert fitting < _nats(model, tokenizer, other, after=hole)


def test_the_masked_model_has_learned_english(masked: Any) -> None:
    import torch

    model, tokenizer = masked
    losses = []
    for sentence in SENTENCES:
        ids = torch.tensor([tokenizer(sentence)["input_ids"]])
        rows = ids.repeat(ids.shape[1] - 2, 1)
        places = torch.arange(1, ids.shape[1] - 1)
        rows[torch.arange(len(rows)), places] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(input_ids=rows).logits[torch.arange(len(rows)), places]
        losses.append(float(torch.nn.functional.cross_entropy(logits, ids[0, 1:-1])))
    assert sum(losses) / len(losses) < 0.7 * math.log(8192)


def test_the_longest_inputs_run(models: dict[str, Any]) -> None:
    import torch

    with torch.no_grad():
        for name, (model, _) in models.items():
            length = 128 if name == "privsyn-mlm" else 512
            logits = model(input_ids=torch.full((1, length), 100)).logits
            assert logits.shape == (1, length, 8192)
            assert bool(torch.isfinite(logits).all())


def test_the_expansion_prompt_ends_with_its_line_break_as_one_token(causal: Any) -> None:
    _, tokenizer = causal
    rendered = load_prompt("pre-text").render(EXAMPLES)
    whole = tokenizer(rendered + "The next one.")["input_ids"]
    parts = tokenizer(rendered)["input_ids"] + tokenizer("The next one.")["input_ids"]
    assert whole == parts
    assert len(tokenizer(load_prompt("pre-text").render(["a", "b", "c"]))["input_ids"]) < 50


def test_the_causal_model_continues_the_prompt_up_to_the_marker(causal: Any) -> None:
    import torch

    model, tokenizer = causal
    prompt = load_prompt("pre-text")
    batch = tokenizer([prompt.render(EXAMPLES)] * 16, return_tensors="pt")
    batch.pop("token_type_ids", None)
    torch.manual_seed(0)
    with torch.no_grad():
        out = model.generate(**batch, max_new_tokens=85)
    written = tokenizer.batch_decode(
        out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
    )
    ended = [text for text in written if prompt.is_complete(text)]
    assert len(ended) >= 4
    parsed = {prompt.parse(text) for text in ended}
    assert len(parsed) >= 4
    assert not parsed & set(EXAMPLES)
    assert all("Original Text Sample" not in text for text in parsed)


@pytest.mark.parametrize("name", ["privsyn-tiny", "privsyn-lstm"])
def test_the_on_device_models_generate_through_the_package(name: str) -> None:
    from flower_privsyn.generation import SamplingParameters, load_generator

    generator = load_generator(name, dtype="float32")
    prompt = load_prompt("pre-text").render(EXAMPLES)
    sampling = SamplingParameters(seed=0, max_new_tokens=12)
    ((first,), (second,)) = generator.generate([prompt, "The river"], sampling=sampling)
    assert first.strip()
    assert second.strip()
    # Padding of the batch changes nothing.
    assert generator.generate(["The river"], sampling=sampling) == [[second]]


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
    with pytest.raises(ModelError, match="privsyn-lm") as caught:
        resolve_model(name)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        resolve_model(tmp_path)
    file = tmp_path / "weights.bin"
    file.write_bytes(b"")
    with pytest.raises(ModelError, match="is a file"):
        resolve_model(file)


def test_importing_the_names_loads_no_torch() -> None:
    code = "import sys, flower_privsyn.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
