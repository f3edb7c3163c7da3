"""llama.cpp in a process of its own, on a small model that it really runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from flower_privsyn.errors import GenerationError, ModelError
from flower_privsyn.generation import SamplingParameters, TransformersGenerator, load_generator
from flower_privsyn.generation.gguf_backend import GGUFGenerator

pytest.importorskip("xllamacpp", reason="the extra gguf is not installed")

PROMPTS = ["The river", "A doctor waits under the old street, and", "Music", "My sister reads 3"]
GREEDY = SamplingParameters(seed=0, max_new_tokens=24, temperature=0)


@pytest.fixture(scope="module")
def generator(gguf_tiny: Path):
    made = load_generator(f"gguf:{gguf_tiny}")
    assert isinstance(made, GGUFGenerator)
    yield made
    made.close()


def test_it_writes_what_transformers_writes(generator: GGUFGenerator):
    expected = TransformersGenerator("privsyn-tiny", dtype="float32").generate(
        PROMPTS, sampling=GREEDY
    )
    assert generator.generate(PROMPTS, sampling=GREEDY) == expected


def test_nobody_without_the_key_is_answered(generator: GGUFGenerator):
    address = f"{generator._base_url}/completions"
    asked = urllib.request.Request(address, b'{"prompt": "The"}', method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked)
    assert refused.value.code == 401


def test_its_process_is_told_no_keys(gguf_tiny: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("PRIVSYN_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "LLAMA_API_KEY"):
        monkeypatch.setenv(name, "a-secret-of-this-test")
    monkeypatch.setenv("LC_TIME", "C")
    generator = GGUFGenerator(gguf_tiny)
    told = psutil.Process(generator._process.pid).environ()
    generator.close()
    assert "a-secret-of-this-test" not in told.values()
    assert told["LC_TIME"] == "C"
    assert told.get("PYTHONPATH") == os.environ.get("PYTHONPATH")
    assert told["OMP_WAIT_POLICY"]


_KILLED_WITH_A_COPY = """
import os, signal, sys, time
from flower_privsyn.generation.gguf_backend import GGUFGenerator
child = GGUFGenerator(sys.argv[1])._process
if os.fork() == 0:  # holds the other ends of what the child reads and writes
    print(os.getpid(), child.pid, flush=True)
    os.close(1)
    time.sleep(60)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _has_ended(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_its_process_ends_with_the_one_that_started_it(gguf_tiny: Path):
    command = [sys.executable, "-c", _KILLED_WITH_A_COPY, str(gguf_tiny)]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    copy, child = map(int, made.stdout.split())
    try:
        for _ in range(300):
            if _has_ended(child):
                break
            time.sleep(0.1)
        assert _has_ended(child)
        assert not _has_ended(copy)
    finally:
        os.kill(copy, signal.SIGKILL)


def test_a_process_that_ends_says_why(gguf_tiny: Path):
    generator = GGUFGenerator(gguf_tiny)
    generator._process.kill()
    with pytest.raises(GenerationError, match=r"llama.cpp ended while it wrote with tiny.gguf"):
        generator.generate([PROMPTS[0]], sampling=GREEDY)
    generator.close()


def test_a_broken_file_starts_no_process(
    gguf_tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a process was started")

    file = tmp_path / "cut.gguf"
    file.write_bytes(gguf_tiny.read_bytes()[:-1000])
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(ModelError, match="no whole GGUF file"):
        load_generator(f"gguf:{file}")
    with pytest.raises(ModelError, match="does not exist"):
        load_generator("gguf:no.gguf")
    with pytest.raises(ModelError, match=f"or gguf:{gguf_tiny} as a generator"):
        load_generator(str(gguf_tiny))
