"""Apps checked as `privsyn check` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.dry_run import Report, check_app
from flower_privsyn.host.app import load_app, resolve_config
from tests.support.checked import Check, users_file

OWN_DATA = Path(__file__).parents[2] / "examples" / "own-data"


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Check own-data with some settings, on a file of 60 users unless they name another.

    What its server loads is set up where that is asked for alone.
    """

    def run(
        *settings: str, app: Path = OWN_DATA, config: str | None = None, loads: bool = False
    ) -> Report:
        if not any(setting.startswith("data=") for setting in settings):
            settings = (*settings, f"data={users_file(tmp_path)}")
        loaded = load_app(app)
        values = resolve_config(loaded, config_name=config, settings=settings)
        return check_app(loaded, values, starting=not loads)

    return run
