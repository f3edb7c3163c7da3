"""An app is read, its settings are put together, and what is wrong with them is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.host.app import App, load_app, resolve_config, strategy_of_app

OWN_DATA = Path(__file__).parents[2] / "examples" / "own-data"


def test_an_app_is_read(app: App) -> None:
    assert app.name == "asking-app"
    assert app.takes("run-dir")
    assert app.defaults["epsilon"] == 7.58


def test_settings_come_from_the_app_a_named_file_and_the_command_line(app: App) -> None:
    assert resolve_config(app) == app.defaults
    values = resolve_config(
        app, config_name="small", settings=["epsilon=1", "note=2024", "behaviour='a b'"]
    )
    assert values["num-nodes"] == 3
    assert values["epsilon"] == 1.0
    assert values["note"] == "2024"
    assert values["behaviour"] == "a b"
    begun = resolve_config(app, settings=["epsilon=.5", "note=.24"])
    assert (begun["epsilon"], begun["note"]) == (0.5, ".24")


def test_a_mark_before_the_first_letter_is_no_letter(app: App) -> None:
    """Editors on Windows write one, and show none."""
    file = app.path / "conf" / "marked.toml"
    file.write_text("epsilon = 2.5\n", encoding="utf-8-sig")
    assert resolve_config(app, config_name="marked")["epsilon"] == 2.5


@pytest.mark.parametrize(
    ("config", "setting", "expected"),
    [
        (None, "epsilonn=2", "did you mean 'epsilon'"),
        ("gone", "", "cpu/small"),
        ("broken", "", r"conf/broken.toml is not valid TOML"),
    ],
)
def test_a_wrong_setting_is_named(
    app: App, config: str | None, setting: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        resolve_config(app, config_name=config, settings=[setting] if setting else [])


def test_what_flower_refuses_is_no_app(app: App) -> None:
    project = app.path / "pyproject.toml"
    project.write_text(project.read_text().replace("asking.server_app", "nowhere.at_all"))
    with pytest.raises(ConfigError, match="nowhere"):
        load_app(app.path)
    project.write_text("[project]\nname = .5\n")
    with pytest.raises(ConfigError, match="line 2"):
        load_app(app.path)


def test_a_misspelt_key_in_an_app_is_not_taken_for_one_of_its_own(tmp_path: Path) -> None:
    """Its ServerApp is the package's, and refuses it too, after the check."""
    text = (OWN_DATA / "pyproject.toml").read_text()
    project = tmp_path / "pyproject.toml"
    project.write_text(text.replace("\nseed = ", "\nnum-candidate = 3\nseed = "))
    app = load_app(tmp_path)
    with pytest.raises(ConfigError, match="num-candidates"):
        strategy_of_app(app, resolve_config(app))


def test_a_text_of_settings_takes_the_place_of_the_one_before() -> None:
    app = load_app(OWN_DATA)
    settings = ["settings=clip = 'count'", "top-p=0.5"]
    values = resolve_config(app, settings=settings)
    assert values.keys() == app.defaults.keys() | {"clip", "top-p"}
    assert (values["clip"], values["top-p"], values["settings"]) == ("count", 0.5, "")
