"""Laws of the split of a global batch over ranks."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.errors import ConfigError
from trajload.sampling.assign import balanced_bounds, rank_rows
from trajload.world import World


@pytest.mark.parametrize("world_size", range(1, 65))
@given(extra=st.integers(0, 300))
@settings(max_examples=30, deadline=None)
def test_rank_rows_are_disjoint_complete_in_order_and_even(world_size: int, extra: int) -> None:
    """The ranks' rows follow each other, cover the batch, and differ by one row at most, longer ones first."""
    size = world_size + extra
    slices = [rank_rows(size, World(rank=r, world_size=world_size)) for r in range(world_size)]
    assert [i for s in slices for i in range(size)[s]] == list(range(size))
    counts = [s.stop - s.start for s in slices]
    assert counts == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= 1


def test_rank_rows_of_ten_over_four_are_three_three_two_two() -> None:
    """The first `global_batch_size % world_size` ranks get one more."""
    assert [rank_rows(10, World(rank=r, world_size=4)) for r in range(4)] == [
        slice(0, 3),
        slice(3, 6),
        slice(6, 8),
        slice(8, 10),
    ]


def test_rank_rows_with_more_ranks_than_rows_is_refused() -> None:
    """A rank without rows is an error that gives both numbers."""
    with pytest.raises(ConfigError, match=r"global_batch_size=3 is too small for world_size=4"):
        rank_rows(3, World(rank=0, world_size=4))


@pytest.mark.parametrize("size", [2.0, "8", None])
def test_rank_rows_of_a_size_that_is_no_integer_is_refused(size: object) -> None:
    """A batch size that is no int is named."""
    with pytest.raises(ConfigError, match=f"global_batch_size={size!r} is invalid"):
        rank_rows(size, World())  # type: ignore[arg-type]


# ---- balanced by cost ----


@given(costs=st.lists(st.integers(0, 20), min_size=1, max_size=9), num_ranks=st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_balanced_ranges_have_the_smallest_largest_load_there_is(costs: list[int], num_ranks: int) -> None:
    """Compared with every way to cut the rows: disjoint, complete, in order, none empty, and no better cut exists."""
    num_ranks = min(num_ranks, len(costs))
    bounds = balanced_bounds(np.array(costs), num_ranks)
    assert bounds[0] == 0 and bounds[-1] == len(costs) and len(bounds) == num_ranks + 1
    assert all(a < b for a, b in pairwise(bounds))

    def largest(bounds: list[int]) -> int:
        return max(sum(costs[a:b]) for a, b in pairwise(bounds))

    all_cuts = ([0, *cut, len(costs)] for cut in combinations(range(1, len(costs)), num_ranks - 1))
    assert largest(bounds) == min(map(largest, all_cuts))


@given(
    costs=st.lists(st.integers(0, 2**40), min_size=64, max_size=200),
    world_size=st.integers(1, 64),
)
@settings(max_examples=15, deadline=None)
def test_rank_rows_with_costs_are_disjoint_complete_and_in_order(costs: list[int], world_size: int) -> None:
    """As without costs: the global batch stays what it is, only its cut moves."""
    cost_B, size = np.array(costs), len(costs)
    slices = [rank_rows(size, World(rank=r, world_size=world_size), cost_B=cost_B) for r in range(world_size)]
    assert [i for s in slices for i in range(size)[s]] == list(range(size))
    assert all(s.stop > s.start for s in slices)


def test_rank_rows_of_equal_costs_are_as_even_as_without() -> None:
    """Equal rows go to ranks in equal numbers; expensive ones leave their rank with fewer."""
    sizes = [
        s.stop - s.start for s in (rank_rows(10, World(rank=r, world_size=4), cost_B=np.full(10, 5)) for r in range(4))
    ]
    assert sorted(sizes) == [2, 2, 3, 3]
    assert rank_rows(6, World(rank=0, world_size=2), cost_B=np.array([9, 9, 9, 1, 1, 25])) == slice(0, 3)


@pytest.mark.parametrize(
    ("cost_B", "message"),
    [
        (np.ones(3, dtype=np.int64), "cost_B has length 3: expected global_batch_size=4"),
        (np.ones(4), "of float64, expected at least 2 integers"),
        (np.array([1, -1, 1, 1]), "expected integers >= 0"),
        (np.full(4, 2**61), r"with a sum below 2\*\*62"),
    ],
)
def test_rank_rows_with_unusable_costs_is_refused(cost_B: np.ndarray, message: str) -> None:
    """Costs are integers, one a row, not negative, and their sum fits."""
    with pytest.raises(ConfigError, match=message):
        rank_rows(4, World(rank=0, world_size=2), cost_B=cost_B)
