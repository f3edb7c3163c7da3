"""`privsyn embed`: a node's text cut and embedded before a run asks for it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from flower_privsyn.cli.options import Config, option
from flower_privsyn.cli.signals import ended_by_signals
from flower_privsyn.errors import ConfigError

_Settings = Annotated[
    list[str] | None,
    option("KEY=VALUE", "one setting of the app; may be given several times", "--set"),
]
_Data = Annotated[str | None, option("FILE", "users: a file, a folder or a data set")]
_App = Annotated[str | None, option("DIR", "folder of the app that will run")]
_Nodes = Annotated[
    int | None,
    option("N", "nodes the users will be dealt to (default: the app's num-nodes, else 1)"),
]
_Precision = Annotated[str | None, option("P", "float32 or bfloat16")]
_MaxTokens = Annotated[int | None, option("N", "length of a sample")]
_MaxSamples = Annotated[int | None, option("N", "of one user; 0 for all")]
_NewerThan = Annotated[str | None, option("DATE", "only text dated after this day")]
_Name = Annotated[str | None, option("NAME")]


def embed(
    data: _Data = None,
    app: _App = None,
    config: Config = None,
    settings: _Settings = None,
    nodes: _Nodes = None,
    processes: Annotated[int, option("N", "that embed")] = 1,
    embedding_model: _Name = None,
    embedding_precision: _Precision = None,
    max_tokens: _MaxTokens = None,
    max_samples: _MaxSamples = None,
    newer_than: _NewerThan = None,
    held_out_fraction: Annotated[float | None, option("X")] = None,
    seed: Annotated[int | None, option("N")] = None,
    client_column: _Name = None,
    text_column: _Name = None,
    date_column: _Name = None,
    label_column: _Name = None,
) -> int:
    """Cut and embed everything a run will ask of these users and put it into the node's cache.

    The run finds it there (PRIVSYN_CACHE, else ~/.cache/flower-privsyn). What was interrupted goes
    on with the same command. --app takes the settings of the run; single options win over them.
    """
    if app is None and (config or settings):
        raise ConfigError("--config and --set are of an app: name it with --app.")
    from flower_privsyn.data.cut import class_names

    values = {} if app is None else _settings_of(app, config, settings or [])
    asked = {
        "embedding-model": embedding_model,
        "embedding-precision": embedding_precision,
        "max-tokens": max_tokens,
        "max-samples": max_samples,
        "newer-than": newer_than,
        "held-out-fraction": held_out_fraction,
        "seed": seed,
    }
    asked = {key: values.get(key) if own is None else own for key, own in asked.items()}
    places = {
        "data": data,
        "client-column": client_column,
        "text-column": text_column,
        "date-column": date_column,
        "label-column": label_column,
    }
    places = {key: own or values.get(key, "") for key, own in places.items()}
    if not places["data"]:
        raise ConfigError(
            "There is no text to embed: name a file of users, a folder or a data set with --data"
            + (f"; {app} names none." if "data" in values else ".")
        )
    classes = class_names(str(values.get("classes", "")))
    return _embed(asked, classes, places, nodes or int(values.get("num-nodes", 1)), processes)


def _settings_of(app: str, config: str | None, settings: list[str]) -> dict[str, Any]:
    from flower_privsyn.host.app import load_app, resolve_config

    return dict(resolve_config(load_app(app), config_name=config, settings=settings))


def _embed(
    asked: dict[str, Any],
    classes: tuple[str, ...],
    places: dict[str, Any],
    nodes: int,
    processes: int,
) -> int:
    """Embed what a run will ask of these users.

    Args:
        asked: what the run asks, by the names of its settings; None for a default.
        classes: of the run.
        places: where the users' text is, by the names of a node's settings.
        nodes: that the users will be dealt to.
        processes: that embed.
    """
    from flower_privsyn.client_apps.first_pass import first_pass
    from flower_privsyn.client_apps.node_users import default_embedder
    from flower_privsyn.files import default_cache_directory
    from flower_privsyn.host.progress import ShownProgress
    from flower_privsyn.host.terminal import follower
    from flower_privsyn.messages.wire import DataRequest
    from flower_privsyn.privacy import quarantine
    from flower_privsyn.strategies import PrivateSumConfig

    given = {key: value for key, value in asked.items() if value is not None}
    # The noise says nothing about the text; any will do to have the other settings checked.
    checked = PrivateSumConfig.from_run_config({"noise-multiplier": 0.0, **given}).to_dict()
    with ended_by_signals(), follower() as follow, quarantine.counting() as tally:
        done = first_pass(
            places,
            DataRequest(**{key.replace("-", "_"): checked[key] for key in asked}, classes=classes),
            load_embedder=default_embedder,
            directory=default_cache_directory(),
            progress=ShownProgress(follow),
            nodes=nodes,
            processes=processes,
        )
    print(
        f"{done.users:,} users on {nodes} node{'s' if nodes > 1 else ''}: {done.embedded:,} texts "
        f"embedded now, {done.nodes_ready} of the nodes were ready before\n"
        f"{done.bytes_on_disk / 1e6:,.1f} MB of records in {default_cache_directory()}"
    )
    if tally:
        sys.stderr.write(f"privsyn: warning: {tally} (counted in private text, for its owner)\n")
    return 0
