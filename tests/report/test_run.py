"""The page of a run of every strategy, and of runs that came to nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.cli import main
from flower_privsyn.data import Users
from flower_privsyn.errors import LedgerError
from flower_privsyn.report import write_run_page
from flower_privsyn.report.rounds import principal_plane, read_round, round_files, spread_over
from flower_privsyn.report.run import run_page
from flower_privsyn.report.scales import epsilon_text
from flower_privsyn.runs import RESEARCH_STAMP, RunDirectory
from flower_privsyn.strategies import (
    DPFTRL,
    DPFTRLConfig,
    KernelSketchConfig,
)
from flower_privsyn.strategies.parts.population import Population
from tests.report.pages import Node, check
from tests.support.federation import training_nodes
from tests.support.ledgers import write_chain
from tests.support.runs import Runs

Builder = Callable[..., Any]


@pytest.fixture
def people(texts: list[str]) -> Users:
    rows = [(f"user-{i}", texts[3 * i + k]) for i in range(8) for k in range(1 + i % 3)]
    return Users.from_rows(rows)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def headings(page: Node) -> list[str]:
    return [n.text for n in page.all("h2")]


def numbers(page: Node) -> dict[str, str]:
    """The large figures at the top."""
    (shown,) = page.with_class("numbers")
    return {
        name.text.split(":")[0]: value.text
        for name, value in zip(shown.all("dt"), shown.all("dd"), strict=True)
    }


def table(page: Node, caption: str) -> list[list[str]]:
    (found,) = [t for t in page.all("table") if t.all("caption")[0].text.startswith(caption)]
    body = found.all("tbody")[0]
    return [[c.text for c in row.every() if c.name in ("th", "td")] for row in body.all("tr")]


def shown(strategy: Any) -> Node:
    """The page of a run, after what every page of a run must hold."""
    run = RunDirectory.open(strategy.run.path)
    page = check(run_page(run))
    last = [x for x in lines(run.ledger_file) if x["event"] == "release"][-1]
    found = numbers(page)
    assert found["ε release"] == epsilon_text(last["epsilon_release"])
    assert found["ε server"] == epsilon_text(last["epsilon_known_cohorts"])
    assert found["δ"] == "3 \N{MULTIPLICATION SIGN} 10⁻⁶"
    rounds = table(page, "Rounds")
    assert len(rounds) == len(run.metrics())
    assert all(row[1] == "released" for row in rounds)
    assert "finished" in page.with_class("subtitle")[0].text
    assert not page.with_class("stamp")
    settings = dict(table(page, "Settings of the run"))
    assert settings["noise-multiplier"] == str(run.config["noise-multiplier"])
    assert "run-dir" not in settings
    return page


class TestStrategies:
    def test_private_evolution(self, runs: Runs, settings: Builder, evolution: Builder) -> None:
        _, strategy = runs.private_evolution(settings, evolution)
        page = shown(strategy)
        assert headings(page) == [
            "Privacy",
            "Rounds and what they cost",
            "How the text moved",
            "Sample texts",
            "Settings",
        ]
        assert "PrivateEvolution" in page.with_class("subtitle")[0].text
        cards = [n.all("h3")[0].text for n in page.all("article")]
        assert [card.split(" 12 ")[0].split(" 16 ")[0] for card in cards] == [
            "Round 1, public text",
            "Round 2",
            "Result",
        ]
        # The texts with the most votes, in their order.
        population = read_round(2, strategy.run.path / "rounds" / "0002" / "population.parquet")
        assert population is not None
        assert population.scores is not None
        quotes = [n.text for n in page.all("article")[1].all("blockquote")]
        assert quotes[0] == population.texts[int(np.argmax(population.scores))]
        figure = page.all("figure")[1]
        pictures = [n for n in figure.all("svg") if n.all("desc")]
        assert len(pictures) == 2
        for picture in pictures:
            everything, round_ = picture.with_class("dots")
            assert (round_.attributes["d"] or "").count("h0") == 16
            assert (everything.attributes["d"] or "").count("h0") == 32
        assert len(pictures[1].with_class("line")) == 1

    def test_popri(self, runs: Runs) -> None:
        _, strategy = runs.popri("span", "prompt")
        page = shown(strategy)
        assert "POPri" in page.with_class("subtitle")[0].text
        assert "How the text moved" in headings(page)
        assert [row[0] for row in table(page, "Training by round")] == ["1", "2"]
        spent = table(page, "ε by round")
        assert [row[0] for row in spent] == ["1", "2"]

    @pytest.mark.parametrize("refine", ["preference", "evolution"])
    def test_kernel_sketch(
        self, federation: Builder, public_file: Path, tmp_path: Path, refine: str
    ) -> None:
        from flower_privsyn.strategies import KernelSketch
        from flower_privsyn.testing import HashEmbedder, ShuffleWords, WordGenerator, train_words
        from tests.support.federation import WORDS

        config = KernelSketchConfig(
            num_nodes=2,
            num_prompts=6,
            responses_per_prompt=5,
            rejected_rank=4,
            num_features=64,
            num_candidates=16,
            refinement_rounds=3,
            refine=refine,  # type: ignore[arg-type]
            noise_multiplier=0.1,
            public_text=str(public_file),
            synthetic_samples=10,
            run_dir=str(tmp_path / "run"),
            node_timeout=0.2,
            accept_noise=True,
        )
        strategy = KernelSketch(
            config,
            embedder=HashEmbedder(),
            generator=WordGenerator(WORDS),
            variation=ShuffleWords(),
            trainer=train_words,
        )
        strategy.start(federation())
        page = shown(strategy)
        assert "One release, in round 1, spent all of it." in page.text
        distances = table(page, "Squared distance by round")
        assert [row[0] for row in distances] == list(strategy.run.state["summary"]["squared_mmd"])
        assert any(n.text.startswith("Refinement round 1") for n in page.all("h3"))
        assert "released kernel mean" in page.text

    @pytest.mark.parametrize("adaptive", [False, True])
    def test_dp_fedavg(self, runs: Runs, lstm: Path, adaptive: bool) -> None:
        _, strategy = runs.dp_fedavg(lstm, adaptive)
        page = shown(strategy)
        assert "DPFedAvg" in page.with_class("subtitle")[0].text
        assert "How the model moved" in headings(page)
        assert "Sample texts" not in headings(page)
        recorded = json.loads(
            (strategy.run.path / "rounds" / "0001" / "server.json").read_text(encoding="utf-8")
        )
        row = table(page, "Norms by round")[0]
        assert float(row[1]) == pytest.approx(recorded["average_update_norm"], rel=1e-3)
        assert float(row[2]) == pytest.approx(recorded["average_noise_norm"], rel=1e-3)

    def test_dp_ftrl(self, people: Any, lstm: Path, tmp_path: Path) -> None:
        strategy = DPFTRL(
            DPFTRLConfig(
                model=str(lstm),
                num_rounds=4,
                min_separation=2,
                num_nodes=2,
                noise_multiplier=0.5,
                clip_norm=0.05,
                max_tokens=32,
                run_dir=str(tmp_path / "run"),
                node_timeout=0.2,
                accept_noise=True,
            )
        )
        strategy.start(training_nodes(people))
        page = shown(strategy)
        assert "DPFTRL" in page.with_class("subtitle")[0].text
        spent = table(page, "ε by round")
        assert len(spent) == 4
        assert len({row[1] for row in spent}) == 1  # the first round is charged for all

    @pytest.mark.parametrize(
        ("strategy", "loss", "shown_as"),
        [("POPri", "dpo", "POPri"), ("POPri", "sft", "PE + SFT"), ("MyOwn", "sft", "MyOwn")],
    )
    def test_are_named(self, tmp_path: Path, strategy: str, loss: str, shown_as: str) -> None:
        run = RunDirectory.create(tmp_path / "run", config={"loss": loss}, strategy=strategy)
        run.unlock()
        page = check(run_page(run))
        assert shown_as in [part.strip() for part in page.with_class("subtitle")[0].text.split("·")]


RELEASE = {
    "event": "release",
    "round": 1,
    "query": "votes",
    "mechanism": "gaussian",
    "noise_multiplier": 4.0,
    "sampling": {"method": "poisson", "rate": 0.25, "population": 300},
    "num_users": None,
    "delta": 3e-6,
    "epsilon_release": 0.5,
    "epsilon_known_cohorts": 2.25,
}


@pytest.fixture
def empty(tmp_path: Path) -> RunDirectory:
    """A run that has just begun, of somebody's own strategy."""
    run = RunDirectory.create(tmp_path / "my run", config={"num-rounds": 3, "own-key": "<b>"})
    run.unlock()
    (run.path / ".lock").unlink()  # of this process, which is alive
    return run


def ledger(run: RunDirectory, *records: dict[str, Any]) -> None:
    opened = {"event": "opened", "delta": 3e-6, "epsilon_budget": 1.0, "accountant": "pld"}
    write_chain(run.ledger_file, opened, *records)


class TestWhateverBecameOfIt:
    def test_nothing_yet(self, empty: RunDirectory) -> None:
        page = check(run_page(empty))
        assert "interrupted" in page.with_class("subtitle")[0].text
        assert "Nothing has been released." in page.text
        assert "privsyn resume" in page.with_class("banner")[0].text
        assert "No round has counted its messages." in page.text
        assert headings(page) == ["Privacy", "Rounds and what they cost", "Settings"]
        assert ["own-key", "<b>"] in table(page, "Settings of the run")

    def test_a_run_at_work_is_not_called_interrupted(self, empty: RunDirectory) -> None:
        with empty.session():
            page = check(run_page(RunDirectory.open(empty.path)))
        assert "running" in page.with_class("subtitle")[0].text
        assert not page.with_class("banner")

    def test_a_failed_run_says_why(self, empty: RunDirectory) -> None:
        empty.mark_failed("The nodes hold 12 users <script>, but 300 were planned.")
        page = check(run_page(empty))
        banner = page.with_class("banner")[0].text
        assert "The nodes hold 12 users <script>, but 300 were planned." in banner
        assert "failed" in page.with_class("subtitle")[0].text

    def test_both_epsilons_where_they_differ(self, empty: RunDirectory) -> None:
        second = {**RELEASE, "round": 2, "epsilon_release": 0.75, "epsilon_known_cohorts": 3.5}
        ledger(empty, RELEASE, second)
        page = check(run_page(empty))
        found = numbers(page)
        assert (found["ε release"], found["ε server"], found["Releases"]) == ("0.75", "3.5", "2")
        wide = page.all("figure")[0].with_class("wide")[0]
        names = [n.text for n in wide.all("text")]
        assert {"ε release", "ε server", "budget"} <= set(names)
        lines_ = [(n.attributes["d"] or "").count("V") for n in wide.with_class("line")]
        assert lines_ == [2, 2]
        assert "poisson, rate 0.250" in page.text
        assert "300" in page.with_class("facts")[0].text

    def test_a_run_without_privacy(self, empty: RunDirectory) -> None:
        ledger(empty, {**RELEASE, "epsilon_release": None, "epsilon_known_cohorts": None})
        page = check(run_page(empty))
        assert "Not private. 1 release without sufficient noise" in page.text
        assert not page.with_class("numbers")

    def test_lost_rounds_are_named(self, empty: RunDirectory) -> None:
        ledger(empty, RELEASE)
        empty.finish_round(1, {"outcome": "interrupted"})
        empty.finish_round(2, {"outcome": "discarded"})
        empty.append_metrics({"round": 2, "released": False, "num_users": 0, "missing": 2})
        found = table(check(run_page(empty)), "Rounds")
        assert [row[1] for row in found] == [
            "interrupted: charged, and its release lost",
            "discarded: too few users, nothing released",
        ]
        assert found[1][2:4] == ["0", "2"]

    def test_research_is_stamped_everywhere(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path / "run", config={"research": True, "num-rounds": 1})
        ledger(run, RELEASE, {**RELEASE, "round": 2})
        population = Population.create(
            [f"text {n}" for n in range(20)], round_number=1, source="generated"
        ).with_embeddings(np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
        population.to_parquet(run.round_dir(1) / "candidates.parquet", score=[0.5] * 20)
        run.mark_finished({"squared_mmd": {"1": 0.5, "2": 0.25}})
        run.unlock()
        page = check(run_page(run))
        assert RESEARCH_STAMP in page.all("title")[0].text
        assert RESEARCH_STAMP in page.with_class("banner")[0].text
        assert RESEARCH_STAMP in page.all("footer")[0].text
        assert len(page.all("figure")) == 3
        for figure in page.all("figure"):
            assert RESEARCH_STAMP in figure.all("figcaption")[0].text
        assert "private validation text" in page.text
        assert "released kernel mean" not in page.text
        assert "No private text is in this picture" not in page.text

    def test_a_stamp_of_a_run_s_own_summary(self, empty: RunDirectory) -> None:
        empty.mark_finished({"stamp": "own stamp"})
        assert "own stamp" in check(run_page(empty)).with_class("banner")[0].text

    def test_texts_that_cannot_be_read_are_left_out(self, empty: RunDirectory) -> None:
        (empty.round_dir(1) / "population.parquet").write_bytes(b"half a file")
        (empty.round_dir(2) / "training.json").write_text("{")
        page = check(run_page(empty))
        assert "How the text moved" not in headings(page)
        assert "Sample texts" not in headings(page)

    def test_a_damaged_ledger_is_named(self, empty: RunDirectory) -> None:
        empty.ledger_file.write_text("{\n{}\n")
        with pytest.raises(LedgerError, match=r"ledger.jsonl line 1"):
            run_page(empty)

    def test_a_report_states_the_ledger_it_was_made_from(self, empty: RunDirectory) -> None:
        opened = {"event": "opened", "delta": 3e-6, "epsilon_budget": 1.0, "accountant": "pld"}
        digest = write_chain(empty.ledger_file, opened, RELEASE, {**RELEASE, "round": 2})
        write_run_page(empty)
        assert empty.stated_digests() == {digest: "report.html"}
        ledger(empty, RELEASE)
        with pytest.raises(LedgerError, match="lacks the line .* which report.html states"):
            run_page(empty)

    def test_texts_with_markup(self, empty: RunDirectory) -> None:
        nasty = "</blockquote><script>alert(1)</script>\x00\u202e"
        empty.write_synthetic(
            [{"text": nasty, "round": 1, "parent": [], "source": "generated"}] * 2
        )
        page = check(run_page(empty))
        assert page.all("blockquote")[0].text == "</blockquote><script>alert(1)</script>\ufffd"


class TestTheFile:
    def test_lies_in_the_run_which_is_only_read(
        self, runs: Runs, settings: Builder, evolution: Builder
    ) -> None:
        _, strategy = runs.private_evolution(settings, evolution)
        run = RunDirectory.open(strategy.run.path)
        # Not for readers: the memory of correlated noise, and a node's own file.
        (run.path / "noise.npz").write_bytes(b"secret")
        before = {f: f.read_bytes() for f in run.path.rglob("*") if f.is_file()}
        path = write_run_page(run)
        assert path == run.path / "report.html"
        first = path.read_text()
        after = {f: f.read_bytes() for f in run.path.rglob("*") if f.is_file()}
        assert set(after) - set(before) == {path}
        assert all(after[f] == before[f] for f in before)
        assert write_run_page(run).read_text() == first
        assert str(run.path) not in first.replace(run.config["public-text"], "")

    def test_by_the_command(
        self, empty: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["report", str(empty.path)]) == 0
        assert capsys.readouterr().out.strip() == str(empty.path / "report.html")
        assert main(["report", str(empty.path), "--output", str(tmp_path / "page.html")]) == 0
        assert (tmp_path / "page.html").read_text() == (empty.path / "report.html").read_text()
        assert main(["report", str(empty.path), "--output", str(tmp_path)]) == 0
        assert (tmp_path / "report.html").is_file()

    def test_what_the_command_refuses(
        self, empty: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["report", str(tmp_path / "nowhere")]) == 2
        assert "There is no run directory" in capsys.readouterr().err
        assert main(["report", str(tmp_path)]) == 2
        assert "it holds no config.json" in capsys.readouterr().err
        target = tmp_path / "no" / "page.html"
        assert main(["report", str(empty.path), "--output", str(target)]) == 2
        assert re.search("There is no folder .*/no to write page.html", capsys.readouterr().err)


class TestRounds:
    def test_first_last_and_between(self) -> None:
        assert spread_over([1, 2, 3], 3) == [1, 2, 3]
        assert spread_over(list(range(1, 21)), 3) == [1, 11, 20]
        assert spread_over([4, 9, 11], 2) == [4, 11]
        assert spread_over([], 3) == []

    def test_refinement_comes_before_the_rounds(self, empty: RunDirectory) -> None:
        assert round_files(empty) == ("rounds", {})
        for folder in ("rounds/0001", "refinement/0002"):
            (empty.path / folder).mkdir(parents=True)
            (empty.path / folder / "candidates.parquet").touch()
        assert round_files(empty)[0] == "refinement"
        assert list(round_files(empty)[1]) == [2]

    def test_components_are_the_directions_of_most_variance(self) -> None:
        random = np.random.default_rng(3)
        spread = np.array([5.0, 2.0, 0.1, 0.1, 0.1])
        turned, _ = np.linalg.qr(random.normal(size=(5, 5)))
        rounds = {n: ((random.normal(size=(900, 5)) * spread) @ turned.T) for n in (1, 2)}
        rounds[2] += 3 * turned[:, 0]
        plane = principal_plane({n: f.astype(np.float32) for n, f in rounds.items()})
        assert plane is not None
        assert plane.points[1].shape == (900, 2)
        assert abs(plane.points[2][:, 0].mean() - plane.points[1][:, 0].mean()) == pytest.approx(
            3, abs=0.6
        )
        assert plane.points[1][:, 1].std() == pytest.approx(2.0, rel=0.1)
        assert sum(plane.explained) == pytest.approx(1, abs=0.01)
        assert plane.explained[0] > plane.explained[1]

    def test_there_is_no_plane_without_texts(self) -> None:
        assert principal_plane({}) is None
        assert principal_plane({1: np.zeros((5, 4), dtype=np.float32)}) is None
        assert principal_plane({1: np.ones((2, 4), dtype=np.float32)}) is None
        assert principal_plane({1: np.eye(4, dtype=np.float32)[:, :1]}) is None
