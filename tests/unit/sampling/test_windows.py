"""Laws of the numbering of windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.errors import ConfigError, WindowError
from trajload.sampling.windows import WindowTable
from trajload.spec import Window

WINDOWS = st.builds(
    Window,
    num_steps=st.integers(1, 9),
    stride=st.integers(1, 5),
    dilation=st.integers(1, 4),
    pad=st.sampled_from(["none", "edge", "zero"]),
)
LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def enumerated(lengths: list[int], window: Window) -> list[tuple[int, int]]:
    """Return all (episode, start), found by trying every step of every episode."""
    found = []
    for episode, num_steps in enumerate(lengths):
        for start in range(0, num_steps, window.stride):
            last = start + (window.num_steps - 1) * window.dilation
            if window.pad != "none" or last < num_steps:
                found.append((episode, start))
    return found


@given(LENGTHS, WINDOWS)
@settings(max_examples=300, deadline=None)
def test_window_table_equals_the_windows_found_by_trying_every_step(lengths: list[int], window: Window) -> None:
    """Ids number exactly the windows that exist, by episode and then by start, and locate/window_id invert."""
    expected = enumerated(lengths, window)
    if not expected:
        with pytest.raises(WindowError, match=f"has {max(lengths)} steps"):
            WindowTable(np.array(lengths), window)
        return
    table = WindowTable(np.array(lengths), window)
    ids = np.arange(table.num_windows)
    episode_B, start_B = table.locate(ids)
    assert list(zip(episode_B.tolist(), start_B.tolist(), strict=True)) == expected
    assert table.window_id(episode_B, start_B).tolist() == ids.tolist()
    assert table.num_short_episodes == len(set(range(len(lengths))) - {e for e, _ in expected})
    assert table.num_windows_of(np.arange(len(lengths))).sum() == len(expected)
    assert episode_B.dtype == start_B.dtype == np.int64


def test_window_table_of_hand_counted_episodes_gives_the_hand_counted_numbers() -> None:
    """Episodes of 5, 0, 2 and 3 steps hold 4, 0, 1 and 2 windows of two steps."""
    table = WindowTable(np.array([5, 0, 2, 3]), Window(num_steps=2))
    assert (table.num_windows, table.num_short_episodes, table.num_episodes) == (7, 1, 4)
    assert [x.tolist() for x in table.locate(np.array([0, 3, 4, 5, 6]))] == [[0, 0, 2, 3, 3], [0, 3, 0, 0, 1]]


@pytest.mark.parametrize("window_id", [-1, 7, 2**40])
def test_locate_outside_the_table_names_the_id(window_id: int) -> None:
    """An id that no window has is an error that names it and the range."""
    table = WindowTable(np.array([5, 0, 2, 3]), Window(num_steps=2))
    with pytest.raises(WindowError, match=rf"window id {window_id} does not exist: expected 0 <= id < 7"):
        table.locate(np.array([0, window_id]))


@pytest.mark.parametrize(
    ("episode", "start", "message"),
    [
        (0, 3, r"step 3 of episode 0: expected a multiple of stride=2 in \[0, 4\]"),
        (0, 6, r"step 6 of episode 0: expected a multiple of stride=2 in \[0, 4\]"),
        (0, -2, r"step -2 of episode 0"),
        (1, 0, r"step 0 of episode 1: the episode gives no window"),
        (2, 0, r"episode 2 does not exist: expected 0 <= episode < 2"),
        (-1, 0, r"episode -1 does not exist"),
    ],
)
def test_window_id_where_no_window_starts_names_the_place(episode: int, start: int, message: str) -> None:
    """A start off the stride, beyond the last window, or in a short or absent episode is refused by name."""
    table = WindowTable(np.array([6, 1]), Window(num_steps=2, stride=2))
    with pytest.raises(WindowError, match=message):
        table.window_id(np.array([0, episode]), np.array([0, start]))


def test_window_table_without_any_window_says_longest_episode_span_and_cure() -> None:
    """Too short episodes are refused with the longest length, the span asked for, and pad='edge'."""
    with pytest.raises(WindowError, match=r"longest of 3 episodes has 9 steps, a window spans 13 .*pad='edge'"):
        WindowTable(np.array([3, 9, 0]), Window(num_steps=4, dilation=4))
    with pytest.raises(WindowError, match=r"longest of 0 episodes has 0 steps.*Every episode is empty"):
        WindowTable(np.array([], dtype=np.int64), Window(num_steps=1, pad="edge"))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (np.array([4, -3]), "episode 1 has -3 steps"),
        (np.array([[4, 3]]), r"shape \(1, 2\)"),
        (np.array([4.0, 3.0]), "float64"),
        (np.array([2**62, 2**62]), r"too many windows"),
    ],
)
def test_window_table_of_unusable_lengths_is_refused(steps: np.ndarray, message: str) -> None:
    """Negative, two-dimensional, float or overflowing lengths never become a table."""
    with pytest.raises(ConfigError, match=message):
        WindowTable(steps, Window(num_steps=1))


def test_window_table_of_many_episodes_holds_one_integer_each() -> None:
    """A table of 100,000 long episodes keeps O(E) memory, whatever the number of windows."""
    table = WindowTable(np.full(100_000, 10_000_000), Window(num_steps=16))
    assert table.num_windows == 100_000 * (10_000_000 - 15)
    held = sum(v.nbytes for v in vars(table).values() if isinstance(v, np.ndarray))
    assert held == 8 * 100_001
