"""What a question is made of, after a message has carried it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.messages.wire import refuse_uncarried
from flower_privsyn.queries import QUERIES, Cohort, Query
from flower_privsyn.testing import check_query
from tests.support.text_lengths import TextLengths


@dataclass(frozen=True, kw_only=True)
class Holding(TextLengths):
    """Holds anything as a parameter."""

    name: ClassVar[str] = "holding"

    words: tuple[str, ...] = ("a", "b")
    held: Any = 0


class TestParameters:
    @pytest.mark.parametrize(
        "held", [1, 2**64 - 1, 0.5, "", "text", b"bytes", True, (), (1, 2), (0.5,), ("a", "b")]
    )
    def test_arrive_as_they_are(self, held: Any) -> None:
        query = Holding(held=held)
        refuse_uncarried(query)
        assert Holding.from_wire(query.to_wire()) == query

    @pytest.mark.parametrize("kind", QUERIES)
    def test_of_the_bundled_questions_arrive(self, kind: type[Query]) -> None:
        refuse_uncarried(kind(**({"clip_to": 1.0} if kind.trains else {})))

    @pytest.mark.parametrize(
        "held", [None, {"a": 1}, (1, "a"), ((1,), (2,)), 2**64, "\ud800", np.int64(3)]
    )
    def test_that_no_message_carries_are_refused(self, held: Any) -> None:
        with pytest.raises(ConfigError, match="query holding is .*held"):
            refuse_uncarried(Holding(held=held))

    def test_are_looked_at_where_a_query_is_tested(self) -> None:
        cohort = Cohort.of(["text"], [0], 1)
        check_query(Holding(), cohort, {})
        with pytest.raises(ConfigError, match="query holding is .*held"):
            check_query(Holding(held=None), cohort, {})
