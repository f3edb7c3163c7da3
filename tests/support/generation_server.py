"""A server of a language model on loopback, which misbehaves on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

Misbehaviour = Callable[[str, dict[str, Any], int], tuple[int, bytes | dict[str, Any]] | None]


class Server:
    """Speaks vLLM's completions and adapter interface; continues a prompt by a hash.

    Attributes:
        misbehave: Asked first, with (path, body, number of the request to this path); what it
            returns is sent in place of the answer.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.adapters: dict[str, tuple[str, str]] = {}
        self.misbehave: Misbehaviour = lambda path, body, number: None
        self.headers: dict[str, str] = {}
        self.concurrent = self.most_concurrent = 0
        self.lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self._answer({})

            def do_POST(self):
                length = int(self.headers.get("Content-Length", 0))
                self._answer(json.loads(self.rfile.read(length)))

            def _answer(self, body):
                # A client may write their names as it likes.
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, content = outer.handle(self.path, body, headers)
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for key, value in outer.headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def handle(
        self, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> tuple[int, bytes | dict[str, Any]]:
        with self.lock:
            self.requests.append((path, body, headers))
            number = self._numbers[path]
            self._numbers[path] += 1
            self.concurrent += 1
            self.most_concurrent = max(self.most_concurrent, self.concurrent)
        try:
            wrong = self.misbehave(path, body, number)
            return wrong if wrong is not None else self._serve(path, body)
        finally:
            with self.lock:
                self.concurrent -= 1

    def _serve(self, path: str, body: dict[str, Any]) -> tuple[int, bytes | dict[str, Any]]:
        if path == "/v1/models":
            entries = [{"id": "tiny", "parent": None}]
            entries += [{"id": name, "parent": "tiny"} for name in self.adapters]
            return 200, {"object": "list", "data": entries}
        if path == "/v1/load_lora_adapter":
            name, folder = body["lora_name"], Path(body["lora_path"])
            if name in self.adapters:
                return 400, {"error": {"message": f"'{name}' has already been loaded."}}
            weights = (folder / "adapter_model.safetensors").read_bytes()
            self.adapters[name] = (str(folder), hashlib.sha256(weights).hexdigest()[:8])
            return 200, b"Success"
        if path == "/v1/completions":
            return self._complete(body)
        if path == "/v1/chat/completions":
            said = json.dumps(body["messages"])
            status, answer = self._complete({**body, "prompt": said})
            for choice in answer.get("choices", []):
                choice["message"] = {"role": "assistant", "content": choice.pop("text")}
            return status, answer
        return 404, {"detail": "Not Found"}

    def _complete(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        model = body["model"]
        if model != "tiny" and model not in self.adapters:
            return 404, {"error": {"message": f"The model `{model}` does not exist.", "code": 404}}
        weights = "base" if model == "tiny" else self.adapters[model][1]
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        choices = []
        for prompt in prompts:
            for sample in range(body["n"]):
                key = f"{prompt}|{body.get('seed', 0) + sample}|{weights}"
                text = f" {weights} {hashlib.sha256(key.encode()).hexdigest()[:10]} end tail"
                ends = [text.find(stop) for stop in body.get("stop", []) if stop in text]
                choices.append({"index": len(choices), "text": text[: min(ends, default=None)]})
        return 200, {"object": "text_completion", "choices": choices[::-1]}

    def paths(self) -> Counter[str]:
        return Counter(path for path, _, _ in self.requests)


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()
