"""How a generation server is asked: settings of every method that has one write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import Settings

#: Their keys, and that of the variable with the server's key: no text depends on them, so a resumed
#: run may change them at any time.
SERVER_SETTINGS: Final = frozenset(
    {
        "generator-api-key-env",
        "generator-timeout",
        "generator-retries",
        "generator-concurrency",
    }
)


@dataclass(frozen=True, kw_only=True)
class ServedGenerator(Settings):
    """How a generation server is asked; nothing of it matters to a model in this process."""

    generator_timeout: Annotated[
        float,
        Gt(0),
        Le(86_400),
        "seconds to wait for one answer of the server that `generator` names.",
    ] = 300.0
    generator_retries: Annotated[
        int,
        Ge(0),
        Le(1000),
        "how often a request is repeated that was lost, took too long, or was answered with "
        "status 429 or 5xx. The waits in between are 0.5 s, doubled each time up to 30: 15.5 s in "
        "all by default, 10 repetitions outlast two minutes of a restart.",
    ] = 5
    generator_concurrency: Annotated[
        int, Ge(1), Le(4096), "requests that are under way at once at the server."
    ] = 64

    @property
    def server_options(self) -> dict[str, Any]:
        """The same as arguments of `load_generator`."""
        return {
            "timeout": self.generator_timeout,
            "max_retries": self.generator_retries,
            "max_concurrency": self.generator_concurrency,
        }
