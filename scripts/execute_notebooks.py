"""Execute the notebooks of the package and keep what they print.

    python -m scripts.execute_notebooks [NAME ...]

runs each in a folder of its own, with a kernel of this environment, and writes it back with its
outputs, whose paths are shortened. Without names it executes all.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "flower_privsyn" / "examples" / "notebooks"
TIMEOUT = 900

#: What is kept of what a cell shows.
_SHOWN = ("text/plain", "image/png")


def execute(notebook: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook with what it prints.

    Args:
        notebook: the file; it stays as it is.
        folder: empty, where it runs and writes.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    # Programs of this environment are found first, as after its activation.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    plain = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "100"}  # progress is not drawn
    environment = os.environ | {"PATH": path} | plain
    read = nbformat.read(notebook, as_version=4)
    client = NotebookClient(
        read, timeout=TIMEOUT, resources={"metadata": {"path": str(folder)}}, kernel_name="python3"
    )
    try:
        client.execute(env=environment)
    except CellExecutionError as error:
        error.add_note(f"Printed before:\n{printed(read)}")
        raise
    for cell in read.cells:
        if cell.cell_type == "code":
            cell.metadata = {}
            cell.outputs = _plain(cell.outputs, folder)
    return read


def printed(notebook: nbformat.NotebookNode) -> str:
    """All that the cells printed."""
    return "\n".join(
        _text(output)
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )


def _plain(outputs: list[nbformat.NotebookNode], folder: Path) -> list[nbformat.NotebookNode]:
    """Outputs as text and pictures, without the log, colours, overwritten progress, and paths."""
    kept, streamed = [], ""
    for output in outputs:
        if "data" in output:
            shown = {kind: output.data[kind] for kind in _SHOWN if kind in output.data}
            kept.append(nbformat.v4.new_output("display_data", shown))
        elif output.name == "stdout":
            streamed += output.text
    streamed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", streamed).replace("\r\n", "\n")
    lines = (line.split("\r")[-1].rstrip() for line in streamed.split("\n"))
    text = shortened("\n".join(lines).replace(str(folder), "/home/me/notebook"))
    return [nbformat.v4.new_output("stream", name="stdout", text=text), *kept] if text else kept


def shortened(text: str) -> str:
    """Text without the folders in which this machine keeps the package and its libraries."""
    return re.sub(r"(?:/[\w.+-]+)+/site-packages/", ".../", text).replace(f"{ROOT}/", ".../")


def _text(output: nbformat.NotebookNode) -> str:
    return str(output.get("text", "") or output.get("data", {}).get("text/plain", ""))


def main(names: list[str]) -> None:
    """Execute notebooks and write them back."""
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        if not names or notebook.stem in names:
            with tempfile.TemporaryDirectory() as folder:
                done = execute(notebook, Path(folder).resolve())
            nbformat.write(done, notebook)
            print(notebook.name)


if __name__ == "__main__":
    main(sys.argv[1:])
