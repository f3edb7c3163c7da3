"""What a value may be: the sentences, and what every class of settings declares."""

from __future__ import annotations

import dataclasses
import math
import pickle
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt

from flower_privsyn.catalogue import entries
from flower_privsyn.checks import OrZero, Settings, check_choice, check_number, check_whole
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.data.chunking import Chunking
from flower_privsyn.errors import ConfigError
from flower_privsyn.generation import SamplingParameters
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.queries import QUERIES
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.strategies import DPFTRLConfig
from flower_privsyn.training.causal import CausalTraining
from flower_privsyn.training.preference_settings import PreferenceTraining

CONFIGS = [entry.strategy.config_class for entry in entries().values()]
OPTIONS = [
    Chunking,
    CausalTraining,
    NodePolicy,
    PreferenceTraining,
    SamplingParameters,
    TrainableModel,
]
CLASSES: list[type[Settings]] = [PrivateSumConfig, *CONFIGS, *QUERIES, *OPTIONS]

#: What a class needs to be made at all.
NEEDED: dict[str, dict[str, Any]] = {
    "SamplingParameters": {"seed": 0},
    "TrainableModel": {"name": "privsyn-lm"},
    "ModelDelta": {"clip_to": 1.0},
    "ConditionalDelta": {"clip_to": 1.0},
}


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


Rate = Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True, kw_only=True)
class Paint(Settings):
    """How a wall is painted."""

    brand: ClassVar[str] = "any"
    coats: Annotated[int, Ge(1), Le(4)] = 2
    """layers of paint."""
    share: Rate = 1.0
    """of the wall."""
    thinner: Annotated[float, OrZero("none"), Ge(0.1)] = 0.0
    """per litre."""
    brushes: Annotated[int | None, Ge(2)] = None
    """None for as many as there are."""
    finish: Literal["matt", "gloss"] = "matt"
    """how it shines."""
    colour: Colour = Colour.RED
    """of it."""
    wet: bool = False
    """on wet ground."""
    names: tuple[str, ...] = ()
    """of the painters."""
    notes: dict[str, Any] = field(default_factory=dict)
    """anything."""


@dataclass(frozen=True, kw_only=True)
class Ceiling(Paint):
    """How a ceiling is painted."""

    coats: int = 3
    finish: Literal["matt"] = "matt"
    share: float = 0.5
    """of the ceiling."""


class TestArguments:
    @pytest.mark.parametrize("value", [0, 1.0, True, "1", None, math.nan, np.float64(2)])
    def test_what_is_no_whole_number_from_1(self, value: object) -> None:
        with pytest.raises(ConfigError) as caught:
            check_whole("rounds", value, ge=1)
        assert str(caught.value) == f"rounds must be a whole number of at least 1, got {value!r}"

    @pytest.mark.parametrize("value", [0, -1.0, True, "1", None, math.nan, math.inf, 10**400])
    def test_what_is_no_number_above_0(self, value: object) -> None:
        with pytest.raises(ConfigError) as caught:
            check_number("delta", value, gt=0)
        assert str(caught.value) == f"delta must be a number above 0, got {value!r}"

    def test_numbers_of_numpy_become_those_of_python(self) -> None:
        assert type(check_whole("n", np.int32(3), ge=0)) is int
        assert type(check_number("x", np.float32(0.5))) is float
        assert type(check_number("x", 3)) is float

    def test_choices(self) -> None:
        check_choice("kind", "a", ("a", "b"))
        with pytest.raises(ConfigError, match=r'^kind must be one of "a", "b", got \[\]$'):
            check_choice("kind", [], ("a", "b"))

    def test_without_bounds_numbers_are_finite(self) -> None:
        with pytest.raises(ConfigError, match="^x must be a finite number, got inf$"):
            check_number("x", math.inf)


class TestDeclarations:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"coats": 5}, "coats must be a whole number between 1 and 4, got 5"),
            ({"coats": True}, "coats must be a whole number between 1 and 4, got True"),
            ({"coats": 2.0}, r"coats must be .* got 2\.0"),
            ({"share": "1"}, "share must be .* got '1'"),
            ({"share": math.nan}, "share must be .* got nan"),
            (
                {"thinner": 0.05},
                r"thinner must be 0 \(none\) or a number of at least 0.1, got 0.05",
            ),
            ({"brushes": 1}, "brushes must be a whole number of at least 2, got 1"),
            ({"brushes": 2**60}, r"brushes must be a whole number between 2 and 2\^53, got"),
            ({"finish": "oily"}, 'finish must be one of "matt", "gloss", got \'oily\''),
            ({"finish": ["matt"]}, "finish must be one of"),
            ({"colour": "green"}, 'colour must be one of "red", "blue", got \'green\''),
            ({"wet": 0}, "wet must be true or false, got 0"),
            ({"names": "Ann"}, "names must be a list of strings that are not empty, got 'Ann'"),
            ({"names": ["Ann", ""]}, "names must be a list of strings"),
        ],
    )
    def test_what_is_not_declared_is_refused(self, changes: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ConfigError, match=f"^{sentence}"):
            Paint(**changes)

    def test_values_are_held_as_declared(self) -> None:
        paint = Paint(share=1, thinner=0, colour="blue", names=["Ann"], brushes=4)  # type: ignore
        assert (type(paint.share), type(paint.thinner)) == (float, float)
        of_numpy = Paint(share=np.float32(0.5), coats=np.int64(3))  # type: ignore[arg-type]
        assert (type(of_numpy.share), type(of_numpy.coats)) == (float, int)
        assert (paint.colour, paint.names, paint.brushes) == (Colour.BLUE, ("Ann",), 4)
        assert pickle.loads(pickle.dumps(paint)) == replace(paint)
        with pytest.raises(ConfigError, match="coats must be"):
            replace(paint, coats=0)
        with pytest.raises(TypeError, match="unexpected keyword"):
            Paint(coat=1)  # type: ignore[call-arg]

    def test_a_subclass_takes_over_what_it_does_not_say(self) -> None:
        assert Ceiling().coats == 3
        assert Ceiling.declared["coats"].words == "layers of paint."
        assert Ceiling.declared["share"].words == "of the ceiling."
        assert Paint.declared["coats"].default == 2
        assert list(Ceiling.declared) == [field.name for field in dataclasses.fields(Ceiling)]
        with pytest.raises(ConfigError, match="coats must be a whole number between 1 and 4"):
            Ceiling(coats=5)
        with pytest.raises(ConfigError, match="share must be a number above 0 and at most 1"):
            Ceiling(share=2.0)
        with pytest.raises(ConfigError, match='finish must be one of "matt", got'):
            Ceiling(finish="gloss")  # type: ignore[arg-type]


class TestEveryClass:
    @pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
    def test_fields_have_words_and_a_type_that_is_checked(self, cls: type[Settings]) -> None:
        fields: Any = cls
        assert list(cls.declared) == [f.name for f in dataclasses.fields(fields)]
        for name, declared in cls.declared.items():
            assert declared.words, name
            assert declared.allowed or name == "node_settings", name
            # A range that is repeated in the words will one day be another one.
            assert not re.search(r"[<>]=? ?\d", declared.words), name

    @pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
    def test_a_value_of_no_type_is_refused_with_its_key(self, cls: type[Settings]) -> None:
        for name, declared in cls.declared.items():
            if not declared.allowed:
                continue
            with pytest.raises(ConfigError) as caught:
                cls(**{**NEEDED.get(cls.__name__, {}), name: object})
            key = name if cls in (CausalTraining, PreferenceTraining, SamplingParameters) else ""
            assert f"{key or name.replace('_', '-')} must be {declared.allowed}, got <class" in str(
                caught.value
            )

    @pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
    def test_numbers_beyond_a_bound_are_refused(self, cls: type[Settings]) -> None:
        for name, declared in cls.declared.items():
            bounds, step = declared.bounds, 1 if declared.kind is int else 1e-9
            beyond = [
                *(bound for bound in (bounds.gt, bounds.lt) if bound is not None),
                *([bounds.ge - step] if bounds.ge is not None else []),
                *([bounds.le + 1] if bounds.le not in (None, math.inf) else []),
            ]
            for value in beyond:
                if declared.zero and value == 0:
                    continue
                with pytest.raises(
                    ConfigError, match=f"must be {re.escape(declared.allowed)}, got"
                ):
                    cls(**{**NEEDED.get(cls.__name__, {}), name: value})

    @pytest.mark.parametrize("config", [PrivateSumConfig, *CONFIGS], ids=lambda c: c.__name__)
    def test_both_ways_refuse_alike(self, config: type[PrivateSumConfig]) -> None:
        given = {"noise_multiplier": 1.0}
        for name, declared in config.declared.items():
            if not declared.allowed or declared.in_python:
                continue
            wrong: Any = "1" if declared.kind is not str else 1
            with pytest.raises(ConfigError) as direct:
                config(**{**given, name: wrong})
            keys = {key.replace("_", "-"): value for key, value in {**given, name: wrong}.items()}
            with pytest.raises(ConfigError) as read:
                config.from_run_config(keys)
            assert str(direct.value) == str(read.value)

    def test_a_keyword_of_python_alone_is_no_key(self) -> None:
        assert DPFTRLConfig(epsilon=1.0, server_momentum=0.5).to_dict()["server-momentum"] == 0.5
        keys = DPFTRLConfig.keys()
        assert "server-momentum" not in keys
        with pytest.raises(ConfigError, match="server-momentum"):
            DPFTRLConfig.from_run_config({"epsilon": 1.0, "server-momentum": 0.5})

    def test_a_subclass_of_somebody_else_is_checked_too(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Own(PrivateSumConfig):
            bins: Annotated[int, Ge(1), Lt(100)] = 8
            """of the histogram."""

        assert Own.from_run_config({"epsilon": 1, "bins": 9}).bins == 9
        keys = Own.keys()
        assert "bins" in keys
        with pytest.raises(
            ConfigError, match="bins must be a whole number of at least 1 and below"
        ):
            Own(epsilon=1.0, bins=100)
        with pytest.raises(ConfigError, match="num-rounds must be a whole number of at least 1"):
            Own(epsilon=1.0, num_rounds=0)


class TestPrivacy:
    @pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
    @pytest.mark.parametrize(
        "wrong",
        [
            {"epsilon": 0},
            {"epsilon": math.inf},
            {"epsilon": 1.0, "delta": 1},
            {"epsilon": 1.0, "delta": 0},
            {"noise_multiplier": 1e-4},
            {"noise_multiplier": math.nan},
            {"epsilon": 1.0, "num_rounds": 0},
            {"epsilon": 1.0, "max_nodes_per_user": 0},
            {"epsilon": 1.0, "max_nodes_per_user": 1001},
            {"epsilon": 1.0, "min_users": -1},
        ],
        ids=lambda wrong: ", ".join(f"{key}={value}" for key, value in wrong.items()),
    )
    def test_what_would_be_no_guarantee_is_refused(
        self, config: type[PrivateSumConfig], wrong: dict[str, Any]
    ) -> None:
        """Spelled out here, whatever the declarations say."""
        with pytest.raises(ConfigError, match=f"^{list(wrong)[-1].replace('_', '-')} must be"):
            config(**wrong)
