"""The recorded streams of an episode: clocks, rewards, pictures."""

from __future__ import annotations

import numpy as np
import pytest

from trajload.demo.physics import SUBSTEP_HZ, SUBSTEPS_PER_STEP
from trajload.demo.scene import EpisodeLength, has_side_camera, record_episode

LENGTH = EpisodeLength(60, 90)


@pytest.fixture(scope="module")
def episode():
    return record_episode(5, 2, size=64, length=LENGTH)


def test_same_arguments_give_the_same_bytes(episode) -> None:
    """Recording again gives every stream and timestamp bit for bit."""
    again = record_episode(5, 2, size=64, length=LENGTH)
    for name, value in episode.arrays.items():
        same = value == again.arrays[name] if isinstance(value, str) else (value == again.arrays[name]).all()
        assert same, name
    for name, times_N in episode.timestamps_ns.items():
        assert (times_N == again.timestamps_ns[name]).all(), name


@pytest.mark.parametrize(("seed", "number"), [(6, 2), (5, 3)])
def test_another_seed_or_episode_gives_another_scene(episode, seed: int, number: int) -> None:
    """Neither the seed nor the episode number is ignored."""
    other = record_episode(seed, number, size=64, length=LENGTH)
    assert (other.arrays["puck"][0] != episode.arrays["puck"][0]).any()


def test_clocked_streams_keep_their_rates_and_rise(episode) -> None:
    """Depth ticks at 15 Hz, proprioception at about 100 Hz; both rise strictly and stay inside the episode."""
    end_ns = (episode.num_steps - 1) * 1_000_000_000 // 30 + 1
    for name, period_ns, jitter_ns in (("depth", 66_666_667, 1), ("proprioception", 10_000_000, 3_000_000)):
        times_N = episode.timestamps_ns[name]
        assert times_N.dtype == np.int64
        gaps = np.diff(times_N)
        assert (gaps > 0).all()
        assert np.abs(gaps - period_ns).max() <= jitter_ns
        assert times_N[0] >= 0 and times_N[-1] <= end_ns
        assert len(times_N) == len(episode.arrays[name])
    assert len(np.unique(np.diff(episode.timestamps_ns["proprioception"]))) > 10  # it does jitter


def test_proprioception_is_the_state_at_its_own_timestamp(episode) -> None:
    """Each row lies between the substeps around its jittered time, not at a nominal one."""
    times_N = episode.timestamps_ns["proprioception"]
    substeps_S = np.arange(len(episode.pusher_S4)) / SUBSTEP_HZ
    for column in range(4):
        expected_N = np.interp(times_N / 1e9, substeps_S, episode.pusher_S4[:, column])
        np.testing.assert_allclose(episode.arrays["proprioception"][:, column], expected_N, atol=1e-6)


def test_depth_shows_the_puck_where_it_is(episode) -> None:
    """The pixels at the puck's height are centred on the puck at the picture's own time."""
    rows_N = np.arange(1, len(episode.puck_S4), SUBSTEP_HZ // 15)
    for k in (0, len(rows_N) - 1):
        is_puck_HW = episode.arrays["depth"][k, :, :, 0] == 970
        row, column = (np.flatnonzero(is_puck_HW.any(axis=1 - axis)).mean() + 0.5 for axis in (0, 1))
        x, y = column / 100.0, 0.56 - (row - 8) / 100.0
        assert abs(x - episode.puck_S4[rows_N[k], 0]) < 0.015
        assert abs(y - episode.puck_S4[rows_N[k], 1]) < 0.015


def test_side_camera_is_missing_in_every_fourth_episode() -> None:
    """Episodes 3, 7, 11, ... have no cam_side."""
    assert [has_side_camera(e) for e in range(8)] == [True, True, True, False] * 2
    assert "cam_side" not in record_episode(5, 3, size=48, length=LENGTH).arrays


def test_reward_falls_with_the_distance_and_rewards_the_goal() -> None:
    """Reward is minus the distance over 0.64 m, plus one on a step that ends in the goal."""
    recorded = next(
        r for r in (record_episode(0, e, size=48, length=EpisodeLength(60, 240)) for e in range(12)) if r.terminated
    )
    goal = np.array(recorded.metadata["goal_m"])
    expected_T = -np.linalg.norm(recorded.puck_S4[::SUBSTEPS_PER_STEP, :2] - goal, axis=1) / 0.64
    expected_T[-1] += 1.0
    np.testing.assert_allclose(recorded.arrays["reward"], expected_T, atol=1e-5)
    assert recorded.arrays["reward"][-1] > 0.9
