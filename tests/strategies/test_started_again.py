"""One strategy object that is started again, in another run directory or after another process.

What an earlier start had in memory is never used in place of what is in the run directory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from flower_privsyn.client_apps.training import create_training_app
from flower_privsyn.data import Users
from flower_privsyn.errors import ModelError
from flower_privsyn.queries import TrainableModel
from flower_privsyn.runs import RunDirectory
from flower_privsyn.strategies import (
    CTCL,
    DPFTRL,
    AugPE,
    AugPEConfig,
    CTCLConfig,
    DPFedAvg,
    DPFedAvgConfig,
    DPFTRLConfig,
    FreD,
    FreDConfig,
    Hybrid,
    HybridConfig,
    JointSketch,
    JointSketchConfig,
    POPri,
    POPriConfig,
    PublicMidTraining,
)
from flower_privsyn.strategies.parts.evolution import Evolution
from flower_privsyn.testing import (
    EchoGenerator,
    HashEmbedder,
    LoopbackGrid,
    ShuffleWords,
    WordGenerator,
    hash_embedder,
    train_words,
)
from flower_privsyn.training.local import LocalModel
from tests.support.federation import WORDS, training_nodes
from tests.support.probe import Killed
from tests.support.run_files import contents, releases
from tests.support.small_runs import small_mid_training, small_training
from tests.support.topics import write_topics

if TYPE_CHECKING:
    pass

Builder = Callable[..., Any]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs go whose settings name no folder: a new one for every start."""
    monkeypatch.setenv("PRIVSYN_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def hybrid(lstm: Path, gpt2: Path, public_file: Path) -> Callable[..., HybridConfig]:
    return small_training(
        HybridConfig,
        Path(),
        noises=("noise_multiplier", "sketch_noise_multiplier"),
        model=str(lstm),
        teacher=str(gpt2),
        public_text=str(public_file),
        num_bigrams=40,
        select_share=0.2,
        least_selected=1,
        least_row_tokens=5,
        most_overlap=1.0,
        student_steps=3,
        student_batch_size=4,
        num_rounds=3,
        min_separation=2,
    )


def two_populations(texts: list[str]) -> list[Users]:
    return [
        Users.from_rows((f"user-{i}", text) for i, text in enumerate(own))
        for own in (texts[:8], texts[-8:])
    ]


class Restless(ShuffleWords):
    """Varies every time otherwise, as a server does that makes nothing of seeds."""

    calls = 0

    def vary(self, texts: Sequence[str], *, seed: int, **options: Any) -> list[str]:
        Restless.calls += 1
        return super().vary(texts, seed=seed + Restless.calls, **options)


def texts_of_round(run: Path, number: int) -> list[str]:
    file = run / f"rounds/{number:04d}/population.parquet"
    return [row["text"] for row in pq.read_table(file).to_pylist()]


def test_votes_are_for_the_candidates_that_another_process_has_asked_about(
    settings: Builder, evolution: Builder, federation: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(
        num_rounds=2, lookahead=0, resume="auto", noise_multiplier=0.0, output="survivors"
    )
    first, second = (evolution(config, variation=Restless()) for _ in range(2))

    def killed(strategy: Any, method: str, when: Callable[[Any], bool]) -> list[str]:
        original = getattr(Evolution, method)

        def die(self: Evolution, given: Any) -> Any:
            if when(given):
                raise Killed
            return original(self, given)

        with monkeypatch.context() as patch:
            patch.setattr(Evolution, method, die)
            with pytest.raises(Killed):
                strategy.start(federation())
        return texts_of_round(strategy.run.path, 2)

    # Its candidates of round 2 are on the disk, and round 1 has not ended: the other process makes
    # others, asks about these, and is killed once what was released of them is on the disk.
    made = killed(first, "_question", lambda population: population.ids[0] == "2:0")
    asked = killed(second, "_survivors", lambda release: release.round_number == 2)
    assert made != asked
    first.start(federation())
    assert texts_of_round(first.run.path, 2) == asked


def test_an_initial_model_that_was_missing_is_asked_for_again(
    lstm: Path, texts: list[str], tmp_path: Path
) -> None:
    """An app that has caught the error and put it there must not train without it."""
    people, initial = two_populations(texts)[0], tmp_path / "initial"
    config = small_training(
        DPFTRLConfig,
        tmp_path / "run",
        model=str(lstm),
        initial_model=str(initial),
        num_rounds=2,
        min_separation=2,
        clip_norm=1e-6,
        resume="auto",
    )
    strategy = DPFTRL(config())
    for _ in range(2):
        with pytest.raises(ModelError, match="initial"):
            strategy.start(training_nodes(people))
    first = LocalModel(TrainableModel(name=str(lstm)))
    moved = first.parameters + np.float32(0.1)
    first.save(initial, moved)
    strategy.start(training_nodes(people))
    final = LocalModel(TrainableModel(name=str(strategy.run.path / "models" / "final")))
    assert final.parameters == pytest.approx(moved, abs=1e-4)


COMMON: dict[str, Any] = {"node_timeout": 0.2, "accept_noise": True, "num_nodes": 2}
PREFERENCES: dict[str, Any] = {
    "num_prompts": 6,
    "responses_per_prompt": 5,
    "rejected_rank": 4,
    "synthetic_samples": 10,
    "num_rounds": 3,
    **COMMON,
}


@pytest.fixture
def methods(
    hybrid: Builder,
    settings: Builder,
    evolution: Builder,
    lstm: Path,
    gpt2: Path,
    public_file: Path,
    llama: Path,
    tmp_path: Path,
) -> dict[str, Callable[..., Any]]:
    """A small strategy of every method, from where it runs."""
    public = {"public_text": str(public_file), "noise_multiplier": 0.0, **COMMON}
    trains = small_training(DPFedAvgConfig, Path(), model=str(lstm), num_rounds=3)
    mid = small_mid_training(
        Path(),
        lstm=lstm,
        gpt2=gpt2,
        public_file=public_file,
        num_rounds=4,
        min_separation=2,
    )
    ctcl = small_training(
        CTCLConfig,
        Path(),
        noises=("noise_multiplier", "histogram_noise_multiplier"),
        model=str(llama),
        topics=str(write_topics(tmp_path)),
        num_topics=6,
        num_rounds=3,
        min_separation=2,
        max_new_tokens=8,
        synthetic_samples=8,
    )

    def preferring(**place: Any) -> POPri:
        values = {**public, **PREFERENCES, **place}
        config = POPriConfig(checkpoint="fred", moment_dimensions=4, **values)
        return POPri(config, embedder=HashEmbedder(), generator=words(), trainer=train_words)

    def words() -> WordGenerator:
        return WordGenerator(WORDS)

    return {
        "private-evolution": lambda **place: evolution(settings(**public, **place)),
        "aug-pe": lambda **place: AugPE(
            AugPEConfig(num_candidates=6, num_variations=3, num_rounds=3, **public, **place),
            embedder=HashEmbedder(),
            generator=EchoGenerator(),
        ),
        "popri": preferring,
        "joint-sketch": lambda **place: JointSketch(
            JointSketchConfig(
                model=str(lstm),
                teacher="",
                num_bigrams=40,
                student_steps=2,
                student_batch_size=4,
                least_row_tokens=5,
                least_selected=1,
                select_share=0.2,
                num_rounds=2,
                **public,
                **place,
            )
        ),
        "fred": lambda **place: FreD(
            FreDConfig(moment_dimensions=4, num_rounds=3, **public, **place),
            embedder=HashEmbedder(),
        ),
        "dp-fedavg": lambda **place: DPFedAvg(
            trains(**{"adaptive_clipping": True, "server_momentum": 0.9, **place})
        ),
        "hybrid": lambda **place: Hybrid(hybrid(**place)),
        "public-mid-training": lambda **place: PublicMidTraining(mid(**place)),
        "ctcl": lambda **place: CTCL(ctcl(**place), embedder=HashEmbedder()),
    }


METHODS = (
    "private-evolution",
    "aug-pe",
    "popri",
    "joint-sketch",
    "fred",
    "dp-fedavg",
    "hybrid",
    "public-mid-training",
    "ctcl",
)


def grid_of(people: Users, folder: Path, **options: Any) -> LoopbackGrid:
    def app(load: Any) -> Any:
        return create_training_app(load, embedder=hash_embedder, cache_directory=folder / "cache")

    return training_nodes(people, app=app, **options)


def result(strategy: Any) -> dict[str, Any]:
    """What a run has made, and what it cost."""
    run = strategy.run.path
    found: dict[str, Any] = {
        name: content
        for name, content in contents(run).items()
        if name.endswith(("release.npy", "population.parquet", "model.safetensors"))
        or name == "synthetic.jsonl"
    }
    charged = [(line["round"], line["query"]) for line in releases(run)]
    return {**found, "charged": charged, "summary": strategy.run.state["summary"]}


@pytest.mark.parametrize("method", METHODS)
def test_another_run_is_as_of_a_new_object(
    methods: Any, texts: list[str], runs: Path, tmp_path: Path, method: str
) -> None:
    first, second = two_populations(texts)
    alone, again = (methods[method](run_dir="") for _ in range(2))
    alone.start(grid_of(second, tmp_path))
    again.start(grid_of(first, tmp_path))
    other = result(again)
    again.start(grid_of(second, tmp_path))
    assert result(again) == result(alone)
    assert result(again) != other


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_gone_on_with_is_as_of_new_objects(
    methods: Any, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Killed in its second round and at its end, and once more when it has finished."""
    people = two_populations(texts)[0]

    def dying(request: Any, reply: Any) -> list[Any]:
        if request.content["privsyn.request"].get("round") == 2:
            raise Killed
        return [reply]

    def die(*args: Any) -> None:
        raise Killed

    def pieces(folder: str, *, anew: bool) -> Any:
        place = {"run_dir": str(tmp_path / folder), "resume": "auto"}
        one = methods[method](**place)

        def strategy() -> Any:
            return methods[method](**place) if anew else one

        with pytest.raises(Killed):
            strategy().start(grid_of(people, tmp_path, tamper=dying))
        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, "mark_finished", die)
            with pytest.raises(Killed):
                strategy().start(grid_of(people, tmp_path))
        last = strategy()
        last.start(grid_of(people, tmp_path))
        made = result(last)
        last.start(grid_of(people, tmp_path))
        assert result(last) == made
        return last

    assert result(pieces("same", anew=False)) == result(pieces("new", anew=True))


@pytest.mark.parametrize("method", ["dp-fedavg", "hybrid", "public-mid-training"])
def test_a_finished_run_gives_the_arrays_that_it_gave(
    methods: Any, texts: list[str], tmp_path: Path, method: str
) -> None:
    people = two_populations(texts)[0]
    strategy = methods[method](run_dir=str(tmp_path / "run"), resume="auto", trainable="lora")
    whole, again = (strategy.start(grid_of(people, tmp_path)).arrays for _ in range(2))
    assert list(again) == list(whole)
    for name in whole:
        assert np.array_equal(again[name].numpy(), whole[name].numpy()), name
