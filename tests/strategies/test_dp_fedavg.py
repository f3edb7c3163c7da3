"""DP-FedAvg end to end in one process: real models, real Flower messages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError, FederationError
from flower_privsyn.messages import wire
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy import FullParticipation, Release, release_epsilon
from flower_privsyn.strategies import DPFedAvg, DPFedAvgConfig
from flower_privsyn.testing import LoopbackGrid
from flower_privsyn.training.local import LocalModel
from tests.support.federation import asked, silent_users, training_nodes
from tests.support.probe import Killed
from tests.support.run_files import release, releases
from tests.support.small_runs import small_training

Builder = Callable[..., Any]


@pytest.fixture
def config(lstm: Path, tmp_path: Path) -> Callable[..., DPFedAvgConfig]:
    """Settings of a small run without noise; keyword arguments replace them."""
    return small_training(
        DPFedAvgConfig,
        tmp_path / "run",
        model=str(lstm),
        num_rounds=2,
        num_nodes=2,
        server_momentum=0.0,
    )


@pytest.fixture
def people(texts: list[str]) -> Users:
    """Six users with one to three texts, and one who has written nothing."""
    rows = [(f"user-{i}", texts[3 * i + k]) for i in range(6) for k in range(1 + i % 3)]
    return Users.from_rows([*rows, ("user-6", "")])


def broadcasts(grid: LoopbackGrid) -> list[np.ndarray]:
    """What was sent to the first node in each round."""
    return [
        m.content.array_records["privsyn.broadcast"]["parameters"].numpy()
        for m in asked(grid)
        if m.metadata.dst_node_id == 1
    ]


class TestIsFederatedAveraging:
    @pytest.mark.parametrize("model", ["lstm", "llama"])
    def test_one_step_is_a_step_on_the_union_of_all_users(
        self,
        config: Builder,
        people: Users,
        request: pytest.FixtureRequest,
        model: str,
    ) -> None:
        # The union's loss: the mean over users (the silent one counts, as zero) of each user's
        # mean over their predicted tokens.
        from transformers import AutoModelForCausalLM

        folder = request.getfixturevalue(model)
        strategy = DPFedAvg(
            config(
                model=str(folder),
                num_rounds=1,
                clip_norm=50.0,
                local_batch_size=100,
                local_learning_rate=0.3,
            )
        )
        strategy.start(training_nodes(people))
        trained = AutoModelForCausalLM.from_pretrained(
            strategy.run.path / "models" / "final", dtype=torch.float32
        )
        public = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        tokens = LocalModel(TrainableModel(name=str(folder))).encode(people.texts)
        loss = torch.zeros(())
        for user in range(7):
            own = [tokens[row] for row in np.flatnonzero(people.owners == user)]
            if not own:
                continue
            count = sum(len(sample) - 1 for sample in own)
            for sample in own:
                ids = torch.tensor([sample])
                one = public(input_ids=ids, labels=ids, use_cache=False).loss * (len(sample) - 1)
                loss = loss + one / count / 7
        optimiser = torch.optim.SGD(public.parameters(), lr=0.3)
        loss.backward()
        largest = max(float(p.grad.abs().max()) for p in public.parameters() if p.grad is not None)
        assert 0.3 * largest > 1e-3
        optimiser.step()
        for (name, got), expected in zip(
            trained.named_parameters(), public.parameters(), strict=True
        ):
            assert float((got - expected).detach().abs().max()) < 1e-6, name

    def test_momentum_and_rate_of_the_server(self, config: Builder, people: Users) -> None:
        strategy = DPFedAvg(
            config(num_rounds=3, server_momentum=0.9, server_learning_rate=0.7, clip_norm=3.0)
        )
        grid = training_nodes(people)
        strategy.start(grid)
        sent = broadcasts(grid)
        x, v = sent[0].astype(np.float64), 0.0
        for number in (1, 2, 3):
            v = 0.9 * v + release(strategy.run.path, number) / 7
            x = x + 0.7 * v
            if number < 3:
                assert np.abs(sent[number] - x).max() < 1e-6
        final = LocalModel(TrainableModel(name=str(strategy.run.path / "models" / "final")))
        assert np.abs(final.parameters - x).max() < 1e-6
        assert np.abs(final.parameters - sent[0]).max() > 1e-3


class TestNodes:
    def test_only_trained_parameters_travel(
        self, config: Builder, people: Users, tmp_path: Path
    ) -> None:
        for precision in ("float32", "float16"):
            strategy = DPFedAvg(
                config(broadcast_precision=precision, run_dir=str(tmp_path / precision))
            )
            grid = training_nodes(people)
            strategy.start(grid)
            size = strategy.method.model.dimension
            for message in asked(grid):
                record = message.content.array_records["privsyn.broadcast"]
                assert list(record) == ["parameters"]
                assert record["parameters"].shape == (size,)
                assert record["parameters"].dtype == precision
            assert [wire.unexpected_records(reply) for reply in grid.replies] == [[]] * 6
            assert release(strategy.run.path, 1).shape == (size,)

    def test_a_client_that_does_not_train_says_so(
        self, config: Builder, people: Users, tmp_path: Path
    ) -> None:
        grid = training_nodes(people, app=create_client_app)
        with pytest.raises(FederationError, match=r"model_delta with .*training:app.*nothing was"):
            DPFedAvg(config()).start(grid)
        assert not (tmp_path / "run" / "ledger.jsonl").exists()


class TestNoise:
    @pytest.mark.parametrize("bit_share", [0.0, 0.6])
    def test_noise_of_the_average_update(self, config: Builder, bit_share: float) -> None:
        """Of an adaptive clip norm too, whose bit is paid for with the update."""
        changes = {"clip_bit_share": bit_share, "clip_learning_rate": 0.0} if bit_share else {}
        strategy = DPFedAvg(
            config(
                noise_multiplier=1.5,
                num_rounds=20,
                clip_norm=0.02,
                adaptive_clipping=bit_share > 0,
                **changes,
            )
        )
        grid = training_nodes(silent_users(8))
        strategy.start(grid)
        # Nobody wrote anything: what moves the parameters is noise, z C / users per coordinate.
        steps = np.diff(np.stack(broadcasts(grid)).astype(np.float64), axis=0)
        assert steps.size > 190_000
        left = math.sqrt(1 - bit_share**2)
        deviation = 1.5 / left * 0.02 / 8
        assert steps.std() == pytest.approx(deviation, rel=4 / math.sqrt(2 * steps.size))
        # What is charged is the multiplier of both together, once.
        line = releases(strategy.run.path)[-1]
        assert line["noise_multiplier"] == 1.5
        assert line["l2_sensitivity"] == pytest.approx(1 / left)
        alone = Release(noise_multiplier=1.5, sampling=FullParticipation())
        epsilon = release_epsilon({alone: 20}, delta=strategy.config.delta)
        assert line["epsilon_release"] == pytest.approx(epsilon, rel=1e-6)
        released = np.stack([release(strategy.run.path, number)[:-1] for number in range(1, 21)])
        assert abs(np.corrcoef(released)[np.triu_indices(20, 1)]).max() < 0.05
        state = json.loads((strategy.run.round_dir(1) / "server.json").read_text())
        length = deviation * math.sqrt(steps.shape[1])
        assert state["average_noise_norm"] == pytest.approx(length)
        assert state["average_update_norm"] == pytest.approx(length, rel=0.1)

    def test_the_clip_norm_never_outgrows_the_grid(self, config: Builder) -> None:
        """A round that the grid cannot hold would end a run that has been paid for."""
        strategy = DPFedAvg(
            config(
                noise_multiplier=0.0,
                num_rounds=3,
                clip_norm=900_000.0,
                adaptive_clipping=True,
                clip_quantile=1.0,
                clip_learning_rate=5.0,
            )
        )
        strategy.start(training_nodes(silent_users(8)))
        assert strategy.run.status == "finished"
        bounds = [line["l2_sensitivity"] for line in releases(strategy.run.path)]
        assert bounds[0] < bounds[1]
        assert bounds[1:] == pytest.approx([2.0**20, 2.0**20])

    def test_averages_are_over_a_public_constant(self, config: Builder, people: Users) -> None:
        for changes, divisor in (
            ({"sampling": "poisson", "sampling_rate": 0.5}, 3.5),
            ({"sampling": "fixed-size", "sample_size": 4}, 4),
        ):
            strategy = DPFedAvg(
                config(
                    run_dir=str(Path(config().run_dir) / changes["sampling"]),
                    accountant="rdp",
                    **changes,
                )
            )
            grid = training_nodes(people)
            strategy.start(grid)
            first, second = broadcasts(grid)
            step = 0.05 * release(strategy.run.path, 1) / divisor
            assert np.abs(second - first - step).max() < 1e-6


class TestAdaptiveClipping:
    def test_the_clip_norm_reaches_the_quantile_of_real_updates(
        self, config: Builder, texts: list[str]
    ) -> None:
        users = Users.from_rows((f"u{i}", " ".join(texts[i : i + 1 + i % 4])) for i in range(11))
        strategy = DPFedAvg(
            config(
                num_rounds=24,
                clip_norm=2.0,
                adaptive_clipping=True,
                clip_learning_rate=0.8,
                server_learning_rate=1e-6,  # the updates stay as they are
            )
        )
        grid = training_nodes(users)
        strategy.start(grid)
        model = LocalModel(TrainableModel(name=strategy.config.model))
        norms = [
            np.linalg.norm(
                model.update(  # type: ignore[arg-type]
                    model.encode([text]), learning_rate=0.5, epochs=1, batch_size=4
                )
            )
            for text in users.texts
        ]
        states = [
            json.loads((strategy.run.round_dir(number) / "server.json").read_text())
            for number in range(1, 25)
        ]
        assert states[0]["fraction_within"] == pytest.approx(1.0)
        assert states[0]["next_clip_norm"] == pytest.approx(2.0 * math.exp(-0.4))
        assert states[-1]["next_clip_norm"] == pytest.approx(np.median(norms), rel=0.1)
        # Nodes were told each round's own norm, and the ledger charged it.
        told = [
            float(m.content.config_records["privsyn.query"]["clip-to"])  # type: ignore[arg-type]
            for m in asked(grid)
            if m.metadata.dst_node_id == 1
        ]
        assert told == [state["clip_norm"] for state in states]
        charged = [line["l2_sensitivity"] for line in releases(strategy.run.path)]
        expected = [max(1.0, clip) / math.sqrt(1 - 0.2**2) for clip in told]
        assert charged == pytest.approx(expected)


def test_flower_is_shown_the_model_of_every_round_by_the_runs_own_numbers(
    config: Builder, people: Users
) -> None:
    seen: dict[int, np.ndarray] = {}

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        seen[number] = arrays["parameters"].numpy()
        if number == 2 and not resumed:
            raise Killed
        return MetricRecord({"number": number})

    resumed = False
    with pytest.raises(Killed):
        DPFedAvg(config(num_rounds=3)).start(training_nodes(people), evaluate_fn=evaluate)
    assert list(seen) == [0, 1, 2]
    before, resumed = dict(seen), True
    seen.clear()
    strategy = DPFedAvg(config(num_rounds=3, resume=True))
    result = strategy.start(training_nodes(people), evaluate_fn=evaluate)
    assert list(seen) == [2, 3]
    assert np.array_equal(seen[2], before[2])
    assert list(result.train_metrics_clientapp) == [3]
    metrics = result.evaluate_metrics_serverapp
    assert {number: record["number"] for number, record in metrics.items()} == {2: 2, 3: 3}
    assert np.array_equal(result.arrays["parameters"].numpy(), seen[3])
    final = LocalModel(TrainableModel(name=str(strategy.run.path / "models/final")))
    assert np.array_equal(final.parameters, seen[3])
    assert not np.array_equal(seen[3], seen[2])


def test_samples_longer_than_the_model_takes(
    config: Builder, people: Users, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="max-tokens = 600 is more than the 511"):
        DPFedAvg(config(max_tokens=600)).start(training_nodes(people))
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
