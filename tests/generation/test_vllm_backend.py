"""vLLM: the calls it gets, and (opt-in) a real engine and a real server.

The real ones need an environment with vLLM, which cannot be this one. Name its Python::

    PRIVSYN_VLLM_PYTHON=/path/to/vllm-environment/bin/python pytest -m vllm_server
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

import flower_privsyn
from flower_privsyn.errors import ConfigError, GenerationError, MissingExtraError, ModelError
from flower_privsyn.generation import (
    OpenAIGenerator,
    SamplingParameters,
    TextGenerator,
    TransformersGenerator,
    VLLMGenerator,
    load_generator,
)

PROMPTS = ["The river", "A doctor waits under the old street, and", "Music", "My sister reads 3"]
GREEDY = SamplingParameters(seed=0, max_new_tokens=16, temperature=0)
SAMPLED = SamplingParameters(seed=3, max_new_tokens=16)


@dataclass
class LoRARequest:
    """The signature of vLLM's."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class Engine:
    """Records what it is asked; numbers its outputs out of order."""

    def __init__(self, *, model: str, dtype: str, **options: Any) -> None:
        if model.endswith("unsupported"):
            raise ValueError("Model architectures ['X'] are not supported\nfor now.")
        self.options = {"model": model, "dtype": dtype, **options}
        self.calls: list[dict[str, Any]] = []

    def generate(
        self, prompts: list[str], sampling_params: Any, *, lora_request: Any, use_tqdm: bool
    ) -> list[Any]:
        assert use_tqdm is False
        if "fail" in prompts:
            raise ValueError("The decoder prompt is longer\nthan the model")
        self.calls.append({"prompts": prompts, "parameters": sampling_params, "lora": lora_request})
        return [
            SimpleNamespace(
                outputs=[
                    SimpleNamespace(index=index, text=f"{prompt} {index}")
                    for index in reversed(range(parameters.n))
                ]
            )
            for prompt, parameters in zip(prompts, sampling_params, strict=True)
        ]


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = ModuleType("vllm")
    vllm.LLM = Engine  # type: ignore[attr-defined]
    vllm.SamplingParams = lambda **named: SimpleNamespace(**named)  # type: ignore[attr-defined]
    lora, request = ModuleType("vllm.lora"), ModuleType("vllm.lora.request")
    request.LoRARequest = LoRARequest  # type: ignore[attr-defined]
    for module in (vllm, lora, request):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_every_prompt_has_its_own_parameters(fake_vllm: None, llama: Path):
    generator = load_generator(f"vllm:{llama}")
    assert isinstance(generator, VLLMGenerator)
    assert isinstance(generator, TextGenerator)
    sampling = SamplingParameters(seed=3, temperature=0.5, top_p=0.9, stop=("x",))
    found = generator.generate(["a", "b", "a"], num_samples=2, sampling=sampling)
    assert found == [["a 0", "a 1"], ["b 0", "b 1"], ["a 0", "a 1"]]
    parameters = generator._engine.calls[0]["parameters"]
    assert len({each.seed for each in parameters}) == 3
    assert vars(parameters[0]) == {
        "n": 2,
        "seed": parameters[0].seed,
        "max_tokens": 85,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["x"],
    }
    assert generator._engine.options == {
        "model": str(llama),
        "dtype": "auto",
        "enable_lora": True,
        "max_lora_rank": 16,
        "seed": 0,
    }


def test_batches_and_progress(fake_vllm: None, llama: Path):
    generator = VLLMGenerator(llama, batch_size=2, max_model_len=128, enforce_eager=True)
    finished: list[int] = []
    found = generator.generate(
        list("abcde"), num_samples=3, sampling=SAMPLED, progress=finished.append
    )
    assert [texts[0] for texts in found] == ["a 0", "b 0", "c 0", "d 0", "e 0"]
    assert finished == [6, 6, 3]
    assert generator._engine.options["max_model_len"] == 128
    assert generator._engine.options["enforce_eager"] is True


def test_every_adapter_gets_a_new_number(
    fake_vllm: None, llama: Path, adapters: tuple[Path, Path], tmp_path: Path
):
    generator = VLLMGenerator(llama)
    for adapter in (None, *adapters, adapters[0]):
        generator.generate(["a"], sampling=SAMPLED, adapter=adapter)
    requests = [call["lora"] for call in generator._engine.calls]
    assert requests[0] is None
    assert [request.lora_int_id for request in requests[1:]] == [1, 2, 1]
    assert len({request.lora_name for request in requests[1:]}) == 2
    assert [request.lora_path for request in requests[1:3]] == [str(path) for path in adapters]
    # The same path with other contents is another adapter.
    weights = adapters[0] / "adapter_model.safetensors"
    original = weights.read_bytes()
    try:
        weights.write_bytes((adapters[1] / "adapter_model.safetensors").read_bytes())
        generator.generate(["a"], sampling=SAMPLED, adapter=adapters[0])
    finally:
        weights.write_bytes(original)
    assert generator._engine.calls[-1]["lora"].lora_int_id == 3


def test_errors(fake_vllm: None, llama: Path, adapters: tuple[Path, Path], tmp_path: Path):
    generator = VLLMGenerator(llama, enable_lora=False)
    assert "max_lora_rank" not in generator._engine.options
    with pytest.raises(GenerationError, match="enable_lora=False"):
        generator.generate(["a"], sampling=SAMPLED, adapter=adapters[0])
    with pytest.raises(GenerationError, match="The decoder prompt is longer than the model"):
        generator.generate(["fail"], sampling=SAMPLED)
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        VLLMGenerator(llama).generate(["a"], sampling=SAMPLED, adapter=tmp_path)
    with pytest.raises(ModelError, match="vLLM cannot serve model 'owner/unsupported'"):
        VLLMGenerator("owner/unsupported")
    with pytest.raises(ConfigError, match="max_lora_rank"):
        VLLMGenerator(llama, max_lora_rank=0)


def test_vllm_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match="vllm serve") as caught:
        VLLMGenerator("privsyn-lm")
    assert "examples/vllm" in str(caught.value)


# ---------------------------------------------------------------- the real thing, on request

VLLM_PYTHON = os.environ.get("PRIVSYN_VLLM_PYTHON", "")
needs_vllm = pytest.mark.skipif(
    not VLLM_PYTHON, reason="PRIVSYN_VLLM_PYTHON names no Python with vLLM"
)


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "PYTHONPATH": str(Path(flower_privsyn.__file__).parents[1]),
    }


def _whole(texts: list[list[str]]) -> list[list[str]]:
    """Without the pieces of characters at the end, which random weights write often."""
    return [[text.rstrip("\ufffd") for text in each] for each in texts]


@contextmanager
def _serve(model: Path, log: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [VLLM_PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", "256", "--enforce-eager"]
    command += ["--enable-lora", "--max-lora-rank", "8", "--generation-config", "vllm"]
    url = f"http://127.0.0.1:{port}/v1"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=_environment(), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            end = time.monotonic() + 400
            while True:
                try:
                    if httpx.get(f"{url}/models", timeout=5).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                if process.poll() is not None or time.monotonic() > end:
                    pytest.fail("vLLM did not start:\n" + log.read_text()[-4000:])
                time.sleep(1)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@needs_vllm
@pytest.mark.vllm_server
def test_a_real_server(llama: Path, adapters: tuple[Path, Path], tmp_path: Path):
    """Greedy texts equal Transformers and PEFT, adapters are told apart, seeds repeat."""
    local = TransformersGenerator(llama, dtype="float32")
    with _serve(llama, tmp_path / "server.log") as url:
        remote = OpenAIGenerator(url)
        assert remote.name.startswith("tiny at ")
        for adapter in (None, adapters[0], adapters[1], adapters[0], None):
            found = remote.generate(PROMPTS, sampling=GREEDY, adapter=adapter)
            expected = local.generate(PROMPTS, sampling=GREEDY, adapter=adapter)
            assert _whole(found) == _whole(expected)
        first = remote.generate([*PROMPTS, *PROMPTS], num_samples=3, sampling=SAMPLED)
        assert len({text for texts in first for text in texts}) == 24
        assert remote.generate([*PROMPTS, *PROMPTS], num_samples=3, sampling=SAMPLED) == first
        # The same folder with other weights, and a second client on the same server.
        weights = tmp_path / "adapter"
        weights.mkdir()
        for adapter in adapters:
            for name in ("adapter_config.json", "adapter_model.safetensors"):
                (weights / name).write_bytes((adapter / name).read_bytes())
            expected = local.generate(PROMPTS, sampling=GREEDY, adapter=adapter)
            found = remote.generate(PROMPTS, sampling=GREEDY, adapter=weights)
            assert _whole(found) == _whole(expected)
            other = OpenAIGenerator(url)
            assert other.generate(PROMPTS, sampling=GREEDY, adapter=weights) == found
        with pytest.raises(GenerationError, match=r"status 400: .*maximum context length"):
            remote.generate(["river " * 400], sampling=GREEDY)


_IN_PROCESS = """
import json, sys
from pathlib import Path
from flower_privsyn.generation import SamplingParameters, load_generator, VLLMGenerator

if __name__ == "__main__":
    model, prompts, adapters = json.loads(sys.argv[1])
    generator = VLLMGenerator(
        model, dtype="float32", max_model_len=256, max_lora_rank=8, enforce_eager=True
    )
    greedy = SamplingParameters(seed=0, max_new_tokens=16, temperature=0)
    texts = [
        generator.generate(prompts, sampling=greedy, adapter=folder and Path(folder))
        for folder in adapters
    ]
    sampled = SamplingParameters(seed=3, max_new_tokens=16)
    draws = [generator.generate(prompts * 2, num_samples=2, sampling=sampled) for _ in "12"]
    Path(sys.argv[2]).write_text(json.dumps([texts, draws]))
"""


@needs_vllm
@pytest.mark.vllm_server
def test_a_real_engine(llama: Path, adapters: tuple[Path, Path], tmp_path: Path):
    """The same in vLLM's own process, through VLLMGenerator."""
    script, output = tmp_path / "script.py", tmp_path / "output.json"
    script.write_text(_IN_PROCESS)
    order = [None, str(adapters[0]), str(adapters[1]), str(adapters[0]), None]
    done = subprocess.run(
        [VLLM_PYTHON, str(script), json.dumps([str(llama), PROMPTS, order]), str(output)],
        env=_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    texts, draws = json.loads(output.read_text())
    local = TransformersGenerator(llama, dtype="float32")
    for folder, found in zip(order, texts, strict=True):
        adapter = None if folder is None else Path(folder)
        expected = local.generate(PROMPTS, sampling=GREEDY, adapter=adapter)
        assert _whole(found) == _whole(expected)
    assert draws[0] == draws[1]
    assert len({text for texts in draws[0] for text in texts}) == 16
