"""The HTTP backend against a real server on loopback, which misbehaves on demand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import GenerationError
from flower_privsyn.generation import OpenAIGenerator, SamplingParameters
from tests.support.generation_server import Server

SAMPLING = SamplingParameters(seed=3, max_new_tokens=12)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)


@pytest.fixture
def generator(server: Server) -> OpenAIGenerator:
    return OpenAIGenerator(server.url, "tiny", max_retries=3)


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_key_that_a_server_quotes_is_not_passed_on(server: Server, status: int):
    key = "sk-proj-Q7v2pLr9wXe4TzN8"
    for answer in (
        {"error": {"message": f"Incorrect API key provided: {key}"}},
        {"error": {"message": "x" * 290 + key}},  # the cut goes through it
        f"<html>{key}</html>".encode(),
    ):
        server.misbehave = lambda path, body, number, answer=answer: (status, answer)
        generator = OpenAIGenerator(server.url, "tiny", api_key=key, max_retries=0)
        with pytest.raises(GenerationError, match=f"status {status}") as refused:
            generator.generate(["a"], sampling=SAMPLING)
        assert "sk-proj" not in str(refused.value)
    server.misbehave = lambda path, body, number: (200, f"no JSON {key}".encode())
    with pytest.raises(GenerationError, match=r"no text to .*: no JSON \[api key\]"):
        generator.generate(["a"], sampling=SAMPLING)
    text = {"choices": [{"index": 0, "text": f"a text with {key}, and pLr9wX"}]}
    server.misbehave = lambda path, body, number: (200, text)
    assert generator.generate(["a"], sampling=SAMPLING) == [["a text with [api key], and pLr9wX"]]


def test_what_is_asked_of_the_server(server: Server):
    generator = OpenAIGenerator(
        server.url + "/", "tiny", api_key="secret", extra_parameters={"top_k": -1}
    )
    sampling = SamplingParameters(
        seed=3, max_new_tokens=12, temperature=0.5, top_p=0.9, stop=(" end",)
    )
    found = generator.generate(["a", "b"], num_samples=2, sampling=sampling)
    assert all(not text.endswith("tail") for texts in found for text in texts)
    seeds = set()
    for path, body, headers in server.requests:
        assert path == "/v1/completions"
        assert headers["authorization"] == "Bearer secret"
        seeds.add(body.pop("seed"))
        assert body.pop("prompt") in ("a", "b")
        assert body == {
            "model": "tiny",
            "n": 2,
            "max_tokens": 12,
            "temperature": 0.5,
            "top_p": 0.9,
            "stop": [" end"],
            "top_k": -1,
        }
    # A seed of its own per prompt: one for all would correlate their texts.
    assert len(seeds) == 2
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_many_requests_are_under_way_at_once(server: Server):
    together = threading.Barrier(8)

    def wait(path: str, body: dict[str, Any], number: int) -> None:
        together.wait(timeout=30)

    server.misbehave = wait
    generator = OpenAIGenerator(server.url, "tiny", max_concurrency=8)
    generator.generate([str(number) for number in range(16)], sampling=SAMPLING)
    assert server.most_concurrent == 8


def test_the_only_model_is_found(server: Server, adapters: tuple[Path, Path]):
    generator = OpenAIGenerator(server.url)
    assert generator.name == f"tiny at {server.url}"
    generator.generate(["a"], sampling=SAMPLING, adapter=adapters[0])
    # Adapters that are loaded are no further models.
    assert OpenAIGenerator(server.url).name == f"tiny at {server.url}"
    models = {"data": [{"id": "one"}, {"id": "two"}]}
    server.misbehave = lambda path, body, number: (200, models)
    with pytest.raises(GenerationError, match=r"2 models \(one, two\): name one"):
        OpenAIGenerator(server.url)
    for answer in ((200, {"models": []}), (403, {}), (404, {}), (405, {})):
        server.misbehave = lambda path, body, number, answer=answer: (
            answer if path == "/v1/models" else None
        )
        with pytest.raises(GenerationError, match="0 models"):
            OpenAIGenerator(server.url)
        assert OpenAIGenerator(server.url, "tiny").generate(["a"], sampling=SAMPLING)


@pytest.mark.parametrize(
    ("status", "content", "words"),
    [
        (400, {"error": {"message": "max_tokens is too large", "code": 400}}, "max_tokens is too"),
        (401, {"error": "Unauthorized"}, "Unauthorized"),
        (413, b"<html>\n too   big </html>", "<html> too big </html>"),
        (418, b"", "no reason given"),
        (307, b"", "it is at https://elsewhere.example/v1"),
    ],
)
def test_a_refusal_is_final_and_in_the_servers_words(
    server: Server, generator: OpenAIGenerator, status: int, content: Any, words: str
):
    server.misbehave = lambda path, body, number: (status, content)
    server.headers = {"Location": "https://elsewhere.example/v1"} if status == 307 else {}
    with pytest.raises(GenerationError) as caught:
        generator.generate(["a"], sampling=SAMPLING)
    assert f"refused /completions with status {status}: " in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 1


NULL = {"choices": [{"index": 0, "text": None}, {"index": 1, "text": None}]}


class TestPromptsWithoutAText:
    """A filter refuses some, or a model will not answer: what is written for others is kept."""

    def refusing(self, server: Server, *, answer: Any, of: Callable[[str], bool]) -> None:
        server.misbehave = lambda path, body, number: answer if of(body["prompt"]) else None

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            ((400, {"error": "content filter"}), "refused /completions with status 400: content f"),
            ((422, {"error": "too long"}), "status 422: too long"),
            ((200, NULL), "answered without a text"),
        ],
    )
    def test_some_of_many(
        self,
        server: Server,
        generator: OpenAIGenerator,
        caplog: pytest.LogCaptureFixture,
        answer: Any,
        words: str,
    ) -> None:
        prompts = [f"prompt {number}" for number in range(40)]
        whole = generator.generate(prompts, num_samples=2, sampling=SAMPLING)
        self.refusing(server, answer=answer, of=lambda prompt: prompt.endswith(("3", "7")))
        finished: list[int] = []
        found = generator.generate(
            prompts, num_samples=2, sampling=SAMPLING, progress=finished.append
        )
        expected = [["", ""] if at % 10 in (3, 7) else row for at, row in enumerate(whole)]
        assert found == expected
        assert sum(finished) == 80
        (warning,) = caplog.messages
        assert warning.startswith("8 of 40 prompts stay without a text, the first one because ")
        assert words in warning

    def test_all_of_a_few_that_end_a_corpus(
        self, server: Server, generator: OpenAIGenerator
    ) -> None:
        """A resumed run would ask for the same last texts, and end at them every time."""
        generator.generate(["a"], sampling=SAMPLING)
        self.refusing(server, answer=(400, {"error": "no"}), of=lambda prompt: True)
        assert generator.generate(["b", "c"], sampling=SAMPLING) == [[""], [""]]


AGAIN: list[tuple[int, bytes | dict[str, Any]]] = [
    (429, {"error": {"message": "slow down"}}),
    (500, {"error": "loading"}),
    (503, b"<html>starting</html>"),
    # What is no completion is asked for again whatever its status.
    (200, b"{not json"),
    (200, b"<html><body>Bad Gateway</body></html>"),
    (200, b"\xff\xfe{}"),
    (200, b""),
    (200, b"[" * 100_000),
    (200, {"object": "list"}),
    (200, {"error": {"message": "upstream overloaded", "code": 502}}),
    (200, {"choices": None}),
    (200, {"choices": [{"index": 0, "text": "a"}]}),
    (200, {"choices": [{"index": 0, "text": "a"}] * 3}),
]


@pytest.mark.parametrize(("status", "content"), AGAIN)
def test_one_bad_answer_of_many_is_asked_for_again(
    server: Server, generator: OpenAIGenerator, status: int, content: Any
):
    prompts = [str(number) for number in range(12)]
    expected = generator.generate(prompts, num_samples=2, sampling=SAMPLING)
    asked = len(server.requests)
    bad = (status, content)
    server.misbehave = lambda path, body, number: bad if number == asked + 4 else None
    assert generator.generate(prompts, num_samples=2, sampling=SAMPLING) == expected
    assert len(server.requests) == asked + 13
    server.misbehave = lambda path, body, number: bad
    with pytest.raises(GenerationError, match=r"completions.*\(tried 4 times\): .") as caught:
        generator.generate(["a"], num_samples=2, sampling=SAMPLING)
    said = content.get("error", "") if isinstance(content, dict) else ""
    assert (said["message"] if isinstance(said, dict) else said) in str(caught.value)


def test_an_address_without_a_version_is_said(server: Server):
    server.misbehave = lambda path, body, number: (200, {"error": f"Unexpected endpoint. ({path})"})
    generator = OpenAIGenerator(server.url.removesuffix("/v1"), "tiny", max_retries=0)
    with pytest.raises(GenerationError, match=r"Unexpected endpoint.*; most addresses end in /v1$"):
        generator.generate(["a"], sampling=SAMPLING)


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"text": "a \ud83d b"}, "a \ufffd b"),
    ({"text": "cut \ud83d"}, "cut "),
    ({"text": "a \ude00 b\u00e9\U0001f600"}, "a \ufffd b\u00e9\U0001f600"),
    ({"text": None}, ""),
    ({"text": 7}, ""),
    ({}, ""),
    ({"message": {"content": None}}, ""),
    ({"message": {"reasoning_content": "hm, "}}, ""),
    ({"message": {"content": "", "reasoning_content": "hm, "}}, ""),
    ({"message": {"content": None, "tool_calls": [{"id": "1"}]}}, ""),
    ({"message": {"content": [{"type": "thinking", "thinking": []}, {"text": "so"}]}}, "so"),
    ({"message": {"content": "an emoji \ud83d"}}, "an emoji "),
    ({"message": None}, ""),
    # What is thought before an answer is no text.
    (
        {"message": {"content": "<think>\nThe user wants a text.\n</think>\n\na new text"}},
        "a new text",
    ),
    ({"message": {"content": "<think>\n\n</think>\n\na new text"}}, "a new text"),
    ({"message": {"content": "The template began this.\n</think>\na new text"}}, "a new text"),
    ({"message": {"content": "<thinking>So.</thinking> a new text"}}, "a new text"),
    ({"message": {"content": "[THINK]So.[/THINK]a new text"}}, "a new text"),
    ({"message": {"content": " <think>The limit was reached before"}}, ""),
    ({"message": {"content": "what I think> of it"}}, "what I think> of it"),
]


@pytest.mark.parametrize(("choice", "expected"), FORMS)
def test_every_form_in_which_a_server_says_a_text_or_none(
    server: Server,
    generator: OpenAIGenerator,
    caplog: pytest.LogCaptureFixture,
    choice: dict[str, Any],
    expected: str,
):
    def ask() -> list[str]:
        system = "" if "message" in choice else None
        found = generator.generate(["a", "b"], sampling=SAMPLING, system=system)
        return [text for (text,) in found]

    whole = ask()
    answer = {"choices": [{"index": 0, **choice}]}
    server.misbehave = lambda path, body, number: (
        (200, answer) if "b" in (body.get("prompt"), *said(body)) else None
    )
    assert ask() == [whole[0], expected]
    assert [text.partition(" stay")[0] for text in caplog.messages] == (
        [] if expected else ["1 of 2 prompts"]
    )


def said(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body.get("messages", ())]


def test_the_environment_tells_a_server_on_this_machine_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
):
    """Keys there are for OpenAI's own, and no proxy is asked."""
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID"):
        monkeypatch.setenv(f"OPENAI_{name}", "sk-of-the-environment")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for key in (None, "mine"):
        asked = OpenAIGenerator(server.url, "tiny", api_key=key, max_retries=0)
        assert asked.generate(["a"], sampling=SAMPLING)
    assert not [one for one in server.requests if "sk-of-the-environment" in str(one)]


def test_nobody_listens():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/v1"
    for retries, said in ((2, "tried 3 times"), (0, "tried once")):
        generator = OpenAIGenerator(url, "tiny", max_retries=retries)
        with pytest.raises(GenerationError, match=rf"{url} cannot be .*refused; {said}\)"):
            generator.generate(["a"], sampling=SAMPLING)


def test_one_that_does_not_answer_is_asked_again_and_then_said(server: Server):
    over, hangs = threading.Event(), range(2, 3)

    def hang(path: str, body: dict[str, Any], number: int) -> None:
        if number in hangs:
            over.wait(9)

    server.misbehave = hang
    generator = OpenAIGenerator(server.url, "tiny", timeout=0.5, max_retries=3)
    expected = generator.generate(["a", "b"], sampling=SAMPLING)
    assert generator.generate(["a", "b"], sampling=SAMPLING) == expected
    hangs = range(99)
    generator = OpenAIGenerator(server.url, "tiny", timeout=0.5, max_retries=0)
    with pytest.raises(GenerationError, match=r"did not answer in time \(tried once\)"):
        generator.generate(["a"], sampling=SAMPLING)
    over.set()


def test_adapters_are_loaded_once_under_a_name_of_their_own(
    server: Server, generator: OpenAIGenerator, adapters: tuple[Path, Path]
):
    texts = [
        generator.generate(["a", "b"], sampling=SAMPLING, adapter=adapter)
        for adapter in (None, adapters[0], adapters[1], adapters[0], None)
    ]
    assert texts[0] == texts[4]
    assert texts[1] == texts[3]
    assert texts[0] != texts[1] != texts[2]
    assert len(server.adapters) == server.paths()["/v1/load_lora_adapter"] == 2
    assert sorted(path for path, _ in server.adapters.values()) == [str(path) for path in adapters]
