"""Where an episode's frames begin in a shared video, from timestamps checked against counts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from trajload.sources.lerobot_video import first_frames

FPS = Fraction(30)


def find(num_frames, from_s, to_s, lengths, fps=FPS):
    time_F = np.arange(num_frames) / float(fps)
    to_K = None if to_s is None else np.asarray(to_s, dtype=np.float64)
    return first_frames(time_F, np.asarray(from_s, dtype=np.float64), to_K, np.asarray(lengths), fps)


def test_real_offsets_of_three_episodes_give_exact_frames():
    """Offsets as a real dataset has them (0, 9.9667, 19.9667 s at 30 Hz) are frames 0, 299 and 599."""
    ends = [9.966666666666667, 19.96666666666667, 29.96666666666667]
    first, errors = find(899, [0.0, *ends[:2]], ends, [299, 300, 300])
    assert first.tolist() == [0, 299, 599] and errors == {}


def test_thousand_episodes_sum_up_without_drift():
    """Prefix sums of many odd lengths land on exact frames, also after float rounding."""
    lengths = np.arange(1, 1001) % 97 + 3
    start = np.concatenate([[0], np.cumsum(lengths)])
    first, errors = find(int(start[-1]), start[:-1] / 30, start[1:] / 30, lengths)
    assert errors == {} and (first == start[:-1]).all()


@pytest.mark.parametrize("shift", [-0.4, 0.4])
def test_less_than_half_a_frame_off_is_the_nearest_frame(shift):
    """Rounded timestamps find their frame."""
    first, errors = find(100, [(40 + shift) / 30], [(60 + shift) / 30], [20])
    assert first.tolist() == [40] and errors == {}


def test_start_between_frames_of_a_gap_is_an_error_with_the_times():
    """A start with no frame within half a frame names the nearest."""
    time_F = np.concatenate([np.arange(10), np.arange(20, 30)]) / 30
    _, errors = first_frames(time_F, np.array([14.0 / 30]), None, np.array([3]), FPS)
    assert (
        "from_timestamp 0.466667 s has no frame within half a frame (0.016667 s): the nearest of 20 frames is 9"
        in errors[0]
    )


def test_span_of_another_count_than_steps_names_both():
    """Timestamps that span 20 frames contradict 21 steps."""
    _, errors = find(100, [0.0], [20 / 30], [21])
    assert "span 20 frames (from frame 0), but the episode has 21 steps" in errors[0]


def test_video_that_ends_too_early_names_both():
    """An episode cannot reach beyond the last frame."""
    _, errors = find(50, [1.0], [2.0], [30])
    assert "it has 50 frames, and the episode needs 30 from frame 30" in errors[0]


def test_overlapping_episodes_are_named():
    """Two episodes cannot share frames."""
    first, errors = find(100, [0.0, 0.5], None, [30, 30])
    assert first.tolist() == [0, 15]
    assert list(errors) == [1] and "inside those of another episode, [0, 30)" in errors[1]


def test_one_bad_episode_leaves_the_others_usable():
    """Errors are per episode: the rest of the file can be read."""
    first, errors = find(90, [0.0, 1.0, 2.0], [1.0, 1.9, 3.0], [30, 30, 30])
    assert list(errors) == [1] and first[[0, 2]].tolist() == [0, 60]


@pytest.mark.parametrize("value", [float("nan"), -3.0, 1e9])
def test_timestamp_that_is_no_time_in_the_file_is_an_error(value):
    """NaN, negative and huge starts are refused."""
    _, errors = find(30, [value], None, [5])
    assert "has no frame within half a frame" in errors[0] or "ends too early" in errors[0]


def test_empty_episode_needs_no_frame():
    """An episode of 0 steps is no error."""
    _, errors = find(30, [0.0, 0.0], [0.0, 1.0], [0, 30])
    assert errors == {}
