"""The check of a release refuses what a release must not be."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from scripts.release import ROOT, build, checksums, refuse_foreign_files, refuse_unequal_versions

PLACES = ("pyproject.toml", "flower_privsyn/__init__.py", "CHANGELOG.md", "CITATION.cff")
OURS = (
    "flower_privsyn/py.typed",
    "flower_privsyn-1.0.dist-info/licenses/LICENSE",
    "flower_privsyn-1.0.dist-info/licenses/NOTICE",
)


def wheel(folder: Path, *names: str) -> Path:
    file = folder / "flower_privsyn-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return file


@pytest.mark.parametrize("place", PLACES[1:])
def test_a_version_that_differs_anywhere_is_refused(place: str, tmp_path: Path) -> None:
    version = refuse_unequal_versions()
    for name in PLACES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    assert refuse_unequal_versions(tmp_path) == version
    text = (tmp_path / place).read_text("utf-8")
    (tmp_path / place).write_text(text.replace(version, "9.9.9", 1), "utf-8")
    with pytest.raises(SystemExit, match=rf"version {version}, {place} says 9\.9\.9"):
        refuse_unequal_versions(tmp_path)


def test_a_wheel_holds_the_package_alone(tmp_path: Path) -> None:
    assert refuse_foreign_files(wheel(tmp_path, *OURS)) == 3
    with pytest.raises(SystemExit, match="holds tests"):
        refuse_foreign_files(wheel(tmp_path, *OURS, "tests/conftest.py"))
    with pytest.raises(SystemExit, match=r"lacks /licenses/NOTICE"):
        refuse_foreign_files(wheel(tmp_path, *OURS[:2]))


def test_checksums_are_read_by_sha256sum(tmp_path: Path) -> None:
    file = wheel(tmp_path, *OURS)
    (tmp_path / "SHA256SUMS").write_text(checksums([file]), "utf-8")
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True)


def test_artefacts_of_before_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    wheel(tmp_path, *OURS)
    with pytest.raises(SystemExit, match="holds artefacts"):
        build(tmp_path)
