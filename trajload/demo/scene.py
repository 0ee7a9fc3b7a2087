"""One recorded episode of the demo: every stream's values and timestamps, before anything is written.

Rates: step, both cameras, action and reward 30 Hz; depth 15 Hz, triggered one substep late; proprioception 100 Hz
with a jittering clock, each row measured at its own timestamp. Streams that share no instant are what alignment
is tested on.
"""

# Shapes: T steps, S substeps, N rows of a clocked stream, H height, W width, C channels

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trajload.demo.barcode import burn_barcode
from trajload.demo.physics import (
    ARENA_M,
    SUBSTEP_HZ,
    SUBSTEPS_PER_STEP,
    World2D,
    rollout,
)
from trajload.demo.policy import NoisyPusher, plan_episode
from trajload.demo.render import COLOURS, Look, depth_mm, view_from_above, view_from_side
from trajload.rng import key_rng
from trajload.types import Int64Array

__all__ = [
    "DEPTH_HZ",
    "PROPRIOCEPTION_HZ",
    "SIDE_CAMERA_MISSING_EVERY",
    "Episode",
    "EpisodeLength",
    "has_side_camera",
    "record_episode",
]

DEPTH_HZ = 15
PROPRIOCEPTION_HZ = 100
SIDE_CAMERA_MISSING_EVERY = 4
_JITTER_NS = 1_500_000
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class EpisodeLength:
    """Bounds on an episode's steps, both included."""

    min_steps: int = 60
    max_steps: int = 240


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode as the writer takes it, with the undelivered truth at every substep."""

    arrays: dict[str, Any]
    """By stream; the text of `language` is a str, streams the episode lacks are absent."""
    timestamps_ns: dict[str, Int64Array]
    """Of clocked streams."""
    terminated: bool
    metadata: dict[str, Any]
    pusher_S4: npt.NDArray[np.float64]
    puck_S4: npt.NDArray[np.float64]

    @property
    def num_steps(self) -> int:
        return len(self.arrays["action"])


def has_side_camera(episode: int) -> bool:
    """Return whether `cam_side` was recorded: every fourth episode lacks it."""
    return episode % SIDE_CAMERA_MISSING_EVERY != SIDE_CAMERA_MISSING_EVERY - 1


def record_episode(seed: int, episode: int, *, size: int, length: EpisodeLength) -> Episode:
    """Return episode number `episode` of the dataset `seed`: same arguments, same bytes."""
    plan = plan_episode(seed, episode, colours=tuple(COLOURS), min_steps=length.min_steps, max_steps=length.max_steps)
    policy = NoisyPusher(seed, episode, noise=plan.noise, max_steps=plan.max_steps)
    world = World2D.at(plan.pusher, plan.puck, plan.goal)
    pusher_S4, puck_S4, action_T2, reached = rollout(
        world, policy, min_steps=length.min_steps, max_steps=plan.max_steps
    )
    look = Look(plan.goal, plan.goal_colour, plan.puck_colour)
    steps_T = np.arange(len(action_T2), dtype=np.int64)
    at_step = steps_T * SUBSTEPS_PER_STEP
    puck_T4 = puck_S4[at_step].astype(np.float32)
    pusher_T2, puck_T2 = pusher_S4[at_step, :2].astype(np.float32), puck_T4[:, :2]

    front_THWC = view_from_above(pusher_T2, puck_T2, look, size=size)
    burn_barcode(front_THWC, episode, steps_T)
    depth_ns, depth_rows = _depth_clock(len(pusher_S4))
    proprioception_ns = _jittered_clock(seed, episode, num_substeps=len(pusher_S4))
    arrays: dict[str, Any] = {
        "cam_front": front_THWC,
        "depth": depth_mm(
            pusher_S4[depth_rows, :2].astype(np.float32), puck_S4[depth_rows, :2].astype(np.float32), size=size
        ),
        "proprioception": _at_times(pusher_S4, proprioception_ns),
        "action": action_T2,
        "reward": _reward(puck_T2, plan.goal, reached=reached),
        "puck": puck_T4,
        "language": f"push the {plan.puck_colour} puck into the {plan.goal_colour} ring",
    }
    if has_side_camera(episode):
        side_THWC = view_from_side(pusher_T2, puck_T2, look, size=size)
        burn_barcode(side_THWC, episode, steps_T)
        arrays["cam_side"] = side_THWC
    return Episode(
        arrays=arrays,
        timestamps_ns={"depth": depth_ns, "proprioception": proprioception_ns},
        terminated=reached,
        metadata={
            "seed": seed,
            "episode": episode,
            "goal_m": [round(v, 6) for v in plan.goal],
            "goal_colour": plan.goal_colour,
            "puck_colour": plan.puck_colour,
            "policy_noise": round(plan.noise, 6),
        },
        pusher_S4=pusher_S4,
        puck_S4=puck_S4,
    )


def _depth_clock(num_substeps: int) -> tuple[Int64Array, Int64Array]:
    """Return times and substeps of the depth pictures; one substep late, or every second would tie two steps."""
    rows_N = np.arange(1, num_substeps, SUBSTEP_HZ // DEPTH_HZ, dtype=np.int64)
    return (rows_N * _NS * 2 + SUBSTEP_HZ) // (2 * SUBSTEP_HZ), rows_N


def _jittered_clock(seed: int, episode: int, *, num_substeps: int) -> Int64Array:
    """Return strictly rising times about 10 ms apart, inside the episode, off by up to 1.5 ms each."""
    last_ns = (num_substeps - 1) * _NS // SUBSTEP_HZ
    nominal_N = np.arange(0, last_ns + 1, _NS // PROPRIOCEPTION_HZ, dtype=np.int64)
    jitter_N = key_rng(seed, "demo-clock", episode).integers(-_JITTER_NS, _JITTER_NS, size=len(nominal_N))
    return np.clip(nominal_N + jitter_N, 0, last_ns).astype(np.int64)


def _at_times(rows_S4: npt.NDArray[np.float64], times_N: Int64Array) -> npt.NDArray[np.float32]:
    """Return the state at `times_N`, linear between the substeps around each."""
    substep_N, rest_N = np.divmod(times_N * SUBSTEP_HZ, _NS)
    after_N = np.minimum(substep_N + 1, len(rows_S4) - 1)
    share_N1 = (rest_N / _NS)[:, None]
    return (rows_S4[substep_N] * (1.0 - share_N1) + rows_S4[after_N] * share_N1).astype(np.float32)


def _reward(puck_T2: npt.NDArray[np.float32], goal: tuple[float, float], *, reached: bool) -> npt.NDArray[np.float32]:
    """Return minus the puck's distance to the goal over the arena's width, plus 1 on the step that ends in the goal."""
    away_T2 = puck_T2 - np.asarray(goal, dtype=np.float32)
    reward_T = -np.sqrt((away_T2 * away_T2).sum(axis=1)) / np.float32(ARENA_M[0])
    reward_T[-1] += np.float32(reached)
    return reward_T.astype(np.float32)
