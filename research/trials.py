r"""Settings of one method as methods of a comparison, to be tried on tuning people.

    python -m research.trials cpu/dp-ftrl trials.jsonl every
    privsyn compare --app every --config trials --methods dp-ftrl-0 dp-ftrl-1 dp-ftrl-2 \
        --data abstracts --users 3000 --epsilon 1 --seeds 1 --held-out-users 300 \
        --public-text public.jsonl.gz --output trials

The app `every` is what `privsyn new every-method every` made. A line of the file of trials is an
object of settings, `{"clip-norm": 0.3, "num-rounds": 128}`, that are changed; an empty one is the
method as it is. Without `--sealed-users` the held-out people are those on whom settings are chosen:
the table, best bits first by eye, is of them, and no other table may be.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flower_privsyn.files import read_json_lines


def changed(written: str, settings: Mapping[str, Any]) -> str:
    """A file of settings, with some of them changed.

    Args:
        written: TOML with `strategy`, and the method's own keys in `settings`.
        settings: by their keys.
    """
    before = tomllib.loads(written)
    own = {**tomllib.loads(before["settings"]), **settings}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in own.items())
    return f"strategy = {json.dumps(before['strategy'])}\nsettings = '''\n{lines}'''\n"


def main() -> int:
    """Write a file for each trial."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", help="the method as it is, SIZE/METHOD")
    parser.add_argument("trials", type=Path)
    parser.add_argument("app", type=Path)
    options = parser.parse_args()
    written = (options.app / "conf" / f"{options.config}.toml").read_text("utf-8")
    folder, name = options.app / "conf" / "trials", Path(options.config).name
    folder.mkdir(exist_ok=True)
    for number, settings in enumerate(read_json_lines(options.trials)):
        (folder / f"{name}-{number}.toml").write_text(changed(written, settings), "utf-8")
        print(f"{name}-{number}  {json.dumps(settings)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
