"""Write an on-device language model with random weights, from which the paper's rows start.

    python on_device.py --architecture lstm --vocabulary 32000 --text FILE --output on-device-lstm

One LSTM layer of 670 units on embeddings of 96 dimensions, or one transformer layer of that width
with 670 units in its feed-forward part (appendix B.2), for texts of at most 20 tokens. The LSTM has
a projection back to 96 before the output layer, as in Reddi et al. 2021, table 9; the transformer
is GPT-2's, without dropout and with eight heads. Tokens are pieces of words counted in public text;
without `--vocabulary` they are those of `--tokens-of`, which then can be the teacher. A vocabulary
that is taken from users' text says what they write.
"""

# Transformers leaves most of what is called without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPT2Config,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

from flower_privsyn.data.public_corpus import public_documents
from flower_privsyn.errors import ConfigError
from flower_privsyn.models.lstm import LSTMConfig
from flower_privsyn.models.pretrained import load_tokenizer

EMBEDDING, HIDDEN, HEADS = 96, 670, 8
MAX_TOKENS = 20
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")


def subwords(texts: Iterable[str], vocabulary: int) -> Any:
    """A tokenizer of `vocabulary` byte-level pieces of public text, and `SPECIAL_TOKENS`."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary + len(SPECIAL_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    if made.get_vocab_size() < vocabulary + len(SPECIAL_TOKENS):
        raise ConfigError(f"the public text has fewer than --vocabulary {vocabulary} pieces")
    pad, unknown, begin, end = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=pad,
        unk_token=unknown,
        bos_token=begin,
        eos_token=end,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def shape(architecture: str, tokenizer: Any) -> PretrainedConfig:
    """The configuration of an "lstm" or a "transformer" for the tokens of a tokenizer."""
    shared: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "tie_word_embeddings": False,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    positions = MAX_TOKENS + 1  # and the beginning token
    if architecture == "lstm":
        return LSTMConfig(
            embedding_size=EMBEDDING,
            hidden_size=HIDDEN,
            num_layers=1,
            max_position_embeddings=positions,
            **shared,
        )
    return GPT2Config(
        n_embd=EMBEDDING,
        n_inner=HIDDEN,
        n_layer=1,
        n_head=HEADS,
        n_positions=positions,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **shared,
    )


def main() -> None:
    """Read the command line and write the folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--architecture", choices=["lstm", "transformer"], required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder; new or empty")
    parser.add_argument("--vocabulary", type=int, help="pieces of --text (default: --tokens-of)")
    parser.add_argument("--text", default="bundled", help="public text: FILE or DIR")
    parser.add_argument("--tokens-of", default="privsyn-lm", help="a model")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()

    if asked.output.exists() and any(asked.output.iterdir()):
        parser.error(f"--output must be a folder that is new or empty, got {asked.output}")
    if asked.vocabulary is None:
        tokenizer = load_tokenizer(asked.tokens_of)
    else:
        tokenizer = subwords(public_documents(asked.text, setting="--text"), asked.vocabulary)
    tokenizer.model_max_length = MAX_TOKENS + 1
    torch.manual_seed(asked.seed)
    network = AutoModelForCausalLM.from_config(shape(asked.architecture, tokenizer))
    end = tokenizer.eos_token_id
    # The whole vocabulary at temperature 1, but for what ends nothing.
    network.generation_config = GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=MAX_TOKENS,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=end,
        suppress_tokens=[token for token in tokenizer.all_special_ids if token != end],
    )
    network.save_pretrained(asked.output)
    tokenizer.save_pretrained(asked.output)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(f"{asked.output}: {parameters:,} parameters, {len(tokenizer):,} tokens")


if __name__ == "__main__":
    main()
