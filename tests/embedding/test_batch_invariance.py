"""A text's vector is the same bits in any batch: how that is built, and how it is asked.

What is built holds on every machine (`TestPasses`). That a row's place in such a shape and the
number of threads move no bit (`TestTheModel`) is a fact about a processor and its libraries: so it
was on AMD with AVX-512 and, with passes of 32 rows, on Intel with AMX, in both precisions with one
and two threads. A machine where these fail is one that `check_batch_invariance` refuses to run on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flower_privsyn.embedding import (
    SentenceTransformerEmbedder,
    batch_invariance,
    check_batch_invariance,
    load_embedder,
)
from flower_privsyn.embedding.batch_invariance import (
    probe_batches,
    probe_texts,
    require_batch_invariance,
)
from flower_privsyn.embedding.embedder import ROWS
from flower_privsyn.embedding.records import RecordStore, embed_texts
from flower_privsyn.errors import ModelError
from flower_privsyn.testing import HashEmbedder

#: On a processor without products of that kind the second is the first once more.
IN_BATCHES = ("float32", pytest.param("bfloat16", marks=pytest.mark.slow))


@pytest.fixture(scope="module")
def models() -> Callable[[str], SentenceTransformerEmbedder]:
    loaded: dict[str, Any] = {}

    def load(precision: Any) -> SentenceTransformerEmbedder:
        if precision not in loaded:
            loaded[precision] = load_embedder(precision=precision)
        return loaded[precision]

    return load


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


class TestTheModel:
    @pytest.mark.parametrize("precision", IN_BATCHES)
    def test_every_batch(
        self, precision: str, models: Callable[[str], SentenceTransformerEmbedder]
    ) -> None:
        check_batch_invariance(models(precision))

    @pytest.mark.parametrize("precision", IN_BATCHES)
    def test_every_number_of_threads(
        self, precision: str, models: Callable[[str], SentenceTransformerEmbedder]
    ) -> None:
        texts = [*"river", *probe_texts(), ""]
        texts += ["word " * 400] * (precision == "float32")
        with threads(1):
            vectors = models(precision).embed(texts).view(np.uint32)
        with threads(3):
            again = models(precision).embed(texts[::-1])[::-1]
        assert np.array_equal(np.ascontiguousarray(again).view(np.uint32), vectors)


class TestPasses:
    def test_have_one_shape_a_mask_with_a_zero_and_one_thread(
        self, models: Callable[[str], SentenceTransformerEmbedder]
    ) -> None:
        embedder = models("float32")
        seen: list[tuple[tuple[int, ...], bool, int]] = []

        def look(module: Any, arguments: Any) -> None:
            mask = arguments[0]["attention_mask"]
            seen.append((tuple(mask.shape), bool(mask.all()), torch.get_num_threads()))

        hook = embedder.model[0].register_forward_pre_hook(look)
        # Lengths around a multiple of the step, and eight texts longer than the model takes.
        texts = [" ".join(["apple"] * count) for count in (1, 13, 14, 15, 21, 22, 23)]
        later: list[int] = []
        with threads(3):
            try:
                embedder.embed([*texts, *["apple " * 300] * 8])
            finally:
                hook.remove()
            thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            assert [torch.get_num_threads(), *later] == [3, 3]
        assert {shape[0] for shape, _, _ in seen} == {ROWS}
        assert [shape[1] for shape, _, _ in sorted(seen)] == [16, 24, 32, 256, 256]
        assert not any(full for _, full, _ in seen)
        assert {used for _, _, used in seen} == {1}


class Swayed(HashEmbedder):
    """A text's vector moves by one bit with what a function says of its batch."""

    def __init__(self, sway: Callable[[Sequence[str], int], bool], name: str = "swayed") -> None:
        super().__init__(8)
        self.fingerprint = name
        self.calls = 0
        self._sway = sway

    def embed(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        self.calls += 1
        vectors = super().embed(texts, progress=progress)
        for row in range(len(texts)):
            if self._sway(texts, row):
                vectors[row, 0] = np.nextafter(vectors[row, 0], np.float32(9))
        return vectors


SWAYS: dict[str, Callable[[Sequence[str], int], bool]] = {
    "alone": lambda texts, row: len(texts) == 1,
    "the last place": lambda texts, row: row % 8 == 7,
    "a neighbour": lambda texts, row: row > 0 and texts[row - 1] > texts[row],
    "the longest": lambda texts, row: len(texts[row]) < max(map(len, texts)),
}


class TestTheCheck:
    @pytest.mark.parametrize("name", SWAYS)
    def test_finds_what_depends_on_the_batch(self, name: str) -> None:
        with pytest.raises(ModelError, match="Swayed"):
            check_batch_invariance(Swayed(SWAYS[name]))

    def test_zeros_of_either_sign_differ(self) -> None:
        class Signed(HashEmbedder):
            def embed(self, texts: Any, *, progress: Any = None) -> NDArray[np.float32]:
                return np.full((len(texts), 32), -0.0 if len(texts) == 1 else 0.0, np.float32)

        with pytest.raises(ModelError, match="6 alone"):
            check_batch_invariance(Signed())

    def test_brings_every_probe_to_every_place(self) -> None:
        calls = dict(probe_batches(16))["in every place"]
        for text in range(8):
            places = {call.index(text) for call in calls if text in call}
            assert places == set(range(8)) - {text}  # where it is among all texts


class TestOnce:
    @pytest.fixture(autouse=True)
    def fresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batch_invariance, "_passed", set())

    def test_a_model_and_a_device_are_asked_once(self) -> None:
        first = Swayed(lambda texts, row: False)
        require_batch_invariance(first)
        asked = first.calls
        assert asked > 10
        require_batch_invariance(first)
        assert first.calls == asked
        require_batch_invariance(other := Swayed(lambda texts, row: False, "other"))
        assert other.calls == asked
        first.device = "cuda"  # type: ignore[attr-defined]
        require_batch_invariance(first)
        assert first.calls == 2 * asked

    def test_failure_is_not_remembered(self) -> None:
        for _ in range(2):
            with pytest.raises(ModelError):
                require_batch_invariance(Swayed(SWAYS["alone"]))


def test_vectors_of_other_libraries_or_another_device_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whose text was embedded before an upgrade would move a bit of who comes after."""
    for number, (device, kernels) in enumerate((("cpu", ""), ("cuda", ""), ("cpu", "SSE41"))):
        embedder = Swayed(lambda texts, row: False)
        embedder.device = device  # type: ignore[attr-defined]
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", kernels)
        for _ in range(2):
            embed_texts(embedder, ["a text"], RecordStore(tmp_path))
        assert embedder.calls == 3  # public text twice, and it
        assert len(list((tmp_path / "records").glob("*.arrow"))) == number + 1
