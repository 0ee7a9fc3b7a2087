"""Laws of the split of a global batch over ranks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.errors import ConfigError
from trajload.sampling.assign import rank_rows
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
