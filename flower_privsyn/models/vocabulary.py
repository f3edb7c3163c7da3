"""Tokenizers made from public text: the most frequent words, or byte-level pieces of words.

A vocabulary that is taken from users' text says which words they write. These are made from text
that is nobody's, so that they are public as the text is.

Papers:
    McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models"
        (ICLR 2018), and Reddi et al., "Adaptive Federated Optimization" (ICLR 2021): the most
        frequent words, one token for all others, and tokens for padding, beginning and end.
    Wang et al., "Can Public Large Language Models Help Private Cross-device Federated Learning?"
        (NAACL 2024), section 3.1: words against the pieces of words of a public model.
"""

# Transformers leaves most of what is called without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, Literal, get_args

from flower_privsyn.checks import check_choice, check_whole
from flower_privsyn.errors import ConfigError

TokenizerKind = Literal["words", "subwords"]

#: What every vocabulary has besides the tokens that are asked for, in the order of their numbers:
#: padding, unknown text, beginning, end.
SPECIAL_TOKENS: Final = ("<pad>", "<unk>", "<s>", "</s>")

#: Pieces of one byte each, with which every text can be written.
_BYTES: Final = 256


def make_tokenizer(
    kind: TokenizerKind, texts: Iterable[str], *, vocabulary: int, max_tokens: int
) -> Any:
    """A fast tokenizer, as Transformers loads it, whose tokens are counted in public text.

    Args:
        kind: "words": the most frequent words in small letters, and signs between them; what is
            none of them is the unknown token, and spaces are lost. "subwords": byte-level pieces by
            byte-pair encoding, which write every text.
        texts: public.
        vocabulary: how many tokens besides `SPECIAL_TOKENS`.
        max_tokens: tokens of a text that the model with it reads, the beginning included.

    Returns:
        A tokenizer with `vocabulary` + 4 tokens.

    Raises:
        ConfigError: The text has fewer different words, or pieces, or a size is out of range.
    """
    from transformers import PreTrainedTokenizerFast

    check_choice("tokenizer", kind, get_args(TokenizerKind))
    check_whole("vocabulary", vocabulary, ge=1 if kind == "words" else _BYTES)
    made = (_words if kind == "words" else _subwords)(texts, vocabulary)
    found = made.get_vocab_size() - len(SPECIAL_TOKENS)
    if found < vocabulary:
        raise ConfigError(
            f"vocabulary must be at most the {found:,} different {kind} of the public text, got "
            f"{vocabulary}: lower it, or give more text"
        )
    pad, unknown, begin, end = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=pad,
        unk_token=unknown,
        bos_token=begin,
        eos_token=end,
        model_max_length=max_tokens,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _words(texts: Iterable[str], vocabulary: int) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    lower, cut = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in cut.pre_tokenize_str(lower.normalize_str(text)))
    # Equally frequent ones by the alphabet, so that the order of the texts does not matter.
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    known = {word: number for number, word in enumerate((*SPECIAL_TOKENS, *ordered[:vocabulary]))}
    made = Tokenizer(models.WordLevel(known, unk_token=SPECIAL_TOKENS[1]))
    made.normalizer, made.pre_tokenizer = lower, cut
    return made


def _subwords(texts: Iterable[str], vocabulary: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary + len(SPECIAL_TOKENS),
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return made
