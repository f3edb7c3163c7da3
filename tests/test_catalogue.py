"""The one list of methods, and the run configuration that chooses from it."""

import subprocess
import sys
from pathlib import Path

import pytest

from flower_privsyn.catalogue import compared, configuration_of, entries, strategy_of
from flower_privsyn.comparison.measures import REFERENCES
from flower_privsyn.errors import ConfigError


@pytest.mark.parametrize("name", entries())
def test_the_named_strategy_gets_its_own_keys(name: str) -> None:
    strategy = entries()[name].strategy
    config = strategy.config_class
    values = {"strategy": name, "epsilon": 2.0, "num-rounds": 2, "data": "users.jsonl"}
    found = configuration_of(values)
    assert type(found) is config
    assert (found.epsilon, found.num_rounds) == (2.0, 2)
    assert type(strategy_of(values)) is strategy


@pytest.mark.parametrize("name", entries())
def test_settings_of_another_strategy_are_refused(name: str) -> None:
    strategy = entries()[name].strategy
    config = strategy.config_class
    every = (entry.strategy.config_class for entry in entries().values())
    other = next(one for one in every if not issubclass(one, config))
    said = f"^{strategy.__name__} takes a {config.__name__}\\(.*got "
    for given, got in (
        (other(epsilon=1.0), other),
        (config, config),
        ({"epsilon": 1.0}, dict),
    ):
        with pytest.raises(ConfigError, match=f"{said}.*{got.__name__}"):
            strategy(given)


@pytest.mark.parametrize("name", entries())
def test_what_one_user_can_cost_is_bounded_unless_it_is_asked_for(name: str) -> None:
    """The time a user's answer takes is noised by nobody."""
    config = entries()[name].strategy.config_class
    ours = config(epsilon=1.0)
    assert 1 <= ours.max_samples <= 64
    if "local-steps" in config.keys():  # noqa: SIM118 - a method, not a mapping's keys
        assert 1 <= ours.local_steps <= 64
        assert config(epsilon=1.0, max_samples=0, local_steps=0).question(0.1).max_steps == 0
    elif name not in ("private-evolution", "aug-pe"):
        assert config(epsilon=1.0, max_samples=0).max_samples == 0


def test_a_key_that_the_strategy_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match='unknown key "epsilonn".*did you mean "epsilon"'):
        configuration_of({"strategy": "popri", "epsilon": 1.0, "epsilonn": 1.0})
    with pytest.raises(ConfigError, match='unknown key "fraction-fit".*other_keys'):
        strategy_of({"strategy": "popri", "epsilon": 1.0, "fraction-fit": 0.5})
    with pytest.raises(ConfigError, match='unknown key "num-bigrams"'):
        configuration_of({"strategy": "popri", "epsilon": 1.0, "num-bigrams": 4})
    both = r'unknown keys "epsilonn" \(did you mean "epsilon"\?\), "fraction-fit"'
    with pytest.raises(ConfigError, match=both):
        configuration_of({"strategy": "popri", "epsilonn": 1.0, "fraction-fit": 0.5})


def test_keys_of_an_app_s_own_are_left_alone_where_it_names_them() -> None:
    values = {"strategy": "popri", "epsilon": 1.0, "fraction-fit": 0.5, "num-rounds": 3}
    settings = configuration_of(values, other_keys=["fraction-fit", "local-epochs"])
    assert (settings.epsilon, settings.num_rounds) == (1.0, 3)
    assert type(strategy_of(values, other_keys={"fraction-fit"})) is entries()["popri"].strategy
    with pytest.raises(ConfigError, match="num-rounds"):
        strategy_of({**values, "num-rounds": 0}, other_keys=["fraction-fit"])


# ---------------------------------------------------------------------- the list


def test_what_asks_no_user_is_a_reference() -> None:
    for name, method in compared().items():
        assert method.name == name
        assert method.asks_users or name in REFERENCES


def table_rows(page: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("| \n").split("|")]
        for line in (Path(__file__).parents[1] / page).read_text().splitlines()
        if line.startswith("|")
    ]


def test_the_pages_have_a_row_for_every_method() -> None:
    # As code: titles in a table of results may read alike.
    named = [row[0].strip("`") for row in table_rows("docs/evaluation.md") if row[0][:1] == "`"]
    listed = [name for name in compared() if name != "private-evolution"]  # it is run as pre-text
    assert [name for name in named if name in compared()] == listed
    rows = table_rows("docs/which_method.md")
    for entry in entries().values():
        (row,) = [row for row in rows if f"`{entry.strategy.__name__}`" in row]
        assert row[0].lstrip("[").startswith(entry.title)
        assert all(paper in row[1] for paper in entry.paper.split("; "))


def test_the_strategies_load_no_model_library() -> None:
    code = (
        "import sys\n"
        "import flower_privsyn.strategies\n"
        "print([name for name in sys.modules if name in ('torch', 'transformers', 'ray')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
