"""Thresholds and graphs: what they prove, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from flower_privsyn.errors import ConfigError
from flower_privsyn.secure_aggregation.terms import LEAST_ROSTER, Graph, Terms, graph_of


def test_defaults_bear_a_third_who_collude_and_an_eighth_who_are_lost() -> None:
    found = {n: Terms.of(n) for n in (4, 6, 16, 100)}
    assert {n: (t.least_nodes, t.colluding) for n, t in found.items()} == {
        4: (3, 1), 6: (5, 2), 16: (14, 5), 100: (87, 33),
    }  # fmt: skip
    # 16 nodes, t = 14, c = 5: 1.33 times the central noise.
    assert found[16].noise_share * 16**0.5 == pytest.approx(4 / 3)
    for nodes, terms in found.items():
        assert 2 * terms.signatures(nodes) > nodes + terms.colluding


@pytest.mark.parametrize(
    ("nodes", "values", "says"),
    [
        (2, {}, "takes at least 4 nodes .*, got 2"),
        (LEAST_ROSTER - 1, {}, "takes at least 4 nodes"),
        (6, {"least_nodes": 7}, "least-nodes must be between 5 and 6 for 6 nodes"),
        (
            16,
            {"least_nodes": 10, "colluding": 5},
            "least-nodes must be between 11 and 16",
        ),
        (6, {"least_nodes": 6, "colluding": 5}, "fewer than 2 honest"),
        (20_000, {"least_nodes": 9_000, "colluding": 5}, "at most 10,000"),
    ],
)
def test_terms_that_prove_nothing_are_refused(
    nodes: int, values: dict[str, int], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        Terms.of(nodes, **values)


def test_two_sets_of_survivors_cannot_both_be_signed() -> None:
    """Honest nodes sign one set; those who collude sign both."""
    for nodes, colluding in itertools.product(range(4, 30), range(10)):
        if nodes - colluding < 2 or (nodes + colluding) // 2 + 1 > nodes:
            continue
        needed = Terms(least_nodes=nodes, colluding=colluding).signatures(nodes)
        for first in range(nodes - colluding + 1):
            second = nodes - colluding - first
            assert min(first, second) + colluding < needed


class TestGraph:
    def test_small_rosters_share_masks_with_everybody(self) -> None:
        for nodes in (4, 16, 60):
            graph = graph_of(nodes, Terms.of(nodes))
            assert graph.degree == nodes - 1
            order = graph.order(b"seed")
            assert sorted(graph.neighbours(order, 0)) == sorted(set(range(nodes)) - {order[0]})
            # More shares than those who collude have, and not more than those who must be left.
            terms = Terms.of(nodes)
            assert terms.colluding < graph.threshold < terms.signatures(nodes)

    def test_the_bound_is_that_of_the_hypergeometric_law(self) -> None:
        nodes, terms = 1000, Terms(least_nodes=800, colluding=200)
        graph = graph_of(nodes, terms)
        assert 0 < graph.degree < nodes // 2
        above = nodes * stats.hypergeom.sf(graph.crowd, nodes, 200, graph.window)
        assert (
            above
            < 2.0**-80
            <= nodes * stats.hypergeom.sf(graph.crowd - 1, nodes, 200, graph.window)
        )
        lost = nodes * stats.hypergeom.sf(graph.window - graph.crowd - 1, nodes, 200, graph.window)
        assert lost < 2.0**-30
        assert graph.threshold == 2 * graph.crowd + 1

    def test_everybody_shares_masks_both_ways_with_as_many(self) -> None:
        graph = Graph(nodes=50, window=6, crowd=2, threshold=5)
        order = graph.order(b"seed")
        assert sorted(order) == list(range(50))
        assert order != graph.order(b"another")
        around = {order[p]: set(graph.neighbours(order, p)) for p in range(50)}
        for index, others in around.items():
            assert len(others) == graph.degree == 12
            assert all(index in around[other] for other in others)

    def test_a_tight_set_is_connected_whoever_colludes_and_whoever_is_lost(self) -> None:
        """Against the worst: the honest nodes of a tight set, by breadth first search."""
        graph = Graph(nodes=24, window=5, crowd=2, threshold=5)
        order = graph.order(b"circle")
        generator = np.random.default_rng(3)
        tight = parted = 0
        for _ in range(400):
            corrupt = _spread(order, graph, generator)
            kept = set(generator.permutation(24)[: generator.integers(12, 24)].tolist())
            whole = _connected(graph, order, kept - corrupt)
            if graph.is_tight(order, kept):
                tight += 1
                assert whole
            parted += not whole
        assert tight > 30
        assert parted > 5

    def test_an_arc_that_a_server_cuts_out_is_not_tight(self) -> None:
        """Every node of the arc has neighbours enough; only together they see that they are cut."""
        graph = Graph(nodes=60, window=10, crowd=3, threshold=7)
        order = graph.order(b"circle")
        gap = {*range(0, 10), *range(30, 40)}
        kept = {order[place] for place in range(60) if place not in gap}
        assert all(
            len(kept & set(graph.neighbours(order, place))) >= graph.threshold
            for place in range(60)
            if place not in gap
        )
        assert not graph.is_tight(order, kept)


def _spread(order: list[int], graph: Graph, generator: np.random.Generator) -> set[int]:
    """As many colluding nodes as a window may hold, wherever they fit."""
    corrupt: set[int] = set()
    for place in generator.permutation(graph.nodes).tolist():
        trial = corrupt | {order[place]}
        marks = np.isin(order, list(trial)).astype(int)
        doubled = np.concatenate([marks, marks])
        if max(doubled[i : i + graph.window].sum() for i in range(graph.nodes)) <= graph.crowd:
            corrupt = trial
    return corrupt


def _connected(graph: Graph, order: list[int], nodes: set[int]) -> bool:
    if not nodes:
        return True
    places = {index: place for place, index in enumerate(order)}
    seen, stack = set(), [next(iter(nodes))]
    while stack:
        index = stack.pop()
        if index not in seen:
            seen.add(index)
            stack += [n for n in graph.neighbours(order, places[index]) if n in nodes]
    return seen == nodes
