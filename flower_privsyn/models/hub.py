"""Models of the Hugging Face hub: what is here, and what is downloaded."""

from __future__ import annotations

from pathlib import Path

from flower_privsyn.errors import ModelError
from flower_privsyn.models.library import failures_as, import_extra, quiet_transformers


def folder_in_cache(name: str) -> Path | None:
    """Where a model of the hub lies on this machine; None where it was not downloaded."""
    try:
        import huggingface_hub

        return Path(huggingface_hub.snapshot_download(name, local_files_only=True))
    except Exception:  # not there, no such name, or no client of the hub
        return None


def download(name: str) -> str:
    """The folder of a model of the hub, downloaded if it is not in the cache.

    Args:
        name: "name" or "owner/name".

    Raises:
        ModelError: There is no such model, one may not have it, or the hub cannot be reached.
        MissingExtraError: huggingface_hub is not installed.
    """
    needed_by = f"model {name!r} of the hub"
    hub = import_extra("huggingface_hub", needed_by=needed_by, extra="client")
    if (found := folder_in_cache(name)) is not None:
        return str(found)
    unknown = (
        f"model {name!r} is neither a bundled model nor a folder here nor in the cache of the hub, "
        "and the hub does not give it"
    )
    with failures_as(ModelError, unknown):  # no such name, no permission, no network
        patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.bin"]
        files = hub.HfApi().list_repo_files(name)
        if any(file.endswith(".safetensors") for file in files):
            patterns.remove("*.bin")
        with quiet_transformers():
            return str(hub.snapshot_download(name, allow_patterns=patterns))
