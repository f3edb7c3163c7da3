"""What holds for every command: its help, how it refuses, and its JSON."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from flower_privsyn.cli import main
from flower_privsyn.cli.app import privsyn
from flower_privsyn.cli.output import tell
from flower_privsyn.report import summary
from flower_privsyn.run import RunDirectory
from tests.support.checked import users_file

Words = list[str]


def every_command() -> Iterator[tuple[str, click.Command]]:
    """The commands, those of groups behind the name of their group."""
    groups: list[tuple[str, click.Command]] = [("", privsyn)]
    for path, command in groups:
        if path:
            yield path, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                one = command.get_command(context, name)
                assert one is not None
                groups.append((f"{path} {name}".strip(), one))


COMMANDS = dict(every_command())

#: Words with which a command does what it is for: RUN, USERS and NEW stand for paths.
WORKS = {
    "new": "quickstart NEW",
    "inspect": "RUN",
    "methods": "",
    "data": "USERS",
    "advise": "--users 5000 --epsilon 1",
    "report": "RUN",
    "budget": "--rounds 3 --delta 1e-6 --noise-multiplier 2",
    "node policy": "",
    "node ledger": "",
    "node key": "NEW --init",
    "node digest": "FOLDER",
}

#: And those that take long enough to be tested where what they do is.
LONG = {"check", "run", "resume", "evaluate", "compare", "expand"}


@pytest.fixture
def typed(run: RunDirectory, tmp_path: Path) -> Callable[[str], Words]:
    """The words of `WORKS` for a command, with a finished run, users, and a name that is free."""
    places = {"RUN": run.path, "NEW": tmp_path / "new", "FOLDER": tmp_path / "model"}
    places["USERS"] = users_file(tmp_path)
    places["FOLDER"].mkdir()
    (places["FOLDER"] / "config.json").write_text("{}")
    return lambda command: [
        *command.split(),
        *(str(places.get(word, word)) for word in WORKS[command].split()),
    ]


def test_every_command_is_here() -> None:
    assert COMMANDS.keys() == WORKS.keys() | LONG | {"node"}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_plain(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    long = capsys.readouterr().out
    assert main([*command.split(), "-h"]) == 0
    assert capsys.readouterr().out == long
    assert long.startswith(f"Usage: privsyn {command}")
    assert "\\" not in long
    assert "Arguments:" not in long  # explained in the description


@pytest.mark.parametrize("command", privsyn.commands)
def test_the_list_of_commands_says_the_first_sentence_of_each(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--help"])
    listed = dict(re.findall(r"^  (\w+) +(\S.*)$", capsys.readouterr().out, re.MULTILINE))
    main([command, "--help"])
    assert capsys.readouterr().out.splitlines()[2] == f"  {listed[command]}"


@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_read_is_named_with_status_2(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = [one.metavar for one in COMMANDS[command].params if one.required]
    assert main([*command.split(), *(["x"] * len(needed)), "--no-such-option"]) == 2
    shown = capsys.readouterr()
    usage, last = shown.err.splitlines()
    assert usage.startswith(f"Usage: privsyn {command}")
    assert last.startswith("privsyn: No such option '--no-such-option'")
    assert not shown.out
    if needed:
        assert main(command.split()) == 2
        assert "Missing" in capsys.readouterr().err


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize("command", WORKS)
def test_it_works_in_words_and_as_json(
    command: str, typed: Callable[[str], Words], capsys: pytest.CaptureFixture[str]
) -> None:
    words = typed(command)
    assert main(words) == 0
    assert capsys.readouterr().out
    if any("--json" in one.opts for one in COMMANDS[command].params):
        assert main([*words, "--json"]) == 0
        json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "words",
    ["inspect ~", "run ~", "check ~", "resume ~", "report ~", "expand ~", "data ~",
     "evaluate ~ --users u.csv", "compare --data ~ --epsilon 1", "new quickstart ~",
     "node policy ~", "node digest ~", "node key ~"],
)  # fmt: skip
def test_a_home_that_nobody_has_is_named(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.replace("~", "~nouser/x").split()) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("privsyn: ")
    assert "~nouser/x: there is no home folder of ~nouser on this machine" in last


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize("words", ["inspect x", "resume x", "check x", "node policy"])
def test_a_folder_that_cannot_be_entered_is_status_2(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: bool) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    assert main(words.split()) == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", ""])
def test_it_says_what_it_can_where_it_can(
    encoding: str, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write_synthetic([{"text": "ü ∀ \U0001f600", "round": 2, "parent": None, "source": "x"}])
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding) if encoding else None  # closed by the shell
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["inspect", str(run.path), "--json"]) == 0
    if encoding:
        assert json.loads(raw.getvalue().decode(encoding))["samples"] == ["ü ∀ \U0001f600"]
    with Path("/dev/null").open() as unwritable:
        monkeypatch.setattr(sys, "stderr", unwritable)
        tell("what is done all the same")


def test_an_unexpected_error_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(summary, "open_run", fail)
    monkeypatch.delenv("PRIVSYN_TRACEBACK", raising=False)
    assert main(["inspect", "x"]) == 1
    assert "unexpected ZeroDivisionError: by zero" in capsys.readouterr().err
    monkeypatch.setenv("PRIVSYN_TRACEBACK", "1")
    before = sys.excepthook  # which would show the values of variables
    with pytest.raises(ZeroDivisionError):
        main(["inspect", "x"])
    assert sys.excepthook is before


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_is_status_130(
    end: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(_: str) -> None:
        signal.raise_signal(end)

    monkeypatch.setattr(summary, "open_run", stop)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Flower leaves its own
    try:
        assert main(["inspect", "x"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "privsyn: interrupted\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("privsyn ")


def test_help_imports_little() -> None:
    # Counted, never timed: a third more modules than Python and Typer need were 0.25 s.
    program = (
        "import sys\n"
        "import typer.main\n"
        "with_typer = set(sys.modules)\n"
        "from flower_privsyn.cli import main\n"
        "main(['--help'])\n"
        "ours = {name for name in sys.modules if name.startswith('flower_privsyn')}\n"
        "print(len(set(sys.modules) - with_typer - ours), len(ours), file=sys.stderr)\n"
        "print(*sorted({'torch', 'flwr', 'numpy', 'rich'} & set(sys.modules)),"
        " file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "resume" in done.stdout
    counts, heavy = done.stderr.splitlines()
    others, ours = map(int, counts.split())
    assert not heavy
    assert others <= 40
    assert ours <= 30
