"""What GGUF files say of themselves; what is broken ends in one sentence."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from flower_privsyn.errors import ModelError
from flower_privsyn.models.gguf import read_gguf


def test_a_whole_file(gguf_llama: Path):
    header = read_gguf(gguf_llama)
    assert header.context == 256
    # Keys and values, two layers, two heads of 64, two bytes.
    assert header.cache_bytes == 2 * 2 * 2 * 64 * 2


_EMBEDDING = b"token_embd.weight" + struct.pack("<I", 2)

BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "magic": lambda content: b"GGML" + content[4:],
    "a billion tensors": lambda content: content[:8] + struct.pack("<Q", 10**9) + content[16:],
    "cut in the weights": lambda content: content[:-1000],
    "a huge shape": lambda content: content.replace(
        _EMBEDDING + struct.pack("<Q", 128), _EMBEDDING + struct.pack("<Q", 2**40)
    ),
    "no architecture": lambda content: content.replace(b"general.architec", b"general.architek"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken(name: str, gguf_llama: Path, tmp_path: Path):
    file = tmp_path / "model.gguf"
    changed = BROKEN[name](gguf_llama.read_bytes())
    assert changed != gguf_llama.read_bytes()
    file.write_bytes(changed)
    with pytest.raises(ModelError, match=r"model\.gguf") as caught:
        read_gguf(file)
    assert "\n" not in str(caught.value)
