"""GGUF files are read without trusting them: what is broken ends in one sentence."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flower_privsyn.errors import ModelError
from flower_privsyn.models.gguf import digest_of, read_gguf


def test_a_whole_file(gguf_llama: Path):
    header = read_gguf(gguf_llama)
    assert header.architecture == "llama"
    assert header.number("block_count") == 2
    assert header.context == 256
    assert header.vocabulary == 600
    # Two tables of 600 x 128; in each of two layers seven matrices of 128 x 128; five norms.
    assert header.parameters == 2 * 600 * 128 + 2 * 7 * 128**2 + 5 * 128
    # Keys and values, two layers, two heads of 64, two bytes.
    assert header.cache_bytes == 2 * 2 * 2 * 64 * 2
    assert len(digest_of(gguf_llama)) == 64


def _replace(begin: bytes, by: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        place = content.index(begin) + len(begin)
        return content[:place] + by(content[place:])

    return changed


def _number(form: str, value: float) -> Callable[[bytes], bytes]:
    return lambda rest: struct.pack(form, value) + rest[struct.calcsize(form) :]


_BLOCKS = b"llama.block_count" + struct.pack("<I", 4)
_CONTEXT = b"llama.context_length" + struct.pack("<I", 4)
_ARCHITECTURE = b"general.architecture" + struct.pack("<IQ", 8, 5)
_EMBEDDING = b"token_embd.weight"
_TOKENS = b"tokenizer.ggml.tokens"
_MODEL = struct.pack("<Q", 20) + b"tokenizer.ggml.model"

BROKEN = {
    "magic": (lambda content: b"GGML" + content[4:], "does not begin with GGUF"),
    "empty": (lambda content: b"", "does not begin with GGUF"),
    "only the magic": (lambda content: b"GGUF", "the file ends at 4"),
    "version": (lambda content: content[:4] + b"\x07\0\0\0" + content[8:], "its version is 7"),
    "no tensors": (lambda content: content[:8] + bytes(8) + content[16:], "claims 0 tensors"),
    "a billion tensors": (
        lambda content: content[:8] + struct.pack("<Q", 10**9) + content[16:],
        "claims 1,000,000,000 tensors",
    ),
    "endless entries": (
        lambda content: content[:16] + b"\xff" * 8 + content[24:],
        "claims 18,446,744,073,709,551,615 entries",
    ),
    "a key without an end": (
        lambda content: content[:24] + struct.pack("<Q", 2**62) + content[32:],
        "the key at byte 32 is to take",
    ),
    "cut in the weights": (lambda content: content[:-1000], "it was cut off"),
    "cut in the header": (lambda content: content[:3000], "broken"),
    "a list without an end": (
        _replace(b"tokenizer.ggml.tokens" + struct.pack("<II", 9, 8), _number("<Q", 2**60)),
        "texts, more than the file has",
    ),
    "a huge shape": (
        _replace(_EMBEDDING + struct.pack("<I", 2), _number("<Q", 2**63)),
        "its tensors end at byte",
    ),
    "a shape that wraps round": (
        _replace(
            _EMBEDDING + struct.pack("<I", 2),
            lambda rest: struct.pack("<QQ", 2**32, 2**32) + rest[16:],
        ),
        "its tensors end at byte",
    ),
    "too many dimensions": (_replace(_EMBEDDING, _number("<I", 9)), "has 9 dimensions"),
    "an unknown type": (
        _replace(_EMBEDDING, lambda rest: rest[:20] + struct.pack("<I", 77) + rest[24:]),
        "unknown type 77",
    ),
    "an offset behind the end": (
        _replace(_EMBEDDING, lambda rest: rest[:24] + struct.pack("<Q", 2**40) + rest[32:]),
        "its tensors end at byte",
    ),
    "a text for a list of tokens": (
        lambda content: (
            content.replace(_TOKENS, b"tokenizer.ggml.others").replace(
                _MODEL, struct.pack("<Q", 21) + _TOKENS
            )
            + bytes(64)
        ),
        "tokenizer.ggml.tokens is no list",
    ),
    "no context": (_replace(_CONTEXT, _number("<I", 0)), "context_length is no number of tokens"),
    "less than no context": (
        _replace(_CONTEXT[:-4], lambda rest: struct.pack("<Ii", 5, -1) + rest[8:]),
        "context_length is no number of tokens",
    ),
    "an architecture of no letters": (
        _replace(_ARCHITECTURE, lambda rest: b"\x1b[2Jx" + rest[5:]),
        r"general.architecture, '\\x1b\[2Jx', is no architecture",
    ),
    "an architecture that is no text": (
        _replace(_ARCHITECTURE, lambda rest: b"\xff\xfe\xfd\xfc\xfb" + rest[5:]),
        r"general.architecture, '\\ufffd",
    ),
    "a million layers": (_replace(_BLOCKS, _number("<I", 10**6)), "block_count is 1,000,000"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken(name: str, gguf_llama: Path, tmp_path: Path):
    change, said = BROKEN[name]
    file = tmp_path / "model.gguf"
    file.write_bytes(change(gguf_llama.read_bytes()))
    with pytest.raises(ModelError, match=said) as caught:
        read_gguf(file)
    assert "\n" not in str(caught.value)


def _with_heads(content: bytes, *shared: int) -> bytes:
    """The same file, its heads of keys a number for each layer."""
    begin = b"llama.attention.head_count_kv"
    place = content.index(begin) + len(begin)
    values = struct.pack(f"<IIQ{len(shared)}i", 9, 5, len(shared), *shared)
    return content[:place] + values + content[place + 8 :] + bytes(64)


def test_heads_of_each_layer(gguf_llama: Path, tmp_path: Path):
    """Some models have other heads in every layer: their number is no length of a list."""
    file = tmp_path / "model.gguf"
    file.write_bytes(_with_heads(gguf_llama.read_bytes(), 2, 1))
    header = read_gguf(file)
    assert header.numbers("attention.head_count_kv") == (2, 1)
    assert header.number("attention.head_count_kv") == 0
    # Keys and values, three heads of 64 in all layers, two bytes.
    assert header.cache_bytes == 2 * 3 * 64 * 2
    for shared in ((2, 10**9), (2, -1)):
        file.write_bytes(_with_heads(gguf_llama.read_bytes(), *shared))
        with pytest.raises(ModelError, match=rf"head_count_kv is {shared[1]:,}, which"):
            read_gguf(file)


def test_no_file(tmp_path: Path):
    with pytest.raises(ModelError, match="does not exist"):
        read_gguf(tmp_path / "no.gguf")
    with pytest.raises(ModelError, match="does not exist"):
        read_gguf(tmp_path)


def test_whatever_bytes_are_changed_it_is_read_or_refused(gguf_llama: Path, tmp_path: Path):
    content = gguf_llama.read_bytes()
    header = content.index(b"output_norm") + 200
    chooser = random.Random(0)
    file = tmp_path / "model.gguf"
    begun = time.process_time()
    refused = 0
    for _ in range(60):
        changed = bytearray(content)
        for _ in range(chooser.randint(1, 4)):
            changed[chooser.randrange(header)] = chooser.choice((0, 1, 127, 128, 255))
        file.write_bytes(bytes(changed))
        try:
            read_gguf(file)
        except ModelError:
            refused += 1
    assert 10 < refused < 60
    assert time.process_time() - begun < 30  # no number of the file makes it walk for long
