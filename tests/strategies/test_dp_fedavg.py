"""DP-FedAvg end to end in one process: real models, real Flower messages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord

from flower_privsyn.client_apps import create_client_app
from flower_privsyn.client_apps.training import LocalTraining
from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError, FederationError
from flower_privsyn.messages import wire
from flower_privsyn.queries import TrainableModel
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.method import need
from flower_privsyn.run.rounds import last_state
from flower_privsyn.strategies import DPFedAvg, DPFedAvgConfig
from flower_privsyn.testing import LoopbackGrid
from flower_privsyn.training.local import LocalModel
from tests.support.federation import asked, silent_users, training_nodes
from tests.support.probe import Killed
from tests.support.run_files import lines, release, releases
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
    @pytest.mark.parametrize("adaptive", [False, True])
    def test_however_users_are_dealt_the_sums_are_the_same_bits(
        self, config: Builder, people: Users, tmp_path: Path, adaptive: bool
    ) -> None:
        users = people.select(np.arange(7) < 6)
        sums = []
        for nodes in (6, 2):
            strategy = DPFedAvg(
                config(
                    num_nodes=nodes,
                    adaptive_clipping=adaptive,
                    local_batch_size=1,
                    local_epochs=2,
                    run_dir=str(tmp_path / f"n{nodes}"),
                )
            )
            strategy.start(training_nodes(users, num_nodes=nodes))
            sums.append([release(strategy.run.path, number) for number in (1, 2)])
        for six, two in zip(*sums, strict=True):
            assert np.abs(six).max() > 0
            assert np.array_equal(six, two)

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

    def test_a_node_with_another_model_is_not_asked(
        self, config: Builder, people: Users, llama: Path
    ) -> None:
        class Other(LocalTraining):
            def source(self, model: TrainableModel) -> Any:
                return super().source(replace(model, name=str(llama)))

        def app(load: Any) -> Any:
            return create_client_app(load, trainer=Other())

        with pytest.raises(FederationError, match="another model or tokenizer than the server's"):
            DPFedAvg(config()).start(training_nodes(people, app=app))

    def test_updates_that_diverge_count_for_nothing(self, config: Builder, people: Users) -> None:
        strategy = DPFedAvg(config(local_learning_rate=1e12, local_epochs=20, local_batch_size=1))
        grid = training_nodes(people)
        strategy.start(grid)
        assert not release(strategy.run.path, 1).any()
        assert np.array_equal(*broadcasts(grid))
        line = releases(strategy.run.path)[0]
        assert line["num_users"] == 7


class TestNoise:
    def test_noise_of_the_average_update(self, config: Builder) -> None:
        # Nobody wrote anything: what moves the parameters is noise, z C / users per coordinate.
        strategy = DPFedAvg(config(noise_multiplier=1.5, num_rounds=20, clip_norm=0.02))
        grid = training_nodes(silent_users(8))
        strategy.start(grid)
        steps = np.diff(np.stack(broadcasts(grid)).astype(np.float64), axis=0)
        assert steps.size > 190_000
        assert steps.std() == pytest.approx(1.5 * 0.02 / 8, rel=4 / math.sqrt(2 * steps.size))
        released = np.stack([release(strategy.run.path, number) for number in range(1, 21)])
        assert released.std() == pytest.approx(1.5, rel=0.01)
        assert abs(np.corrcoef(released)[np.triu_indices(20, 1)]).max() < 0.05
        for number in (1, 2):
            state = json.loads((strategy.run.round_path(number) / "server.json").read_text())
            assert state["average_noise_norm"] == pytest.approx(
                1.5 * 0.02 / 8 * math.sqrt(released.shape[1])
            )
            assert state["average_update_norm"] == pytest.approx(
                state["average_noise_norm"], rel=0.1
            )

    def test_adaptive_clipping_pays_for_its_bit(self, config: Builder) -> None:
        strategy = DPFedAvg(
            config(
                noise_multiplier=1.5,
                num_rounds=20,
                clip_norm=0.02,
                adaptive_clipping=True,
                clip_bit_share=0.6,
                clip_learning_rate=0.0,
            )
        )
        grid = training_nodes(silent_users(8))
        strategy.start(grid)
        steps = np.diff(np.stack(broadcasts(grid)).astype(np.float64), axis=0)
        assert steps.std() == pytest.approx(1.5 / 0.8 * 0.02 / 8, rel=4 / math.sqrt(2 * steps.size))
        # What is charged is the multiplier of both together, once.
        line = releases(strategy.run.path)[-1]
        assert line["noise_multiplier"] == 1.5
        assert line["l2_sensitivity"] == pytest.approx(1 / 0.8)
        plain = DPFedAvg(
            config(
                noise_multiplier=1.5,
                num_rounds=20,
                run_dir=str(strategy.run.path.with_name("plain")),
            )
        )
        plain.start(training_nodes(silent_users(8)))
        assert releases(plain.run.path)[-1]["epsilon_release"] == line["epsilon_release"]

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

    def test_the_budget_is_kept(self, config: Builder, people: Users) -> None:
        strategy = DPFedAvg(config(epsilon=4.0, num_rounds=3, adaptive_clipping=True))
        strategy.start(training_nodes(people))
        charged = releases(strategy.run.path)
        assert [line["round"] for line in charged] == [1, 2, 3]
        assert charged[-1]["epsilon_release"] == pytest.approx(4.0, rel=1e-3)
        assert charged[-1]["epsilon_release"] <= 4.0 * (1 + 1e-6)
        assert {line["query"] for line in charged} == {"model_delta"}

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

    def test_a_node_that_is_missing_does_not_change_the_divisor(
        self, config: Builder, people: Users
    ) -> None:
        def lose(request: Message, reply: Message) -> list[Message]:
            second = reply.metadata.src_node_id == 2
            return [] if second and request.metadata.message_type != wire.PREPARE else [reply]

        strategy = DPFedAvg(config())
        grid = training_nodes(people, tamper=lose)
        strategy.start(grid)
        assert releases(strategy.run.path)[0]["num_users"] == 4
        first, second = broadcasts(grid)
        step = 0.05 * release(strategy.run.path, 1) / 7
        assert np.abs(step).max() > 1e-5
        assert np.abs(second - first - step).max() < 1e-7


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
            json.loads((strategy.run.round_path(number) / "server.json").read_text())
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


class TestResume:
    def start(self, config: Builder, people: Users, **changes: Any) -> DPFedAvg:
        tamper, prepare = changes.pop("tamper", None), changes.pop("prepare", None)
        strategy = DPFedAvg(
            config(num_rounds=3, server_momentum=0.9, adaptive_clipping=True, **changes)
        )
        if prepare:
            prepare(strategy)
        strategy.start(training_nodes(people, tamper=tamper))
        return strategy

    def test_flower_is_shown_the_model_of_every_round_by_the_runs_own_numbers(
        self, config: Builder, people: Users
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

    def test_a_lost_round_changes_nothing_but_the_ledger(
        self, config: Builder, people: Users, tmp_path: Path
    ) -> None:
        def die(request: Message, reply: Message) -> list[Message]:
            record = request.content.config_records["privsyn.request"]
            if record.get("round") == 2:
                raise Killed
            return [reply]

        with pytest.raises(Killed):
            self.start(config, people, tamper=die, epsilon=3.0)
        _, state = need(last_state(RunDirectory(tmp_path / "run")))
        grid = training_nodes(people)
        resumed = DPFedAvg(
            config(
                num_rounds=3,
                server_momentum=0.9,
                adaptive_clipping=True,
                resume=True,
                epsilon=3.0,
            )
        )
        resumed.start(grid)
        told = asked(grid)[0].content["privsyn.broadcast"]["parameters"].numpy()
        assert np.array_equal(told, state["parameters"])
        charged = releases(resumed.run.path)
        assert [(line["round"], line["interrupted"]) for line in charged] == [
            (1, False),
            (2, True),
            (3, False),
        ]
        assert charged[-1]["epsilon_release"] <= 3.0 * (1 + 1e-6)
        state = json.loads((resumed.run.round_path(1) / "server.json").read_text())
        later = json.loads((resumed.run.round_path(3) / "server.json").read_text())
        assert later["clip_norm"] == state["next_clip_norm"] != 0.05

    def test_a_lost_last_round_leaves_the_model_of_the_one_before(
        self, config: Builder, people: Users, tmp_path: Path
    ) -> None:
        def lose(request: Message, reply: Message) -> list[Message]:
            if request.content.config_records["privsyn.request"].get("round") == 3:
                raise Killed
            return [reply]

        values = {"epsilon": 3.0, "min_users": 1}
        with pytest.raises(Killed):
            self.start(config, people, tamper=lose, **values)
        _, state = need(last_state(RunDirectory(tmp_path / "run")))
        strategy = self.start(config, people, resume=True, **values)
        assert strategy.run.status == "finished"
        assert strategy.run.rounds_with_outcome("released") == [1, 2]
        final = LocalModel(TrainableModel(name=str(tmp_path / "run/models/final")))
        assert np.array_equal(final.parameters, state["parameters"])


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"server_momentum": 1.0}, "server-momentum"),
            ({"trainable": "head"}, "trainable"),
            ({"trainable": "layers"}, "trainable-layers"),
            ({"model": ""}, "model"),
        ],
    )
    def test_bad_settings_are_named(
        self, config: Builder, changes: dict[str, Any], named: str
    ) -> None:
        with pytest.raises(ConfigError, match=named):
            config(**changes)

    def test_samples_longer_than_the_model_takes(
        self, config: Builder, people: Users, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match="max-tokens = 600 is more than the 511"):
            DPFedAvg(config(max_tokens=600)).start(training_nodes(people))
        assert not (tmp_path / "run" / "ledger.jsonl").exists()

    def test_presets_of_the_papers(self) -> None:
        pre_text = DPFedAvgConfig.pre_text(
            epsilon=1.29, local_learning_rate=0.01, num_rounds=100, clip_norm=0.001
        )
        assert (pre_text.local_batch_size, pre_text.num_rounds, pre_text.delta) == (4, 100, 3e-6)
        assert pre_text.question(pre_text.clip_norm).clip_to == 0.001
        popri = DPFedAvgConfig.popri(epsilon=1.0, clip_norm=0.4)
        assert (popri.local_batch_size, popri.num_rounds) == (2, 20)
        for wrong in (
            lambda: DPFedAvgConfig.pre_text(epsilon=1.29, clip_norm=0.2),
            lambda: DPFedAvgConfig.pre_text(epsilon=1.29, num_rounds=11),
            lambda: DPFedAvgConfig.popri(epsilon=1.0, clip_norm=0.5),
            lambda: DPFedAvgConfig.popri(epsilon=1.0, local_learning_rate=0.001),
        ):
            with pytest.raises(ConfigError, match="must be"):
                wrong()


def test_metrics_say_nothing_of_the_training(config: Builder, people: Users) -> None:
    strategy = DPFedAvg(config(noise_multiplier=1.0))
    strategy.start(training_nodes(people))
    row = lines(strategy.run.metrics_file)[0]
    assert not {key for key in row if "loss" in key or "step" in key or "token" in key}
