"""Are two runs the same? Compared line by line, batch digests and losses apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trajload.demo.train import LogLine

__all__ = ["Comparison", "compare_logs"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What comparing the train_steps [start, stop) of two logs found."""

    start: int
    stop: int
    missing: tuple[int, ...]
    """Train_steps that the other log lacks or holds more than once."""
    batches_differ: tuple[int, ...]
    losses_differ: tuple[int, ...]

    @property
    def num_compared(self) -> int:
        return self.stop - self.start

    @property
    def equal(self) -> bool:
        """True where something was compared and nothing differs."""
        return self.num_compared > 0 and not (self.missing or self.batches_differ or self.losses_differ)


def compare_logs(reference: Sequence[LogLine], other: Sequence[LogLine], *, start: int, stop: int) -> Comparison:
    """Compare train_steps [start, stop) of `other` with those of `reference`.

    Every train_step must stand in `other` exactly once and in rising order; lines outside [start, stop) are missing
    too, since a run that repeats or skips a batch is not the same run.
    """
    wanted = {line.train_step: line for line in reference}
    expected = list(range(start, stop))
    got = [line.train_step for line in other]
    if got == expected:
        missing: list[int] = [step for step in expected if step not in wanted]
    else:
        missing = sorted({s for s in expected if got.count(s) != 1} | {s for s in got if not start <= s < stop})
        missing = missing or expected  # all there, but in another order
    pairs = [(wanted[line.train_step], line) for line in other if line.train_step in wanted]
    return Comparison(
        start=start,
        stop=stop,
        missing=tuple(missing),
        batches_differ=tuple(a.train_step for a, b in pairs if a.digest != b.digest),
        losses_differ=tuple(a.train_step for a, b in pairs if a.loss != b.loss),
    )
