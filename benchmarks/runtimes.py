"""The embedding model in ONNX Runtime and OpenVINO, where they are installed.

Both get the model as one graph from tokens to unit vectors, texts sorted by length, batches of 32
padded to their longest text, and one thread: how they are used, and what their makers measure.
`python -m benchmarks.embedding --peers` prints them beside the package.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INSTALL = {
    "onnxruntime": "pip install onnx onnxscript onnxruntime",
    "openvino": "pip install onnx onnxscript openvino",
}
_BATCH = 32

Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]


def runtimes(model: Any, tokenizer: Any, longest: int) -> Iterator[tuple[str, Embed | None]]:
    """What can be compared, by name; None for a library that is not installed.

    Args:
        model: The transformers model, in float32.
        tokenizer: Its fast tokenizer.
        longest: Longest text in tokens.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        try:
            _export(model, file)
        except ImportError:
            yield from ((name, None) for name in INSTALL)
            return
        for name, kinds in (("onnxruntime", _onnxruntime), ("openvino", _openvino)):
            try:
                for kind, run in kinds(file):
                    yield f"{name}, {kind}", _in_batches(run, tokenizer, longest)
            except ImportError:
                yield name, None


def _in_batches(run: Callable[[dict[str, Any]], Vectors], tokenizer: Any, longest: int) -> Embed:
    def embed(texts: Sequence[str]) -> Vectors:
        tokens = tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
        order = sorted(range(len(texts)), key=lambda row: len(tokens[row]))
        parts = []
        for start in range(0, len(order), _BATCH):
            rows = [tokens[row] for row in order[start : start + _BATCH]]
            ids, mask = (np.zeros((len(rows), len(rows[-1])), dtype=np.int64) for _ in range(2))
            for place, row in enumerate(rows):
                ids[place, : len(row)], mask[place, : len(row)] = row, 1
            parts.append(run({"input_ids": ids, "attention_mask": mask}))
        result = np.empty((len(texts), parts[0].shape[1]), dtype=np.float32)
        result[order] = np.concatenate(parts)
        return result

    return embed


def _export(model: Any, file: Path) -> None:
    """Write the model, a mean over tokens and the division by the length as one graph.

    Raises:
        ImportError: What writes the format is not installed.
    """
    import onnxscript  # noqa: F401
    import torch

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            states = self.model(
                input_ids=input_ids, attention_mask=attention_mask
            ).last_hidden_state
            weights = attention_mask[:, :, None].to(states.dtype)
            means = (states * weights).sum(1) / weights.sum(1)
            return torch.nn.functional.normalize(means, dim=1)

    mask = torch.ones((4, 24), dtype=torch.long)
    mask[1, 7:] = 0
    texts, width = torch.export.Dim("texts", min=1), torch.export.Dim("width", min=2, max=512)
    torch.onnx.export(
        Whole().eval(),
        (mask.clone(), mask),
        str(file),
        dynamo=True,
        verbose=False,
        dynamic_shapes={name: {0: texts, 1: width} for name in ("input_ids", "attention_mask")},
    )


def _onnxruntime(file: Path) -> Iterator[tuple[str, Callable[[dict[str, Any]], Vectors]]]:
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic

    small = file.with_name("int8.onnx")
    quantize_dynamic(file, small, per_channel=True)
    for kind, path in (("float32", file), ("int8", small)):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        yield kind, functools.partial(_first_output, session)


def _first_output(session: Any, given: dict[str, Any]) -> Vectors:
    """What ONNX Runtime makes of it."""
    return np.asarray(session.run(None, given)[0])


def _copied(compiled: Any, given: dict[str, Any]) -> Vectors:
    """What OpenVINO makes of it; its own array is written over by the next."""
    return np.array(compiled(given)[0])


def _openvino(file: Path) -> Iterator[tuple[str, Callable[[dict[str, Any]], Vectors]]]:
    import openvino

    core = openvino.Core()
    for kind, hint in (("float32", "f32"), ("bfloat16", "bf16")):
        chosen = {
            "INFERENCE_PRECISION_HINT": hint,
            "INFERENCE_NUM_THREADS": 1,
            "NUM_STREAMS": 1,
        }
        compiled = core.compile_model(str(file), "CPU", chosen)
        yield kind, functools.partial(_copied, compiled)
