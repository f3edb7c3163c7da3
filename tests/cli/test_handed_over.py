"""A run directory that somebody hands over is read: nothing of it is run, asked, told or obeyed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import flower_privsyn
from flower_privsyn.cli import main
from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.files import write_json
from flower_privsyn.host import launch
from flower_privsyn.host.app import load_app
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import OwnerFolder
from flower_privsyn.strategies.more_text import MoreText
from tests.support.federation import make_users
from tests.support.flower_app import write_app
from tests.support.generation_server import Server

Builder = Callable[..., Any]

SECRET = "sk-live-0123456789abcdef"


@pytest.fixture
def finished(federation: Builder, settings: Builder, evolution: Builder) -> RunDirectory:
    strategy = evolution(settings(num_rounds=2, held_out_fraction=0.3))
    strategy.start(federation(make_users(40)))
    return RunDirectory.open(strategy.run.path)


@pytest.fixture
def handed(
    finished: RunDirectory, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """In another user's home: a copy of a run directory that its author has changed, and more.

    Beside it lies what an archive may bring along: an owner's folder that names the author's app.
    """
    home = tmp_path / "home-of-another"
    path = home / "run"
    shutil.copytree(finished.path, path)
    evil = write_app(tmp_path / "evil")
    (evil / "asking" / "server_app.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
        + (evil / "asking" / "server_app.py").read_text()
    )
    asked = {
        "app": str(evil),
        "name": "asking-app",
        "run-config": dict(load_app(evil).defaults),
        "federation-config": {"num-supernodes": 1},
        "working-directory": str(tmp_path),
    }
    change(path, app="asking-app", launch=asked, writer=None)
    (home / "run.owner").mkdir()
    write_json(home / "run.owner" / "own.json", {"launch": asked, "seal": "0" * 64})
    (path / ".flower").mkdir()  # where it stood once
    write_json(path / ".flower" / "launch.json", asked)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("PRIVSYN_API_KEY", SECRET)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    monkeypatch.chdir(home)
    return path


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path) -> Any:
    yield
    assert not (tmp_path / "ran").exists()


def change(path: Path, config: dict[str, Any] | None = None, **document: Any) -> None:
    """Write other settings, and other things, into a `config.json`."""
    file = path / "config.json"
    before = json.loads(file.read_text())
    write_json(file, {**before, **document, "config": {**before["config"], **(config or {})}})


def unfinish(path: Path) -> None:
    state = json.loads((path / "state.json").read_text())
    write_json(path / "state.json", {**state, "status": "failed", "error": "The disk was full."})
    (path / "rounds" / "0002" / "state.json").unlink()


def held_out(tmp_path: Path) -> str:
    file = tmp_path / "others.jsonl"
    rows = (json.dumps({"client_id": f"o{n}", "text": f"a text {n}"}) for n in range(12))
    file.write_text("\n".join(rows) + "\n")
    return str(file)


def test_is_looked_at(handed: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    change(handed, {"generator": f"{server.url}#tiny"})
    assert main(["inspect", str(handed)]) == 0
    assert main(["inspect", str(handed), "--json"]) == 0
    assert main(["report", str(handed)]) == 0
    run = flower_privsyn.open_run(handed)
    assert (len(run.rounds), run.releases, len(run.texts)) == (2, 2, 12)
    assert not run.candidates.empty
    unfinish(handed)
    capsys.readouterr()
    assert main(["inspect", str(handed)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "privsyn resume" in said
    assert server.requests == []
    assert SECRET not in said + "".join(
        file.read_text(errors="replace") for file in handed.rglob("*") if file.is_file()
    )


@pytest.mark.parametrize(
    ("words", "config", "key"),
    [
        (["expand"], {"generator": "SERVER"}, "generator"),
        (["expand"], {"generator": "some-body/some-model"}, "generator"),
        (
            ["expand", "--set", "generator=privsyn-lm"],
            {"prompt": "/home/me/secrets.json"},
            "prompt",
        ),
        (
            ["expand", "--set", "generator=SERVER"],
            {"generator-parameters": '{"user": "me"}'},
            "generator-parameters",
        ),
        (["evaluate", "--held-out", "OTHERS"], {"embedding-model": "SERVER"}, "embedding-model"),
    ],
)
def test_what_it_names_is_named_by_the_reader_or_not_at_all(
    handed: Path,
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    config: dict[str, str],
    key: str,
) -> None:
    places = {"SERVER": f"{server.url}#tiny", "generator=SERVER": f"generator={server.url}#tiny"}
    places |= {"OTHERS": held_out(tmp_path)}
    change(handed, {name: places.get(value, value) for name, value in config.items()})
    command, *rest = words
    assert main([command, str(handed), *(places.get(word, word) for word in rest)]) == 2
    assert f"{handed} says {key} = " in capsys.readouterr().err
    assert server.requests == []


def test_a_key_goes_where_its_owner_says(
    handed: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    change(handed, {"generator": "http://elsewhere/v1#m"})
    words = ["--set", f"generator={server.url}#tiny"]
    assert main(["expand", str(handed), "--samples", "3", *words]) == 0, capsys.readouterr().err
    assert {sent.get("authorization") for _, _, sent in server.requests} == {f"Bearer {SECRET}"}


def test_ones_own_run_is_gone_on_with_as_it_was(
    finished: RunDirectory, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"generator": f"{server.url}#tiny"}
    monkeypatch.setenv("PRIVSYN_API_KEY", SECRET)
    change(finished.path, own, writer=None)
    finished.owner.remember(settings={**finished.config, **own})
    assert main(["expand", str(finished.path), "--samples", "3"]) == 0
    assert {sent.get("authorization") for _, _, sent in server.requests} == {f"Bearer {SECRET}"}
    # The directory was given back changed: its own settings are not the owner's any more.
    change(finished.path, {"generator-parameters": '{"user": "me"}'})
    assert main(["expand", str(finished.path), "--samples", "6"]) == 2


def test_nobody_elses_app_is_run(
    handed: Path,
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unfinish(handed)
    assert main(["resume", str(handed)]) == 2
    said = capsys.readouterr().err
    assert f"privsyn resume {handed} --app APP" in said
    assert str(tmp_path / "evil") not in said
    mine = load_app(write_app(tmp_path / "mine"))
    with monkeypatch.context() as patch:
        patch.setattr(launch, "_launch", lambda *given, **how: given)
        app, _, asked = cast(Any, launch.resume_run(handed, app=mine))
    assert (app, asked["run-config"]) == (mine, dict(mine.defaults))
    # So of this package's own: a setting that differs is refused, and none is taken over.
    change(handed, {"generator": f"{server.url}#tiny"}, strategy="PrivateEvolution")
    bundled = Path(flower_privsyn.__file__).parents[1] / "baselines" / "pre-text"
    assert main(["resume", str(handed), "--app", str(bundled)]) == 2
    assert "differs from the" in capsys.readouterr().err
    assert server.requests == []


def test_the_owners_folder_counts_for_who_wrote_it(
    finished: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "elsewhere" / "run"
    assert finished.owner.own["settings"]["run-dir"] == str(finished.path)
    shutil.copytree(finished.owner.path, OwnerFolder(path).path)
    assert OwnerFolder(path).own == finished.owner.own != {}  # moved, or copied
    stated = finished.owner.stated
    for wrong in ({**stated, "launch": {"app": "/evil"}}, {**stated, "seal": None}, {"a": 1}):
        write_json(OwnerFolder(path).own_file, wrong)
        assert OwnerFolder(path).own == {}
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of-another"))
    assert finished.owner.own == {}
    assert MoreText.of(finished, {"generator": "privsyn-lm"}).prompt == "pre-text"


@pytest.mark.parametrize("name", ["synthetic.jsonl", "rounds/0001/mine", "models"])
def test_a_directory_that_leads_elsewhere_is_refused(
    handed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("nobody's business\n")
    (handed / name).unlink(missing_ok=True)
    (handed / name).symlink_to(tmp_path if name == "models" else mine)
    for words in (["inspect"], ["report"], ["expand"], ["resume"]):
        assert main([*words, str(handed)]) == 2
        said = capsys.readouterr()
        assert f"{handed / name} is a link" in said.err
        assert "nobody's" not in said.out + said.err
    with pytest.raises(RunDirectoryError, match="is a link"):
        flower_privsyn.open_run(handed)
    assert mine.read_text() == "nobody's business\n"


def test_an_owners_folder_that_leads_elsewhere_is_not_written(handed: Path, tmp_path: Path) -> None:
    unfinish(handed)
    keys = tmp_path / "my-folder" / "keys"
    keys.mkdir(parents=True)
    (keys / "mine").touch()
    shutil.rmtree(OwnerFolder(handed).path)
    app = load_app(write_app(tmp_path / "app"))
    OwnerFolder(handed).path.symlink_to(keys.parent)
    with pytest.raises(RunDirectoryError, match="is a link"):
        launch.resume_run(handed, app=app)
    OwnerFolder(handed).path.unlink()
    OwnerFolder(handed).path.mkdir()
    OwnerFolder(handed).log_file.symlink_to(keys / "mine")
    with pytest.raises(RunDirectoryError, match="is a link"):
        launch.resume_run(handed, app=app)
    assert (keys / "mine").read_bytes() == b""


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\x7f\rprivsyn: all is well"


def test_nothing_that_it_says_moves_a_terminal(
    handed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others, plain = held_out(tmp_path), ("--set", "prompt=pre-text")
    text = {"text": EVIL, "round": 2, "parent": [EVIL], "source": EVIL, "label": EVIL}
    (handed / "synthetic.jsonl").write_text(json.dumps(text) + "\n")
    evil = {"from": EVIL, "to": EVIL}
    change(
        handed,
        {"generator": EVIL, "embedding-model": EVIL, "prompt": EVIL, "tracker": EVIL},
        app=EVIL,
        strategy=EVIL,
        created=EVIL,
        writer=EVIL,
        changes=[{"after_round": EVIL, "settings": {EVIL: evil}, "versions": {EVIL: evil}}],
    )
    (handed / EVIL.replace("/", "")).touch()
    state = json.loads((handed / "state.json").read_text())
    for status in ("finished", "failed"):
        write_json(handed / "state.json", {**state, "status": status, "error": EVIL})
        for words in (
            ["inspect", str(handed)],
            ["inspect", str(handed), "--json"],
            ["report", str(handed)],
            ["expand", str(handed)],
            ["expand", str(handed), "--samples", "2", "--set", "generator=privsyn-lm", *plain],
            ["resume", str(handed)],
            ["evaluate", str(handed), "--held-out", others],
            ["inspect", str(handed), "--rank", "bundled"],
        ):
            main(words)
            said = capsys.readouterr()
            assert said.out + said.err
            assert not CONTROL.search(said.out + said.err), words
    assert main(["inspect", str(handed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"] == EVIL
