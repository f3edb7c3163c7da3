"""What a run that has finished gives to whoever starts it again: its result, and nothing anew."""

from __future__ import annotations

import logging

from flwr.serverapp.strategy import Result

from flower_privsyn.host.progress import ShownProgress
from flower_privsyn.private_path import flower_loop
from flower_privsyn.private_path.changes import changes_of_run
from flower_privsyn.private_path.method import Method, Workplace
from flower_privsyn.private_path.resume import Releases
from flower_privsyn.private_path.settings import PrivateSumConfig
from flower_privsyn.runs import RunDirectory
from flower_privsyn.runs.trackers import Following

logger = logging.getLogger("flwr.privsyn")


def result_of(
    run: RunDirectory,
    settings: PrivateSumConfig,
    method: Method,
    strategy: str,
    tracker: Following | None,
) -> Result:
    """Flower's result of a finished run, from its directory.

    Of every round the numbers of its line, and the arrays that the run ended with, for which the
    method loads its model. What `evaluate_fn` gave is not in the run directory. The tracker is told
    what it lacks.

    Args:
        run: its directory, locked; unlocked when the function is left.
        settings: that it is started with again.
        method: the same.
        strategy: that it is started by.
        tracker: None where nobody is told.

    Raises:
        ConfigError: the settings are those of another run.
        PrivsynError: the ledger is cut, or what the method needs is not there.
    """
    try:
        run.ledger_lines()  # a cut ledger is refused, as wherever a run is opened
        for key, (made, now) in changes_of_run(run, settings, method, strategy=strategy).items():
            logger.warning("%s = %r changes nothing: the run finished with %r", key, now, made)
        logger.info(
            "the run in %s has finished: this is its result; nobody is asked, nothing is spent",
            run.path,
        )
        result = Result()
        if type(method).closing is not Method.closing:
            unseen = ShownProgress(lambda _: None)  # the run's own file stays as it is
            method.prepare(Workplace(run=run, progress=unseen, released=Releases(run).of))
            flower_loop.completed(result, 0, method, settings)
        for line in run.metrics():
            result.train_metrics_clientapp[int(line["round"])] = flower_loop.numbers_of(line)
        if tracker is not None:
            tracker.tell(run)
        return result
    finally:
        run.unlock()
