"""What decides the last bits of an embedding besides the model and the text: the machine."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
from pathlib import Path

from flower_privsyn.environment import library_versions

_LIBRARIES = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy")
#: How the variables begin by which a person chooses other kernels for the same arithmetic.
_VARIABLES = ("ATEN_", "CUDA_", "DNNL_", "MKL_", "ONEDNN_", "OPENBLAS_")


def machine_digest(device: str = "") -> str:
    """Hex digest of this machine's processor, its libraries and the choice of their kernels.

    Records kept on the disk are found under it again, and no others: vectors from before an
    upgrade, or from another machine, differ in their last bits from those computed now, and whose
    text was embedded then must not move what others answer today. It is no part of a model's
    fingerprint: server and nodes agree on that, and may compute on different devices.

    Args:
        device: What computes (`device_of`).
    """
    values = {name: v for name, v in os.environ.items() if name.startswith(_VARIABLES)}
    content = json.dumps(
        [processor(), library_versions(*_LIBRARIES), values, device], sort_keys=True
    )
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def device_of(embedder: object) -> str:
    """What an embedder computes on, such as "cpu"; "" where it does not say (`device`)."""
    return str(getattr(embedder, "device", ""))


def processor() -> dict[str, str]:
    """Name and instruction sets of the processor, as far as the system tells them."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features")
    found = {"machine": platform.machine(), "name": platform.processor()}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    said = (line.partition(":") for line in itertools.takewhile(bool, lines))
    told = {key.strip(): value.strip() for key, _, value in said}
    return found | {key: told[key] for key in wanted if key in told}
