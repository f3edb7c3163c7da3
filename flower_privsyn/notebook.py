"""A run in one process, on users in memory: Python without an app."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from typing import Any

from flwr.app import Context

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.data import Chunking, Users, load_users
from flower_privsyn.dry_run.people import BUNDLED, check_public_text, people_of
from flower_privsyn.errors import ConfigError
from flower_privsyn.host.grid import InProcessGrid, flower_identity, partitions
from flower_privsyn.report.summary import RunSummary, open_run
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies import JointSketch

#: Flower's identity of a run is one of the process: two at once would take it from each other in
#: the middle of a round that is paid for.
_one_at_a_time = threading.RLock()


class OwnGrid(InProcessGrid):
    """The nodes of whoever holds all the text."""

    is_simulation = True


def fit(
    users: Any,
    strategy: PrivateSumStrategy | None = None,
    *,
    client_column: str = "client_id",
    text_column: str = "text",
    date_column: str = "date",
    label_column: str = "",
    **settings: Any,
) -> RunSummary:
    """Run a method on users in memory: nodes, noise and ledger are those of every run.

    Example:
        ```python
        run = fit(frame, epsilon=1.0, client_column="customer", text_column="note")
        run = fit(frame, POPri(epsilon=4.0, public_text="public.jsonl"))
        ```

    Formal guarantee:
        That of the strategy, for users who each are one value of `client_column`. Whoever calls
        this holds all text; what they may show to others is the run directory.

    Args:
        users: `Users`; rows of `(user, text)` and so on as `Users.from_rows` takes them, in a list,
            a tuple or an iterator; or what `load_users` takes, such as a pandas `DataFrame`.
        strategy: which method with which settings; None for a `JointSketch` of `settings`.
        client_column: as of `load_users`, for a table, a file or a data set.
        text_column: the same.
        date_column: the same.
        label_column: the same.
        settings: of `JointSketch`, such as `epsilon`.

    Returns:
        What was released and made of it, what it cost, and where it lies: `open_run` of the run.

    Raises:
        PrivsynError: the users, a setting, a model or the budget is at fault. The run directory,
            where there is one, keeps everything finished so far.
    """
    from flower_privsyn.client_apps.training import LocalTraining  # and PyTorch

    if strategy is None:
        strategy = JointSketch(**settings)
    elif not isinstance(strategy, PrivateSumStrategy):
        raise ConfigError(
            "strategy must be an object with its settings, such as POPri(epsilon=1.0), got "
            f"{strategy!r}"
        )
    elif settings:
        raise ConfigError(
            f"{', '.join(settings)} and a strategy are both given, and the strategy has its "
            f"settings: write them into {type(strategy).__name__}(...)"
        )
    if isinstance(users, list | tuple | Iterator):
        everybody = Users.from_rows(users)
    elif isinstance(users, Users):
        everybody = users
    else:
        everybody = load_users(
            users,
            client_column=client_column,
            text_column=text_column,
            date_column=date_column,
            label_column=label_column,
            strict=True,
        )
    source = os.fspath(users) if isinstance(users, str | os.PathLike) else ""
    values = strategy.config.to_dict()
    everybody.check_documents()
    people_of([everybody], chunking=Chunking.of(values))
    check_public_text(str(values.get("public-text", BUNDLED)), data=source)

    def load(context: Context) -> Users:
        own = context.node_config
        return everybody.partition(
            partition_id=int(own["partition-id"]), num_partitions=int(own["num-partitions"])
        )

    own_questions = {type(query) for query in strategy.method.queries if not query.bundled}
    run_id = secrets.randbits(62) | 2**62  # drawn, as Flower draws it
    with _one_at_a_time, flower_identity(run_id=run_id):
        grid = OwnGrid(
            create_client_app(load, trainer=LocalTraining(), queries=list(own_questions)),
            partitions(strategy.config.num_nodes),
            run_id=run_id,
            run_config={},
        )
        strategy.start(grid)
    return open_run(strategy.run.path)
