"""What is built holds everything: the wheel is made from the sdist, as on an index."""

from __future__ import annotations

import ast
import email
import importlib
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

import pytest
from packaging.licenses import canonicalize_license_expression

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "flower_privsyn"
EXAMPLES = PACKAGE / "examples"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@dataclass(frozen=True)
class Built:
    """What was built: names inside the sdist and inside the wheel made of it.

    And the metadata of the wheel, and the folder into which it was unpacked.
    """

    source: set[str]
    wheel: set[str]
    metadata: Message
    site: Path

    def run(self, *words: str, folder: Path) -> str:
        """What `privsyn` of the wheel prints, called in a folder outside of the checkout."""
        program = "import sys, flower_privsyn.cli as cli; print(cli.__file__); sys.exit(cli.main())"
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(self.site)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        file, _, shown = done.stdout.partition("\n")
        assert Path(file).is_relative_to(self.site)
        return shown


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    target = tmp_path_factory.mktemp("dist")
    # The build backend looks for its own program on the path.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)],
        check=True,
        capture_output=True,
        env={**os.environ, "PATH": path},
    )
    (sdist,) = target.glob("*.tar.gz")
    (wheel,) = target.glob("*.whl")
    with tarfile.open(sdist) as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        archive.extractall(target / "site")
        message = email.message_from_bytes(archive.read(metadata))
    return Built(source, names, message, target / "site")


def wanted() -> set[str]:
    """Every file of the package that git would ship."""
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "flower_privsyn"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    names = files.stdout.split("\n") if files.returncode == 0 else []
    found = {name for name in names if name and (ROOT / name).is_file()}
    return found or {
        str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*") if path.suffix != ".pyc"
    }


def test_the_wheel_from_the_sdist_holds_every_file(built: Built) -> None:
    assert len(wanted()) > 50
    assert wanted() - built.wheel == set()
    assert wanted() - built.source == set()
    # And one of each kind by name, in case that no list of files can be had.
    for name in (
        "py.typed",
        "examples/quickstart/pyproject.toml",
        "examples/quickstart/quickstart/data/users.jsonl",
        "examples/existing-federation/word_model/task.py",
        "comparison/app/pyproject.toml",
        "data/passages/passages.jsonl.gz",
        "data/sample/users.jsonl",
        "generation/prompts/pre-text.json",
        "models/privsyn-lm/model.safetensors",
        "models/privsyn-lm/README.md",
        "report/templates/run.html.j2",
    ):
        assert f"flower_privsyn/{name}" in built.wheel, name


def test_an_example_comes_out_of_the_wheel(built: Built, tmp_path: Path) -> None:
    assert "privsyn run q" in built.run("new", "quickstart", "q", folder=tmp_path)
    users = "quickstart/data/users.jsonl"
    assert (tmp_path / "q" / users).read_bytes() == (EXAMPLES / "quickstart" / users).read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quickstart_runs_from_the_wheel_alone(built: Built, tmp_path: Path) -> None:
    built.run("new", "quickstart", "q", folder=tmp_path)
    small = ["student-steps=2", "generator-steps=1", "synthetic-samples=8"]
    words = [word for setting in small for word in ("--set", setting)]
    shown = built.run("run", "q", "--run-dir", "run", *words, folder=tmp_path)
    assert "synthetic.jsonl (8)" in shown
    log = (tmp_path / "run.owner" / "flower.log").read_text()
    assert str(ROOT) not in log


def test_the_metadata_names_every_licence_and_the_command(built: Built) -> None:
    assert built.metadata["License-Expression"] == PROJECT["license"]
    assert built.metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
    folder = f"flower_privsyn-{built.metadata['Version']}.dist-info"
    assert {f"{folder}/licenses/LICENSE", f"{folder}/licenses/NOTICE"} <= built.wheel
    assert f"{folder}/entry_points.txt" in built.wheel
    assert PROJECT["scripts"] == {"privsyn": "flower_privsyn.cli:main"}


def test_every_card_has_a_licence_that_the_package_declares() -> None:
    declared = canonicalize_license_expression(PROJECT["license"]).lower().split(" and ")
    cards = [
        *PACKAGE.glob("models/*/README.md"),
        *PACKAGE.glob("data/*/README.md"),
        *PACKAGE.glob("examples/**/data/README.md"),
    ]
    assert len(cards) >= 9
    found = {"apache-2.0"}
    for card in cards:
        _, front, _ = card.read_text(encoding="utf-8").split("---\n", maxsplit=2)
        (line,) = (line for line in front.splitlines() if line.startswith("license: "))
        licences = line.removeprefix("license: ").strip("[]").split(", ")
        if licences == ["other"]:
            assert "license_name: public-domain" in front
            continue
        found |= set(licences)
    assert found == set(declared)
    notice = (ROOT / "NOTICE").read_text()
    for words in ("CC BY-SA 4.0", "CC BY 4.0", "CC BY 3.0", "CC0 1.0", "Apache License"):
        assert words in notice


def test_public_names_are_imported_on_first_use() -> None:
    import flower_privsyn

    assert dir(flower_privsyn) == sorted(flower_privsyn.__all__)
    for name in flower_privsyn.__all__:
        assert getattr(flower_privsyn, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'PORPi'"):
        flower_privsyn.PORPi  # noqa: B018


def test_public_names_are_those_that_type_checkers_see() -> None:
    found = importlib.import_module("flower_privsyn")
    (checked,) = (
        node
        for node in ast.parse(Path(str(found.__file__)).read_text()).body
        if isinstance(node, ast.If)
    )
    seen = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {*seen, "__version__"} == {*found.__all__, "__version__"}
    for name, home in seen.items():
        assert getattr(found, name) is getattr(importlib.import_module(str(home)), name)
    assert len(set(found.__all__)) == len(found.__all__)


def test_every_method_and_its_settings_are_public_names() -> None:
    import flower_privsyn
    from flower_privsyn import strategies
    from flower_privsyn.catalogue import entries

    for entry in entries().values():
        strategy = entry.strategy
        assert getattr(strategies, strategy.config_class.__name__) is strategy.config_class
        assert getattr(flower_privsyn, strategy.__name__) is strategy
