"""The methods a comparison knows, and the settings files that define them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from flower_privsyn.errors import ConfigError
from flower_privsyn.host.simulation import App

#: The app every run of a comparison is a run of; `baselines/compare` in the repository.
APP: Final = Path(__file__).parent / "app"

Kind = Literal["public", "synthetic", "on-device", "private"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way from users' text to a model, or the lack of one.

    Attributes:
        name: as on the command line.
        title: as in a table.
        kind: "public": sees no private text (epsilon 0); "synthetic": writes text on which the
            downstream model is fine-tuned; "on-device": trains the downstream model on the nodes;
            "private": fine-tunes on the private text itself, without privacy (epsilon infinity).
        seeded: whether its result depends on the seed.
    """

    name: str
    title: str
    kind: Kind
    seeded: bool = True


_KNOWN: Final[tuple[Method, ...]] = (
    Method(name="public-only", title="public model", kind="public", seeded=False),
    Method(name="expand-only", title="public text, expanded", kind="public"),
    Method(name="pre-text", title="PrE-Text", kind="synthetic"),
    Method(name="pe-sft", title="PE + SFT", kind="synthetic"),
    Method(name="popri", title="POPri", kind="synthetic"),
    Method(name="kernel-sketch", title="kernel sketch", kind="synthetic"),
    Method(name="dp-fedavg", title="DP-FedAvg", kind="on-device"),
    Method(name="dp-ftrl", title="DP-FTRL", kind="on-device"),
    Method(name="finetune-private", title="private text, no privacy", kind="private"),
)

#: Methods that ask no user anything in a private way: they have no run and no settings of privacy.
REFERENCES: Final[frozenset[str]] = frozenset({"public-only", "expand-only", "finetune-private"})

#: In the order of a table, from the floor to the ceiling.
DEFAULT_METHODS: Final[tuple[str, ...]] = tuple(method.name for method in _KNOWN)


def methods_of(app: App, config: str) -> Mapping[str, Method]:
    """The methods of an app: the references, and a file `conf/<config>/<method>.toml` for others.

    Args:
        app: `APP` or a copy of it with other settings.
        config: folder in its `conf/`.

    Raises:
        ConfigError: there is no such folder.
    """
    from flower_privsyn.strategies import STRATEGIES, FederatedTrainingConfig

    folder = app.path / "conf" / config
    if not folder.is_dir():
        sizes = sorted(entry.name for entry in (app.path / "conf").glob("*") if entry.is_dir())
        raise ConfigError(
            f"{app.name} has no settings {config!r}; it has {', '.join(sizes) or 'none'}"
        )
    known = {method.name: method for method in _KNOWN}
    found = {name: known[name] for name in DEFAULT_METHODS if name in REFERENCES}
    for file in sorted(folder.glob("*.toml")):
        if file.stem in REFERENCES:
            continue
        try:
            document = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from error
        strategy = document.get("strategy", app.defaults.get("strategy"))
        if strategy not in STRATEGIES:
            listed = ", ".join(f'"{name}"' for name in STRATEGIES)
            raise ConfigError(f"{file}: strategy must be one of {listed}, got {strategy!r}")
        trains = issubclass(STRATEGIES[str(strategy)][0], FederatedTrainingConfig)
        title = known[file.stem].title if file.stem in known else file.stem
        found[file.stem] = Method(
            name=file.stem, title=title, kind="on-device" if trains else "synthetic"
        )
    order = {name: place for place, name in enumerate(DEFAULT_METHODS)}
    # Own methods stand before the ceiling.
    last = order["finetune-private"]
    return {
        name: found[name]
        for name in sorted(found, key=lambda name: (order.get(name, last - 0.5), name))
    }
