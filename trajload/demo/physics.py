"""The demo's world: a force-driven pusher, a puck with friction, four walls, integrated with our own fixed substep.

Plain Python floats and square roots only: the same arguments give the same trajectory on any IEEE machine. The
substep of 1/300 s divides the step (30 Hz), the depth camera (15 Hz) and the proprioception (100 Hz) evenly.
"""

# Shapes: S substeps (one row more than were integrated), T steps; columns 4 = x, y, vx, vy

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "ARENA_M",
    "GOAL_RADIUS_M",
    "PUCK_RADIUS_M",
    "PUSHER_RADIUS_M",
    "STEP_HZ",
    "SUBSTEPS_PER_STEP",
    "SUBSTEP_HZ",
    "WALL_M",
    "Body",
    "World2D",
    "rollout",
]

SUBSTEP_HZ = 300
STEP_HZ = 30
SUBSTEPS_PER_STEP = SUBSTEP_HZ // STEP_HZ

ARENA_M = (0.64, 0.56)
"""Width (x, to the right) and depth (y, away from the front) of the table, walls included."""
WALL_M = 0.02
PUSHER_RADIUS_M = 0.03
PUCK_RADIUS_M = 0.04
GOAL_RADIUS_M = 0.06

PUSHER_MASS_KG = 0.5
PUCK_MASS_KG = 0.2
MAX_FORCE_N = 2.0
"""Force of an action component of 1."""
PUSHER_DRAG = 4.0
"""N s/m: the pusher tops out at MAX_FORCE_N / PUSHER_DRAG = 0.5 m/s."""
PUCK_FRICTION = 0.25
GRAVITY = 9.81
CONTACT_RESTITUTION = 0.2
WALL_RESTITUTION = 0.5

FloatArray = npt.NDArray[np.float64]
Policy = Callable[["World2D", int], tuple[float, float]]
"""Returns the action, both components in [-1, 1], for the world as it is at a step."""


@dataclass(slots=True)
class Body:
    """A disc: centre in metres, velocity in metres per second."""

    x: float
    y: float
    vx: float
    vy: float
    radius: float
    mass: float

    def row(self) -> tuple[float, float, float, float]:
        return self.x, self.y, self.vx, self.vy


@dataclass(slots=True)
class World2D:
    """The mutable state of one episode."""

    pusher: Body
    puck: Body
    goal: tuple[float, float]

    @classmethod
    def at(cls, pusher: tuple[float, float], puck: tuple[float, float], goal: tuple[float, float]) -> World2D:
        """Return a world at rest."""
        return cls(
            pusher=Body(*pusher, 0.0, 0.0, PUSHER_RADIUS_M, PUSHER_MASS_KG),
            puck=Body(*puck, 0.0, 0.0, PUCK_RADIUS_M, PUCK_MASS_KG),
            goal=goal,
        )

    def goal_distance(self) -> float:
        """Return the distance of the puck's centre from the goal's, in metres."""
        dx, dy = self.puck.x - self.goal[0], self.puck.y - self.goal[1]
        return math.sqrt(dx * dx + dy * dy)

    def substep(self, force_x: float, force_y: float) -> None:
        """Advance by 1/300 s under a force on the pusher (newtons): velocities first, then positions."""
        dt = 1.0 / SUBSTEP_HZ
        pusher, puck = self.pusher, self.puck
        pusher.vx += dt * (force_x - PUSHER_DRAG * pusher.vx) / pusher.mass
        pusher.vy += dt * (force_y - PUSHER_DRAG * pusher.vy) / pusher.mass
        speed = math.sqrt(puck.vx * puck.vx + puck.vy * puck.vy)
        if speed > 0.0:
            # Coulomb friction stops the puck; it never turns it round.
            kept = max(0.0, 1.0 - dt * PUCK_FRICTION * GRAVITY / speed)
            puck.vx *= kept
            puck.vy *= kept
        _collide(pusher, puck)
        for body in (pusher, puck):
            body.x += dt * body.vx
            body.y += dt * body.vy
        _separate(pusher, puck, pusher_share=0.0)
        _keep_inside(puck)
        _keep_inside(pusher)
        # A puck against the wall cannot give way, so what overlap is left moves the pusher.
        _separate(pusher, puck, pusher_share=1.0)


def _contact(a: Body, b: Body) -> tuple[float, float, float]:
    """Return the unit normal from a to b and the overlap in metres (negative: apart)."""
    nx, ny = b.x - a.x, b.y - a.y
    distance = math.sqrt(nx * nx + ny * ny)
    if distance == 0.0:
        return 1.0, 0.0, a.radius + b.radius
    return nx / distance, ny / distance, a.radius + b.radius - distance


def _collide(a: Body, b: Body) -> None:
    nx, ny, overlap = _contact(a, b)
    closing = (a.vx - b.vx) * nx + (a.vy - b.vy) * ny
    if overlap < -1e-6 or closing <= 0.0:
        return
    impulse = (1.0 + CONTACT_RESTITUTION) * closing / (1.0 / a.mass + 1.0 / b.mass)
    a.vx -= impulse * nx / a.mass
    a.vy -= impulse * ny / a.mass
    b.vx += impulse * nx / b.mass
    b.vy += impulse * ny / b.mass


def _separate(pusher: Body, puck: Body, *, pusher_share: float) -> None:
    nx, ny, overlap = _contact(pusher, puck)
    if overlap <= 0.0:
        return
    pusher.x -= pusher_share * overlap * nx
    pusher.y -= pusher_share * overlap * ny
    puck.x += (1.0 - pusher_share) * overlap * nx
    puck.y += (1.0 - pusher_share) * overlap * ny


def _keep_inside(body: Body) -> None:
    low = WALL_M + body.radius
    high_x, high_y = ARENA_M[0] - low, ARENA_M[1] - low
    if body.x < low or body.x > high_x:
        body.x = min(max(body.x, low), high_x)
        body.vx = -WALL_RESTITUTION * body.vx
    if body.y < low or body.y > high_y:
        body.y = min(max(body.y, low), high_y)
        body.vy = -WALL_RESTITUTION * body.vy


def rollout(
    world: World2D, policy: Policy, *, min_steps: int, max_steps: int
) -> tuple[FloatArray, FloatArray, npt.NDArray[np.float32], bool]:
    """Run one episode and return what happened at every substep.

    `action[t]` is taken at the observation of step t and held until step t + 1; the action of the last step is
    recorded but moves nothing. The episode ends with the first step, from `min_steps` on, that has the puck in
    the goal, else after `max_steps`. `world` is changed.

    Returns:
        pusher_S4, puck_S4: float64, S = (T - 1) * SUBSTEPS_PER_STEP + 1; step t is row t * SUBSTEPS_PER_STEP.
        action_T2: float32 in [-1, 1]. The integrator used these very values, so replaying them repeats the episode.
        reached: True where the episode ended in the goal.
    """
    pusher_rows, puck_rows, actions = [world.pusher.row()], [world.puck.row()], []
    reached = False
    for step in range(max_steps):
        action = np.clip(np.asarray(policy(world, step), dtype=np.float32), -1.0, 1.0)
        actions.append(action)
        reached = step + 1 >= min_steps and world.goal_distance() < 0.5 * GOAL_RADIUS_M
        if reached or step + 1 == max_steps:
            break
        force_x, force_y = MAX_FORCE_N * float(action[0]), MAX_FORCE_N * float(action[1])
        for _ in range(SUBSTEPS_PER_STEP):
            world.substep(force_x, force_y)
            pusher_rows.append(world.pusher.row())
            puck_rows.append(world.puck.row())
    return np.array(pusher_rows), np.array(puck_rows), np.stack(actions), reached
