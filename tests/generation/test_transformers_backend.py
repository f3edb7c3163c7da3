"""Generation through Transformers on real (tiny) causal language models."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tokenizers.processors import TemplateProcessing

from flower_privsyn.errors import GenerationError
from flower_privsyn.generation import SamplingParameters, TransformersGenerator
from flower_privsyn.models import BUNDLED_FOLDER
from flower_privsyn.models.pretrained import decoder_start_token, load_pretrained
from tests.support.models import save

GREEDY = SamplingParameters(seed=0, max_new_tokens=24, temperature=0)
SAMPLED = SamplingParameters(seed=3, max_new_tokens=24)
PROMPTS = ["The river", "A doctor waits under the old street, and", "Music", "My sister reads 3"]


@pytest.fixture(scope="module")
def generator(llama: Path) -> TransformersGenerator:
    return TransformersGenerator(llama, dtype="float32")


def _library_greedy(folder: Path, prompts: list[str], adapter: Path | None = None) -> list[str]:
    """What ``generate()`` writes for each prompt alone, without any padding."""
    from peft import PeftModel

    model, tokenizer = load_pretrained(
        folder, kind="causal or encoder-decoder", dtype="float32", device="cpu"
    )
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    how: dict[str, Any] = {}
    if reads_apart := model.config.is_encoder_decoder:
        first = decoder_start_token(model, tokenizer)
        how = {"decoder_start_token_id": first, "num_beams": 1, "forced_eos_token_id": None}
    written = []
    for prompt in prompts:
        row = tokenizer(prompt, add_special_tokens=not reads_apart)["input_ids"]
        if reads_apart:
            row = [*([] if tokenizer.bos_token_id is None else [1]), *row, 2]
        # Untrained models like any token; those that end nothing are never drawn.
        other = [n for n in tokenizer.added_tokens_decoder if n != tokenizer.eos_token_id]
        output = model.generate(
            input_ids=torch.tensor([row]),
            do_sample=False,
            max_new_tokens=24,
            suppress_tokens=other,
            use_cache=model.config.use_cache,
            **how,
        )
        new = output[0, 1 if reads_apart else len(row) :]
        written.append(tokenizer.decode(new, skip_special_tokens=True).rstrip("\ufffd"))
    return written


@pytest.mark.parametrize("name", ["llama", "gpt2", "privsyn-lstm", "bart", "t5"])
def test_greedy_continuations_equal_the_librarys(name: str, request: pytest.FixtureRequest):
    """Also of a model without a cache: its texts are read again for every token."""
    bundled = BUNDLED_FOLDER / name
    folder = bundled if bundled.is_dir() else request.getfixturevalue(name)
    generator = TransformersGenerator(folder, dtype="float32")
    assert bool(generator._cache_name) == (folder != bundled)
    found = generator.generate(PROMPTS, sampling=GREEDY)
    assert [texts[0] for texts in found] == _library_greedy(folder, PROMPTS)


def test_what_a_folder_adds_or_keeps_to_itself_changes_no_text(
    llama: Path, tmp_path: Path, generator: TransformersGenerator
):
    """The end after every text, padding without a row; and a cache, as RecurrentGemma keeps it."""
    model, tokenizer = load_pretrained(llama, kind="causal", dtype="float32", device="cpu")
    tokenizer.add_special_tokens({"pad_token": "<none>"})
    ends = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer.backend_tokenizer.post_processor = ends
    other = TransformersGenerator(save(tmp_path, model, tokenizer), dtype="float32")
    other._model.register_forward_hook(lambda *said: setattr(said[-1], "past_key_values", None))
    assert other.generate(PROMPTS, sampling=GREEDY) == generator.generate(PROMPTS, sampling=GREEDY)


@pytest.fixture
def mistral(llama: Path, tmp_path: Path) -> Path:
    """The Llama, whose tokens look back at sixteen others."""
    from transformers import MistralConfig, MistralForCausalLM

    model, tokenizer = load_pretrained(llama, kind="causal", dtype="float32", device="cpu")
    config = MistralConfig(**{**model.config.to_diff_dict(), "sliding_window": 16})
    looking_back = MistralForCausalLM(config)
    looking_back.load_state_dict(model.state_dict())
    return save(tmp_path / "mistral", looking_back, tokenizer)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "t5"])
def test_what_prompts_begin_with_is_read_once(name: str, request: pytest.FixtureRequest):
    """Of models with keys and values of every token; no continuation shows it."""
    generator = TransformersGenerator(folder := request.getfixturevalue(name), dtype="float32")
    beginning = "All of them begin with these words, which are more than thirty tokens. "
    prompts = [beginning + prompt for prompt in PROMPTS]
    with torch.inference_mode():
        shared, cache = generator._beginning(generator._tokenize(prompts, GREEDY))
    assert (shared >= 32) == (cache is not None) == (name in ("llama", "gpt2"))
    found = generator.generate(prompts, num_samples=2, sampling=GREEDY)
    assert found == [[text] * 2 for text in _library_greedy(folder, prompts)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_that_are_not_numbers_are_named(llama: Path, temperature: float):
    generator = TransformersGenerator(llama, dtype="float32")
    generator._model.get_output_embeddings().weight[7] = torch.nan
    with pytest.raises(GenerationError, match="no number"):
        generator.generate(PROMPTS, sampling=replace(SAMPLED, temperature=temperature))


@pytest.mark.parametrize("stop", ["\n", "\n\nTo", "\u00e9"])
def test_a_stop_string_is_found_wherever_its_tokens_part(llama: Path, stop: str):
    generator = TransformersGenerator(llama, dtype="float32")
    encode = generator._tokenizer
    texts = [f"A text{stop} goes on", f"{stop[:-1]} and", f"Of {stop}", "None at all", "\n"]
    rows = [encode(text, add_special_tokens=False)["input_ids"] for text in texts]
    for row, text in zip(rows, texts, strict=True):
        running, written = [True], list[list[int]]([[]])
        for token in row:
            generator._note([token], written, [0], running, (stop,))
        assert running == [stop not in text]


def test_the_first_token_has_the_models_distribution(llama: Path, generator: TransformersGenerator):
    """Chi-square of 4,000 first tokens against the softmax of the model's logits."""
    tokenizer, model = generator._tokenizer, generator._model
    batch = tokenizer(PROMPTS[1], return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        probabilities = torch.softmax(model(**batch).logits[0, -1].double(), -1).numpy()
    size = 4000
    written = generator._continue(
        [batch["input_ids"][0].tolist()],
        size,
        list(range(size)),
        SamplingParameters(seed=0, max_new_tokens=1),
    )
    counts = Counter(tokens[0] if tokens else tokenizer.eos_token_id for tokens in written)
    common = np.flatnonzero(probabilities * size >= 5)
    observed = [counts[token] for token in common]
    expected = list(probabilities[common] * size)
    observed.append(size - sum(observed))
    expected.append(size - sum(expected))
    assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_stop_strings_end_a_continuation_and_the_work(
    generator: TransformersGenerator, monkeypatch: pytest.MonkeyPatch
):
    free = generator.generate(PROMPTS, num_samples=8, sampling=SAMPLED)
    stop = ("er", "in")
    steps = []
    inner = generator._model.forward

    def counted(*arguments, **named):
        steps.append(named["input_ids"].shape[0])
        return inner(*arguments, **named)

    monkeypatch.setattr(generator._model, "forward", counted)
    found = generator.generate(PROMPTS, num_samples=8, sampling=replace(SAMPLED, stop=stop))
    for cut, whole in zip(chain(*found), chain(*free), strict=True):
        ends = [whole.find(text) for text in stop if text in whole]
        assert cut == (whole[: min(ends)] if ends else whole)
    assert any(len(a[0]) < len(b[0]) for a, b in zip(found, free, strict=True))
    # Finished samples leave the batch.
    assert steps[0] == 4
    assert steps[1] == 32
    assert steps[-1] < 16


def test_an_end_token_ends_a_continuation(llama: Path, tmp_path: Path):
    """A model that writes </s> as soon as it may, and one whose configuration ends elsewhere."""
    model, tokenizer = load_pretrained(llama, kind="causal", dtype="float32", device="cpu")
    model.model.norm.weight.zero_()  # all logits equal: the first token of all is taken
    model.generation_config.eos_token_id = [0, 2]
    generator = TransformersGenerator(save(tmp_path, model, tokenizer), dtype="float32")
    assert generator.generate(PROMPTS, sampling=GREEDY) == [[""]] * 4


def test_special_tokens_that_end_nothing_are_never_drawn(
    llama: Path, monkeypatch: pytest.MonkeyPatch
):
    generator = TransformersGenerator(llama, dtype="float32")
    tokenizer = generator._tokenizer
    special = tokenizer.convert_tokens_to_ids(["<pad>", "<s>", "<unk>", "<mask>"])
    assert special == [0, 1, 3, 4]
    expected = generator.generate(PROMPTS, sampling=SAMPLED)

    def prefer(_module, _inputs, output):
        output.logits[..., special] += 100.0
        return output

    generator._model.register_forward_hook(prefer)
    seen: list[int] = []
    decode = generator._decode

    def record(prompt, tokens, stop):
        seen.extend(tokens)
        return decode(prompt, tokens, stop)

    monkeypatch.setattr(generator, "_decode", record)
    assert generator.generate(PROMPTS, sampling=SAMPLED) == expected
    assert seen
    assert not set(seen) & set(special)


def test_decoding_keeps_the_blank_and_shared_characters(generator: TransformersGenerator):
    tokenizer = generator._tokenizer
    for prompt, rest in [("The", " river 字"), ("The ", "river"), ("x 🙂", "🙂 y\n z"), ("", "a")]:
        head = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        tail = tokenizer(rest, add_special_tokens=False)["input_ids"]
        assert generator._decode(head, tail, ()) == rest
    emoji = tokenizer("🙂", add_special_tokens=False)["input_ids"]
    assert len(emoji) > 1
    assert generator._decode(emoji[:1], emoji[1:], ()) == ""
    # A piece of a character at the end is withheld.
    assert generator._decode([5], [*generator._tokenizer("a ")["input_ids"], emoji[0]], ()) == "a "


def test_sentencepiece_style_blanks_are_kept(
    generator: TransformersGenerator, monkeypatch: pytest.MonkeyPatch
):
    """Llama's own tokenizer drops the blank of a first token when it is decoded alone."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    inner.train_from_iterator(
        ["the river waits under the garden " * 3],
        trainers.BpeTrainer(
            vocab_size=120, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    monkeypatch.setattr(generator, "_tokenizer", tokenizer)
    words = tokenizer("the river waits", add_special_tokens=False)["input_ids"]
    head = tokenizer("the", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(words[len(head) :]) == "river waits"
    assert generator._decode(words[: len(head)], words[len(head) :], ()) == " river waits"


def test_long_prompts_lose_their_beginning_and_are_counted(
    gpt2: Path, caplog: pytest.LogCaptureFixture
):
    generator = TransformersGenerator(gpt2, dtype="float32")
    long = "the river waits under the garden " * 40
    tokens = generator._tokenizer(long)["input_ids"]
    kept = generator._tokenizer.decode(tokens[-(128 - 24) :])
    with caplog.at_level(logging.WARNING):
        found = generator.generate([long, "short"], sampling=GREEDY)
    assert "1 of 2 prompts" in caplog.text
    assert generator._tokenizer(kept)["input_ids"] == tokens[-(128 - 24) :]
    assert found[0] == generator.generate([kept], sampling=GREEDY)[0]


def test_a_small_model_writes_the_same_with_any_number_of_threads(llama: Path):
    generator = TransformersGenerator(llama, dtype="float32")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = generator.generate(PROMPTS, num_samples=2, sampling=SAMPLED)
        torch.set_num_threads(3)
        assert generator.generate(PROMPTS, num_samples=2, sampling=SAMPLED) == alone
    finally:
        torch.set_num_threads(before)
    half = TransformersGenerator(llama, dtype="bfloat16")
    assert half._model.config._attn_implementation == "eager"


def test_adapters_change_what_is_written_and_leave_no_trace(
    llama: Path, adapters: tuple[Path, Path], tmp_path: Path
):
    """Also one that is written anew at the same path."""
    generator = TransformersGenerator(llama, dtype="float32")
    folder = tmp_path / "adapter"
    for adapter in (None, adapters[0], adapters[1], None):
        if adapter is not None:
            shutil.copytree(adapter, folder, dirs_exist_ok=True)
        found = generator.generate(
            PROMPTS, sampling=GREEDY, adapter=None if adapter is None else folder
        )
        assert [texts[0] for texts in found] == _library_greedy(llama, PROMPTS, adapter)
    assert not [name for name, _ in generator._model.named_parameters() if "lora" in name]
