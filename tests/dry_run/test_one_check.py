"""The same input is refused, or taken, by every command that takes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from flower_privsyn.cli import compare, main
from flower_privsyn.comparison import APP
from flower_privsyn.run import RunDirectory
from flower_privsyn.strategies import PrivateEvolutionConfig

EXAMPLES = Path(__file__).parents[2] / "examples"

#: What a run is told by settings and a comparison by options.
OPTIONS = {
    "data": "--data",
    "num-users": "--users",
    "epsilon": "--epsilon",
    "min-date": "--min-date",
}

SMALL = {
    "epsilon": "8",
    "num-rounds": "1",
    "num-candidates": "24",
    "num-variations": "3",
    "variation": "mask-fill",
    "public-text": "public.jsonl",
}

Verdicts = Callable[[Mapping[str, str]], dict[str, tuple[int, str]]]


def write(name: str, rows: list[dict[str, str]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of users and of public text, in the folder that commands are typed in."""
    monkeypatch.chdir(tmp_path)
    said = "The court of the county ruled on the tax"
    rows = [
        {
            "client_id": f"u{n}",
            "text": f"{said} in case {n}.",
            "title": f"Case {n}",
            "date": "2025-03-01",
            "label": "AB"[n % 2],
        }
        for n in range(75)
    ]
    write("users.jsonl", rows)
    write("undated.jsonl", [{key: row[key] for key in ("client_id", "text")} for row in rows])
    write("silent.jsonl", [{**row, "text": " "} for row in rows])
    write("one.jsonl", [{**row, "client_id": "u"} for row in rows])
    write("same.jsonl", 40 * [{"text": "The ferry was late again."}])
    boats = [{"text": f"A boat of {n} oars turned by the old mill."} for n in range(90)]
    write("public.jsonl", boats)
    write("labelled.jsonl", [{**boat, "label": "A"} for boat in boats])
    return tmp_path


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verdicts:
    """Exit status and words of `check` and `compare`; 0 where a run would begin.

    What `privsyn run` says before it begins, `check` says by the same call.
    """
    monkeypatch.setattr(compare, "_follow", lambda *_, **__: 0)

    def found(settings: Mapping[str, str]) -> dict[str, tuple[int, str]]:
        given = {"data": "users.jsonl", **SMALL, **settings}
        options = [
            word
            for key, value in given.items()
            if not key.endswith("-column")
            for word in ([OPTIONS[key], value] if key in OPTIONS else ["--set", f"{key}={value}"])
        ]
        if client := given.get("client-column"):
            options += ["--set", f"client-column={client}"]
        # Everybody but five takes part, who are no fewer than the noise asks for.
        compared = ["compare", "--methods", "aug-pe", "--held-out-users", "5", *options]
        checked = ["check", str(APP), "--config", "cpu/aug-pe", *set_to(given)]
        return {words[0]: said_by(capsys, *words) for words in (checked, compared)}

    return found


def set_to(settings: Mapping[str, str]) -> list[str]:
    return [word for pair in settings.items() for word in ("--set", "=".join(pair))]


def said_by(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(list(words))
    shown = capsys.readouterr()
    return status, " ".join((shown.out + shown.err).split())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        # who takes part, and what they wrote
        ({"data": "missing.jsonl"}, "missing.jsonl"),
        ({"data": "one.jsonl"}, "user"),
        ({"data": "silent.jsonl"}, "text"),
        ({"client-column": "who"}, "'who'"),
        ({"min-date": "2025-01-01", "data": "undated.jsonl"}, "min-date"),
        ({"epsilon": "0.01", "accept-noise": "false"}, "accept-noise"),
        # labels
        ({"classes": "A;B"}, None),
        ({"classes": "C"}, "classes"),
        ({"classes": "A", "data": "undated.jsonl"}, "classes"),
        # public text
        ({"public-text": "users.jsonl"}, "public-text"),
        ({"public-text": "users.jsonl", "data": "{folder}/users.jsonl"}, "public-text"),
        ({"tracker": "nowhere"}, "tracker"),
        # what the server loads, which a run says itself when it sets its method up
        ({"public-text": "same.jsonl"}, "num-candidates"),
        ({"variation-model": "privsyn-lm"}, "privsyn-lm"),
    ],
)  # fmt: skip
def test_check_and_compare(
    verdicts: Verdicts, folder: Path, settings: dict[str, str], named: str | None
) -> None:
    given = {key: value.format(folder=folder) for key, value in settings.items()}
    for command, (status, said) in verdicts(given).items():
        assert status == (0 if named is None else 2), (command, said)
        assert named is None or named in said, (command, said)


def test_who_is_held_out(capsys: pytest.CaptureFixture[str]) -> None:
    """`--evaluate` before a run, and `privsyn evaluate` after it."""
    app = str(EXAMPLES / "own-data")
    given = {
        "held-out-fraction": "0",
        "num-candidates": "24",
        "epsilon": "20",
        "variation": "mask-fill",
        "synthetic-samples": "0",
    }
    words = [app, *set_to(given), "--set", "data=users.jsonl", "--evaluate", "users.jsonl"]
    # What the run would leave behind that measures nothing: neither texts nor a model.
    config = PrivateEvolutionConfig(epsilon=20.0, held_out_fraction=0.0)
    run = RunDirectory.create("r", config=config.to_dict(), strategy="PrivateEvolution")
    run.mark_finished()
    run.unlock()
    for typed in (["check", *words], ["run", *words], ["evaluate", "r", "--users", "users.jsonl"]):
        status, said = said_by(capsys, *typed)
        assert status == 2, (typed, said)
        assert "held-out-fraction" in said, (typed, said)
