"""A bias of the logits: against a dense reference, with a cache, on disk, and where models go."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flower_privsyn.errors import ConfigError, ModelError
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.generation.backends import SamplingParameters
from flower_privsyn.generation.transformers_backend import TransformersGenerator
from flower_privsyn.models.bias import Bigrams, LogitBias
from flower_privsyn.models.biased import with_bias
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.training.bias import save_biased

FAMILIES = ("llama", "gpt2", "lstm")


def drawn(vocabulary: int, *, pairs: int = 2000, size: float = 1.0) -> LogitBias:
    """Random numbers for all tokens and some pairs."""
    generator = np.random.default_rng(3)
    codes = generator.choice(vocabulary**2, pairs, replace=False)
    return LogitBias(
        tokens=(size * generator.standard_normal(vocabulary)).astype(np.float32),
        bigrams=Bigrams.of_pairs(
            codes // vocabulary,
            codes % vocabulary,
            size * generator.standard_normal(pairs),
            vocabulary=vocabulary,
        ),
    )


def dense(bias: LogitBias) -> torch.Tensor:
    """(V, V): what is added after each token to each next one."""
    table = np.repeat(bias.tokens[None], len(bias.tokens), axis=0)
    pairs = bias.bigrams
    if pairs is not None:
        first = np.repeat(np.arange(len(bias.tokens)), np.diff(pairs.starts))
        table[first, pairs.tokens] += pairs.values
    return torch.from_numpy(table)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(request.param)
    return folder


def loaded(folder: Path) -> tuple[Any, int]:
    network, _ = load_pretrained(folder, kind="causal", dtype="float32", device="cpu")
    return network, int(network.get_output_embeddings().weight.shape[0])


class TestLogits:
    @torch.no_grad()
    def test_they_are_the_models_and_the_bias(self, family: Path) -> None:
        network, size = loaded(family)
        bias = drawn(size)
        ids = torch.randint(5, size, (3, 12), generator=torch.Generator().manual_seed(1))
        mask = torch.ones_like(ids)
        mask[1, 8:] = 0
        plain = network(input_ids=ids, attention_mask=mask).logits
        found = with_bias(network, bias)(input_ids=ids, attention_mask=mask, labels=ids)
        expected = plain + dense(bias)[ids]
        assert torch.allclose(found.logits, expected, atol=1e-5)
        loss = torch.nn.functional.cross_entropy(
            expected[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        )
        torch.testing.assert_close(found.loss, loss)

    @torch.no_grad()
    def test_a_bias_of_zeros_changes_no_bit(self, family: Path) -> None:
        network, size = loaded(family)
        ids = torch.randint(5, size, (2, 9), generator=torch.Generator().manual_seed(2))
        plain = network(input_ids=ids).logits
        for bias in (drawn(size, size=0.0), drawn(size).scaled(0.0, 0.0)):
            assert torch.equal(with_bias(network, bias)(input_ids=ids).logits, plain)

    def test_the_model_inside_learns_and_the_bias_does_not(self, llama: Path) -> None:
        network, size = loaded(llama)
        biased = with_bias(network.requires_grad_(True), drawn(size))
        ids = torch.arange(5, 15)[None]
        biased(input_ids=ids, labels=ids).loss.backward()
        assert all(weight.grad is not None for weight in biased.parameters())
        assert not any("bias" in name for name, _ in biased.named_parameters())

    @torch.no_grad()
    def test_places_that_are_kept(self, llama: Path) -> None:
        network, size = loaded(llama)
        biased = with_bias(network, drawn(size))
        ids = torch.arange(5, 15).repeat(2, 1)
        whole = biased(input_ids=ids).logits
        for keep, place in ((1, [9]), (3, [7, 8, 9]), (torch.tensor([9]), [9])):
            found = biased(input_ids=ids, logits_to_keep=keep).logits
            torch.testing.assert_close(found, whole[:, place], atol=1e-5, rtol=1e-5)


class TestGeneration:
    @torch.no_grad()
    def test_a_cache_changes_no_token(self, family: Path) -> None:
        network, size = loaded(family)
        # As large as the logits are: most choices are the bias' or both's.
        biased = with_bias(network, drawn(size, pairs=20_000, size=2.0))
        prompts = torch.tensor([[0, 0, 7], [8, 9, 10]])
        options: dict[str, Any] = {
            "input_ids": prompts,
            "attention_mask": (prompts > 0).long(),
            "max_new_tokens": 8,
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": 0,
        }
        written = biased.generate(**options)
        assert torch.equal(biased.generate(**options, use_cache=False), written)
        for row, text in ((0, [7]), (1, [8, 9, 10])):
            for token in written[row, 3:].tolist():
                assert token == int(biased(input_ids=torch.tensor([text])).logits[0, -1].argmax())
                text.append(token)

    def test_the_generator_writes_by_the_bias(self, family: Path, tmp_path: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(family)
        chain = ["river", "mountain", "doctor", "garden"]
        ids = [tokenizer(f" {word}", add_special_tokens=False)["input_ids"][0] for word in chain]
        bias = LogitBias(
            tokens=np.zeros(len(tokenizer), dtype=np.float32),
            bigrams=Bigrams.of_pairs(
                ids, [*ids[1:], ids[0]], [60.0] * 4, vocabulary=len(tokenizer)
            ),
        )
        save_biased(family, tmp_path / "biased", bias)
        generator = TransformersGenerator(tmp_path / "biased", device="cpu", dtype="float32")
        sampling = SamplingParameters(max_new_tokens=5, seed=1)
        (texts,) = generator.generate(["the river"], num_samples=2, sampling=sampling)
        written = tokenizer.decode([ids[1], ids[2], ids[3], ids[0], ids[1]])
        assert texts == [written, written]

    def test_in_bfloat16(self, llama: Path, tmp_path: Path) -> None:
        save_biased(llama, tmp_path / "biased", drawn(loaded(llama)[1]))
        generator = TransformersGenerator(tmp_path / "biased", device="cpu", dtype="bfloat16")
        sampling = SamplingParameters(max_new_tokens=4, seed=1)
        (texts,) = generator.generate(["the river"], num_samples=3, sampling=sampling)
        assert len(set(texts)) > 1
        model = generator._model
        # Whichever the generator took, the model inside has it too.
        assert model.config._attn_implementation == model.base.config._attn_implementation
        assert {part.dtype for part in model.parameters()} == {torch.bfloat16}
        assert model.token_bias.dtype == torch.float32


class TestFolder:
    def test_saving_and_loading_gives_the_same_model(self, family: Path, tmp_path: Path) -> None:
        network, size = loaded(family)
        bias = drawn(size)
        save_biased(family, tmp_path / "a", bias)
        biased, _ = loaded(tmp_path / "a")
        ids = torch.arange(5, 25)[None]
        with torch.no_grad():
            expected = network(input_ids=ids).logits + dense(bias)[ids]
            assert torch.allclose(biased(input_ids=ids).logits, expected, atol=1e-5)
        tied = network.get_output_embeddings().weight is network.get_input_embeddings().weight
        ours = biased.get_output_embeddings().weight is biased.get_input_embeddings().weight
        assert ours == tied
        assert biased.generation_config.eos_token_id == network.generation_config.eos_token_id
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
        assert AutoTokenizer.from_pretrained(tmp_path / "a")("the river")["input_ids"]
        for file in ("config.json", "training.json", "README.md"):
            assert str(family) not in (tmp_path / "a" / file).read_text()
        # Saved once more by Transformers itself, it is the same again.
        biased.save_pretrained(tmp_path / "b")
        state = AutoModelForCausalLM.from_pretrained(tmp_path / "b").state_dict()
        for name, value in biased.state_dict().items():
            assert torch.equal(state[name], value), name

    def test_tied_weights_are_stored_once(self, tmp_path: Path) -> None:
        bias = LogitBias(tokens=np.zeros(8192, dtype=np.float32))
        save_biased("privsyn-tiny", tmp_path / "a", bias)
        network, _ = load_pretrained("privsyn-tiny", kind="causal", dtype="float32", device="cpu")
        parameters = sum(part.numel() for part in network.parameters())
        stored = (tmp_path / "a" / "model.safetensors").stat().st_size
        assert stored < 4 * (parameters + 8192) + 20_000

    def test_it_is_evaluated_like_any_model(
        self, llama: Path, texts: list[str], tmp_path: Path
    ) -> None:
        tokenizer = AutoTokenizer.from_pretrained(llama)
        counts = np.bincount(
            np.concatenate(tokenizer(texts[:30])["input_ids"]), minlength=len(tokenizer)
        )
        ratios = (np.log(counts + 0.1) - np.log(0.1)).astype(np.float32)
        save_biased(llama, tmp_path / "a", LogitBias(tokens=ratios))
        plain = evaluate_language_model(llama, texts[30:], resamples=2, device="cpu")
        biased = evaluate_language_model(tmp_path / "a", texts[30:], resamples=2, device="cpu")
        assert biased.cross_entropy.value < plain.cross_entropy.value - 0.5
        assert biased.tokens == plain.tokens

    def test_the_import_that_its_card_names_is_enough(self, lstm: Path, tmp_path: Path) -> None:
        save_biased(lstm, tmp_path / "a", drawn(loaded(lstm)[1]))
        card = (tmp_path / "a" / "README.md").read_text()
        assert "`privsyn-lstm`" in card
        assert re.search(r"1,9\d\d pairs", card)  # of 2,000, without those after the beginning
        lines = [line.strip() for line in card.splitlines() if line.startswith("    ")]
        code = "\n".join(lines).replace("this folder", str(tmp_path / "a"))
        done = subprocess.run(
            [sys.executable, "-c", f"{code}\nprint(type(model).__name__)"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == "BiasedForCausalLM", done.stderr[-500:]

    def test_what_is_not_written(self, lstm: Path, tmp_path: Path) -> None:
        bias = drawn(loaded(lstm)[1])
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(ModelError, match="not replaced"):
            save_biased(lstm, tmp_path, bias)
        save_biased(lstm, tmp_path / "a", bias)
        with pytest.raises(ModelError, match="has a bias already"):
            save_biased(tmp_path / "a", tmp_path / "b", bias)
        with pytest.raises(ConfigError, match="more than the"):
            save_biased(lstm, tmp_path / "b", drawn(9000))
        assert not (tmp_path / "b").exists()
        save_biased(lstm, tmp_path / "a", bias.scaled(1.0, 0.0))  # replaces the first
        assert json.loads((tmp_path / "a" / "config.json").read_text())["num_bigrams"] == 0


class TestBias:
    def test_pairs_in_order(self) -> None:
        pairs = Bigrams.of_pairs([2, 0, 2, 1], [1, 3, 0, 1], [1.0, 2.0, 3.0, 4.0], vocabulary=4)
        assert pairs.starts.tolist() == [0, 1, 2, 4, 4]
        assert pairs.tokens.tolist() == [3, 1, 0, 1]
        assert pairs.values.tolist() == [2.0, 4.0, 3.0, 1.0]
        left = pairs.without_first(1)
        assert left.starts.tolist() == [0, 1, 1, 3, 3]
        assert left.values.tolist() == [2.0, 3.0, 1.0]

    def test_weights(self) -> None:
        bias = drawn(50, pairs=20)
        scaled = bias.scaled(0.5, 0.25)
        assert scaled.bigrams is not None
        assert bias.bigrams is not None
        np.testing.assert_array_equal(scaled.tokens, bias.tokens * np.float32(0.5))
        np.testing.assert_array_equal(scaled.bigrams.values, bias.bigrams.values / np.float32(4))
        assert bias.scaled(1.0, 0.0).bigrams is None

    def test_for_an_output_with_rows_of_no_token(self) -> None:
        bias = drawn(50, pairs=900)
        wider = bias.for_model(64, first_token=2)
        table = dense(wider)
        expected = torch.zeros(64, 64)
        expected[:50, :50] = dense(bias)
        expected[50:, :50] = torch.from_numpy(bias.tokens)
        expected[2, :50] = torch.from_numpy(bias.tokens)
        assert torch.equal(table, expected)

    @pytest.mark.parametrize(
        ("first", "second", "values", "words"),
        [
            ([1], [2, 3], [1.0], "three arrays of one length"),
            ([1], [4], [1.0], r"in \[0, 4\), got 1 to 4"),
            ([-1], [2], [1.0], r"in \[0, 4\), got -1 to 2"),
            ([1], [2], [np.nan], "not finite"),
            ([1, 1], [2, 2], [1.0, 2.0], "given twice"),
        ],
    )
    def test_pairs_that_are_none(self, first: Any, second: Any, values: Any, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            Bigrams.of_pairs(first, second, values, vocabulary=4)

    def test_shapes(self) -> None:
        pairs = Bigrams.of_pairs([1], [2], [1.0], vocabulary=4)
        with pytest.raises(ConfigError, match="of 5 and that of bigrams of 4 tokens"):
            LogitBias(tokens=np.zeros(5, dtype=np.float32), bigrams=pairs)
        with pytest.raises(ConfigError, match="one finite number each"):
            LogitBias(tokens=np.array([1.0, np.inf], dtype=np.float32))
