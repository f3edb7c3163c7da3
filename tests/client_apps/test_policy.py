"""The owner's file: what it may hold, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.client_apps.account import Charge
from flower_privsyn.client_apps.guard import NodeGuard, dataset_name, find_policy, model_digest
from flower_privsyn.client_apps.policy import DEFAULTS, NodePolicy, policy_text
from flower_privsyn.errors import ConfigError, NotAllowedError
from flower_privsyn.messages.wire import Announcement, ToCome
from flower_privsyn.privacy import (
    BandedToeplitz,
    Correlation,
    FullParticipation,
    NeighboringRelation,
)

pytestmark = pytest.mark.usefixtures("owner")

Asked = Callable[..., Charge]


def written(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("file", "folder"), [(0o666, 0o755), (0o644, 0o777)])
def test_a_policy_that_all_can_write_is_nobodys(tmp_path: Path, file: int, folder: int) -> None:
    """Whoever can write it would say how much of its people's text a node tells."""
    path = written(tmp_path, policy_text())
    path.chmod(file)
    tmp_path.chmod(folder)
    with pytest.raises(ConfigError, match=r"can be written by every user .*; chmod o-w it"):
        NodePolicy.read(path)
    path.chmod(0o664)
    tmp_path.chmod(0o1777)  # as /tmp: who does not own it cannot replace it
    assert replace(NodePolicy.read(path), source=DEFAULTS) == NodePolicy()


class TestFile:
    def test_what_is_written_reads_back(self, tmp_path: Path) -> None:
        found = NodePolicy.read(written(tmp_path, policy_text()))
        assert replace(found, source=DEFAULTS) == NodePolicy()
        other = NodePolicy(
            min_noise_multiplier=0.5,
            max_clip_norm=2.0,
            max_rounds=3,
            max_epsilon=math.inf,
            delta=1e-7,
            relation=NeighboringRelation.REPLACE_ONE,
            queries=("moments",),
            servers=('clinic "north"',),
            dataset="people",
            embedding_models={"/srv/e5": "ab" * 32},
            trained_models={},
        )
        found = NodePolicy.read(written(tmp_path, policy_text(other)))
        assert replace(found, source=DEFAULTS) == other

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ('max-epsilon = "ten"', "max-epsilon must be a number above 0.*'ten'"),
            ("min-noise-multiplier = -1", "min-noise-multiplier must be .* at least 0, got -1"),
            ("max-rounds = 2.5", "max-rounds must be a whole number .* got 2.5"),
            ("delta = 1.0", "delta must be a number above 0 and below 1, got 1.0"),
            ('relation = "friends"', "relation must be one of \"zero-out\".* got 'friends'"),
            ('queries = "moments"', "queries must be a list of strings"),
            ('[trained-models]\n"m" = "abc"', r"trained-models.m must be 64 hexadecimal.* 'abc'"),
            ("max-epsilons = 3", 'unknown key "max-epsilons"; known are'),
            ("max-epsilon = ", "is not valid TOML"),
            ("", "has no max-epsilon, which every policy must state"),
        ],
    )
    def test_a_mistake_is_one_sentence_with_file_key_and_value(
        self, tmp_path: Path, line: str, says: str
    ) -> None:
        path = written(tmp_path, line)
        with pytest.raises(ConfigError, match=says) as error:
            NodePolicy.read(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)

    def test_a_file_that_was_half_saved_allows_nothing(self, tmp_path: Path) -> None:
        """Whatever it was cut off at, down to the value of its last line."""
        whole = policy_text(NodePolicy(max_epsilon=0.25, embedding_models={}))
        last = whole.index("max-epsilon =") + len("max-epsilon = 0.")
        for end in (*range(0, last, 53), *range(last - 40, last)):
            with pytest.raises(ConfigError):
                NodePolicy.read(written(tmp_path, whole[:end]))

    def test_is_found_where_the_node_its_environment_or_its_user_says(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert find_policy({}).max_epsilon == NodePolicy().max_epsilon
        folder = tmp_path / "config" / "flower-privsyn"
        folder.mkdir(parents=True)
        (folder / "node-policy.toml").write_text("max-epsilon = 1.0")
        assert find_policy({}).max_epsilon == 1.0
        for number, name in ((2.0, "environment"), (3.0, "node")):
            (tmp_path / name).write_text(f"max-epsilon = {number}")
        monkeypatch.setenv("PRIVSYN_NODE_POLICY", str(tmp_path / "environment"))
        assert find_policy({}).max_epsilon == 2.0
        assert find_policy({"policy": str(tmp_path / "node")}).max_epsilon == 3.0
        with pytest.raises(ConfigError, match="cannot be read"):
            find_policy({"policy": str(tmp_path / "missing")})


class TestQuestions:
    @pytest.mark.parametrize(
        ("policy", "question", "says"),
        [
            ({"queries": ("moments",)}, {}, "asks nearest_neighbor_histogram.*moments"),
            ({"max_clip_norm": 2.9}, {}, "clip norm 3; the owner allows at most 2.9"),
            ({"max_rounds": 19}, {}, "plans 20 rounds; the owner allows at most 19"),
            ({"min_noise_multiplier": 2.1}, {}, "noise multiplier 2; .* allows at least 2.1"),
            ({"servers": ("south",)}, {}, 'answers "north"; its owner allows "south"'),
            ({"servers": ("south",)}, {"server": ""}, "a server without a name"),
        ],
    )  # fmt: skip
    def test_that_the_owner_does_not_allow_are_refused_before_and_at_the_answer(
        self, asked: Asked, policy: dict[str, Any], question: dict[str, Any], says: str
    ) -> None:
        charge = asked(**question)
        guard = NodeGuard(NodePolicy(max_epsilon=math.inf, **policy), {"server": charge.server})
        plan = Announcement(
            queries=(charge.spec.query,), num_rounds=20, clip_norm=3.0, noise_multiplier=2.0,
            to_come=(ToCome(count=20, noise_multiplier=2.0, sampling=FullParticipation()),),
        )  # fmt: skip
        for refuse in (lambda: guard.check(charge), lambda: guard.check_plan(plan, 7)):
            with pytest.raises(NotAllowedError, match=says):
                refuse()
        allowing = NodeGuard(NodePolicy(max_epsilon=math.inf), {"server": charge.server})
        allowing.check(charge)
        allowing.check_plan(plan, 7)

    def test_the_noise_of_correlated_rounds_is_that_of_all_together(self, asked: Asked) -> None:
        correlation = Correlation(factorisation=BandedToeplitz(rounds=6, coefficients=(1.0, 0.5)))
        whole = correlation.noise_multiplier(4.0)
        charge = asked(1, 4.0, correlation=correlation, num_rounds=6)
        NodeGuard(NodePolicy(min_noise_multiplier=whole * 0.999), {}).check(charge)
        with pytest.raises(NotAllowedError, match="noise multiplier"):
            NodeGuard(NodePolicy(min_noise_multiplier=whole * 1.001), {}).check(charge)

    def test_a_plan_that_does_not_fit_is_refused_before_it_begins(self, asked: Asked) -> None:
        policy = NodePolicy(max_epsilon=4.0)
        guard = NodeGuard(policy, {"server": "north", "dataset": "people"})
        plan = Announcement(
            num_rounds=20,
            noise_multiplier=6.0,
            to_come=(ToCome(count=20, noise_multiplier=6.0, sampling=FullParticipation()),),
        )
        guard.check_plan(plan, 9)
        for number in (1, 2):
            guard.charge(asked(number))
        with pytest.raises(NotAllowedError) as refused:
            guard.check_plan(plan, 9)
        for part in ('run 9 of server "north"', "num-rounds = 20", "noise multiplier 6", "allows 4",
                     'run 7 of server "north" (2 of 20 rounds)'):  # fmt: skip
            assert part in str(refused.value)

    def test_a_stream_that_is_paid_for_costs_a_resumed_run_nothing(self, asked: Asked) -> None:
        correlation = Correlation(factorisation=BandedToeplitz(rounds=6, coefficients=(1.0, 0.5)))
        first = asked(1, 4.0, correlation=correlation, num_rounds=6)
        cost = NodeGuard(NodePolicy(), {"server": "north"})
        cost.charge(first)
        assert cost.ledger is not None
        spent = cost.ledger.account().epsilon(NodePolicy())
        guard = NodeGuard(NodePolicy(max_epsilon=spent), {"server": "north"})
        plan = Announcement(
            num_rounds=6, noise_multiplier=(noise := correlation.noise_multiplier(4.0)),
            to_come=(ToCome(count=1, noise_multiplier=noise, sampling=FullParticipation()),),
            stream=correlation.stream,
        )  # fmt: skip
        guard.check_plan(plan, 8)
        guard.charge(asked(2, 4.0, correlation=correlation, num_rounds=6, run=8))
        with pytest.raises(NotAllowedError):
            NodeGuard(NodePolicy(max_epsilon=spent), {"server": "south"}).check_plan(plan, 8)


class TestModels:
    def test_only_named_ones_may_be_named_by_a_server(self) -> None:
        guard = NodeGuard(NodePolicy(), {})
        assert guard.check_model("embedding", "all-MiniLM-L6-v2") == ""
        assert guard.check_model("trained", "privsyn-tiny") == ""
        for kind, name in (("embedding", "/tmp/evil"), ("trained", "/srv/mine")):
            with pytest.raises(NotAllowedError, match=f'names the {kind} model "{name}"'):
                guard.check_model(kind, name)  # type: ignore[arg-type]
        NodeGuard(None, {}).check_files("embedding", "/tmp/evil")

    @pytest.mark.parametrize("kind", ["embedding", "trained"])
    def test_a_stated_digest_is_compared_before_anything_is_loaded(
        self, tmp_path: Path, kind: Any
    ) -> None:
        folder = tmp_path / "model"
        (folder / "1_Pooling").mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "1_Pooling" / "config.json").write_text("{}")
        table = {f"{kind}_models": {str(folder): model_digest(folder)}}
        guard = NodeGuard(NodePolicy(**table), {})
        assert guard.check_files(kind, str(folder)) == str(folder)
        large = {f"{kind}_models": {str(folder): model_digest(folder).upper()}}
        assert NodeGuard(NodePolicy(**large), {}).check_files(kind, str(folder)) == str(folder)
        (folder / "modeling.py").write_text("print('owned')")
        with pytest.raises(NotAllowedError, match="SHA-256"):
            guard.check_files(kind, str(folder))


class TestDataset:
    def test_is_named_by_the_owner_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PRIVSYN_WORKING_DIRECTORY", str(tmp_path))
        file = tmp_path / "users.jsonl"
        file.touch()
        (tmp_path / "x").mkdir()
        named = NodePolicy(dataset="clinic")
        assert dataset_name({"dataset": "mine", "data": str(file)}, named) == "mine"
        assert dataset_name({"data": str(file)}, named) == "clinic"
        for path in (str(file), "users.jsonl", "./users.jsonl", "x/../users.jsonl"):
            assert dataset_name({"data": path}, NodePolicy()) == str(file)
        assert dataset_name({}, NodePolicy()) == "default"
        with pytest.raises(ConfigError, match="dataset must be a name, got 3"):
            dataset_name({"dataset": 3}, NodePolicy())

    def test_a_link_that_leads_elsewhere_makes_no_fresh_account(self, tmp_path: Path) -> None:
        names = []
        for month in ("may", "june"):
            (tmp_path / month).mkdir()
            (tmp_path / month / "users.jsonl").touch()
            link = tmp_path / "now"
            link.unlink(missing_ok=True)
            link.symlink_to(tmp_path / month)
            names.append(dataset_name({"data": str(link / "users.jsonl")}, NodePolicy()))
        assert names == [str(tmp_path / "now" / "users.jsonl")] * 2

    def test_configurations_and_splits_have_one_account(self, tmp_path: Path) -> None:
        folder = tmp_path / "people"
        folder.mkdir()
        for part in ("", ":press", ":press:test", "::train"):
            assert dataset_name({"data": f"{folder}{part}"}, NodePolicy()) == str(folder)
            assert dataset_name({"data": f"owner/people{part}"}, NodePolicy()) == "owner/people"
        (tmp_path / "people:press").mkdir()
        for own in (f"{folder}:press", "clinic:2025", "postgres://host/db"):
            assert dataset_name({"data": own}, NodePolicy()) == own
