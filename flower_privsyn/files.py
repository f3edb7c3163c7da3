"""Files that survive a crash, paths as the user meant them, and the clock of what is recorded.

Every time and every duration that this package writes anywhere is taken here, so that a test can
stop the clock, or make it jump, and see which files change. Deadlines and pauses, which are never
written, use `time` itself.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import shlex
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from flower_privsyn.environment import CACHE, WORKING_DIRECTORY
from flower_privsyn.errors import ConfigError, PrivsynError, RunDirectoryError


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def seconds() -> float:
    """Seconds from some moment on, never backwards: for durations."""
    return time.monotonic()


def expanded(path: str | Path) -> Path:
    """A path whose `~` or `~name` is the home of a user.

    Raises:
        ConfigError: There is no such user, or nothing says where this one's home is.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        who = str(path).partition("/")[0]
        raise ConfigError(
            f"{path}: there is no home folder of {who} on this machine: HOME says where it is."
        ) from None


#: How libraries say that a disk has no room left: the system's words, SQLite's, a quota's, NumPy's.
_NO_ROOM = re.compile(
    r"No space left on device|disk is full|Disk quota exceeded|os error 28"
    r"|\d+ requested and \d+ written"
)


@contextlib.contextmanager
def os_errors_as(kind: type[PrivsynError], what: str) -> Iterator[None]:
    """Raise what goes wrong with files in this block as an error of the package.

    Args:
        kind: of error.
        what: a sentence without its end, such as "The page cannot be written"; why is added to it.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}.") from error


def default_cache_directory() -> Path:
    """The folder of caches: `PRIVSYN_CACHE`, else `~/.cache/flower-privsyn`.

    It may be deleted at any time. On a node it holds embeddings of private text, and is as private
    as that; on a server candidate texts and models.
    """
    return expanded(os.environ.get(CACHE) or "~/.cache/flower-privsyn")


def state_folder() -> Path:
    """Where this user's own accounts and keys are: `flower-privsyn` in the state folder
    (`XDG_STATE_HOME`, else `~/.local/state`).
    """  # noqa: D205 - one sentence
    return expanded(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "flower-privsyn"


def own_folder(folder: Path) -> None:
    """Make a folder for this user alone; one that is there keeps its mode, and is checked.

    Whoever can write into a folder can put another file in the place of one that is trusted.

    Args:
        folder: of ledgers, keys or caches.

    Raises:
        OSError: it cannot be made, is another user's, or others can write into it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(
            errno.EACCES,
            "it must belong to the user of this process and be writable by nobody else; it is "
            f"user {status.st_uid}'s and has mode {status.st_mode & 0o7777:04o}",
            str(folder),
        )


def user_path(path: str | Path) -> Path:
    """A path as the user meant it: relative to the folder the command was typed in.

    Under `privsyn run` the ServerApp and the nodes run in a neutral folder, not in the user's.
    """
    found = expanded(path)
    if found.is_absolute():
        return found
    return Path(os.environ.get(WORKING_DIRECTORY) or Path.cwd()) / found


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits.

    Raises:
        OSError: It cannot be read.
    """
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replacing(path: Path, *, for_the_owner: bool = False) -> Iterator[BinaryIO]:
    """Write a file as a whole: yields a temporary file that becomes `path` when the block ends.

    The content is on disk before the name changes; on an exception `path` stays as it was. A
    process that is killed in between leaves the temporary file (`leftovers`).

    Args:
        path: The file.
        for_the_owner: Give it mode 0600, from before its first byte.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.unlink(missing_ok=True)  # of a killed process whose number came again
    opener = partial(os.open, mode=0o600 if for_the_owner else 0o666)
    try:
        with open(temporary, "xb", opener=opener) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk: a new one is durable only then."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def leftovers(path: Path) -> list[Path]:
    """Temporary files that killed processes left of `replacing`; also one that is being written."""
    return sorted(path.parent.glob(f".{glob.escape(path.name)}.*"))


def remove_old(files: Iterable[Path], *, seconds: float) -> None:
    """Delete what no process has written for so long; one that cannot be deleted stays."""
    oldest = time.time() - seconds
    for file in files:
        with contextlib.suppress(OSError):  # another process may be faster
            if file.stat().st_mtime < oldest:
                file.unlink()


def write_new(path: Path, text: str, *, for_the_owner: bool = False) -> None:
    """Write a file where none is, and the folders above it.

    Args:
        path: the file.
        text: what it holds, in UTF-8.
        for_the_owner: nobody else can read it, or list the folders that are made for it.

    Raises:
        ConfigError: there is one already, or it cannot be written.
    """
    folders, mode = (0o700, 0o600) if for_the_owner else (0o777, 0o666)
    with os_errors_as(ConfigError, f"{path} cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=folders)
        try:
            with open(path, "x", encoding="utf-8", opener=partial(os.open, mode=mode)) as file:
                file.write(text)
        except FileExistsError:
            raise ConfigError(f"{path} exists and is left as it is.") from None


def write_json(path: Path, value: Mapping[str, Any], *, for_the_owner: bool = False) -> None:
    """Write a JSON file as a whole, durably; see `plain` for what the values become.

    Args:
        path: the file.
        value: what it is to hold.
        for_the_owner: whether nobody else may read it.
    """
    text = json.dumps(plain(value), ensure_ascii=False, indent=2) + "\n"
    with replacing(path, for_the_owner=for_the_owner) as file:
        file.write(text.encode())


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where the file is missing or holds none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_toml(path: Path, *, called: str = "") -> dict[str, Any]:
    """The table in a TOML file, which may begin with the mark that editors on Windows write.

    Args:
        path: the file.
        called: what a message calls it before its path, such as "The node policy".

    Raises:
        ConfigError: It cannot be read, or is no TOML.
    """
    name = f"{called} {path}".strip()
    with os_errors_as(ConfigError, f"{name} cannot be read"):
        try:
            return tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except ValueError as error:  # TOML's, and that of a file that is no UTF-8
            raise ConfigError(f"{name} is not valid TOML: {error}.") from error


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a JSON-lines file; a torn last line is left out, a missing file is empty.

    Raises:
        RunDirectoryError: A line before the last is not a JSON object.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise RunDirectoryError(f"{path} line {number} is not a JSON object.")
            yield record


def append_json_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Add lines to a JSON-lines file; they are on disk when the function returns.

    A line torn by an earlier crash is cut off first. See `plain` for what the values become.
    """
    lines = json_lines(records)
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


def json_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Objects as JSON lines; see `plain` for what the values become."""
    lines = (json.dumps(plain(record), ensure_ascii=False) + "\n" for record in records)
    return "".join(lines).encode()


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what led to it, is that a disk has no room left."""
    seen = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if _NO_ROOM.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def try_file(folder: Path, *, size: int = 0) -> None:
    """Make a file without a name in a folder, and let go of it.

    Rights alone do not tell: a file system may be mounted to be read, and a disk may be full.

    Args:
        folder: that is there.
        size: bytes that are written to the disk.

    Raises:
        OSError: the folder takes no such file.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        if size:
            file.write(bytes(size))
            file.flush()
            os.fsync(file.fileno())


def quoted(path: Path) -> str:
    """A path as a word of a command that somebody may paste into a shell."""
    return shlex.quote(str(path))


def plain(value: Any) -> Any:
    """The value in types JSON knows: arrays as lists, paths as text, NaN and infinity as null.

    Raises:
        TypeError: there is a value of another type.
    """
    return json.loads(json.dumps(value, default=_known), parse_constant=lambda _name: None)


def _known(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy arrays and scalars, without importing numpy
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"A value of type {type(value).__name__} cannot be stored as JSON.")
