"""What is asked for is checked as a whole before anything runs."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from flower_privsyn.catalogue import configuration_of
from flower_privsyn.comparison import APP, People, make_plan
from flower_privsyn.comparison import plan as plan_module
from flower_privsyn.comparison.people import sealed
from flower_privsyn.comparison.plan import FLOORS, Plan, methods_of
from flower_privsyn.comparison.run import _rows
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.strategies.joint_sketch import JointSketchConfig

#: From the floor to the ceiling.
METHODS = [
    *("public-only", "expand-only", "random-public", "distill-public"),
    *("told-domain", "prompt-chosen"),
    *("pre-text", "aug-pe", "pe-sft", "popri", "joint-sketch"),
    *("ctcl", "dp-fedavg", "dp-ftrl", "hybrid", "finetune-private"),
]


Write = Callable[[str, Sequence[str]], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of users by their ids."""

    def file(name: str, ids: Sequence[str]) -> str:
        rows = [{"client_id": user, "text": f"a text of {user}"} for user in ids]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return file


@pytest.fixture
def data(write: Write) -> str:
    return write("users", [f"user-{i}" for i in range(40)])


#: Of `People.read`.
ABOUT_PEOPLE = ("held_out", "held_out_users", "tuning_users", "columns", "sealed_users")


def plan_of(data: str, **changes):
    """A plan, as it is before its runs are checked."""
    with mock.patch.object(Plan, "check"):
        return checked(data, **changes)


def checked(data: str, **changes):
    dealt = {key: changes.pop(key) for key in ABOUT_PEOPLE if key in changes}
    people = People.read(data, dealt.pop("held_out", None), **dealt)
    return make_plan(**{"app": load_app(APP), "people": people, "epsilons": [1.0], **changes})


def values_of(plan: Plan) -> dict[str, dict[str, Any]]:
    """The run configuration of each method, by its first cell."""
    return {cell.method.name: plan.values(cell, Path("x")) for cell in reversed(plan.cells())}


class TestApp:
    def test_what_makes_no_model_is_no_row(self, tmp_path: Path) -> None:
        folder = tmp_path / "conf" / "small"
        folder.mkdir(parents=True)
        (folder / "fred.toml").write_text('strategy = "fred"\n')
        app = replace(load_app(APP), path=tmp_path)
        with pytest.raises(ConfigError, match="fred writes no text and trains no model"):
            methods_of(app, "small")

    def test_a_method_may_say_how_its_own_student_learns(self, data: str) -> None:
        """All others learn as the comparison says; whose model it is, is never theirs to say."""
        names = ["after", "before-all", "dp-ftrl"]
        plan = plan_of(data, configs=["mid-training"], methods=names)
        found = values_of(plan)
        rates = {name: found[name].get("learning-rate") for name in names}
        assert rates == {"after": 1e-4, "before-all": 1e-4, "dp-ftrl": None}
        assert found["before-all"]["student-steps"] == 4000
        assert {found[name]["model"] for name in names} == {plan.downstream}
        mine = plan_of(
            data,
            configs=["mid-training"],
            methods=["after"],
            settings=["after.learning-rate=0.01"],
        )
        assert values_of(mine)["after"]["learning-rate"] == 0.01
        with pytest.raises(ConfigError, match="this is the same for every method"):
            checked(
                data,
                configs=["mid-training"],
                methods=["dp-ftrl"],
                settings=["learning-rate=1"],
            )

    def test_every_method_has_valid_settings(self, data: str) -> None:
        plan = plan_of(data)
        assert [method.name for method in plan.methods] == METHODS
        asked = [cell for cell in plan.cells() if cell.seed == 0 and cell.epsilon == 1.0]
        assert len(asked) == 9
        for cell in asked:
            config = configuration_of(plan.values(cell, Path("users.jsonl")))
            assert config.epsilon == 1.0
            assert config.num_users == 26  # of 36 not sealed; a fifth is held out, a tenth tunes

    def test_what_costs_a_local_epsilon_is_compared_where_it_is_named(self, data: str) -> None:
        every = list(methods_of(load_app(APP), "cpu"))
        assert every == [
            *METHODS[:-1],
            *("public-mid-training", "dp-prompt", "expand-private"),
            METHODS[-1],
        ]
        plan = plan_of(data, methods=["dp-prompt"], seeds=1)
        assert [(cell.method.name, cell.epsilon) for cell in plan.cells()] == [
            *((floor, 0.0) for floor in FLOORS),
            ("dp-prompt", None),
        ]

    def test_a_file_is_a_method(self, data: str, tmp_path: Path) -> None:
        import shutil

        shutil.copytree(APP, tmp_path / "app")
        mine = tmp_path / "app" / "conf" / "cpu" / "mine.toml"
        mine.write_text('strategy = "dp-fedavg"\nnum-rounds = 3\n')
        found = methods_of(load_app(tmp_path / "app"), "cpu")
        assert found["mine"].kind == "on-device training"
        assert list(found)[-2:] == ["mine", "finetune-private"]
        plan = plan_of(data, app=load_app(tmp_path / "app"))
        assert [method.name for method in plan.methods] == [*METHODS[:-1], "mine", METHODS[-1]]
        mine.write_text('strategy = "nothing"\n')
        with pytest.raises(ConfigError, match=r"mine\.toml: strategy must be one of"):
            methods_of(load_app(tmp_path / "app"), "cpu")

    def test_a_joint_sketch_that_writes_is_measured_by_its_text(self, data: str) -> None:
        found = methods_of(load_app(APP), "ask-once")
        assert found["joint-sketch-written"].kind == "synthetic text"
        assert found["joint-sketch"].kind == "chosen text"
        plan = plan_of(data, configs=["ask-once"], methods=["joint-sketch-written"])
        written = plan.cells()[-1]
        config = configuration_of(plan.values(written, Path("users.jsonl")))
        assert isinstance(config, JointSketchConfig)
        assert (config.synthesis, config.model) == ("written", plan.downstream)

    def test_of_a_method_in_several_folders_the_first_counts(self, data: str) -> None:
        asked = {"methods": ["dp-ftrl", "before", "vanilla"], "seeds": 1}
        plan = plan_of(data, configs=["mid-training", "ctcl"], **asked)
        assert [method.name for method in plan.methods] == [*FLOORS, *asked["methods"]]
        values = values_of(plan)
        assert values["dp-ftrl"]["max-samples"] == 4  # 1 in the second folder
        assert values["vanilla"]["max-samples"] == 1


class TestUsers:
    def test_one_in_ten_is_sealed_by_the_published_rule(self) -> None:
        """Which must never change."""
        ids = [f"user-{i}" for i in range(5000)]
        found = sealed(ids)
        assert abs(found.mean() - 26 / 256) < 0.015
        for user, closed in zip(ids[:200], found, strict=False):
            digest = hashlib.sha256(f"privsyn-sealed:{user}".encode()).hexdigest()
            assert closed == (int(digest[:2], 16) < 26)
        assert [i for i in range(40) if found[i]] == [0, 2, 9, 35]
        assert sealed(["\udc80"]).shape == (1,)  # an id that UTF-8 does not know

    def test_the_split_depends_on_the_ids_alone(self, data: str, write: Write) -> None:
        ids = [f"user-{i}" for i in range(40)]
        dealt = {"users": 12, "seeds": 3, "held_out_users": 6, "tuning_users": 5}
        one = People.read(data, **dealt)
        other = People.read(write("backwards", ids[::-1]), **dealt)
        sides = [(*people.groups, people.tuning, people.held_out) for people in (one, other)]
        assert [len(users) for users in sides[0]] == [12, 12, 5, 6]
        for mine, theirs in zip(*sides, strict=True):
            assert set(mine.user_ids) == set(theirs.user_ids)
        # More private users change nobody's side; the sealed are on none, and nobody is on two.
        every = People.read(data, held_out_users=6, tuning_users=5)
        assert every.held_out.user_ids == one.held_out.user_ids
        assert every.tuning.user_ids == one.tuning.user_ids
        dealt_to = [user for users in sides[0] for user in users.user_ids]
        assert len(set(dealt_to)) == len(dealt_to)
        both = {*every.private(0).user_ids, *every.held_out.user_ids, *every.tuning.user_ids}
        assert set(dealt_to) <= both == set(ids) - {"user-0", "user-2", "user-9", "user-35"}

    def test_every_seed_asks_people_of_its_own_while_there_are_some(self, data: str) -> None:
        people = People.read(data, users=12, seeds=3, held_out_users=6, tuning_users=5)
        assert people.private(0) is not people.private(1)
        assert people.private(2) is people.private(0)
        cells = plan_of(data, seeds=2, methods=["joint-sketch"]).cells()
        plan = Plan(**{**vars(plan_of(data, seeds=3)), "people": people})
        files = {plan.values(cell, Path("x"))["data"] for cell in cells}
        assert files == {str(Path("x") / "private-0.jsonl"), str(Path("x") / "private-1.jsonl")}
        # One that asks for fewer seeds has the same people, and goes on with more.
        first = People.read(data, users=12, held_out_users=6, tuning_users=5)
        assert first.fingerprint() == people.fingerprint()

    def test_opened_the_sealed_alone_are_held_out_and_everything_says_so(self, data: str) -> None:
        closed = People.read(data, held_out_users=6)
        people = People.read(data, held_out_users=6, sealed_users=4)
        assert set(people.held_out.user_ids) == {"user-0", "user-2", "user-9", "user-35"}
        assert people.private(0).user_ids == closed.private(0).user_ids
        assert people.fingerprint() != closed.fingerprint()
        some = People.read(data, held_out_users=6, sealed_users=3)
        assert set(some.held_out.user_ids) < set(people.held_out.user_ids)
        plan = plan_of(data, held_out_users=6, sealed_users=4)
        assert plan.stamp == f"{STAMP}; sealed users opened"

    def test_of_another_file_nobody_takes_part(self, data: str, write: Write) -> None:
        other = write("others", [f"other-{i}" for i in range(40)])
        people = People.read(data, other, users=33)  # all but the sealed, and three that tune
        assert people.number == 33
        assert not sealed(people.held_out.user_ids).any()
        assert 20 < len(people.held_out) < 40

    def test_what_cannot_be_is_named(self, data: str, write: Write) -> None:
        closed = write("sealed", ["user-0", "user-2"])
        refused: list[tuple[str | None, dict[str, int], type[Exception], str]] = [
            (data, {}, ConfigError, "36 users of --held-out are in --data"),
            (closed, {}, DataError, "all users of --held-out are sealed"),
            (closed, {"held_out_users": 2}, ConfigError, "--held-out or --held-out-users"),
            (None, {"users": 30}, DataError, "26 users that are neither held out nor sealed"),
            (None, {"held_out_users": 0}, ConfigError, "--held-out-users must be"),
            (None, {"sealed_users": 5}, DataError, "4 sealed users, fewer than the 5"),
        ]
        for held_out, values, error, said in refused:
            with pytest.raises(error, match=said):
                People.read(data, held_out, **values)

    def test_labels_travel_to_the_nodes_and_are_looked_at_first(self, tmp_path: Path) -> None:
        path = tmp_path / "labelled.jsonl"
        rows = [{"client_id": f"u{n}", "text": f"text {n}", "kind": "ab"[n % 2]} for n in range(9)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        columns = {"label-column": "kind"}
        plan = plan_of(str(path), columns=columns, held_out_users=2)
        written = list(_rows(plan.people.private(0)))
        assert {(row["text"], row["label"]) for row in written} < {
            (str(row["text"]), str(row["kind"])) for row in rows
        }
        assert plan.values(plan.cells()[0], Path("x"))["label-column"] == "label"
        unlabelled = plan_of(str(path), held_out_users=2)  # there is no column "label"
        assert plan.people.fingerprint() != unlabelled.people.fingerprint()
        asked = {"methods": ["aug-pe"], "settings": ["aug-pe.classes=c;d"], "held_out_users": 2}
        for named in (columns, {}):
            with pytest.raises(ConfigError, match="no document is of any class of this run"):
                checked(str(path), columns=named, **asked)


class TestOwnMethods:
    #: No method's name: any class of a strategy will do.
    NAME = "flower_privsyn.strategies.private_evolution:PrivateEvolution"

    def test_a_class_is_a_row_without_a_file(self, data: str) -> None:
        plan = plan_of(
            data, methods=[self.NAME, "popri"], settings=["PrivateEvolution.num-rounds=3"]
        )
        assert [method.name for method in plan.methods] == [*FLOORS, "popri", "PrivateEvolution"]
        values = values_of(plan)["PrivateEvolution"]
        assert (values["strategy"], values["num-rounds"]) == (self.NAME, 3)
        assert configuration_of(values).num_rounds == 3
        assert values_of(plan)["popri"]["strategy"] == "popri"

    @pytest.mark.parametrize("name", ["nowhere:Method", "json:loads", "flower_privsyn:Nothing"])
    def test_what_is_no_strategy_is_named(self, data: str, name: str) -> None:
        with pytest.raises(ConfigError, match=name):
            plan_of(data, methods=[name])


class TestCells:
    def test_a_seed_is_a_whole_table(self, data: str) -> None:
        plan = plan_of(data, methods=["popri", "finetune-private"], seeds=2)
        assert [(cell.method.name, cell.epsilon, cell.seed) for cell in plan.cells()] == [
            ("public-only", 0.0, 0),
            ("random-public", 0.0, 0),
            ("distill-public", 0.0, 0),
            ("told-domain", 0.0, 0),
            ("prompt-chosen", 0.0, 0),
            ("finetune-private", None, 0),
            ("popri", 1.0, 0),
            ("random-public", 0.0, 1),
            ("distill-public", 0.0, 1),
            ("finetune-private", None, 1),
            ("popri", 1.0, 1),
        ]


class TestSettings:
    def test_a_setting_of_one_method(self, data: str) -> None:
        plan = plan_of(data, settings=[" popri.num-rounds = 3", "max-tokens=32"])
        popri, other = values_of(plan)["popri"], values_of(plan)["pe-sft"]
        assert (popri["num-rounds"], popri["max-tokens"]) == (3, 32)
        assert (other["num-rounds"], other["max-tokens"]) == (4, 32)

    def test_a_generator_that_is_trained_is_not_the_downstream_model(self, data: str) -> None:
        both = {"methods": ["ctcl", "dp-ftrl"], "downstream": "privsyn-lstm"}
        for settings, wanted in (([], "privsyn-lm"), (["ctcl.model=privsyn-tiny"], "privsyn-tiny")):
            plan = plan_of(data, settings=settings, **both)
            cells = values_of(plan)
            assert cells["ctcl"]["model"] == wanted
            assert cells["dp-ftrl"]["model"] == "privsyn-lstm"
        for setting in ("model=privsyn-tiny", "dp-ftrl.model=privsyn-tiny"):
            with pytest.raises(ConfigError, match="model=privsyn-tiny: this is the same"):
                checked(data, settings=[setting], **both)

    @pytest.mark.parametrize(
        ("setting", "sentence"),
        [
            ("popri.num-rounds=0", r"popri: num-rounds must be a whole number of at least 1"),
            ("nothing.num-rounds=1", "'nothing' is none of the methods compared"),
            ("epsilon=3", "epsilon=3: this is the same for every method of a comparison"),
            ("popri.seed=3", "popri.seed=3: this is the same for every method"),
            ("num-runds=3", r'"num-runds" \(did you mean "num-rounds"\?\) in --set num-runds=3'),
            ("popri.num-bigrams=3", 'popri: unknown key "num-bigrams"'),
        ],
    )
    def test_a_wrong_setting_is_named_before_anything_runs(
        self, data: str, setting: str, sentence: str
    ) -> None:
        with pytest.raises(ConfigError, match=sentence):
            checked(data, settings=[setting], methods=["pre-text", "popri"])

    @pytest.mark.parametrize("epsilons", [[], [0.0], [-1.0], [float("inf")]])
    def test_a_wrong_epsilon_is_named(self, data: str, epsilons: list[float]) -> None:
        with pytest.raises(ConfigError, match="--epsilon must be numbers > 0"):
            checked(data, epsilons=epsilons)

    def test_what_a_method_has_for_itself_is_said(self, data: str) -> None:
        public = Path(data).with_name("public.jsonl")
        public.write_text('{"text": "public"}\n')
        settings = ["popri.num-rounds=3", f"random-public.public-text={public}", "max-tokens=32"]
        plan = plan_of(data, settings=settings, methods=["popri", "random-public"])
        found = {cell.method.name: plan.own_settings(cell) for cell in plan.cells()}
        assert found["popri"]["num-rounds"] == 3
        assert "seed" not in found["popri"]
        assert found["random-public"] == {"public-text": "public.jsonl", "max-tokens": 32}
        # What all of them are measured by is nobody's own.
        other = plan_of(data, settings=[*settings, "popri.max-tokens=16"])
        assert other.common_values()["max-tokens"] == plan.common_values()["max-tokens"] == 32

    def test_public_text_is_that_of_all_methods_but_for_what_one_has(self, data: str) -> None:
        plan = plan_of(data, public_text="p.jsonl", settings=["pre-text.public-text=q.jsonl"])
        found = {name: values.get("public-text") for name, values in values_of(plan).items()}
        assert found.pop("pre-text") == "q.jsonl"
        assert set(found.values()) == {"p.jsonl", None}  # None: it reads no public text

    def test_an_unknown_method_is_named(self, data: str) -> None:
        with pytest.raises(ConfigError, match=r"no method 'gpt'; .* has public-only, expand-only"):
            checked(data, methods=["gpt"])
        with pytest.raises(ConfigError, match="'without-pairs': --config cpu ask-once has it; "):
            checked(data, methods=["without-pairs"])


class TestCheckedBeforeTheFirstCell:
    """What would stop a run after the others have taken their time."""

    def test_a_model_that_is_not_there(self, data: str) -> None:
        settings = ["generator=privsyn-ml", "hybrid.teacher=./no", "public-text=bundled[:2000]"]
        with pytest.raises(ConfigError) as caught:
            checked(data, settings=settings, methods=["pre-text", "hybrid", "random-public"])
        said = str(caught.value).split("; ")
        assert [one.partition(":")[0] for one in said] == ["pre-text", "hybrid"]
        assert "'privsyn-ml'" in said[0]
        assert "'./no'" in said[1]

    def test_a_server_that_private_text_would_go_to(self, data: str) -> None:
        remote = "generator=http://127.0.0.1:9/v1#m"
        with pytest.raises(ConfigError, match="expand-private: generator = .* is another machine"):
            checked(data, methods=["expand-private"], settings=[remote])

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"settings": ["teacher="]}, "distill-public: teacher = "),
            ({"downstream": "llama"}, "distill-public: teacher must have the tokens"),
        ],
    )
    def test_nobody_who_could_teach(
        self, data: str, llama: Path, changes: dict[str, Any], sentence: str
    ) -> None:
        if "downstream" in changes:
            changes = {"downstream": str(llama)}  # of other tokens
        with pytest.raises(ConfigError, match=sentence):
            checked(data, methods=["public-only"], **changes)

    def test_models_of_finished_cells_are_not_loaded_again(
        self, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded: list[str] = []

        def load(method: object, *_: object, **__: object) -> None:
            loaded.append(type(method).__name__)

        monkeypatch.setattr(plan_module, "check_setup", load)
        for seed, status in enumerate(["finished", "finished", "failed"]):
            for method in ("joint-sketch", "dp-ftrl"):
                folder = tmp_path / "cells" / f"{method}-eps-1-seed-{seed}"
                folder.mkdir(parents=True)
                ended = status if method == "dp-ftrl" else "finished"
                (folder / "cell.json").write_text(json.dumps({"status": ended}))
        asked = {"methods": ["joint-sketch", "dp-ftrl"], "seeds": 3}
        checked(data, folder=tmp_path, **asked)
        assert loaded == ["FederatedTraining"]
        checked(data, **asked)
        assert sorted(loaded[1:]) == ["AskedOnce", "FederatedTraining"]

    def test_text_of_the_users_is_not_public(self, tmp_path: Path) -> None:
        file = tmp_path / "users.jsonl"
        text = "a text of eight words and more, of user"
        rows = [{"client_id": f"user-{i}", "text": f"{text} {i}"} for i in range(40)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(ConfigError, match="is the text of the users"):
            checked(
                str(file), settings=[f"public-text={file}"], methods=["random-public", "pre-text"]
            )


FILES = sorted((APP / "conf").glob("*/*.toml"))


@pytest.mark.parametrize("file", FILES, ids=[f"{f.parent.name}/{f.stem}" for f in FILES])
def test_every_file_of_settings_is_accepted(file: Path) -> None:
    name = f"{file.parent.name}/{file.stem}"
    config = configuration_of(resolve_config(load_app(APP), config_name=name, settings=()))
    assert config.epsilon == 1.0
