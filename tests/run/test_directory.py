"""The run directory survives crashes, refuses to be shared and says what is wrong in a sentence."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import shutil
import stat
import threading
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from flower_privsyn import files
from flower_privsyn.environment import RUN_DIRECTORY
from flower_privsyn.errors import ConfigError, LedgerError, RunDirectoryError
from flower_privsyn.locks import lock_file
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.changes import record_changes
from flower_privsyn.run.directory import TIMES_STAMP, OwnerFolder
from tests.support.ledgers import write_chain
from tests.support.run_files import add_line


class Relation(enum.StrEnum):
    ZERO_OUT = "zero-out"


def test_create_records_config_versions_and_state(tmp_path: Path) -> None:
    run = RunDirectory.create(
        tmp_path / "deep" / "run",
        config={
            "epsilon": np.float64(7.58),
            "relation": Relation.ZERO_OUT,
            "limits": np.arange(2),
            "missing": float("nan"),
            "file": Path("/data/users.jsonl"),
        },
    )
    assert run.config == {
        "epsilon": 7.58,
        "relation": "zero-out",
        "limits": [0, 1],
        "missing": None,
        "file": "/data/users.jsonl",
    }
    assert run.document["versions"]["flwr"].startswith("1.")
    assert run.status == "running"
    assert run.error is None


def test_create_takes_over_what_the_command_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = {"app": "/apps/quickstart", "name": "quickstart", "run-config": {"note": "one"}}
    path = tmp_path / "run"
    OwnerFolder(path).remember(launch=launch)
    monkeypatch.setenv(RUN_DIRECTORY, str(path))
    run = RunDirectory.create(path, config={"data": "/home/me/users.jsonl", "epsilon": 1.0})
    run.unlock()
    assert run.document["app"] == "quickstart"
    assert run.config == {"epsilon": 1.0}
    own = {"data": "/home/me/users.jsonl", "epsilon": 1.0}
    assert run.owner.own == {"launch": launch, "settings": own}
    # Of an earlier run of this name `flwr run` takes over nothing.
    shutil.rmtree(path)
    monkeypatch.delenv(RUN_DIRECTORY)
    again = RunDirectory.create(path, config={})
    assert "app" not in again.document
    assert again.owner.own == {"launch": {}, "settings": {}}


def test_create_leaves_a_folder_alone_that_is_somebodys(tmp_path: Path) -> None:
    for name in ("users.jsonl", "state.json", "d", "e", "f"):
        (tmp_path / name).write_text("mine")
        os.utime(tmp_path / name, (1e9, 1e9))
    with pytest.raises(RunDirectoryError, match=r"holds other files \(d, e, f\)"):
        RunDirectory.create(tmp_path, config={})
    assert {file.read_text() for file in tmp_path.iterdir()} == {"mine"}
    assert {file.stat().st_mtime for file in tmp_path.iterdir()} == {1e9}


def test_create_goes_over_what_a_killed_start_leaves(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, config={}).unlock()
    (tmp_path / "config.json").rename(tmp_path / ".config.json.77.78")
    (tmp_path / "lost+found").mkdir()
    RunDirectory.create(tmp_path, config={"round": 1}).unlock()
    assert RunDirectory.open(tmp_path).config == {"round": 1}


def test_start_resumes_only_what_has_not_finished(tmp_path: Path) -> None:
    first = RunDirectory.start(tmp_path, config={"seed": 1})
    first.unlock()
    resumed = RunDirectory.start(tmp_path, config={"seed": 2}, resume=True)
    assert resumed.config == {"seed": 1}
    resumed.mark_finished({"texts": 10})
    resumed.unlock()
    assert resumed.state["summary"] == {"texts": 10}
    with pytest.raises(RunDirectoryError, match="has finished; there is nothing to resume"):
        RunDirectory.start(tmp_path, config={}, resume=True)


def test_a_run_that_another_process_finished_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several that resume one run, those that wait for the first have nothing left to do."""
    run = RunDirectory.create(tmp_path / "run", config={})
    run.unlock()
    lock = RunDirectory.lock

    def wait(self: RunDirectory, **options: float) -> None:
        monkeypatch.undo()
        with RunDirectory.open(run.path).session():
            pass  # whoever held the lock finishes the run, and lets go
        lock(self, **options)

    monkeypatch.setattr(RunDirectory, "lock", wait)
    with pytest.raises(RunDirectoryError, match="has finished; there is nothing to resume"):
        RunDirectory.start(run.path, config={}, resume=True)
    assert run.state["starts"] == 1
    run.lock()  # and nobody keeps it
    run.unlock()


def test_a_torn_metrics_line_is_cut_off(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, config={})
    add_line(run, {"round": 1, "distance": np.float32(0.5), "ratio": float("inf")})
    with run.metrics_file.open("a") as file:
        file.write('{"round": 2, "dist')
    assert run.metrics() == [{"round": 1, "distance": 0.5, "ratio": None}]
    add_line(run, {"round": 2})
    assert [line["round"] for line in run.metrics()] == [1, 2]


def test_replacing_keeps_the_old_file_on_an_exception(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    files.write_json(path, {"value": 1})

    def fail_half_way() -> None:
        with files.replacing(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert json.loads(path.read_text()) == {"value": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]


def test_session_records_how_the_work_ended(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, config={})
    with run.session():
        assert run.running_process() == os.getpid()
    assert run.status == "finished"
    assert run.running_process() is None

    with pytest.raises(ConfigError), run.session():
        raise ConfigError("The key epsilon is -1; it must be > 0.")
    assert (run.status, run.error) == ("failed", "The key epsilon is -1; it must be > 0.")
    assert run.state["unexpected"] is False

    with pytest.raises(ZeroDivisionError), run.session():
        _ = 1 / 0
    assert run.error is not None
    assert run.error.startswith("Unexpected ZeroDivisionError in run/test_directory.py line ")
    assert run.state["unexpected"] is True

    with pytest.raises(SystemExit), run.session():
        raise SystemExit(7)
    assert run.error == "The ServerApp called sys.exit(7)."

    for ended in (KeyboardInterrupt(), SystemExit(0)):
        with pytest.raises(type(ended)), run.session():
            raise ended
        assert run.error == "The run was interrupted."
    assert run.state["starts"] == 6


# -------------------------------------------------------------------- the ledger's last line


def _ledger(run: RunDirectory, releases: int) -> str:
    return write_chain(
        run.ledger_file,
        {"event": "opened", "delta": 3e-6, "epsilon_budget": None, "accountant": "pld"},
        *({"event": "release", "round": number} for number in range(1, releases + 1)),
    )


@pytest.fixture
def stating(tmp_path: Path) -> RunDirectory:
    """A run whose ledger has two releases, with a file of every kind that states them."""
    run = RunDirectory.create(tmp_path / "run", config={})
    digest = _ledger(run, 1)
    run.ledger_digest = lambda: digest
    run.finish_round(1)
    run.unlock()
    return run


@pytest.mark.parametrize("what", ["round", "metrics", "state"])
def test_every_later_file_states_the_ledger_s_last_line(stating: RunDirectory, what: str) -> None:
    last = _ledger(stating, 2)
    stating.ledger_digest = lambda: last
    if what == "round":
        stating.finish_round(2)
    elif what == "metrics":
        add_line(stating, {"round": 2})
    else:
        stating.mark_finished()
    again = RunDirectory.open(stating.path)
    assert len(again.ledger().lines) == 3
    assert again.ledger().digests[-1] == last
    again.mark_running()  # by a process that has not opened the ledger yet
    file = {"round": "rounds/0002/state.json", "metrics": "metrics.jsonl", "state": "state.json"}
    assert again.stated_digests()[last] == file[what]
    _ledger(stating, 1)
    for damage in ("cut", "removed"):
        if damage == "removed":
            stating.ledger_file.unlink()
        with pytest.raises(LedgerError, match="lacks the line .* and the run is refused"):
            again.ledger()


# -------------------------------------------------------------------- no time but the creation's


def test_the_owner_s_folder_is_beside_the_run_and_for_the_owner_alone(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", config={})
    with run.session(), run.progress().stage("vote"):
        pass
    folder = tmp_path / "run.owner"
    assert run.owner.path == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "times.jsonl").stat().st_mode) == 0o600
    first, *rest = (folder / "times.jsonl").read_text().splitlines()
    assert json.loads(first) == {"stamp": TIMES_STAMP}
    assert [(line["event"], line.get("name")) for line in run.owner.times()] == [
        ("state", None),
        ("state", None),
        ("stage", "vote"),
        ("state", None),
    ]
    assert len(rest) == 4
    # What an earlier run of this name took is not this run's.
    shutil.rmtree(run.path)
    RunDirectory.create(tmp_path / "run", config={}).unlock()
    assert len(run.owner.times()) == 1


@pytest.mark.parametrize("name", ["link", "run/models/.."])
def test_a_run_by_another_name_is_its_owner_s(tmp_path: Path, name: str) -> None:
    run = RunDirectory.create(tmp_path / "run", config={})
    (run.path / "models").mkdir()
    (tmp_path / "link").symlink_to(run.path)
    assert RunDirectory.open(tmp_path / name).owner.path == run.owner.path


def test_files_get_the_date_of_the_creation(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", config={})
    moment = datetime.fromisoformat(run.document["created"]).timestamp()
    with contextlib.suppress(RuntimeError), run.session():
        (run.round_dir(1) / "model").mkdir()
        (run.round_dir(1) / "model" / "weights").touch()
        os.utime(run.round_dir(1) / "model", (5, 5))
        raise RuntimeError
    assert run.status == "failed"
    assert {entry.stat().st_mtime for entry in [run.path, *run.path.rglob("*")]} == {moment}
    assert (run.path / ".lock").read_text() == ""


@pytest.mark.parametrize("kept", ["expanded.jsonl", "written.jsonl"])
def test_a_change_says_how_many_texts_were_written_before_it(tmp_path: Path, kept: str) -> None:
    run = RunDirectory.create(tmp_path / "run", config={"temperature": 1.0}, strategy="CTCL")
    (run.path / kept).write_text('{"text": "one"}\n{"text": "another"}\n')
    record_changes(run, {"temperature": (1.0, 0.7)})
    (change,) = run.document["changes"]
    assert change["texts_before"] == 2


def test_a_lock_whose_holder_removed_it_is_made_anew(tmp_path: Path) -> None:
    """Else a third process locks a new file, and two hold what is one run."""
    path = tmp_path / "lock"
    held = lock_file(path, what="it")

    def end() -> None:
        path.unlink()
        held.close()

    later = threading.Timer(0.3, end)
    later.start()
    with lock_file(path, what="it") as ours:
        assert os.path.samestat(os.fstat(ours.fileno()), path.stat())
    later.join()


@pytest.mark.parametrize(
    "line",
    [
        {"round": 1},
        {"event": "started", "round": 1},
        {"event": "started", "round": 1, "sampling": "all"},
        {"event": "started", "round": 1, "sampling": {"kind": "poisson"}},
    ],
)
def test_a_start_that_says_no_sampling_names_its_line(
    tmp_path: Path, line: dict[str, object]
) -> None:
    run = RunDirectory.create(tmp_path / "run", config={})
    write_chain(run.ledger_file, {"event": "opened", "delta": 3e-6}, line)
    with pytest.raises(LedgerError, match="line 2 is damaged"):
        run.samplings()
