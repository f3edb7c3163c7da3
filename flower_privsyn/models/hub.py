"""Can the Hugging Face hub be reached, and what of it is here? Its client retries for minutes."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path


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
