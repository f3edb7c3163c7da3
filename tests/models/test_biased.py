"""A bias of the logits: against a dense reference, with a cache, on disk, and where models go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flower_privsyn.generation.backends import SamplingParameters
from flower_privsyn.generation.transformers_backend import TransformersGenerator
from flower_privsyn.models.bias import LogitBias, bigram_table
from flower_privsyn.models.biased import with_bias
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.training.bias import save_biased

FAMILIES = ("gpt2", "lstm")


def drawn(vocabulary: int, *, pairs: int = 2000, size: float = 1.0) -> LogitBias:
    """Random numbers for all tokens and some pairs."""
    generator = np.random.default_rng(3)
    codes = generator.choice(vocabulary**2, pairs, replace=False)
    return LogitBias(
        tokens=(size * generator.standard_normal(vocabulary)).astype(np.float32),
        bigrams=bigram_table(
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
        table += pairs.toarray()
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
        for bias in (drawn(size, size=0.0), drawn(size).scaled(0.0)):
            assert torch.equal(with_bias(network, bias)(input_ids=ids).logits, plain)


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
            bigrams=bigram_table(ids, [*ids[1:], ids[0]], [60.0] * 4, vocabulary=len(tokenizer)),
        )
        save_biased(family, tmp_path / "biased", bias)
        generator = TransformersGenerator(tmp_path / "biased", device="cpu", dtype="float32")
        sampling = SamplingParameters(max_new_tokens=5, seed=1)
        (texts,) = generator.generate(["the river"], num_samples=2, sampling=sampling)
        written = tokenizer.decode([ids[1], ids[2], ids[3], ids[0], ids[1]])
        assert texts == [written, written]


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


class TestBias:
    def test_a_broadcast_has_pairs_in_order(self) -> None:
        pairs = bigram_table([2, 0, 2, 1], [1, 3, 0, 1], [1.0, 0.0, 3.0, 4.0], vocabulary=4)
        arrays = LogitBias(tokens=np.zeros(4, np.float32), bigrams=pairs).arrays()
        assert arrays["bigram_starts"].tolist() == [0, 1, 2, 4, 4]
        assert arrays["bigram_tokens"].tolist() == [3, 1, 0, 1]
        assert arrays["bigram_values"].tolist() == [0.0, 4.0, 3.0, 1.0]
        read = LogitBias.of_arrays(arrays)
        assert read is not None
        for name, array in read.arrays().items():
            assert array.dtype == arrays[name].dtype
            assert np.array_equal(array, arrays[name])

    def test_for_an_output_with_rows_of_no_token(self) -> None:
        bias = drawn(50, pairs=900)
        wider = bias.for_model(64, first_token=2)
        table = dense(wider)
        expected = torch.zeros(64, 64)
        expected[:50, :50] = dense(bias)
        expected[50:, :50] = torch.from_numpy(bias.tokens)
        expected[2, :50] = torch.from_numpy(bias.tokens)
        assert torch.equal(table, expected)
