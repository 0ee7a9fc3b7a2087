"""The phases of a mixture: times of constant weights, and where each source's own sequence stands in them."""

# Shapes: I sources

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trajload.sampling.cells import Cells
from trajload.sampling.sampler import Sampler

__all__ = ["Phase", "make_phases"]


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """Train_steps [begin, next begin) of a mixture. Stretches are counted from `begin`; the last may be cut.

    All numbers are Python ints, so that none of them overflows.
    """

    begin: int
    cells: Cells
    samplers: tuple[Sampler | None, ...]
    """Of each source; None where it has no cells."""
    base_I: tuple[int, ...]
    """Own position of each source's first window in the phase."""
    stop_I: tuple[int | None, ...]
    """Half-open end of each source's own positions; None for the last phase, which has no end."""

    def rows(self, train_step: int, source: int) -> tuple[int, int]:
        """Return the half-open range of rows that a source takes."""
        return self.cells.rows((train_step - self.begin) % self.cells.num_steps, source)

    def source_of(self, train_step: int, row: int) -> int:
        """Return which source takes a row."""
        return self.cells.source_of((train_step - self.begin) % self.cells.num_steps, row)

    def own_position(self, train_step: int, row: int, source: int) -> int:
        """Return the position, in its own sequence, that a source has on one of its rows."""
        stretch, step = divmod(train_step - self.begin, self.cells.num_steps)
        inside = self.cells.before(step, source) + row - self.cells.rows(step, source)[0]
        return self.base_I[source] + stretch * self.cells.quota_I[source] + inside

    def holds(self, source: int, own_position: int) -> bool:
        """Return whether a position of a source's own sequence comes in this phase."""
        stop = self.stop_I[source]
        return (
            self.cells.quota_I[source] > 0
            and own_position >= self.base_I[source]
            and (stop is None or own_position < stop)
        )

    def cell(self, source: int, own_position: int) -> tuple[int, int]:
        """Return (train_step, row) of an own position that the phase holds; the inverse of `own_position`."""
        stretch, number = divmod(own_position - self.base_I[source], self.cells.quota_I[source])
        step, row = self.cells.cell(source, number)
        return self.begin + stretch * self.cells.num_steps + step, row


def make_phases(
    begins: Sequence[int], cells: Sequence[Cells], samplers: Sequence[Sequence[Sampler | None]]
) -> tuple[Phase, ...]:
    """Return the phases, each source going on where it was.

    Where another quota means another sampler, its lanes no longer fit what was drawn: the source begins a new epoch.

    Args:
        begins: First train_step of each phase, the first one 0.
        cells: Of each phase.
        samplers: For each phase each source's own sampler, None where it has no cells.
    """
    num_sources = len(cells[0].quota_I)
    base_I = [0] * num_sources
    last: list[Sampler | None] = [None] * num_sources
    phases = []
    for number, (begin, cell, here) in enumerate(zip(begins, cells, samplers, strict=True)):
        for i, sampler in enumerate(here):
            if sampler is None:
                continue
            before = last[i]
            if before is not None and before is not sampler:
                base_I[i] = -(-base_I[i] // sampler.num_windows) * sampler.num_windows
            last[i] = sampler
        stop_I: list[int | None] = [None] * num_sources
        if number + 1 < len(begins):
            num_stretches, rest = divmod(begins[number + 1] - begin, cell.num_steps)
            stop_I = [base_I[i] + num_stretches * cell.quota_I[i] + cell.before(rest, i) for i in range(num_sources)]
        phases.append(Phase(begin, cell, tuple(here), tuple(base_I), tuple(stop_I)))
        base_I = [base if stop is None else stop for base, stop in zip(base_I, stop_I, strict=True)]
    return tuple(phases)
