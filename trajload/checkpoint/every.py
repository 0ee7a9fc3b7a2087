"""When to save: after so many steps, seconds or epochs, whichever comes first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import index

from trajload.arguments import explains_calls
from trajload.checkpoint.catalog import MAX_SEQ
from trajload.checks import check_int, is_number
from trajload.errors import ConfigError
from trajload.reprs import short_repr

__all__ = ["Clock", "Every"]


@explains_calls
@dataclass(frozen=True, kw_only=True, slots=True)
class Every:
    """A save is due as soon as any of these has passed since the last one; all None: only where `save` is called.

    `steps` and `epochs` count from zero, not from the last save: with `steps=1000` saves are due at 1000, 2000, ...,
    whatever `seconds` did in between. With several ranks only rank 0 looks at its clock, and tells the others.
    """

    steps: int | None = None
    seconds: float | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "epochs"):
            value = getattr(self, name)
            if value is not None:
                expected = "a whole number from 1 on, or None"
                object.__setattr__(self, name, check_int(f"Every({name})", value, 1, expected=expected))
        seconds = self.seconds
        if seconds is not None and not (is_number(seconds) and 0 < seconds < math.inf):
            raise ConfigError(f"Every(seconds={seconds!r}) is invalid: expected a time above 0 s, or None.")

    __repr__ = short_repr


class Clock:
    """Decides for one run whether a save is due; told of every step and of every save that was begun.

    Example:
        >>> clock = Clock(Every(steps=10))
        >>> [step for step in range(1, 31) if clock.due(step, None)]
        [10, 20, 30]
    """

    def __init__(self, every: Every | None, now: Callable[[], float] = time.monotonic) -> None:
        if every is not None and not isinstance(every, Every):
            meant = f" Did you mean tl.Every(steps={every})?" if isinstance(every, int) else ""
            raise ConfigError(f"every={every!r} is unusable: expected tl.Every(steps=...), or None.{meant}")
        self.every = every or Every()
        self._now = now
        self._since = now()
        self._step = 0
        self._epoch = 0
        self._last: int | None = None

    def is_new(self, step: object) -> int | None:
        """Return `step` as a number if it lies beyond the last one, None if it is the last one.

        Raises:
            ConfigError: It is no number of steps, or lies before the last one.
        """
        try:
            number = index(step)  # type: ignore[arg-type]
        except TypeError:
            number = -1
        if not 0 <= number <= MAX_SEQ or isinstance(step, bool):
            raise ConfigError(f"train_step={step!r} is invalid: expected the number of updates done, 0 to {MAX_SEQ}.")
        if self._last is not None and number < self._last:
            raise ConfigError(
                f"train_step={number} comes after {self._last}: steps only go up. To go back, call resume(at=...)."
            )
        return None if number == self._last else number

    @property
    def needs_time(self) -> bool:
        """Whether ranks may come to different answers, so that one has to decide."""
        return self.every.seconds is not None

    def due(self, step: int, epoch: int | None) -> str | None:
        """Return why a save is due after `step`, or None; remembers `step` and `epoch`."""
        why = None
        every = self.every
        if every.steps is not None and step // every.steps > self._step // every.steps:
            why = f"{every.steps} steps"
        elif every.epochs is not None and epoch is not None and epoch // every.epochs > self._epoch // every.epochs:
            why = f"{every.epochs} epochs"
        elif every.seconds is not None and self._now() - self._since >= every.seconds:
            why = f"{every.seconds:g} seconds"
        self._step = self._last = step
        self._epoch = self._epoch if epoch is None else epoch
        return why

    def saved(self, step: int) -> None:
        """A save of `step` was begun: `seconds` count from here."""
        self._step = self._last = step
        self._since = self._now()

    def start(self, step: int, epoch: int | None) -> None:
        """A run goes on after `step`."""
        self._step = self._last = step
        self._epoch = epoch or 0
        self._since = self._now()
