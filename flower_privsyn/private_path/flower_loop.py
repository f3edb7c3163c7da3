"""What a user of Flower gives its loop and gets of it, by the numbers of the run's own rounds.

A run that goes on has rounds behind it that Flower's loop knows nothing of, and one that ends early
has none where the loop goes on counting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from flower_privsyn.checks import check_number
from flower_privsyn.errors import ConfigError
from flower_privsyn.private_path.method import Method, Question
from flower_privsyn.private_path.outline import broadcast_of
from flower_privsyn.private_path.settings import PrivateSumConfig

#: From the number of a round and its arrays to metrics, as Flower has it.
Evaluate: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]


def refuse_own_messages(strategy: str, *given: object) -> None:
    """Refuse what Flower's strategies take to make messages of; a private round makes its own.

    Args:
        strategy: its name.
        given: `initial_arrays`, `train_config` and `evaluate_config` of `start`.

    Raises:
        ConfigError: one of them is not None.
    """
    if any(one is not None for one in given):
        raise ConfigError(
            f"{strategy}.start makes its own messages: leave initial_arrays, train_config and "
            "evaluate_config out"
        )


def refuse_other_rounds(num_rounds: int | None, settings: PrivateSumConfig) -> None:
    """Refuse a number of rounds that the noise was not computed for.

    Raises:
        ConfigError: it is not None, and another one than the setting.
    """
    if num_rounds is not None and num_rounds != settings.num_rounds:
        raise ConfigError(
            f"num_rounds = {num_rounds} differs from num-rounds = {settings.num_rounds}, for "
            "which the noise is computed: set it in the configuration"
        )


def seconds_per_round(timeout: float | None, settings: PrivateSumConfig) -> float:
    """How long a round waits for its nodes, as `start` is told, else as the settings say.

    Raises:
        ConfigError: it is no number above 0: a round would be charged without waiting for anybody.
    """
    if timeout is None:
        return settings.round_timeout
    return check_number("timeout", timeout, gt=0)


def evaluated_by(evaluate: Evaluate, behind: int, last: Callable[[], int]) -> Evaluate:
    """The same, called with the numbers of the run's rounds, and not for rounds after its end.

    Args:
        evaluate: the user's.
        behind: rounds that were over when the loop began.
        last: gives the last round that was asked.
    """

    def called(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        number = behind + server_round
        return None if number > max(behind, last()) else evaluate(number, arrays)

    return called


def completed(result: Result, behind: int, method: Method, settings: PrivateSumConfig) -> Result:
    """Flower's result by the numbers of the run's rounds, with the arrays that it ends with.

    Args:
        result: changed in place; its arrays where there are none, as of a run whose rounds were all
            over when it was resumed.
        behind: rounds that were over when the loop began.
        method: of the run.
        settings: of the run.
    """
    if not result.arrays and (arrays := arrays_of(None, method, settings)) is not None:
        result.arrays = arrays
    for by_round in (result.train_metrics_clientapp, result.evaluate_metrics_serverapp):
        moved = {behind + number: record for number, record in by_round.items()}
        by_round.clear()
        by_round.update(moved)
    return result


def arrays_of(
    following: Question | None, method: Method, settings: PrivateSumConfig
) -> ArrayRecord | None:
    """What the next round is asked of; after the last one what the method closes with.

    Args:
        following: the next question; None after the last.
        method: of the run.
        settings: of the run.

    Returns:
        None where a method closes with nothing.
    """
    if following is None:
        closing = method.closing()
        if closing is None:
            return None
        following = Question(method.queries[-1], closing)
    return broadcast_of(following, settings)


def numbers_of(metrics: Mapping[str, Any]) -> MetricRecord:
    """What of a round's line is a number, as Flower keeps it."""
    return MetricRecord(
        {
            key: value
            for key, value in metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
    )
