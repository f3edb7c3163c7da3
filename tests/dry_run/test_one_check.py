"""The same input is refused, or taken, by every command that takes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from flower_privsyn.cli import compare, main
from flower_privsyn.comparison import APP
from flower_privsyn.host import launch
from flower_privsyn.host.app import load_app, resolve_config, strategies_of
from flower_privsyn.run import RunDirectory

EXAMPLES = Path(__file__).parents[2] / "examples"

#: What a run is told by settings and a comparison by options.
OPTIONS = {
    "data": "--data",
    "num-users": "--users",
    "epsilon": "--epsilon",
    "newer-than": "--newer-than",
}

#: Without the model that says how likely texts are, which reads all public text.
LIGHT = {"likelihood-quantile": "0"}

SMALL = {
    "epsilon": "8",
    "num-rounds": "1",
    "num-candidates": "24",
    "num-variations": "3",
    "initial-text": "public",
    **LIGHT,
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
    write("labelled.jsonl", [{"text": f"A boat of {n} oars.", "label": "A"} for n in range(90)])
    return tmp_path


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verdicts:
    """Exit status and words of `run`, `check` and `compare`; 0 where a run would begin."""

    def begins(*_: object, **__: object) -> launch.Outcome:
        return launch.Outcome(path=Path("nowhere"), error=None)

    monkeypatch.setattr(launch, "run_app", begins)
    monkeypatch.setattr(compare, "_follow", lambda *_, **__: 0)

    def found(settings: Mapping[str, str]) -> dict[str, tuple[int, str]]:
        given = {"data": "users.jsonl", **SMALL, **settings}
        words = [word for pair in given.items() for word in ("--set", "=".join(pair))]
        options = [
            word
            for key, value in given.items()
            if not key.endswith("-column")
            for word in ([OPTIONS[key], value] if key in OPTIONS else ["--set", f"{key}={value}"])
        ]
        if client := given.get("client-column"):
            options += ["--columns", f"client={client}"]
        commands = {
            "check": ["check", str(APP), "--config", "cpu/aug-pe", *words],
            "run": ["run", str(APP), "--config", "cpu/aug-pe", *words],
            # Everybody but five takes part, who are no fewer than the noise asks for.
            "compare": ["compare", "--methods", "aug-pe", "--held-out-users", "5", *options],
        }
        said = {}
        for name, typed in commands.items():
            status = main(typed)
            shown = capsys.readouterr()
            said[name] = status, " ".join((shown.out + shown.err).split())
        return said

    return found


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        # who takes part, and what they wrote
        ({"data": "missing.jsonl"}, "missing.jsonl"),
        ({"data": "one.jsonl"}, "user"),
        ({"data": "silent.jsonl"}, "text"),
        ({"client-column": "who"}, "'who'"),
        ({"newer-than": "2025-01-01", "data": "undated.jsonl"}, "newer-than"),
        ({"epsilon": "0.01", "accept-noise": "false"}, "accept-noise"),
        # labels
        ({"classes": "A;B"}, None),
        ({"classes": "C"}, "classes"),
        ({"classes": "A", "data": "undated.jsonl"}, "classes"),
        # public text
        ({"public-text": "first:5:labelled.jsonl"}, "public-text"),
        ({"public-text": "users.jsonl"}, "public-text"),
        ({"public-text": "users.jsonl", "data": "{folder}/users.jsonl"}, "public-text"),
        ({"public-text": "undated.jsonl"}, "public-text"),
        ({"tracker": "nowhere"}, "tracker"),
    ],
)  # fmt: skip
def test_run_check_and_compare(
    verdicts: Verdicts, folder: Path, settings: dict[str, str], named: str | None
) -> None:
    given = {key: value.format(folder=folder) for key, value in settings.items()}
    for command, (status, said) in verdicts(given).items():
        assert status == (0 if named is None else 2), (command, said)
        assert named is None or named in said, (command, said)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"public-text": "same.jsonl"}, "num-candidates"),
        ({"classes": "A;B", "public-text": "labelled.jsonl"}, "public-text"),
        ({"variation-model": "privsyn-lm"}, "privsyn-lm"),
    ],
)
def test_what_the_server_loads(verdicts: Verdicts, settings: dict[str, str], named: str) -> None:
    """A run says so itself, when it sets its method up."""
    said = verdicts(settings)
    assert said.pop("run")[0] == 0
    for command, (status, sentence) in said.items():
        assert status == 2, (command, sentence)
        assert named in sentence, (command, sentence)


def said_by(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(list(words))
    shown = capsys.readouterr()
    return status, " ".join((shown.out + shown.err).split())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"held-out-fraction": "0"}, "held-out-fraction"),
        ({"newer-than": "2025-01-01", "data": "undated.jsonl"}, "newer-than"),
    ],
)
def test_who_is_held_out(
    verdicts: Verdicts,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: dict[str, str],
    named: str,
) -> None:
    """`--evaluate` before a run, and `privsyn evaluate` after it."""
    given = {"held-out-fraction": "0.4", "num-candidates": "24", "epsilon": "20"} | LIGHT | settings
    file = given.pop("data", "users.jsonl")
    words = [word for pair in given.items() for word in ("--set", "=".join(pair))]
    app = [str(EXAMPLES / "own-data"), *words, "--set", "data=users.jsonl", "--evaluate", file]
    # What the run would leave behind that measures nothing: neither texts nor a model.
    values = resolve_config(load_app(EXAMPLES / "own-data"), settings=words[1::2])
    ((config, _),) = strategies_of(load_app(EXAMPLES / "own-data"), values)
    run = RunDirectory.create(
        "r", config={**config.to_dict(), **dict(config.node_settings)}, strategy="PrivateEvolution"
    )
    run.mark_finished()
    run.unlock()
    said = {command: said_by(capsys, command, *app) for command in ("check", "run")}
    said["evaluate"] = said_by(capsys, "evaluate", "r", "--users", file)
    for command, (status, sentence) in said.items():
        assert status == 2, (command, sentence)
        assert named in sentence, (command, sentence)


@pytest.mark.parametrize("wrong", ["a mark", "a module"])
def test_an_app_that_flower_refuses(
    verdicts: Verdicts, folder: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """`privsyn run` leaves that to Flower."""
    app = shutil.copytree(APP, folder / "app")
    project = app / "pyproject.toml"
    text = project.read_text()
    if wrong == "a mark":
        project.write_text("\ufeff" + text)
    else:
        project.write_text(text.replace("flower_privsyn.comparison.server_app", "nowhere.at_all"))
    assert project.read_text() != text
    monkeypatch.setattr("flower_privsyn.comparison.APP", app)
    monkeypatch.setitem(verdicts.__globals__, "APP", app)
    said = verdicts({})
    assert "Flower refuses the app" in said["check"][1]
    assert "Flower refuses the app" in said["compare"][1]
