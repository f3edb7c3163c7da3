"""Pages in a real browser: nothing runs off a phone, and no words lie on others."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.report import write_comparison_page, write_run_page
from flower_privsyn.runs import RunDirectory
from flower_privsyn.strategies.parts.population import Population
from tests.report.examples import comparison

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
        if (path := shutil.which(name))
    ),
    None,
)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

#: A headless window is never narrower than 500 pixels, so each width is a frame in a wide one.
FRAMES = """<!doctype html><title>x</title><body>%s<script>
const laps = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1.5;
function measure(frame) {
  const page = frame.contentDocument, width = page.documentElement.clientWidth, found = [];
  for (const part of page.querySelectorAll("details")) part.open = true;
  if (page.documentElement.scrollWidth > width)
    found.push("the page is " + page.documentElement.scrollWidth + " wide");
  let texts = 0, pictures = 0;
  for (const picture of page.querySelectorAll("svg[role=img]")) {
    const frame = picture.getBoundingClientRect();
    if (!frame.width) continue;
    pictures += 1;
    const words = [...picture.querySelectorAll("text")].map(
      node => [node.textContent, node.getBoundingClientRect()]);
    const marks = [...picture.querySelectorAll(".mark, .stroke")].map(
      node => node.getBoundingClientRect());
    const id = picture.getAttribute("aria-labelledby").split(" ")[0];
    texts += words.length;
    words.forEach(([text, box], index) => {
      if (box.left < -0.5 || box.right > width + 0.5 || box.top < frame.top - 2 ||
          box.bottom > frame.bottom + 2)
        found.push(id + ": '" + text + "' is cut off");
      for (const [other, place] of words.slice(index + 1))
        if (laps(box, place)) found.push(id + ": '" + text + "' lies on '" + other + "'");
      for (const place of marks)
        if (laps(box, place)) found.push(id + ": '" + text + "' lies on a mark");
    });
  }
  return {name: frame.name, texts, pictures, found, width};
}
addEventListener("load", () => {
  document.body.textContent = "RESULT" + JSON.stringify(
    [...document.querySelectorAll("iframe")].map(measure)) + "END";
});
</script>"""


def measured(folder: Path, names: list[str], widths: list[int]) -> list[dict[str, Any]]:
    frames = "".join(
        f'<iframe name="{name} {width}" src="{name}" style="width:{width}px;height:900px;border:0">'
        "</iframe>"
        for name in names
        for width in widths
    )
    (folder / "frames.html").write_text(FRAMES % frames, encoding="utf-8")
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--allow-file-access-from-files",
            f"--user-data-dir={folder / 'profile'}",
            "--window-size=1300,1000",
            "--virtual-time-budget=20000",
            "--dump-dom",
            (folder / "frames.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = re.search("RESULT(.*)END", done.stdout, re.S)
    assert found is not None, done.stderr[-2000:]
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    result: list[dict[str, Any]] = json.loads(text)
    return result


def a_run(path: Path) -> RunDirectory:
    """A finished run with texts that move and a long word."""
    run = RunDirectory.create(path, config={"num-rounds": 3, "lookahead": 4, "key": "x" * 200})
    random = np.random.default_rng(0)
    opened = {"event": "opened", "delta": 3e-6, "epsilon_budget": 2.0, "accountant": "pld"}
    releases = []
    for number in (1, 2, 3):
        spent = {"epsilon_release": 0.5 * number, "epsilon_known_cohorts": 0.62 * number}
        releases.append({"event": "release", "round": number, "delta": 3e-6, **spent})
        texts = [f"{'word' * 40} of text {n} in round {number}" for n in range(60)]
        vectors = random.normal(size=(60, 8)) + 0.4 * number
        Population.create(texts, round_number=number, source="variation").with_embeddings(
            vectors.astype(np.float32)
        ).to_parquet(run.round_dir(number) / "population.parquet", votes=[1.0] * 60)
        run.finish_round(number, {"outcome": "released"})
        run.append_metrics({"round": number, "num_users": 30, "missing": 0, **spent})
    run.ledger_file.write_text("".join(json.dumps(x) + "\n" for x in (opened, *releases)))
    run.write_synthetic([{"text": "done " * 90, "round": 3, "parent": [], "source": "generated"}])
    run.mark_finished({"squared_mmd": {str(n): 0.5 / n for n in range(1, 21)}})
    run.unlock()
    return run


def test_nothing_overlaps_and_nothing_runs_off_the_screen(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run-with-a-name-that-has-no-end-in-sight")
    write_run_page(run, tmp_path / "run.html")
    write_comparison_page(comparison(), tmp_path / "two.html")
    crowded = comparison(
        methods=["popri", "pre-text", "kernel-sketch", *[f"method number {n}" for n in range(7)]],
        epsilons=(0.5, 1.0, 2.0, 7.58),
        seeds=2,
    )
    # All of them nearly as good, at nearly the same cost: where names collide.
    for place, line in enumerate(crowded["summary"]):
        line["next_token_accuracy"] = {"mean": 0.27 + 1e-4 * place, "standard_error": 5e-4}
        line["bytes_up"] = line["bytes_up"] and 50_000 + 900 * place
    write_comparison_page(crowded, tmp_path / "crowded.html")
    write_comparison_page(comparison(epsilons=(8.0,), seeds=1), tmp_path / "one.html")
    names = ["run.html", "two.html", "crowded.html", "one.html"]
    results = measured(tmp_path, names, [390, 1200])
    assert len(results) == 8
    for result in results:
        assert result["found"] == [], result["name"]
        assert result["pictures"] >= 3
        assert result["texts"] > 30
    assert {result["width"] for result in results} == {390, 1200}


def test_the_measure_can_fail(tmp_path: Path) -> None:
    """Words put on others, a wide table out of its frame: the browser must say so."""
    write_comparison_page(comparison(seeds=1), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    moved = re.sub(r'(<text x=")[\d.]+(" y=")[\d.]+', r"\g<1>50\g<2>50", page)
    assert moved != page
    (tmp_path / "moved.html").write_text(moved, encoding="utf-8")
    (tmp_path / "wide.html").write_text(
        page.replace("overflow-x:auto", "overflow-x:visible"), encoding="utf-8"
    )
    moved_result, wide_result = measured(tmp_path, ["moved.html", "wide.html"], [390])
    assert any("lies on" in sentence for sentence in moved_result["found"])
    assert any("the page is" in sentence for sentence in wide_result["found"])
