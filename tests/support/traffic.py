"""What a run was planned to send, beside what it counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flower_privsyn.privacy.calibrated import calibrated
from flower_privsyn.queries import TrainableModel
from flower_privsyn.run.plan import plan_of
from flower_privsyn.run.strategy import planned_traffic


@dataclass(frozen=True)
class Sizes:
    """Every model is of this size; a `flower_privsyn.run.method.Look`."""

    size: int
    whole: int = 0

    def dimension(self, embedder: str) -> int:
        return self.size

    def vocabulary(self, model: str) -> int:
        return self.size

    def parameters(self, model: TrainableModel) -> int:
        return self.whole if self.whole and model.trainable == "full" else self.size


def check_planned(strategy: Any, *, size: int, whole: int = 0) -> None:
    """What a finished run counted is what was said before it, round by round and to the byte.

    Args:
        strategy: of the run.
        size: of its records.
        whole: parameters of the whole model, where fewer are trained.
    """
    settings, run = strategy.config, strategy.run
    # As `privsyn check` makes it, from the settings alone.
    method = type(strategy)(settings).method
    outline = method.outline(Sizes(size, whole))
    started = next(line for line in run.ledger_lines() if line["event"] == "started")
    population = int(started["sampling"]["population"])
    plan = calibrated(
        plan_of(method, settings, population=population),
        epsilon=settings.epsilon,
    )
    keys = ("floats_down", "floats_up", "bytes_down", "bytes_up")
    planned = [
        tuple(getattr(one, key) for key in keys)
        for one in planned_traffic(outline, settings, plan.for_population(population))
    ]
    counted = [tuple(one[key] for key in keys) for one in run.metrics()]
    if outline.at_most:
        for more, less in zip(planned, counted, strict=True):
            assert all(a >= b for a, b in zip(more, less, strict=True))
    else:
        assert planned == counted
