"""The command line as a whole: exit statuses, usage, and what a start loads."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from flower_privsyn.cli import inspect, main
from flower_privsyn.cli.app import privsyn
from flower_privsyn.cli.signals import Stopped


def test_an_unexpected_error_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(inspect, "inspect_run", fail)
    monkeypatch.delenv("PRIVSYN_TRACEBACK", raising=False)
    assert main(["inspect", "x"]) == 1
    assert "unexpected ZeroDivisionError: by zero" in capsys.readouterr().err
    monkeypatch.setenv("PRIVSYN_TRACEBACK", "1")
    before = sys.excepthook  # which would show the values of variables
    with pytest.raises(ZeroDivisionError):
        main(["inspect", "x"])
    assert sys.excepthook is before


@pytest.mark.parametrize("end", [KeyboardInterrupt, Stopped])
def test_an_interruption_is_status_130(
    end: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(_: str) -> None:
        raise end

    monkeypatch.setattr(inspect, "inspect_run", stop)
    assert main(["inspect", "x"]) == 130
    assert capsys.readouterr().err == "privsyn: interrupted\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Missing command."),
        (["node"], "Missing command."),
        (["reun"], "No such command 'reun'. (Did you mean one of: 'resume', 'run'?)"),
        (["run"], "Missing argument 'APP'."),
        (["run", "a", "b"], "Got unexpected extra argument (b)"),
        (["inspect", "x", "--jsn"], "No such option '--jsn'. Did you mean '--json'?"),
        (["budget", "--rounds", "3"], "Missing option '--delta'."),
        (["budget", "--rounds", "x"], "Invalid value for '--rounds': 'x' is not a valid integer."),
        (["compare", "--data", "a", "--epsilon", "1", "b"], "'b' is not a valid float."),
        (["node", "policy", "a", "b"], "Got unexpected extra argument (b)"),
    ],
)
def test_what_cannot_be_read_is_named_with_status_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    usage, last = shown.err.splitlines()
    assert usage.startswith(" ".join(["Usage: privsyn", *words[:1]]) if words != ["reun"] else "")
    assert last.startswith("privsyn: ")
    assert sentence in last
    assert not shown.out


def test_every_command_has_plain_help(capsys: pytest.CaptureFixture[str]) -> None:
    context = click.Context(privsyn)
    paths: list[list[str]] = [[]]
    for name in privsyn.list_commands(context):
        paths.append([name])
        command = privsyn.get_command(context, name)
        if isinstance(command, click.Group):
            paths += [[name, below] for below in command.commands]
    assert ("node", "digest") in set(map(tuple, paths))
    for path in paths:
        assert main([*path, "--help"]) == 0
        long = capsys.readouterr().out
        assert main([*path, "-h"]) == 0
        assert capsys.readouterr().out == long
        assert long.startswith(" ".join(["Usage: privsyn", *path]))
        assert "\\" not in long
        assert "Arguments:" not in long  # explained in the description


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


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "~nouser/x"],
        ["run", "~nouser/x"],
        ["resume", "~nouser/x"],
        ["report", "~nouser/x"],
        ["evaluate", "~nouser/x", "--users", "u.csv"],
        ["data", "~nouser/x"],
        ["compare", "--data", "~nouser/x", "--epsilon", "1"],
        ["new", "quickstart", "~nouser/x"],
        ["node", "policy", "~nouser/x"],
    ],
)
def test_a_home_that_nobody_has_is_named(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("privsyn: ")
    assert "~nouser/x: there is no home folder of ~nouser on this machine" in said[-1]
