"""Sums that may leave the exact numbers: whether the clip norm is to blame, or one node."""

from __future__ import annotations

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.private_path.asked import refuse_off_the_grid
from flower_privsyn.private_path.meeting import Roster
from flower_privsyn.queries import NearestNeighborHistogram


class TestOffTheGrid:
    def test_one_node_that_announces_too_many(self, caplog: pytest.LogCaptureFixture) -> None:
        """A smaller clip norm is no advice for a run that one node alone has stopped."""
        query = NearestNeighborHistogram(max_samples=1)
        with pytest.raises(ConfigError, match="users, 1099511627776 of whom one node announces"):
            refuse_off_the_grid(query, Roster(users={7: 6, 8: 2**40, 9: 4}))
        (told,) = caplog.records
        assert told.getMessage() == "node 8 announces 1099511627776 users"
        assert vars(told)["privsyn_owner_alone"]  # which node it is goes into no file of the run

    @pytest.mark.parametrize("users", [{7: 2**23 + 1}, {7: 2**23, 8: 2**23}, {7: 2**25, 8: 2**24}])
    def test_a_clip_norm_that_is_too_large(
        self, users: dict[int, int], caplog: pytest.LogCaptureFixture
    ) -> None:
        query = NearestNeighborHistogram(max_samples=1)
        with pytest.raises(ConfigError, match="users lets the sum reach .*: choose a smaller"):
            refuse_off_the_grid(query, Roster(users=users))
        assert not caplog.records

    def test_sums_that_are_exact(self) -> None:
        refuse_off_the_grid(
            NearestNeighborHistogram(max_samples=1), Roster(users={7: 2**22, 8: 2**22})
        )
