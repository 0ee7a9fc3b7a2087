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
    assert np.diff(table.first_E1).tolist() == [sum(e == i for e, _ in expected) for i in range(len(lengths))]
    assert episode_B.dtype == start_B.dtype == np.int64


def test_window_table_of_hand_counted_episodes_gives_the_hand_counted_numbers() -> None:
    """Episodes of 5, 0, 2 and 3 steps hold 4, 0, 1 and 2 windows of two steps."""
    table = WindowTable(np.array([5, 0, 2, 3]), Window(num_steps=2))
    assert (table.num_windows, table.num_episodes) == (7, 4)
    assert [x.tolist() for x in table.locate(np.array([0, 3, 4, 5, 6]))] == [[0, 0, 2, 3, 3], [0, 3, 0, 0, 1]]


@pytest.mark.parametrize("window_id", [-1, 7, 2**40])
def test_locate_outside_the_table_names_the_id(window_id: int) -> None:
    """An id that no window has is an error that names it and the range."""
    table = WindowTable(np.array([5, 0, 2, 3]), Window(num_steps=2))
    with pytest.raises(
        WindowError, match=rf"window id {window_id} does not exist: expected 0 <= window id < num_windows=7"
    ):
        table.locate(np.array([0, window_id]))


@pytest.mark.parametrize(
    ("episode", "start", "message"),
    [
        (0, 3, r"step 3 of episode 0: expected a multiple of stride=2 in \[0, 4\]"),
        (0, 6, r"step 6 of episode 0: expected a multiple of stride=2 in \[0, 4\]"),
        (0, -2, r"step -2 of episode 0"),
        (1, 0, r"step 0 of episode 1: the episode gives no window"),
        (2, 0, r"episode 2 does not exist: expected 0 <= episode < num_episodes=2"),
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


# ---- reach, choice and restriction ----


@given(
    LENGTHS,
    WINDOWS,
    st.integers(-6, 0),
    st.integers(0, 6),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_window_table_with_a_reach_keeps_all_streams_inside(
    lengths: list[int], window: Window, low: int, high: int, data: st.DataObject
) -> None:
    """Under pad="none" anchors are those whose reach lies inside, from the earliest on, a stride apart; else all."""
    high = max(high, window.span - 1)
    chosen = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    first, stop = (-low, -high) if window.pad == "none" else (0, 0)
    expected = [
        (e, anchor) for e, n in enumerate(lengths) if chosen[e] for anchor in range(first, n + stop, window.stride)
    ]
    if not expected:
        with pytest.raises(WindowError, match="no episode is long enough"):
            WindowTable(np.array(lengths), window, reach=(low, high), is_chosen_E=np.array(chosen))
        return
    table = WindowTable(np.array(lengths), window, reach=(low, high), is_chosen_E=np.array(chosen))
    episode_B, anchor_B = table.locate(np.arange(table.num_windows))
    assert list(zip(episode_B.tolist(), anchor_B.tolist(), strict=True)) == expected
    assert table.window_id(episode_B, anchor_B).tolist() == list(range(len(expected)))
    assert [a for e in range(len(lengths)) for a in table.anchors_of(e).tolist()] == [a for _, a in expected]


@given(LENGTHS, WINDOWS, st.data())
@settings(max_examples=200, deadline=None)
def test_restricted_window_table_numbers_exactly_the_windows_kept(
    lengths: list[int], window: Window, data: st.DataObject
) -> None:
    """Ids are those of the windows kept, without gaps; both ways, per episode, and windows left out have none."""
    every = enumerated(lengths, window)
    if not every:
        return
    table = WindowTable(np.array(lengths), window)
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(every), max_size=len(every))))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], keep, [False]]).astype(int)))
    if not keep.any():
        with pytest.raises(WindowError, match=rf"no window is left of {len(every)}"):
            table.restricted(edges[0::2], edges[1::2] - edges[0::2])
        return
    kept = table.restricted(edges[0::2], edges[1::2] - edges[0::2])
    expected = [w for w, is_kept in zip(every, keep, strict=True) if is_kept]
    episode_B, start_B = kept.locate(np.arange(kept.num_windows))
    assert list(zip(episode_B.tolist(), start_B.tolist(), strict=True)) == expected
    assert kept.window_id(episode_B, start_B).tolist() == list(range(len(expected)))
    assert np.diff(kept.first_E1).tolist() == [sum(e == i for e, _ in expected) for i in range(len(lengths))]
    assert kept.to_json()["dropped"]["num_windows"] == len(every) - len(expected)
    assert (table.num_windows, table.to_json()) == (len(every), {})
    for (episode, start), is_kept in zip(every, keep, strict=True):
        if not is_kept:
            with pytest.raises(WindowError, match=rf"step {start} of episode {episode}: it is left out"):
                kept.window_id(np.array([episode]), np.array([start]))
            break


def test_restricted_window_tables_that_differ_have_different_digests() -> None:
    """The digest is that of which windows are left, so that a state does not resume over others."""
    table = WindowTable(np.array([9, 9]), Window(num_steps=2))
    digests = {
        table.restricted(np.array([first]), np.array([count])).to_json()["dropped"]["digest"]
        for first, count in [(0, 4), (1, 4), (0, 5)]
    }
    assert len(digests) == 3
    with pytest.raises(ConfigError, match="cannot be restricted again"):
        table.restricted(np.array([0]), np.array([4])).restricted(np.array([0]), np.array([1]))


def test_window_id_off_a_grid_that_begins_later_names_its_first_anchor() -> None:
    """With history of two steps and pad="none" anchors are 2, 5, 8, ..."""
    table = WindowTable(np.array([12]), Window(num_steps=3, history=2, stride=3))
    assert table.anchors_of(0).tolist() == [2, 5, 8, 11]
    with pytest.raises(WindowError, match=r"step 3 of episode 0: expected 2 plus a multiple of stride=3, up to 11"):
        table.window_id(np.array([0]), np.array([3]))


def test_window_table_of_a_choice_of_another_length_is_refused() -> None:
    """A mask that does not fit the episodes is no choice."""
    with pytest.raises(ConfigError, match=r"is_chosen_E has shape \(1,\): expected one for each of 2 episodes"):
        WindowTable(np.array([5, 5]), Window(num_steps=2), is_chosen_E=np.array([True]))


def test_restricted_window_table_holds_little_per_run() -> None:
    """A million windows with one left out in the middle cost two runs."""
    table = WindowTable(np.full(10, 100_000), Window(num_steps=1))
    kept = table.restricted(np.array([0, 500_001]), np.array([500_000, 499_999]))
    assert kept.num_windows == 999_999
    assert [int(x[0]) for x in kept.locate(np.array([500_000]))] == [5, 1]
    assert kept._kept is not None
    assert kept._kept.first_R.nbytes + kept._kept.kept_R1.nbytes == 8 * 5
