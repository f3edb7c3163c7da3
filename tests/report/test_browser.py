"""Pages in a real browser: nothing runs off a phone, and pictures are as wide as can be read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.report import write_run_page
from flower_privsyn.run import RunDirectory
from tests.support import golden_runs

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

#: A headless window is never narrower than 500 pixels, so each width is a frame in a wide one.
FRAMES = """<!doctype html><title>x</title><body>%s<script>
function measure(frame) {
  const page = frame.contentDocument, width = page.documentElement.clientWidth, found = [];
  for (const part of page.querySelectorAll("details")) part.open = true;
  if (page.documentElement.scrollWidth > width)
    found.push("the page is " + page.documentElement.scrollWidth + " wide");
  let pictures = 0;
  for (const picture of page.querySelectorAll("img")) {
    const box = picture.getBoundingClientRect();
    pictures += 1;
    if (box.width < 300 || box.right > width) found.push(picture.alt + " is " + box.width);
  }
  return {name: frame.name, pictures, found, width};
}
addEventListener("load", () => {
  document.body.textContent = "RESULT" + JSON.stringify(
    [...document.querySelectorAll("iframe")].map(measure)) + "END";
});
</script>"""


def measured(folder: Path, *names: str) -> list[dict[str, Any]]:
    frames = [
        f'<iframe name="{name} {width}" src="{name}" style="width:{width}px;height:900px;border:0">'
        "</iframe>"
        for name in names
        for width in (390, 1200)
    ]
    (folder / "frames.html").write_text(FRAMES % "".join(frames), encoding="utf-8")
    assert BROWSER is not None
    switches = (
        "headless no-sandbox disable-gpu no-first-run disable-background-networking disable-sync "
        "hide-scrollbars allow-file-access-from-files dump-dom window-size=1300,1000 "
        f"virtual-time-budget=20000 user-data-dir={folder / 'profile'}"
    ).split()
    command = [BROWSER, *[f"--{s}" for s in switches], (folder / "frames.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = re.search("RESULT(.*)END", done.stdout, re.S)
    assert found is not None, done.stderr[-2000:]
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    result: list[dict[str, Any]] = json.loads(text)
    return result


def test_nothing_runs_off_the_screen_and_pictures_can_be_read(tmp_path: Path) -> None:
    golden_runs.run("popri fred", tmp_path)
    write_run_page(RunDirectory.open(tmp_path / "run"), tmp_path / "run.html")
    results = measured(tmp_path, "run.html")
    assert [result["width"] for result in results] == [390, 1200]
    for result in results:
        assert result["found"] == [], result["name"]
        assert result["pictures"] == 1
