"""Rows that the windows of a block take: the compiled way against the plain one, window by window."""

from __future__ import annotations

import numpy as np
import pytest

from trajload import Window
from trajload.align.block_kernel import MAX_SPAN, block_rows
from trajload.align.rows import stepwise_rows


@pytest.mark.parametrize("num_steps", [1, 3, 40])
@pytest.mark.parametrize(
    "window",
    [
        Window(num_steps=1),
        Window(num_steps=8, pad="edge"),
        Window(num_steps=5, dilation=3, history=2, pad="edge"),
        Window(num_steps=60, pad="zero"),
    ],
    ids=str,
)
def test_block_rows_equal_the_windows_planned_one_by_one(window: Window, num_steps: int) -> None:
    """Inside, before and after the episode, with gaps between windows."""
    rng = np.random.default_rng(num_steps)
    offset_T = window.first_offset + window.dilation * np.arange(window.num_steps)
    for anchor_W in (np.arange(num_steps), np.sort(rng.choice(num_steps, 1 + num_steps // 4, replace=False))):
        rows_U, place_WT, is_outside_WT, has_outside_W = block_rows(anchor_W, offset_T, num_steps)
        assert (np.diff(rows_U) > 0).all()
        for w, anchor in enumerate(anchor_W.tolist()):
            rows_T, is_outside_T = stepwise_rows(anchor, num_steps, window)
            assert rows_U[place_WT[w]].tolist() == rows_T.tolist()
            assert is_outside_WT[w].tolist() == is_outside_T.tolist()
            assert has_outside_W[w] == is_outside_T.any()
        assert set(rows_U.tolist()) == set(rows_U[place_WT].ravel().tolist())


def test_offsets_that_do_not_rise_and_repeat_are_taken_as_they_stand() -> None:
    """`delta_indices` may go back in time."""
    rows_U, place_WT, is_outside_WT, _ = block_rows(np.array([4, 5]), np.array([0, -3, -3, -9]), 20)
    assert rows_U.tolist() == [0, 1, 2, 4, 5]
    assert rows_U[place_WT].tolist() == [[4, 1, 1, 0], [5, 2, 2, 0]]
    assert is_outside_WT.tolist() == [[False, False, False, True]] * 2


def test_a_span_too_wide_for_a_flag_a_row_is_left_to_others() -> None:
    """Not an error: the plain plan sorts the rows instead."""
    offset_T = np.array([0, MAX_SPAN])
    assert len(block_rows(np.array([0]), offset_T - np.array([0, 1]), 2 * MAX_SPAN)[0]) == 2
    assert len(block_rows(np.array([0]), offset_T, 2 * MAX_SPAN)[0]) == 0
