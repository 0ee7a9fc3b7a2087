"""The demo's world obeys its laws."""

from __future__ import annotations

import numpy as np
import pytest

from trajload.demo.physics import (
    ARENA_M,
    PUCK_RADIUS_M,
    PUSHER_RADIUS_M,
    SUBSTEPS_PER_STEP,
    WALL_M,
    World2D,
    rollout,
)
from trajload.demo.policy import NoisyPusher, plan_episode
from trajload.demo.scene import EpisodeLength, record_episode

COLOURS = ("red", "green", "blue", "yellow")


def drive(action: tuple[float, float], *, num_steps: int = 40):
    """A puck to the right of a pusher that is driven by one constant action."""
    world = World2D.at(pusher=(0.2, 0.28), puck=(0.3, 0.28), goal=(0.06, 0.06))
    return rollout(world, lambda world, step: action, min_steps=num_steps, max_steps=num_steps)


def scripted(episode: int):
    plan = plan_episode(3, episode, colours=COLOURS, min_steps=60, max_steps=150)
    policy = NoisyPusher(3, episode, noise=plan.noise, max_steps=plan.max_steps)
    return rollout(World2D.at(plan.pusher, plan.puck, plan.goal), policy, min_steps=60, max_steps=plan.max_steps)


def test_action_towards_the_puck_moves_it_that_way() -> None:
    """Pushing right moves the puck right by centimetres, and not sideways."""
    _, puck_S4, _, _ = drive((1.0, 0.0))
    assert puck_S4[-1, 0] - puck_S4[0, 0] > 0.05
    assert puck_S4[-1, 1] == puck_S4[0, 1]


def test_no_action_leaves_everything_where_it_is() -> None:
    """Without a force nothing moves, to the last bit."""
    pusher_S4, puck_S4, _, _ = drive((0.0, 0.0))
    assert (pusher_S4 == pusher_S4[0]).all() and (puck_S4 == puck_S4[0]).all()


def test_action_away_from_the_puck_leaves_it_alone() -> None:
    """A pusher that leaves does not drag the puck along."""
    pusher_S4, puck_S4, _, _ = drive((-1.0, 0.0))
    assert pusher_S4[-1, 0] < pusher_S4[0, 0] - 0.05
    assert (puck_S4 == puck_S4[0]).all()


def test_friction_stops_a_sliding_puck() -> None:
    """A puck that slides alone loses mu * g of its speed each second, and then stands still."""
    world = World2D.at(pusher=(0.06, 0.06), puck=(0.2, 0.28), goal=(0.5, 0.5))
    world.puck.vx = 0.5
    speeds = []
    for _ in range(150):
        world.substep(0.0, 0.0)
        speeds.append(world.puck.vx)
    assert speeds[29] == pytest.approx(0.5 - 0.25 * 9.81 * 0.1, abs=1e-9)
    assert speeds[-1] == 0.0


@pytest.mark.parametrize("episode", range(6))
def test_bodies_stay_inside_the_walls_and_apart(episode: int) -> None:
    """Under a noisy policy nothing passes a wall, and the discs never overlap by more than a hair."""
    pusher_S4, puck_S4, _, _ = scripted(episode)
    for rows_S4, radius in ((pusher_S4, PUSHER_RADIUS_M), (puck_S4, PUCK_RADIUS_M)):
        for axis in (0, 1):
            assert rows_S4[:, axis].min() >= WALL_M + radius - 1e-3
            assert rows_S4[:, axis].max() <= ARENA_M[axis] - WALL_M - radius + 1e-3
    distance_S = np.sqrt(((pusher_S4[:, :2] - puck_S4[:, :2]) ** 2).sum(axis=1))
    assert distance_S.min() >= PUSHER_RADIUS_M + PUCK_RADIUS_M - 1e-3


def test_recorded_actions_replayed_repeat_the_episode_exactly() -> None:
    """The float32 actions of the record are the very forces that were applied: action[t] acts from step t on."""
    plan = plan_episode(3, 1, colours=COLOURS, min_steps=60, max_steps=150)
    pusher_S4, puck_S4, action_T2, reached = scripted(1)
    again = rollout(
        World2D.at(plan.pusher, plan.puck, plan.goal),
        lambda world, step: tuple(action_T2[step].tolist()),
        min_steps=60,
        max_steps=plan.max_steps,
    )
    assert (again[0] == pusher_S4).all() and (again[1] == puck_S4).all() and again[3] == reached
    assert len(pusher_S4) == (len(action_T2) - 1) * SUBSTEPS_PER_STEP + 1


def test_episodes_have_unequal_lengths_and_both_ends() -> None:
    """Lengths stay within their bounds, differ, and some episodes end in the goal while others are cut off."""
    length = EpisodeLength(60, 240)
    recorded = [record_episode(0, episode, size=48, length=length) for episode in range(12)]
    lengths = [r.num_steps for r in recorded]
    assert min(lengths) >= 60 and max(lengths) <= 240 and len(set(lengths)) > 6
    assert {r.terminated for r in recorded} == {True, False}
