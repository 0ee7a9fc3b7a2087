"""Memory of blocks: never handed out twice, joined again when it comes back, counted to the byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.pipeline.arena import ALIGNMENT, Arena, aligned


def test_arena_hands_out_the_low_end_first_and_says_when_it_is_full() -> None:
    """One hand-checked run: sizes round up to cache lines."""
    arena = Arena(256)
    assert arena.address % ALIGNMENT == 0
    assert [arena.take(100), arena.take(64), arena.take(64)] == [0, 128, 192]
    assert (arena.used_bytes, arena.take(1)) == (256, None)
    arena.give(128, 64)
    assert arena.take(65) is None
    arena.give(192, 64)
    assert arena.take(65) == 128


@pytest.mark.parametrize("num_bytes", [0, 1, 63])
def test_arena_below_a_cache_line_holds_nothing(num_bytes: int) -> None:
    """A bound is never passed, however small."""
    arena = Arena(num_bytes)
    assert arena.take(1) is None
    assert arena.take(0) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 700)), max_size=60))
def test_pieces_never_overlap_and_all_comes_back(moves: list[tuple[bool, int]]) -> None:
    """Whatever is taken and given in whatever order, and in the end the whole is one piece again."""
    arena, owner = Arena(2048), np.zeros(2048, dtype=bool)
    held: list[tuple[int, int]] = []
    for is_take, number in moves:
        if is_take and number:
            offset = arena.take(number)
            if offset is not None:
                piece = owner[offset : offset + aligned(number)]
                assert len(piece) == aligned(number) and not piece.any()
                piece[:] = True
                held.append((offset, number))
        elif held:
            offset, size = held.pop(number % len(held))
            owner[offset : offset + aligned(size)] = False
            arena.give(offset, size)
        assert arena.used_bytes == owner.sum()
    for offset, size in held:
        arena.give(offset, size)
    assert arena.take(2048) == 0
