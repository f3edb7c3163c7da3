"""Lines that are added to a file: whole ones, whatever a crash left, and at no cost of the rest."""

from __future__ import annotations

import os
import pwd
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from flower_privsyn.client_apps.guard import policy_file
from flower_privsyn.environment import CACHE, RUNS_FOLDER
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import append_json_lines, default_cache_directory, state_folder
from flower_privsyn.run.directory import default_run_directory


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        (b"", b""),
        (b"\n", b"\n"),
        (b'{"a": 1}\n', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"b', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"b": 2}', b'{"a": 1}\n'),  # whole, but nobody knows that
        (b'{"a": 1}\n\xc3', b'{"a": 1}\n'),
        (b'{"torn', b""),
        (b"{", b""),
    ],
)
def test_a_torn_last_line_is_cut_off(before: bytes, kept: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(before)
    append_json_lines(path, [{"c": 3}, {"d": "é"}])
    assert path.read_bytes() == kept + '{"c": 3}\n{"d": "é"}\n'.encode()


def test_what_stands_in_a_file_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    size = 64 * 2**20
    with path.open("wb") as file:
        os.truncate(file.fileno(), size)  # nothing of it takes room on the disk
        file.seek(size)
        file.write(b"\n")
    tracemalloc.start()
    try:
        append_json_lines(path, [{"a": 1}])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**20
    with path.open("rb") as file:
        file.seek(size)
        assert file.read() == b'\n{"a": 1}\n'


@pytest.mark.parametrize(
    "place",
    [default_cache_directory, state_folder, policy_file, partial(default_run_directory, "a")],
)
def test_a_user_without_a_home_is_told_to_name_it(
    place: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", CACHE, RUNS_FOLDER, "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(ConfigError, match="HOME"):
        place()
