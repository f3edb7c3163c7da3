"""An app is read, its settings are put together, and what is wrong with them is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.host.app import App, federation_of, load_app, resolve_config
from tests.support.flower_app import write_app


def test_an_app_is_read(app: App) -> None:
    assert app.name == "asking-app"
    assert app.uses_run_directory
    assert app.defaults["epsilon"] == 7.58


def test_what_is_not_an_app_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no app folder"):
        load_app(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"is not a Flower app: it holds no pyproject.toml"):
        load_app(tmp_path)
    file = tmp_path / "pyproject.toml"
    for text, expected in (
        ("[project", "pyproject.toml is not valid TOML: "),
        ('[project]\nname = "a"', "does not describe a Flower app"),
        ('[tool.flwr.app.components]\nserverapp = "a"\nclientapp = "b"', r"no \[project\] name"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=expected):
            load_app(tmp_path)


def test_settings_come_from_the_app_a_named_file_and_the_command_line(app: App) -> None:
    assert resolve_config(app) == app.defaults
    values = resolve_config(
        app, config_name="small", settings=["epsilon=1", "note=2024", "behaviour='a b'"]
    )
    assert values["num-nodes"] == 3
    assert values["epsilon"] == 1.0
    assert isinstance(values["epsilon"], float)
    assert values["note"] == "2024"
    assert values["behaviour"] == "a b"


def test_a_mark_before_the_first_letter_is_no_letter(app: App) -> None:
    """Editors on Windows write one, and show none."""
    file = app.path / "conf" / "marked.toml"
    file.write_text("epsilon = 2.5\n", encoding="utf-8-sig")
    assert resolve_config(app, config_name="marked")["epsilon"] == 2.5


@pytest.mark.parametrize(
    ("config", "setting", "expected"),
    [
        (None, "epsilon", r"--set takes key=value, got 'epsilon'\."),
        (None, "=3", r"--set takes key=value, got '=3'\."),
        (None, "num-node=3", r"has no setting 'num-node'; did you mean 'num-nodes'\?"),
        (None, "zzz=3", "has no setting 'zzz'; it has run-dir, resume, num-nodes"),
        (None, "num-nodes=2.5", "num-nodes is 2.5; it must be a whole number, such as 1"),
        (None, "num-nodes=true", "num-nodes is True; it must be a whole number"),
        (None, "num-nodes=many", "num-nodes is 'many'; it must be a whole number"),
        (None, "epsilon=big", "epsilon is 'big'; it must be a number, such as 7.58"),
        (None, "resume=1", "resume is 1; it must be true or false, such as false"),
        ("large", "", "no configuration 'large'; it has broken, small, wrong"),
        ("wrong", "", r"conf/wrong.toml: .*no setting 'num-node'; did you mean 'num-nodes'\?"),
        ("broken", "", r"conf/broken.toml is not valid TOML"),
    ],
)
def test_a_wrong_setting_is_named(
    app: App, config: str | None, setting: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        resolve_config(app, config_name=config, settings=[setting] if setting else [])


def test_an_app_without_configurations_says_so(tmp_path: Path) -> None:
    app = load_app(write_app(tmp_path / "app"))
    with pytest.raises(ConfigError, match=r"no configuration 'small'; it has none\."):
        resolve_config(app, config_name="small")


def test_the_federation_follows_num_nodes(app: App) -> None:
    assert federation_of({"num-nodes": 1000})["num-supernodes"] == 1000
    assert federation_of({"num-nodes": 1})["init-args-num-cpus"] == 1
    assert federation_of({})["num-supernodes"] == 2
    # A running cluster refuses to be told its size.
    assert "init-args-num-cpus" not in federation_of({"ray-address": "head:6379"})
    with pytest.raises(ConfigError, match="num-nodes is 0; it must be a whole number >= 1"):
        federation_of({"num-nodes": 0})


@pytest.mark.parametrize("address", ["head", "ray://head:10001", "head:", "a b:1", 6379])
def test_an_address_that_is_none(app: App, address: object) -> None:
    with pytest.raises(ConfigError, match=r"The setting ray-address is .*; it must be host:port"):
        federation_of({"num-nodes": 2, "ray-address": address})  # type: ignore[dict-item]
