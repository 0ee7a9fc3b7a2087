"""Who drives the pusher: go behind the puck, push it to the goal, with keyed noise on top."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trajload.demo.physics import (
    ARENA_M,
    GOAL_RADIUS_M,
    MAX_FORCE_N,
    PUCK_RADIUS_M,
    PUSHER_DRAG,
    PUSHER_RADIUS_M,
    WALL_M,
    World2D,
)
from trajload.rng import key_rng

__all__ = ["EpisodePlan", "NoisyPusher", "plan_episode"]

_REACH_M = PUSHER_RADIUS_M + PUCK_RADIUS_M


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodePlan:
    """Everything drawn before an episode starts."""

    pusher: tuple[float, float]
    puck: tuple[float, float]
    goal: tuple[float, float]
    goal_colour: str
    puck_colour: str
    noise: float
    """Standard deviation of the action noise; low is an expert, high a beginner."""
    max_steps: int


def plan_episode(seed: int, episode: int, *, colours: tuple[str, ...], min_steps: int, max_steps: int) -> EpisodePlan:
    """Return the plan of an episode, a function of its arguments alone."""
    rng = key_rng(seed, "demo-episode", episode)
    margin = WALL_M + PUCK_RADIUS_M + 2.2 * PUSHER_RADIUS_M

    def place(away_from: list[tuple[float, float]], distance: float) -> tuple[float, float]:
        while True:
            x = float(rng.uniform(margin, ARENA_M[0] - margin))
            y = float(rng.uniform(margin, ARENA_M[1] - margin))
            if all((x - ox) ** 2 + (y - oy) ** 2 > distance**2 for ox, oy in away_from):
                return x, y

    puck = place([], 0.0)
    goal = place([puck], 2.5 * GOAL_RADIUS_M)
    pusher = place([puck], 1.5 * _REACH_M)
    goal_colour, puck_colour = rng.choice(len(colours), size=2, replace=False)
    return EpisodePlan(
        pusher=pusher,
        puck=puck,
        goal=goal,
        goal_colour=colours[int(goal_colour)],
        puck_colour=colours[int(puck_colour)],
        noise=float(rng.uniform(0.05, 0.7)),
        max_steps=int(rng.integers(min_steps, max_steps, endpoint=True)),
    )


class NoisyPusher:
    """A scripted policy with temporally correlated noise keyed by (seed, episode)."""

    def __init__(self, seed: int, episode: int, *, noise: float, max_steps: int) -> None:
        white_T2 = key_rng(seed, "demo-policy", episode).standard_normal((max_steps, 2))
        self._noise_T2 = _correlated(white_T2, keep=0.8) * noise

    def __call__(self, world: World2D, step: int) -> tuple[float, float]:
        want_vx, want_vy = self._wanted_velocity(world)
        # Drag is compensated, the rest is a proportional controller on the velocity.
        gain = 6.0
        ax = (PUSHER_DRAG * want_vx + gain * (want_vx - world.pusher.vx)) / MAX_FORCE_N
        ay = (PUSHER_DRAG * want_vy + gain * (want_vy - world.pusher.vy)) / MAX_FORCE_N
        return ax + float(self._noise_T2[step, 0]), ay + float(self._noise_T2[step, 1])

    def _wanted_velocity(self, world: World2D) -> tuple[float, float]:
        puck, pusher = world.puck, world.pusher
        to_goal_x, to_goal_y = world.goal[0] - puck.x, world.goal[1] - puck.y
        distance = math.sqrt(to_goal_x**2 + to_goal_y**2)
        if distance < 0.3 * GOAL_RADIUS_M:
            return 0.0, 0.0
        ux, uy = to_goal_x / distance, to_goal_y / distance
        rel_x, rel_y = pusher.x - puck.x, pusher.y - puck.y
        behind = -(rel_x * ux + rel_y * uy)
        side = rel_x * -uy + rel_y * ux
        if behind > 0.5 * _REACH_M and abs(side) < 0.5 * PUCK_RADIUS_M:
            # In line: push, slower close to the goal, and steer the contact point back to the line.
            speed = min(0.3, 0.08 + 1.2 * distance)
            return speed * ux + 4.0 * side * uy, speed * uy - 4.0 * side * ux
        if behind > -0.5 * _REACH_M and abs(side) < 1.6 * _REACH_M and behind < 1.1 * _REACH_M:
            # Beside the puck: slide past it without touching.
            away = 1.5 * _REACH_M * (1.0 if side >= 0.0 else -1.0)
            target_x, target_y = puck.x - 1.6 * _REACH_M * ux - away * uy, puck.y - 1.6 * _REACH_M * uy + away * ux
        elif behind <= -0.5 * _REACH_M:
            away = 1.8 * _REACH_M * (1.0 if side >= 0.0 else -1.0)
            target_x, target_y = puck.x - away * uy, puck.y + away * ux
        else:
            target_x, target_y = puck.x - 1.3 * _REACH_M * ux, puck.y - 1.3 * _REACH_M * uy
        dx, dy = target_x - pusher.x, target_y - pusher.y
        far = math.sqrt(dx * dx + dy * dy)
        if far == 0.0:
            return 0.0, 0.0
        speed = min(0.45, 4.0 * far)
        return speed * dx / far, speed * dy / far


def _correlated(white_T2: npt.NDArray[np.float64], *, keep: float) -> npt.NDArray[np.float64]:
    """Return first-order autoregressive noise of unit variance driven by `white_T2`."""
    out = np.empty_like(white_T2)
    state = white_T2[0]
    for t, white in enumerate(white_T2):
        state = keep * state + math.sqrt(1.0 - keep * keep) * white
        out[t] = state
    return out
