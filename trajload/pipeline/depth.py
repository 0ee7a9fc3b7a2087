"""How many train_steps are in the works at once: asked for, or chosen from what was measured.

A batch that is begun when the consumer takes another one is asked for `depth` batches later. So the consumer does not
wait as long as making a batch, from its planning to its last row, takes less than `depth` times the consumer's period.
Both are measured while the loader runs. Where batches come more slowly than they are taken, whatever the depth, more of
them in the works would only cost memory.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from trajload.checks import check_int

__all__ = ["Depth", "DepthControl", "Seen", "choose_depth", "next_depth"]

_MAX_ASKED = 1 << 16
"""Fewer than so many: a number with a slip in it would plan ahead without end."""
_BYTES = 512 << 20
_POOLED_BYTES = 128 << 20
_SMALL_BYTES = 64 << 20
_START, _LEAST, _MOST = 4, 2, 16
"""Two keep workers busy while the consumer holds one."""
_LIMITED = 3
"""One more than keeps all workers busy."""
_STRETCH = 16
"""Batches between two decisions."""
_AT_ONCE_S = 0.0005
"""A batch that is handed over within this was ready."""
_PATIENCE = 4
"""Stretches that must call for less before there is less."""


@dataclass(frozen=True, slots=True)
class Depth:
    """What the settings allow."""

    start: int
    most: int
    """Equal to `start` where the number was asked for."""
    why: str
    limited: int = 0
    """Where batches are made more slowly than they are taken."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One stretch of batches, as measured."""

    elapsed_s: float
    waited_s: float
    """Of it, how long the consumer waited."""
    num_batches: int
    num_waited_for: int
    """Batches that were not ready when they were asked for."""
    longest_s: float
    """From the planning of a batch to its last row, the longest of the stretch."""
    median_s: float

    @property
    def period_s(self) -> float:
        """What the consumer takes for a batch, apart from waiting."""
        return max(self.elapsed_s - self.waited_s, 0.0) / self.num_batches

    @property
    def waited_share(self) -> float:
        return self.waited_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"a batch took {1e3 * self.median_s:.1f} ms, {1e3 * self.longest_s:.1f} at most, the consumer took one every "
            f"{1e3 * self.period_s:.1f} ms and waited {self.waited_share:.1%} of the time"
        )


def choose_depth(prefetch: int | str, num_workers: int, batch_bytes: int, *, has_pool: bool = False) -> Depth:
    """Return the number of train_steps in the works, where it starts and what it may become.

    Args:
        prefetch: A number, or 'auto'.
        num_workers: Decoder threads; with none there is nothing in the works.
        batch_bytes: Of one batch of this rank.
        has_pool: Whether the order has a block pool, which already holds the pictures of train_steps to come.

    Raises:
        ConfigError: Neither 'auto' nor a positive int below 65,536.
    """
    if not isinstance(prefetch, str) or prefetch != "auto":
        depth = check_int("prefetch", prefetch, 1, _MAX_ASKED, expected="'auto' or an int of at least 1")
        return Depth(depth, depth, "asked for")
    if num_workers == 0:
        return Depth(1, 1, "no workers")
    bound = _POOLED_BYTES if has_pool else _BYTES
    fits = bound // max(batch_bytes, 1)
    most = int(max(_LEAST, min(_MOST, fits)))
    why = f"auto: {most} at most, since {fits} batches of {batch_bytes} bytes fit in {bound} bytes"
    # Small ones cost nothing, and with some at hand threads are woken less often.
    limited = min(max(_LIMITED, _SMALL_BYTES // max(batch_bytes, 1)), most)
    return Depth(min(_START, most), most, why, limited)


def next_depth(depth: int, choice: Depth, seen: Seen) -> tuple[int, str]:
    """Return how many train_steps should be in the works after a stretch, and why. Pure: what `DepthControl` applies."""
    if seen.waited_share > 0.1 and seen.num_waited_for > seen.num_batches // 2:
        # Batches queue for the workers then, and how long one takes says nothing. A few waits are hiccups, however long.
        return choice.limited, "batches are made more slowly than taken"
    # The batch that is begun when one is taken is asked for `depth` periods later.
    needed = math.ceil(seen.longest_s / seen.period_s) + 1 if seen.period_s > 0 else choice.most
    if seen.waited_share > 0.005:
        return min(max(depth + 1, needed), choice.most), "the consumer waited although workers keep up"
    return min(max(needed, _LEAST), choice.most), "the longest batch is ready in time"


class DepthControl:
    """The number in force. Fed under the prefetcher's lock; read by anyone."""

    def __init__(self, choice: Depth) -> None:
        self._choice = choice
        self.value = choice.start
        self._lock = threading.Lock()
        self._last: tuple[str, Seen] | None = None
        """What was decided last, and from what."""
        self._is_warm = False
        self._calls_for_less = 0
        self._latencies: list[float] = []
        self._waited = 0.0
        self._since: float | None = None
        self._num_taken = self._num_waited_for = 0

    @property
    def most(self) -> int:
        """What it never exceeds."""
        return self._choice.most

    @property
    def _is_fixed(self) -> bool:
        """Whether it was asked for, or there is no room to choose."""
        return self._choice.start == self._choice.most and self.value == self._choice.most

    @property
    def why(self) -> str:
        """For people: the bound, and what was measured last."""
        last = self._last
        return self._choice.why if last is None else f"{self._choice.why}; {last[0]}: {last[1]}"

    def begin(self) -> None:
        """Forget the stretch that was interrupted: an iteration begins."""
        with self._lock:
            self._start_stretch(None)
            self._is_warm = False

    def made(self, seconds: float) -> None:
        """Note how long a batch took from its planning to its last row."""
        if not self._is_fixed:
            self._latencies.append(seconds)

    def taken(self, now: float, waited_s: float) -> None:
        """Note that the consumer took a batch for which it waited so long."""
        if self._is_fixed:
            return
        with self._lock:
            if self._since is None:
                self._start_stretch(now)
                return
            self._waited += waited_s
            self._num_waited_for += waited_s > _AT_ONCE_S
            self._num_taken += 1
            if self._num_taken < _STRETCH:
                return
            latencies = sorted(self._latencies) or [0.0]
            seen = Seen(
                elapsed_s=now - self._since,
                waited_s=self._waited,
                num_batches=self._num_taken,
                num_waited_for=self._num_waited_for,
                longest_s=latencies[-1],
                median_s=latencies[len(latencies) // 2],
            )
            self._start_stretch(now)
            if not self._is_warm:
                self._is_warm = True  # kernels were loaded, files opened, the pipeline filled
                return
            self._decide(seen)

    def __reduce__(self) -> tuple[type[DepthControl], tuple[Depth]]:
        return DepthControl, (self._choice,)  # another process measures for itself

    def _decide(self, seen: Seen) -> None:
        depth, why = next_depth(self.value, self._choice, seen)
        self._calls_for_less = self._calls_for_less + 1 if depth < self.value else 0
        if depth > self.value:
            self.value = depth
        elif self._calls_for_less >= _PATIENCE:
            self.value, self._calls_for_less = self.value - 1, 0
        self._last = f"{self.value} now: {why}", seen

    def _start_stretch(self, now: float | None) -> None:
        self._since, self._waited = now, 0.0
        self._num_taken = self._num_waited_for = 0
        self._latencies = []
