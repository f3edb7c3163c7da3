"""The on-device models of the paper: sizes as printed, tokens of public text, and a run on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flower_privsyn.cli import main
from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.models.on_device import OnDeviceModel, write_model
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.models.vocabulary import SPECIAL_TOKENS, make_tokenizer
from flower_privsyn.strategies import DPFTRL, DPFTRLConfig
from tests.support.federation import training_nodes
from tests.support.run_files import releases

TEXTS = ["The river, the letter. The garden!", "a River and a letter", "the winter's garden"]


@pytest.fixture(scope="module")
def words() -> Any:
    return make_tokenizer("words", TEXTS, vocabulary=9, max_tokens=21)


class TestTokenizers:
    def test_words_are_the_most_frequent_ones_in_small_letters(self, words: Any) -> None:
        # Four times "the", then two of each by the alphabet, and one of each.
        assert words.convert_ids_to_tokens(range(13)) == [
            *SPECIAL_TOKENS,
            *("the", "a", "garden", "letter", "river", "!", "'", ",", "."),
        ]
        row = words("The River, unseen", add_special_tokens=False)["input_ids"]
        assert row == [4, 8, 11, words.unk_token_id]
        assert words.convert_tokens_to_ids(["</s>", "<s>", "<pad>"]) == [3, 2, 0]

    def test_the_order_of_the_text_does_not_matter(self, words: Any) -> None:
        other = make_tokenizer("words", TEXTS[::-1], vocabulary=9, max_tokens=21)
        assert other.get_vocab() == words.get_vocab()

    def test_words_are_cut_where_the_tokenizer_cuts(self) -> None:
        text = "naïve co-operate x_1 3.14 (a)… don't\n\u4f60\u597d"
        made = make_tokenizer("words", [text], vocabulary=15, max_tokens=21)
        assert made.unk_token_id not in made(text, add_special_tokens=False)["input_ids"]

    def test_subwords_write_every_text(self, texts: list[str]) -> None:
        made = make_tokenizer("subwords", texts, vocabulary=300, max_tokens=21)
        assert len(made) == 304
        text = "Something else: \u4f60\u597d, <3\n"
        row = made(text, add_special_tokens=False)["input_ids"]
        assert made.decode(row) == text
        assert made.unk_token_id not in row

    @pytest.mark.parametrize(
        ("kind", "vocabulary", "sentence"),
        [
            ("words", 0, "vocabulary must be a whole number of at least 1, got 0"),
            ("words", 15, "vocabulary must be at most the 12 different words of the public text"),
            ("subwords", 255, "vocabulary must be a whole number of at least 256, got 255"),
            ("subwords", 5000, "different subwords of the public text, got 5000"),
            ("letters", 5, "tokenizer must be"),
        ],
    )
    def test_refusals(self, kind: Any, vocabulary: int, sentence: str) -> None:
        with pytest.raises(ConfigError, match=sentence):
            make_tokenizer(kind, TEXTS, vocabulary=vocabulary, max_tokens=21)


class TestShapes:
    def test_the_lstm_has_the_size_of_reddi_et_al(self) -> None:
        """4,050,748 in their table 9 with 10,004 tokens; PyTorch has a second bias in its LSTM."""

        class Tokens:
            pad_token_id, bos_token_id, eos_token_id = 0, 2, 3

            def __len__(self) -> int:
                return 10_004

        network = OnDeviceModel(architecture="lstm").network(Tokens(), seed=0)
        assert network.num_parameters() == 4_050_748 + 4 * 670
        tied = OnDeviceModel(architecture="lstm", tied=True).network(Tokens(), seed=0)
        assert tied.num_parameters() == network.num_parameters() - 96 * 10_004

    def test_the_transformer_has_the_printed_widths(self, words: Any) -> None:
        network = OnDeviceModel(architecture="transformer").network(words, seed=0)
        (block,) = network.transformer.h
        assert tuple(block.mlp.c_fc.weight.shape) == (96, 670)
        assert tuple(block.attn.c_attn.weight.shape) == (96, 3 * 96)
        assert tuple(network.transformer.wpe.weight.shape) == (21, 96)
        assert network.lm_head.weight is not network.transformer.wte.weight

    def test_heads_must_divide_the_width(self) -> None:
        with pytest.raises(ConfigError, match="num_heads must divide embedding_size = 96, got 7"):
            OnDeviceModel(architecture="transformer", num_heads=7)
        OnDeviceModel(architecture="lstm", num_heads=7)

    @pytest.mark.parametrize("architecture", ["lstm", "transformer"])
    def test_a_seed_gives_the_same_weights_and_leaves_random_numbers_alone(
        self, architecture: Any, words: Any, tmp_path: Path
    ) -> None:
        shape = OnDeviceModel(architecture=architecture, hidden_size=20)
        before = torch.get_rng_state()
        sizes = {
            write_model(tmp_path / name, shape, words, seed=seed)
            for name, seed in (("a", 1), ("b", 1), ("c", 2))
        }
        assert torch.equal(before, torch.get_rng_state())
        network, tokenizer = load_pretrained(
            tmp_path / "a", kind="causal", dtype="float32", device="cpu"
        )
        assert sizes == {network.num_parameters()}
        assert tokenizer.get_vocab() == words.get_vocab()
        a, b, c = ((tmp_path / n / "model.safetensors").read_bytes() for n in "abc")
        assert a == b != c
        written = json.loads((tmp_path / "a" / "generation_config.json").read_text())
        assert sorted(written["suppress_tokens"]) == [0, 1, 2]
        with pytest.raises(ConfigError, match="a folder that is new or empty"):
            write_model(tmp_path / "a", shape, words, seed=1)


def test_accuracy_of_known_words_counts_neither_unknown_ones_nor_ends(
    words: Any, tmp_path: Path
) -> None:
    """A model that says "the" after "the", and unknown after everything else."""
    folder = tmp_path / "model"
    write_model(folder, OnDeviceModel(architecture="transformer", num_heads=1), words, seed=0)
    network, _ = load_pretrained(folder, kind="causal", dtype="float32", device="cpu")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.transformer.wte.weight[:, 0] = 1.0
        network.transformer.wte.weight[4, 0] = -1.0
        network.transformer.ln_f.weight.fill_(1.0)
        network.lm_head.weight[words.unk_token_id, 0] = 1.0
        network.lm_head.weight[4, 0] = -1.0
    network.save_pretrained(folder)
    # Said: unknown, the; unknown, unknown, unknown. Written: the, the; unseen, unseen, river.
    found = evaluate_language_model(folder, ["the the", "unseen unseen river"], device="cpu")
    assert (found.tokens, found.unknown_tokens) == (5, 2)
    assert found.next_token_accuracy.value == pytest.approx(3 / 5)
    assert found.in_vocabulary_accuracy is not None
    assert found.in_vocabulary_accuracy.value == pytest.approx(1 / 3)
    nothing = evaluate_language_model(folder, ["the the", "unseen"], device="cpu")
    assert nothing.in_vocabulary_accuracy is None  # a resample may hold the second text alone


@pytest.mark.parametrize("architecture", ["lstm", "transformer"])
def test_dp_ftrl_trains_what_the_command_wrote(
    architecture: str, tmp_path: Path, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    public = tmp_path / "public.jsonl"
    public.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    model = tmp_path / "model"
    size = ["--hidden-size", "16", "--embedding-size", "8", "--heads", "2"]
    counted = ["--tokenizer", "words", "--vocabulary", "40", "--text", str(public)]
    words = ["model", "--architecture", architecture, "--output", str(model), *size, *counted]
    assert main(words) == 0
    assert "parameters, 44 tokens" in capsys.readouterr().out
    people = Users.from_rows([(f"user-{place}", text) for place, text in enumerate(texts[:8])])
    values: dict[str, Any] = {
        "model": str(model),
        "num_rounds": 2,
        "num_nodes": 2,
        "min_separation": 2,
        "noise_multiplier": 0.0,
        "run_dir": str(tmp_path / "run"),
        "node_timeout": 0.2,
        "accept_noise": True,
    }
    with pytest.raises(ConfigError, match="max-tokens = 64 is more than the 20 tokens"):
        DPFTRL(DPFTRLConfig(**values)).start(training_nodes(people))
    values["run_dir"] += "-of-20"
    strategy = DPFTRL(DPFTRLConfig(max_tokens=20, **values))
    strategy.start(training_nodes(people))
    assert len(releases(strategy.run.path)) == 2
    trained, tokenizer = load_pretrained(
        strategy.run.path / "models" / "final", kind="causal", dtype="float32", device="cpu"
    )
    begun, _ = load_pretrained(model, kind="causal", dtype="float32", device="cpu")
    assert len(tokenizer) == 44
    moved = [
        float((a - b).abs().max())
        for a, b in zip(trained.parameters(), begun.parameters(), strict=True)
    ]
    assert max(moved) > 0
    assert np.isfinite(moved).all()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["--vocabulary", "9"], "--vocabulary is for --tokenizer words and subwords: privsyn-lm"),
        (["--tokenizer", "words"], "--tokenizer words needs --vocabulary"),
        (["--tokenizer", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--output", "FULL"], "--output must be a folder that is new or empty"),
        (["--seed", "-1"], "--seed must be a whole number"),
        (["--hidden-size", "0"], "model setting hidden_size must be a whole number of at least 1"),
        (["--architecture", "gru"], "'gru' is not one of"),
        (
            ["--tokenizer", "words", "--vocabulary", "9", "--text", "/nowhere.jsonl"],
            "cannot be read (No such file or directory)",
        ),
    ],
)
def test_what_cannot_be_made_is_one_sentence(
    changes: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    changes = [str(tmp_path / "full") if word == "FULL" else word for word in changes]
    given = ["--architecture", "lstm", "--output", str(tmp_path / "model"), *changes]
    assert main(["model", *given]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert not said.out
    assert not (tmp_path / "model").exists()
