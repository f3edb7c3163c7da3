"""Continuations from vLLM in this process, where it is importable.

vLLM and Flower's dependencies exclude each other in one environment; a server reached through
`OpenAIGenerator` is the ordinary way. This is for the machine that only generates.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import GenerationError, MissingExtraError, ModelError
from flower_privsyn.generation import streams
from flower_privsyn.generation.backends import (
    ProgressCallback,
    SamplingParameters,
    check_texts,
    refuse_penalty,
)
from flower_privsyn.models.adapters import adapter_digest
from flower_privsyn.models.library import shorten


class VLLMGenerator:
    """A causal language model run by vLLM's engine in this process.

    Every prompt carries sampling parameters with its own seed. Every adapter gets a new number:
    under a number it knows, vLLM goes on using the old weights whatever the path says.

    Attributes:
        name: The model's name or path as given.
        at_once: Prompts handed to the engine at a time.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "auto",
        enable_lora: bool = True,
        max_lora_rank: int = 16,
        max_model_len: int | None = None,
        batch_size: int = 1024,
        **engine_options: Any,
    ) -> None:
        """Start the engine.

        Args:
            model: A bundled short name, a folder, or a hub name.
            dtype: As vLLM names it; ``"auto"`` follows the model's files.
            enable_lora: Whether adapters can be used. vLLM cannot for every architecture (not
                for GPT-2).
            max_lora_rank: The largest rank of an adapter, >= 1.
            max_model_len: Tokens of prompt and continuation together; None takes the model's.
            batch_size: Prompts handed to the engine at a time, >= 1; progress moves after each.
            engine_options: Passed on to ``vllm.LLM``.

        Raises:
            ConfigError: A setting is out of range.
            ModelError: The model cannot be found, or vLLM cannot serve it.
            MissingExtraError: vLLM is not installed in this environment.
        """
        check_whole("generation setting max_lora_rank", max_lora_rank, ge=1)
        check_whole("generation setting batch_size", batch_size, ge=1)
        if max_model_len is not None:
            check_whole("generation setting max_model_len", max_model_len, ge=1)
        try:
            self._vllm: Any = importlib.import_module("vllm")
            self._lora: Any = importlib.import_module("vllm.lora.request")
        except ImportError as error:
            raise MissingExtraError(
                f"vLLM cannot be imported ({shorten(error)}), and it cannot share an environment "
                "with Flower: start `vllm serve` in another one and give its address, as in "
                "'http://127.0.0.1:8000/v1#model' (examples/vllm)"
            ) from error
        from flower_privsyn.models import resolve_model

        self.name = str(model)
        self._enable_lora = enable_lora
        self.at_once = batch_size
        self._numbers: dict[str, int] = {}
        options: dict[str, Any] = {"enable_lora": enable_lora, "seed": 0, **engine_options}
        if enable_lora:
            options["max_lora_rank"] = max_lora_rank
        if max_model_len is not None:
            options["max_model_len"] = max_model_len
        try:
            self._engine = self._vllm.LLM(model=resolve_model(model), dtype=dtype, **options)
        except (RuntimeError, ValueError, OSError, TypeError) as error:
            raise ModelError(f"vLLM cannot serve model {self.name!r}: {shorten(error)}") from error

    def generate(
        self,
        prompts: Sequence[str],
        *,
        num_samples: int = 1,
        sampling: SamplingParameters,
        adapter: Path | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[list[str]]:
        """Continue every prompt; see `TextGenerator`.

        Args:
            prompts: The texts to continue.
            num_samples: Continuations per prompt, >= 1.
            sampling: How they are drawn.
            adapter: The folder of a PEFT LoRA adapter.
            progress: Called with the number of continuations just finished.

        Returns:
            One list of ``num_samples`` continuations per prompt.

        Raises:
            ConfigError: A setting is out of range.
            GenerationError: An adapter is given while LoRA is off, or the engine failed.
            ModelError: The adapter folder holds no adapter.
        """
        check_whole("generation setting num_samples", num_samples, ge=1)
        check_texts("prompts", prompts)
        refuse_penalty(sampling, self.name)
        request = None if adapter is None else self._lora_request(Path(adapter))
        seeds = streams.text_seeds(sampling.seed, prompts)
        results: list[list[str]] = []
        for batch in streams.chunks(range(len(prompts)), self.at_once):
            parameters = [
                self._vllm.SamplingParams(
                    n=num_samples,
                    seed=seeds[index],
                    max_tokens=sampling.max_new_tokens,
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    stop=list(sampling.stop) or None,
                )
                for index in batch
            ]
            try:
                outputs = self._engine.generate(
                    [prompts[index] for index in batch],
                    parameters,
                    lora_request=request,
                    use_tqdm=False,
                )
            except (RuntimeError, ValueError) as error:
                raise GenerationError(
                    f"vLLM failed to continue with model {self.name!r}: {shorten(error)}"
                ) from error
            results += [
                [item.text for item in sorted(output.outputs, key=lambda item: int(item.index))]
                for output in outputs
            ]
            if progress is not None:
                progress(len(batch) * num_samples)
        return results

    def _lora_request(self, folder: Path) -> Any:
        if not self._enable_lora:
            raise GenerationError(
                f"the adapter {folder} cannot be used: the engine was started with "
                "enable_lora=False"
            )
        folder = folder.resolve()
        key = f"{adapter_digest(folder)} {folder}"
        number = self._numbers.setdefault(key, len(self._numbers) + 1)
        return self._lora.LoRARequest(f"privsyn-{number}", number, str(folder))
