"""Lines are counted by what stands on them."""

import json
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
        "docs/conf.py": "x = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "flower_privsyn" / "report" / "link.py").symlink_to("page.py")
    return tmp_path


def test_a_file() -> None:
    found = lines.lines_of("a.py", MODULE)
    assert found == lines.Lines(files=1, code=8, docstrings=6, comments=2, blank=4)


def test_rooms_files_and_a_revision(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)

    def printed(*words: str) -> str:
        lines.main([*words, "--folder", str(folder)])
        return capsys.readouterr().out

    found = json.loads(printed("--json"))["lines"]
    assert list(found) == ["errors", "report", "flower_privsyn", "tests", "total"]
    assert found["report"] == {
        "files": 2,
        "code": 3,
        "docstrings": 0,
        "comments": 0,
        "blank": 1,
    }
    assert found["flower_privsyn"]["code"] == found["total"]["code"] == 11
    (folder / "flower_privsyn" / "report" / "page.py").write_text("x = 1\ny = 2\n")
    (folder / "flower_privsyn" / "errors.py").unlink()
    table = {
        line[:15].strip(): line[15:].split() for line in printed("--against", "HEAD").split("\n")
    }
    assert table["errors"][:4] == ["0", "-1", "0", "-8"]
    assert table["report"][:4] == ["2", "+0", "4", "+1"]
    page = printed("--against", "HEAD", "--files", "report").split("\n")[1]
    assert page.split()[:5] == ["flower_privsyn/report/page.py", "1", "+0", "2", "+1"]
    with pytest.raises(SystemExit, match="nothing"):
        printed("--against", "nothing")
