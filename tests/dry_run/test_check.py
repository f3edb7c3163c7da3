"""What `privsyn check` says of a run before it is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flower_privsyn.catalogue import entries
from flower_privsyn.cli import main
from flower_privsyn.comparison import APP
from flower_privsyn.data import Chunking
from flower_privsyn.dry_run.people import read_people
from flower_privsyn.errors import PrivsynError
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.host.app import load_app, resolve_config
from tests.support.checked import Check, stops, users_file

ROOT = Path(__file__).parents[2]
OWN_DATA = ROOT / "examples" / "own-data"
JOINT_SKETCH = ROOT / "baselines" / "joint-sketch"


def test_a_run_that_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PRIVSYN_RUNS", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    there = {users_file(tmp_path)}
    for name in ("all-MiniLM-L6-v2", "bundled", "pre-text", "privsyn-lm", "privsyn-mlm"):
        (tmp_path / name).mkdir()  # what comes with the package is meant all the same
        there.add(tmp_path / name)
    words = ["check", str(OWN_DATA), "--set", "data=users.jsonl", "--set", "epsilon=8"]
    words += ["--set", "generator=privsyn-lm", "--set", "variation=mask-fill"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ready"]
    assert found["verdict"] == "Ready"
    assert found["stamp"] == STAMP  # texts are counted in private text
    topics = [diagnostic["topic"] for diagnostic in found["diagnostics"]]
    assert list(dict.fromkeys(topics)) == [
        *("settings", "data", "privacy", "noise", "setup", "traffic"),
    ]  # fmt: skip
    figures = found["figures"]
    assert (figures["users"], figures["documents"]) == (60, 60)
    assert figures["epsilon_release"] == pytest.approx(8, rel=1e-4)
    assert figures["epsilon_known_cohorts"] == pytest.approx(8, rel=1e-4)
    assert figures["noise_share"] == pytest.approx(figures["noise_multipliers"][0] / 60)
    assert len(figures["bytes_down_by_round"]) == 8
    # A half precision number for each of 384 dimensions of 256 candidates, and a header.
    assert 0 < figures["bytes_down_by_round"][0] - 2 * 384 * 256 < 2000
    # Nothing was written: no run, no byte code.
    assert {*tmp_path.rglob("*")} == there


def test_the_server_of_a_deployment_reads_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("epsilon=8", "num-nodes=3", "synthetic-samples=0", "variation=mask-fill")
    words = ["check", str(OWN_DATA), *(word for one in settings for word in ("--set", one))]
    assert main([*words, "--deployment"]) == 2
    assert "num-users = 0: say for how many users" in capsys.readouterr().out
    words += ["--set", "num-users=60"]
    assert main(words) == 2  # a simulation has text, or is none
    capsys.readouterr()
    assert main([*words, "--deployment", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "stamp" not in found  # nobody's text was read
    assert found["figures"]["noise_share"] == pytest.approx(
        found["figures"]["noise_multipliers"][0] / 60
    )
    said = {diagnostic["topic"]: diagnostic["sentence"] for diagnostic in found["diagnostics"]}
    assert said["data"].startswith("on the nodes, and not read here: 60 users (num-users)")
    assert main([*words, "--deployment", "--set", "epsilon=0.05"]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "the result is noise whatever they wrote" in shown


def test_who_has_no_text_is_counted(check: Check, tmp_path: Path) -> None:
    path, other = users_file(tmp_path), tmp_path / "more.jsonl"
    rows = [{"client_id": f"v{n}", "text": ""} for n in range(3)]
    more = "".join(json.dumps(row) + "\n" for row in rows)
    other.write_text(path.read_text() + more)
    data = [one for one in check("epsilon=8", f"data={other}").diagnostics if one.topic == "data"]
    assert [one.level for one in data] == ["fine", "fine"]
    assert data[1].sentence.startswith("3 of them have no text and are asked all the same: no more")
    rows = [{"client_id": f"w{n}", "text": ""} for n in range(30)]
    other.write_text(path.read_text() + "".join(json.dumps(row) + "\n" for row in rows))
    data = [one for one in check("epsilon=8", f"data={other}").diagnostics if one.topic == "data"]
    assert [one.level for one in data] == ["fine", "warning"]


def test_all_that_stops_a_run_without_a_model_is_named_at_once(check: Check) -> None:
    settings = ("epsilon=8", "num-users=60", "sampling=fixed-size", "sample-size=61")
    report = check("data=", *settings, "embedding-model=./no", loads=True)
    assert list(stops(report)) == ["data", "privacy"]
    assert report.verdict == "Not ready: 2 things stop the run"


@pytest.mark.parametrize("app", [OWN_DATA, JOINT_SKETCH])
def test_what_is_left_out_of_the_data(check: Check, tmp_path: Path, app: Path) -> None:
    """Each record once, also where the nodes' own code reads the file: by one who would name it."""
    data = users_file(tmp_path)
    with data.open("a") as file:
        file.write('{"client_id": "u1", "text": null}\n')
    settings = ("epsilon=8", f"data={data}", *(() if app == OWN_DATA else ("num-nodes=3",)))
    said = [one.sentence for one in check(*settings, app=app).of_level("warning")]
    (sentence,) = [one for one in said if "left out, as unusable" in one]
    assert sentence.startswith("1 records of 1 users ")


def test_every_method(check: Check, tmp_path: Path) -> None:
    """Its settings suit the app's, its budget is planned."""
    for name, entry in entries().items():
        named = "pre-text" if name == "private-evolution" else name
        if entry.kind == "distances":  # no row of a comparison
            report = check("epsilon=8", app=ROOT / "baselines" / name, config="cpu")
        else:
            report = check("epsilon=8", f"strategy={name}", app=APP, config=f"cpu/{named}")
        assert report.ready, (name, report.of_level("stops"))
        assert report.figures["epsilon_release"] <= 8.0001


@pytest.mark.parametrize(
    ("app", "users"),
    [
        ("examples/quickstart", 487),
        ("examples/existing-federation", 90),
    ],
)
def test_users_that_an_app_reads_in_its_own_code(app: str, users: int | None) -> None:
    loaded = load_app(ROOT / app)
    values = resolve_config(loaded)
    chunking = Chunking(held_out_fraction=float(values.get("held-out-fraction", 0.0)))
    found = read_people(loaded, values, chunking=chunking, nodes=2)
    assert (None if found is None else found.users) == users
    if found is not None:
        assert found.all_read


def with_own_client(app: Path) -> Path:
    """own-data as an app whose ClientApp is `own/client_app.py`, still to be written."""
    (app / "own").mkdir(parents=True)
    project = (OWN_DATA / "pyproject.toml").read_text()
    client = "flower_privsyn.client_apps.default:app"
    (app / "pyproject.toml").write_text(project.replace(client, "own.client_app:app"))
    return app


def test_what_an_app_s_own_code_does_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    app = with_own_client(tmp_path / "app")
    code = (
        "from flower_privsyn import create_client_app\n"
        "from flower_privsyn.data import Users\n"
        "def load(context):\n    {}\n"
        "app = create_client_app(load)\n"
    )

    def said(body: str, head: str = "") -> str:
        (app / "own" / "client_app.py").write_text(head + code.format(body))
        sys.modules.pop("own.client_app", None)
        loaded = load_app(app)
        values = resolve_config(loaded, settings=["data=x"])
        with pytest.raises(PrivsynError) as caught:
            read_people(loaded, values, chunking=Chunking(), nodes=2)
        return str(caught.value)

    secret = "my private words"
    failing = f"raise ValueError({secret!r})"
    assert said(failing) == "the app's own code fails on node 0 of 2 with ValueError"
    other = said(f"return [('ann', {secret!r})]")
    assert other == (
        "The app's load must return Users, as load_users and Users.from_rows make them, and "
        "returned a list."
    )
    assert "No module named 'nowhere'" in said("pass", "import nowhere\n")
