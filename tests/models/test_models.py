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


@pytest.fixture(scope="module")
def causal() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = resolve_model("privsyn-lm")
    return AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="module")
def masked() -> tuple[Any, Any]:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    path = resolve_model("privsyn-mlm")
    return AutoModelForMaskedLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)


@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_a_bundled_folder_is_small_and_complete(name: str) -> None:
    from safetensors import safe_open

    folder = Path(resolve_model(name))
    card = (folder / "README.md").read_text(encoding="utf-8")
    for words in ("CC BY-SA", "Wikipedia", "held out", "CPU time", "must not be used for"):
        assert words in card
    log = json.loads((folder / "training_log.json").read_text())
    assert log["train_cpu_minutes"] <= 30
    weights = folder / "model.safetensors"
    assert weights.stat().st_size < 15 * 2**20
    parameters = 0
    with safe_open(weights, framework="np") as stored:
        for key in stored.keys():  # noqa: SIM118  # not a mapping
            tensor = stored.get_slice(key)
            assert tensor.get_dtype() == "F16"
            parameters += math.prod(tensor.get_shape())
    assert 4_000_000 < parameters < 7_000_000


def test_float16_weights_load_as_float32_and_are_finite(causal: Any, masked: Any) -> None:
    import torch

    for model, _ in (causal, masked):
        for parameter in model.parameters():
            assert parameter.dtype == torch.float32
            assert bool(torch.isfinite(parameter).all())


def test_tokenizers_round_trip_any_text_and_share_a_vocabulary(causal: Any, masked: Any) -> None:
    texts = [
        "Plain words.",
        " leading and  double  blanks ",
        "naïve café — 日本 🙂\n\ttabs",
        "\x00\x7f",
    ]
    for _, tokenizer in (causal, masked):
        assert len(tokenizer) == 8192
        for text in texts:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.decode(ids) == text
    assert causal[1].get_vocab() == masked[1].get_vocab()


def test_special_tokens(causal: Any, masked: Any) -> None:
    assert causal[1]("a b")["input_ids"] == causal[1]("a b", add_special_tokens=False)["input_ids"]
    assert causal[1].padding_side == "left"
    ids = masked[1]("a b")["input_ids"]
    assert (ids[0], ids[-1]) == (masked[1].cls_token_id, masked[1].sep_token_id)
    assert masked[1].mask_token_id is not None
    assert masked[1].model_max_length == 128


def test_the_causal_model_has_learned_english(causal: Any) -> None:
    import torch

    model, tokenizer = causal

    def loss(text: str) -> float:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            return float(model(input_ids=ids, labels=ids).loss)

    for sentence in SENTENCES:
        assert loss(sentence) < 0.75 * math.log(8192)
        assert loss(sentence) < loss(" ".join(reversed(sentence.split())))


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


def test_the_longest_inputs_run(causal: Any, masked: Any) -> None:
    import torch

    with torch.no_grad():
        for (model, _), length in ((causal, 512), (masked, 128)):
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
