"""What `privsyn check` says of a run before it is started."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.cli import main
from flower_privsyn.comparison import APP
from flower_privsyn.data import Cut
from flower_privsyn.dry_run import Report, Shelf, check_app, libraries
from flower_privsyn.dry_run.check import _place, check_needs
from flower_privsyn.dry_run.people import read_people
from flower_privsyn.errors import PrivsynError
from flower_privsyn.evaluation import STAMP
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.models import BUNDLED_FOLDER
from flower_privsyn.privacy import quarantine
from flower_privsyn.private_path.needs import NeededModel, Needs
from flower_privsyn.strategies.catalogue import entries
from tests.support.checked import Check, stops, users_file
from tests.support.data_cases import BAD, GOOD, SECRET, DataCase, locked
from tests.support.generation_server import Server
from tests.support.simulation import free_port

ROOT = Path(__file__).parents[2]
OWN_DATA = ROOT / "examples" / "own-data"
JOINT_SKETCH = ROOT / "baselines" / "joint-sketch"
HYBRID = ROOT / "baselines" / "hybrid"
MID_TRAINING = ROOT / "baselines" / "public-mid-training"


def test_a_run_that_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PRIVSYN_CACHE", "PRIVSYN_RUNS", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    data = users_file(tmp_path)
    words = ["check", str(OWN_DATA), "--set", "data=users.jsonl", "--set", "epsilon=8"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ready"]
    assert found["verdict"] == "Ready"
    assert found["stamp"] == STAMP  # texts and scripts are counted in private text
    topics = [finding["topic"] for finding in found["findings"]]
    assert list(dict.fromkeys(topics)) == [
        *("settings", "data", "libraries", "models", "privacy", "noise", "traffic", "CPU time"),
    ]  # fmt: skip
    figures = found["figures"]
    assert (figures["users"], figures["documents"]) == (60, 60)
    assert figures["epsilon_release"] == pytest.approx(8, rel=1e-4)
    assert figures["epsilon_known_cohorts"] == pytest.approx(8, rel=1e-4)
    assert figures["noise_share"] == pytest.approx(figures["noise_multipliers"][0] / 60)
    assert len(figures["bytes_down_by_round"]) == 8
    # A half precision number for each of 384 dimensions of 256 candidates, and a header.
    assert 0 < figures["bytes_down_by_round"][0] - 2 * 384 * 256 < 2000
    assert figures["cpu_seconds_server"] > figures["cpu_seconds_nodes"] > 0
    # Nothing was written: no cache, no run, no byte code.
    assert [path for path in tmp_path.rglob("*") if path != data] == []


def test_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = users_file(tmp_path)
    words = ["check", str(OWN_DATA), "--set", f"data={data}"]
    assert main([*words, "--set", "num-users=70", "--set", "epsilon=8"]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith(f"[{STAMP}]\n")
    assert "60 users take part, 70 were planned (num-users)" in " ".join(shown.split())
    assert shown.endswith("Not ready: 1 thing stops the run\n")
    assert main([*words, "--set", "epsilonn=8"]) == 2
    assert "did you mean 'epsilon'?" in capsys.readouterr().err


def test_the_server_of_a_deployment_reads_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", str(OWN_DATA), "--set", "epsilon=8", "--set", "num-nodes=3"]
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
    said = {finding["topic"]: finding["sentence"] for finding in found["findings"]}
    assert said["data"].startswith("on the nodes, and not read here: 60 users (num-users)")
    assert "CPU time" not in said
    assert main([*words, "--deployment", "--set", "epsilon=0.05"]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "the result is noise whatever they wrote" in shown
    assert main([*words, "--deployment"]) == 0
    assert "privsyn run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "topic", "sentence"),
    [
        (["epsilon=-1"], "settings", "neither epsilon nor noise-multiplier is given"),
        (["sampling=fixed-size", "sample-size=61"], "privacy", "more than the 60 users"),
        (["epsilon=0.05"], "noise", "the result is noise whatever they wrote"),
    ],
)
def test_what_stops_a_run_is_named(
    check: Check, settings: list[str], topic: str, sentence: str
) -> None:
    found = stops(check("epsilon=8", *settings))
    assert list(found) == [topic]
    assert sentence in found[topic]


def test_who_has_no_text_and_ids_that_are_odd_are_counted(check: Check, tmp_path: Path) -> None:
    path, other = users_file(tmp_path), tmp_path / "more.jsonl"
    rows = [{"client_id": name, "text": "x"} for name in ("U1", "u01", "u1 ", "007", "7", "NULL")]
    rows += [{"client_id": f"v{n}", "text": ""} for n in range(3)]
    more = "".join(json.dumps(row) + "\n" for row in rows)
    other.write_text(path.read_text() + more)
    data = [one for one in check("epsilon=8", f"data={other}").findings if one.topic == "data"]
    assert [one.level for one in data] == ["fine", "fine", "warning"]
    assert data[1].sentence.startswith("3 of them have no text and are asked all the same: no more")
    # u1 and its two others; 007 and 7.  u01 has its zero within.
    assert data[2].sentence.startswith("5 ids differ from another one in blanks, capitals or")
    assert "; 1 id is a word for nobody" in data[2].sentence
    rows = [{"client_id": f"w{n}", "text": ""} for n in range(30)]
    other.write_text(path.read_text() + "".join(json.dumps(row) + "\n" for row in rows))
    data = [one for one in check("epsilon=8", f"data={other}").findings if one.topic == "data"]
    assert [one.level for one in data] == ["fine", "warning"]


def test_where_the_run_is_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = load_app(APP)

    def found(run_dir: str | None = None, **values: Any) -> Report:
        report = Report()
        _place(app, values, run_dir, report)
        return report

    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "config.json").touch()
    assert found(**{"run-dir": str(tmp_path / "new")}).findings == []
    said = stops(found(**{"run-dir": str(taken)}))["run directory"]
    assert said.startswith(f"{taken} already holds a run")
    said = stops(found(str(taken)))["run directory"]
    assert said.startswith(f"{taken} already holds a run")
    said = stops(found(str(taken), **{"run-dir": str(tmp_path)}))["run directory"]
    assert said.endswith("name two folders; give one")
    said = stops(found(str(APP / "runs")))["run directory"]
    assert "lies inside the app" in said
    file = taken / "config.json"
    said = stops(found(**{"run-dir": str(file)}))["run directory"]
    assert said == f"The run directory {file} is a file, not a folder"
    said = stops(found(**{"run-dir": str(file / "a" / "b")}))["run directory"]
    assert said == f"{file}, below which the run is to be written, is a file, not a folder"
    said = stops(found(**{"run-dir": str(tmp_path / "\udce9")}))["run directory"]
    assert said.startswith(f"The run directory is '{tmp_path}/\\udce9', which holds bytes that are")
    said = stops(found(**{"run-dir": str(taken), "resume": True}))["run directory"]
    assert said.startswith("resume = true continues nothing here")
    usage = shutil.disk_usage(tmp_path)._replace(free=5 * 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    (finding,) = found().findings
    assert finding.level == "warning"
    assert finding.sentence.startswith("5 MB are free on the disk of ")
    full = usage._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    said = stops(found(str(tmp_path / "new")))["run directory"]
    assert said == f"0 B are free on the disk of {tmp_path}"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "where the run is to be written, cannot be written" in stops(found())["run directory"]


def test_a_tracker_without_its_library(
    check: Check,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Flower would be started and the run directory taken before the ServerApp misses it."""
    monkeypatch.setitem(sys.modules, "mlflow", None)
    said = "tracker = \"mlflow\" needs its library: pip install 'flower-privsyn[mlflow]'"
    assert stops(check("epsilon=8", "tracker=mlflow")) == {"libraries": said}
    words = ["run", str(OWN_DATA), "--set", "tracker=mlflow", "--run-dir", str(tmp_path / "run")]
    assert main([*words, "--set", f"data={users_file(tmp_path)}"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"privsyn: {said}"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["check", "run"])
def test_names_that_are_no_utf8(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Names of files are bytes: what is none of UTF-8 comes as surrogates."""
    monkeypatch.chdir(tmp_path)
    odd = os.fsdecode(b"us\xe9rs.jsonl")
    users_file(tmp_path).rename(tmp_path / odd)
    assert main([command, str(OWN_DATA), "--set", f"data={odd}"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "privsyn: The setting data is 'us\\udce9rs.jsonl', which holds bytes that are no UTF-8: "
        "give it another name."
    ]
    app = tmp_path / os.fsdecode(b"\xe9")
    shutil.copytree(OWN_DATA, app)
    assert main([command, str(app), "--set", "data=users.jsonl"]) == 2
    assert capsys.readouterr().err.startswith(f"privsyn: The app's folder is '{tmp_path}/\\udce9'")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / odd, app])


def test_all_that_stops_a_run_is_named_at_once(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "is_installed", lambda name: name != "transformers")
    report = check(
        *("data=", "generator=privsyn-ml", "embedding-model=./no", "variation-model=owner/name"),
        *("public-text=no.jsonl", "prompt=poem", f"ray-address=127.0.0.1:{free_port()}"),
    )
    said = [f"{finding.topic}: {finding.sentence}" for finding in report.of_level("stops")]
    expected = [
        "machine: No Ray cluster answers at ray-address = 127.0.0.1:",
        "data: data is empty: name a file of users",
        "libraries: transformers is not installed: pip install 'flower-privsyn[server]'",
        "models: embedding-model: Embedding model folder ./no does not exist",
        "models: variation-model: model 'owner/name' is neither bundled nor a folder here nor in",
        "models: generator: model 'privsyn-ml' does not exist",
        "settings: prompt 'poem' is not known",
        'public text: public-text = "no.jsonl": ',
    ]
    assert len(said) == len(expected)
    for sentence, begins in zip(said, expected, strict=True):
        assert sentence.startswith(begins)
    assert report.verdict == "Not ready: 8 things stop the run"


def test_a_generation_server_is_asked(server: Server) -> None:
    def found(address: str) -> dict[str, str]:
        report = Report()
        needs = Needs(models=(NeededModel(setting="generator", name=address, kind="generator"),))
        check_needs(needs, report=report, shelf=Shelf(), api_key_env="")
        return stops(report)

    assert found(f"{server.url}#tiny") == {}
    assert found(server.url) == {}
    assert "serves tiny, not other" in found(f"{server.url}#other")["models"]
    dead = f"http://127.0.0.1:{free_port()}/v1#tiny"
    assert "cannot be reached" in found(dead)["models"]
    server.misbehave = lambda path, body, number: (404, {"error": "no such path"})
    assert "does not list its models" in found(server.url)["models"]  # and none is named
    report = Report()
    needs = Needs(models=(NeededModel(setting="generator", name=f"{server.url}#x", kind="causal"),))
    check_needs(needs, report=report, shelf=Shelf(), api_key_env="")
    assert [finding.level for finding in report.findings] == ["warning"]
    server.misbehave = lambda path, body, number: (500, {"error": "broken"})
    assert "status 500" in found(server.url)["models"]
    # Asked what it serves, and for nothing else.
    assert {path for path, _, _ in server.requests} == {"/v1/models"}


def test_writers_that_are_files_or_packages(
    gguf_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flower_privsyn.models import packaged

    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))

    def found(name: str) -> tuple[dict[str, str], list[str]]:
        report = Report()
        needs = Needs(models=(NeededModel(setting="generator", name=name, kind="generator"),))
        check_needs(needs, report=report, shelf=Shelf(), api_key_env="")
        return stops(report), [finding.sentence for finding in report.findings]

    monkeypatch.setattr(libraries, "is_installed", lambda name: True)
    stopped, said = found(f"gguf:{gguf_llama}")
    assert stopped == {}
    assert said == [f"generator = gguf:{gguf_llama}: llama, 383,616 parameters"]
    (tmp_path / "cut.gguf").write_bytes(gguf_llama.read_bytes()[:-1])
    assert "no whole GGUF file" in found(f"gguf:{tmp_path / 'cut.gguf'}")[0]["models"]
    monkeypatch.setattr(libraries, "is_installed", lambda name: name != "xllamacpp")
    assert "'flower-privsyn[gguf]'" in found(f"gguf:{gguf_llama}")[0]["models"]
    writer = replace(
        packaged.PACKAGED["smollm2-135m"],
        files=(("flower-privsyn-test-writer", "writer.gguf"),),
        sha256=hashlib.sha256(gguf_llama.read_bytes()).hexdigest(),
    )
    monkeypatch.setitem(packaged.PACKAGED, writer.name, writer)
    assert writer.install in found(writer.name)[0]["models"]
    site = tmp_path / "site"
    described = site / "flower_privsyn_test_writer-1.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1\n")
    monkeypatch.syspath_prepend(site)
    (site / "writer.gguf").write_bytes(gguf_llama.read_bytes()[:-1])
    assert "--force-reinstall" in found(writer.name)[0]["models"]
    (site / "writer.gguf").write_bytes(gguf_llama.read_bytes())
    stopped, said = found(writer.name)
    assert stopped == {}
    assert "the first run unpacks it" in said[0]
    assert not (tmp_path / "cache").exists()
    shelf = Shelf()
    assert shelf.weights("smollm2-135m") == writer.parameters
    assert shelf.weights(f"gguf:{gguf_llama}") == 383_616


def test_a_model_of_the_wrong_kind(check: Check) -> None:
    """A run would load it first, and refuse it then."""
    assert stops(check("epsilon=8", "generator=privsyn-mlm")) == {
        "models": "generator: model 'privsyn-mlm' is a masked language model, not a causal one"
    }
    assert stops(check("epsilon=8", "variation-model=privsyn-lm")) == {
        "models": "variation-model: model 'privsyn-lm' is a causal language model, not a masked one"
    }


def test_texts_longer_than_the_variation_model_reads(check: Check, tmp_path: Path) -> None:
    said = "max-tokens = 127 must be at most 126 for variation-model = privsyn-mlm"
    assert stops(check("epsilon=8", "max-tokens=127")) == {"models": said}
    assert check("epsilon=8", "max-tokens=126").ready
    shutil.copytree(BUNDLED_FOLDER / "privsyn-mlm", folder := tmp_path / "mlm")
    (folder / "tokenizer_config.json").unlink()  # then the model's places bound it
    said = f"max-tokens = 1000 must be at most 128 for variation-model = {folder}"
    settings = ("epsilon=8", f"variation-model={folder}")
    assert stops(check(*settings, "max-tokens=1000")) == {"models": said}
    (folder / "tokenizer.json").unlink()
    assert check(*settings, "max-tokens=1000").ready


def test_text_in_a_script_that_a_model_does_not_know(check: Check, tmp_path: Path) -> None:
    chinese = users_file(tmp_path, text="自然语言处理是人工智能的一个重要方向。")
    report = check("epsilon=8", f"data={chinese}")
    said = [finding for finding in report.of_level("warning") if finding.topic == "language"]
    assert [finding.sentence.partition("which ")[2].partition(" = ")[0] for finding in said] == [
        *("embedding-model", "variation-model", "likelihood-model and generator"),
    ]  # fmt: skip
    assert all("% of the letters are Chinese characters" in finding.sentence for finding in said)
    assert report.verdict == "It will run, with 3 warnings"


@pytest.mark.parametrize(
    ("epsilon", "step", "level", "found_step"),
    [
        ("7", -1, "fine", "1"),
        ("1", 1, "stops", "1"),
        ("1", -1, "fine", "0."),
        ("0.3", -1, "warning", "0.0"),
    ],
)
def test_noise_is_tried_where_that_is_asked_for(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    epsilon: str,
    step: int,
    level: str,
    found_step: str,
) -> None:
    """The refusal of a run, or its step, before there is a federation."""
    data = users_file(tmp_path, users=400)
    asked = ["check", str(ROOT / "baselines" / "dp-fl"), "--config", "cpu", "--json"]
    settings = (f"data={data}", "held-out-fraction=0.0", f"epsilon={epsilon}")
    settings += (f"server-learning-rate={step}",)
    asked += [word for setting in settings for word in ("--set", setting)]
    assert main(asked) == 0
    assert "noise alone" not in capsys.readouterr().out
    assert main([*asked, "--try-noise"]) == (2 if level == "stops" else 0)
    found = json.loads(capsys.readouterr().out)["findings"]
    (said,) = (one for one in found if "noise alone" in one["sentence"])
    assert said["topic"] == "noise"
    assert said["level"] == level
    assert "from 4.8" in said["sentence"]
    assert f"server-learning-rate = {found_step}" in said["sentence"]


def test_there_is_no_noise_to_try_where_nothing_is_trained(tmp_path: Path) -> None:
    loaded = load_app(OWN_DATA)
    values = resolve_config(loaded, config_name=None, settings=(f"data={users_file(tmp_path)}",))
    said = [one.sentence for one in check_app(loaded, values, try_noise=True).findings]
    assert "there is no model under noise that could be tried" in said


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        # One user would drown in any noise.
        (("data=missing.jsonl",), "how many users take part is not known (num-users)"),
        (("data=missing.jsonl", "num-users=400"), "what stops the run comes first"),
        (("model=somebody/a-model",), "model 'somebody/a-model' is not on this machine"),
    ],
)
def test_noise_is_not_tried_on_what_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.setattr("flower_privsyn.dry_run.shelf.hub_unreachable", lambda **_: None)
    app = load_app(ROOT / "baselines" / "dp-fl")
    settings = (f"data={users_file(tmp_path, users=400)}", "held-out-fraction=0.0", *changes)
    values = resolve_config(app, config_name="cpu", settings=settings)
    found = check_app(app, values, try_noise=True).findings
    (said,) = (one for one in found if "not tried on the model" in one.sentence)
    assert said.topic == "noise"
    assert sentence in said.sentence


@pytest.mark.parametrize("app", [OWN_DATA, JOINT_SKETCH])
def test_what_is_left_out_of_the_data(check: Check, tmp_path: Path, app: Path) -> None:
    """Each record once, also where the nodes' own code reads the file: by one who would name it."""
    data = users_file(tmp_path)
    with data.open("a") as file:
        file.write('{"client_id": "u1", "text": null}\n')
    settings = ("epsilon=8", f"data={data}", *(() if app == OWN_DATA else ("num-nodes=3",)))
    said = [one.sentence for one in check(*settings, app=app).of_level("warning")]
    (sentence,) = [one for one in said if "left out as unusable" in one]
    assert sentence.startswith("1 records of 1 users ")


@pytest.mark.parametrize("case", [*GOOD, *BAD], ids=str)
def test_data_are_read_as_a_run_reads_them(
    case: DataCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case.make(tmp_path)
    loaded = load_app(OWN_DATA)
    given = [f"{key}={value}" for key, value in {"data": case.data, **case.settings}.items()]
    values = resolve_config(loaded, settings=given)
    said, found = "", None
    with locked(tmp_path / case.locked if case.locked else None):
        try:
            with quarantine.counting():
                found = read_people(loaded, values, cut=Cut.of(values), nodes=2, most_nodes=1)
        except PrivsynError as error:
            said = str(error)
    assert case.says in said
    assert SECRET not in said
    if not case.says:
        assert found is not None
        assert found.users == 2


def test_every_method(check: Check, tmp_path: Path) -> None:
    """Its models are found, its budget planned, its traffic and its time estimated."""
    for name, entry in entries().items():
        named = "pre-text" if name == "private-evolution" else name
        if entry.kind == "distances":  # no row of a comparison
            report = check("epsilon=8", app=ROOT / "baselines" / name, config="cpu")
        else:
            report = check("epsilon=8", f"strategy={name}", app=APP, config=f"cpu/{named}")
        assert report.ready, (name, report.of_level("stops"))
        assert report.figures["epsilon_release"] <= 8.0001
        assert report.figures["bytes_up"] > 0
        assert report.figures["cpu_seconds_nodes"] > 0, name


@pytest.mark.parametrize(
    ("app", "users"),
    [
        ("examples/quickstart", 487),
        ("examples/existing-federation/after", 90),
        ("examples/existing-federation/before", None),
    ],
)
def test_users_that_an_app_reads_in_its_own_code(app: str, users: int | None) -> None:
    folder = ROOT / app
    before = {path: path.stat().st_mtime for path in folder.rglob("*")}
    loaded = load_app(folder)
    values = resolve_config(loaded)
    cut = Cut(held_out_fraction=float(values.get("held-out-fraction", 0.0)))
    found = read_people(loaded, values, cut=cut, nodes=2, most_nodes=1)
    assert (None if found is None else found.users) == users
    if found is not None:
        assert found.all_read
        assert 0 < len(found.sample) <= 220
    assert {path: path.stat().st_mtime for path in folder.rglob("*")} == before


def with_own_client(app: Path) -> Path:
    """own-data as an app whose ClientApp is `own/client_app.py`, still to be written."""
    shutil.copytree(OWN_DATA / "own_data", app / "own_data")
    (app / "own").mkdir(parents=True)
    project = (OWN_DATA / "pyproject.toml").read_text()
    client = "flower_privsyn.client_apps.default:app"
    (app / "pyproject.toml").write_text(project.replace(client, "own.client_app:app"))
    return app


def test_it_is_not_known_whether_an_app_without_handlers_runs(check: Check, tmp_path: Path) -> None:
    app = with_own_client(tmp_path / "app")
    code = "from flwr.clientapp import ClientApp\napp = ClientApp()\n"
    (app / "own" / "client_app.py").write_text(code)
    report = check("epsilon=8", app=app)
    said = [one.sentence for one in report.of_level("warning") if one.topic == "data"]
    assert "no handlers of this package (add_handlers)" in said[0]
    assert report.ready
    assert report.verdict == "Nothing that is known here stops it, and not all of it is known"


def test_what_an_app_s_own_code_does_wrong(tmp_path: Path) -> None:
    app = with_own_client(tmp_path / "app")
    code = (
        "from flower_privsyn import create_client_app\n"
        "from flower_privsyn.data import Users\n"
        "def load(context):\n    {}\n"
        "app = create_client_app(load)\n"
    )

    def said(body: str, head: str = "") -> str:
        (app / "own" / "client_app.py").write_text(head + code.format(body))
        loaded = load_app(app)
        values = resolve_config(loaded, settings=["data=x"])
        with pytest.raises(PrivsynError) as caught:
            read_people(loaded, values, cut=Cut.of(values), nodes=2, most_nodes=1)
        return str(caught.value)

    secret = "my private words"
    failing = f"raise ValueError({secret!r})"
    assert said(failing) == "the app's own code fails on node 0 of 2 with ValueError"
    other = said(f"return [('ann', {secret!r})]")
    assert other == (
        "The app's load must return Users, as load_users and Users.from_rows make them, and "
        "returned a list."
    )
    everywhere = "return Users.from_rows([('ann', 'a text')])"
    assert "puts users on 2 nodes, where max-nodes-per-user = 1" in said(everywhere)
    assert "cannot be imported: No module named 'nowhere'" in said("pass", "import nowhere\n")


def test_a_model_of_the_hub_that_is_not_here_is_downloaded_by_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flower_privsyn.dry_run.shelf.hub_unreachable", lambda **_: None)
    report = Report()
    needs = Needs(models=(NeededModel(setting="model", name="owner/name", kind="causal"),))
    check_needs(needs, report=report, shelf=Shelf(), api_key_env="")
    assert report.ready
    (finding,) = report.findings
    assert "model: model 'owner/name' is not on this machine: the run downloads" in finding.sentence
