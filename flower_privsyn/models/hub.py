"""Models of the Hugging Face hub: what is here, what is downloaded, whether it is reached."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

from flower_privsyn.errors import ModelError
from flower_privsyn.models.library import quiet_transformers, shorten


def hub_unreachable(*variables: str, timeout: float = 5.0) -> str | None:
    """Why the hub cannot be reached, in a few words, or None if it may be.

    Args:
        variables: Environment variables that switch the network off, besides HF_HUB_OFFLINE.
        timeout: Longest wait for the name look-up, in seconds.
    """
    for variable in ("HF_HUB_OFFLINE", *variables):
        value = os.environ.get(variable, "")
        if value.upper() in {"1", "ON", "YES", "TRUE"}:
            return f"{variable}={value}"
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return None  # the proxy resolves names
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    host = endpoint.split("//")[-1].split("/")[0].split(":")[0]
    found: list[bool] = []

    def look_up() -> None:
        try:
            socket.getaddrinfo(host, 443)
        except OSError:
            return
        found.append(True)

    # A resolver without a network can block for half a minute: do not wait for it.
    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(timeout)
    return None if found else f"{host} does not resolve"


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
        ImportError: huggingface_hub is not installed.
    """
    import huggingface_hub

    here = f"model {name!r} is neither a bundled model nor a folder here, and"
    if (found := folder_in_cache(name)) is not None:
        return str(found)
    # Asked first: the client would retry for most of a minute.
    if reason := hub_unreachable("TRANSFORMERS_OFFLINE"):
        raise ModelError(
            f"{here} it is not in the local cache while the hub cannot be reached ({reason}): "
            "give a path or download it first"
        )
    try:
        patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.bin"]
        files = huggingface_hub.HfApi().list_repo_files(name)
        if any(file.endswith(".safetensors") for file in files):
            patterns.remove("*.bin")
        with quiet_transformers():
            return huggingface_hub.snapshot_download(name, allow_patterns=patterns)
    except Exception as error:  # no such name, no permission, no network
        raise ModelError(f"{here} the hub does not give it: {shorten(error)}") from error
