"""Lines are counted by what stands on them."""

import re
import subprocess
from pathlib import Path

import pytest

from scripts import lines

MODULE = '''"""What it is.

More.
"""

import sys  # a comment behind code

# One of its own.
TEXT = """
not a docstring
"""
#: Said of a name.
"""Said behind a name."""


def f() -> None:
    """Say it."""
    sys.exit(
        "out"
    )
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "flower_privsyn/errors.py": MODULE,
        "flower_privsyn/report/page.py": "x = 1\n",
        "flower_privsyn/report/templates/page.html.j2": "<p>\n\n</p>\n",
        "flower_privsyn/report/data.json": "{}\n",
        "tests/test_it.py": "",
        "research/measure.py": "x = 1\n",
        "docs/conf.py": "x = 1\n",
        "pyproject.toml": '[[tool.importlinter.contracts]]\nlayers = ["a", "b | c"]\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "flower_privsyn" / "report" / "link.py").symlink_to("page.py")
    return tmp_path


def test_a_file() -> None:
    found = lines.lines_of("a.py", MODULE)
    assert found == lines.Lines(files=1, code=8, tokens=18, docstrings=6, comments=2, blank=4)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[str]]:
    lines.main([*words])
    rows = [row for row in capsys.readouterr().out.splitlines() if not row.startswith(" ")]
    return {re.split(r"  +\S", row)[0]: re.split(r"  +", row)[1:] for row in rows}


def test_rooms_files_and_a_revision(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    found = printed(capsys, "--folder", str(folder))
    assert list(found)[:4] == ["errors", "report", "flower_privsyn", "tests"]
    assert found["report"] == ["2", "3", "3", "0", "0", "1"]
    assert found["flower_privsyn"][1] == "11"
    assert found["scripts + benchmarks + research"][:2] == ["1", "1"]
    (folder / "flower_privsyn" / "report" / "page.py").write_text("x = 1; y = 2\nz = 3\n")
    (folder / "flower_privsyn" / "errors.py").unlink()
    found = printed(capsys, "--folder", str(folder), "--against", "HEAD")
    assert found["errors"][:2] == ["0 -1", "0 -8"]
    assert found["report"][:3] == ["2 +0", "4 +1", "10 +7"]
    found = printed(capsys, "--folder", str(folder), "--against", "HEAD", "--files", "report")
    assert found["flower_privsyn/report/page.py"][1] == "2 +1"
    with pytest.raises(SystemExit, match="nothing"):
        lines.main(["--folder", str(folder), "--against", "nothing"])
