"""What type checkers know of the keyword arguments of presets is what the settings declare."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn import preset_keywords
from flower_privsyn.checks import Settings
from flower_privsyn.strategies import STRATEGIES
from scripts.preset_keywords import WITH_PRESETS, keywords, name_of, page

PRESETS = [
    (settings, name)
    for settings in WITH_PRESETS
    for name, member in vars(settings).items()
    if isinstance(member, classmethod)
]


def test_the_module_is_what_the_script_writes() -> None:
    assert Path(preset_keywords.__file__).read_text() == page()


@pytest.mark.parametrize("settings", WITH_PRESETS)
def test_every_setting_has_its_type(settings: type[Settings]) -> None:
    # Read anew, not by the script: names from the declarations, types as a type checker has them.
    known = typing.get_type_hints(getattr(preset_keywords, name_of(settings)))
    assert set(known) == set(settings.declared) - {"epsilon", "node_settings"}
    assert known == keywords(settings)


def test_all_classes_with_presets_are_known() -> None:
    found = {
        config
        for config, _ in STRATEGIES.values()
        if any(isinstance(member, classmethod) for member in vars(config).values())
    }
    assert found <= set(WITH_PRESETS)
    assert {(settings.__name__, name) for settings, name in PRESETS} >= {
        ("PrivateEvolutionConfig", "pre_text"),
        ("POPriConfig", "popri"),
        ("DPFedAvgConfig", "pre_text"),
        ("DPFTRLConfig", "public_llm"),
        ("CausalTraining", "bert"),
    }


@pytest.mark.parametrize(("settings", "name"), PRESETS)
def test_a_preset_takes_the_settings_of_its_class(settings: type[Settings], name: str) -> None:
    signature = inspect.signature(getattr(settings, name))
    (rest,) = (p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD)
    assert rest.annotation == f"Unpack[{name_of(settings)}]"
    own = set(signature.parameters) - {rest.name}
    assert own.isdisjoint(keywords(settings))


PROGRAM = """\
from flower_privsyn import POPriConfig

POPriConfig.popri(epsilon=1.0, num_prompts=3)
POPriConfig.popri(epsilon=1.0, num_promts=3)
POPriConfig.popri(epsilon=1.0, num_prompts="3")
POPriConfig.popri_as_printed(epsilon="2")
"""


@pytest.mark.slow  # mypy reads the package from the start: a minute and more
def test_mypy_names_a_mistyped_key(tmp_path: Path) -> None:
    from mypy import api

    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    found, _, _ = api.run([f"--cache-dir={tmp_path / 'cache'}", str(program)])
    lines = [line for line in found.splitlines() if line.startswith(str(program))]
    lines = [line for line in lines if ": error: " in line]
    for line, (number, words) in zip(
        lines,
        [(4, '"num_promts"'), (5, 'expected "int"'), (6, "Literal['1', '7']")],
        strict=True,
    ):
        assert line.startswith(f"{program}:{number}: error")
        assert words in line


@pytest.mark.parametrize(("settings", "name"), PRESETS)
def test_an_unknown_key_is_refused_where_the_program_runs(
    settings: type[Settings], name: str
) -> None:
    preset: Any = getattr(settings, name)
    required = {"popri_as_printed": "1", "popri_as_coded": "1", "pre_text_as_printed": "7.58"}
    given = {"epsilon": required[name]} if name in required else {}
    if name == "as_printed":
        given = {"data": "pubmed", "epsilon": "1"}
    if name == "fred_as_printed":
        given = {"clients": 3, "records": 9}
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_promts'"):
        preset(**given, num_promts=3)
