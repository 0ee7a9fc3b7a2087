"""Which rows of which train_steps each source of a mixture takes: the same in every stretch, exact in number.

A stretch is P train_steps of G rows. Its cells (step t, row b) are counted along the rows, cell b * P + t, and each
source takes a run of them as long as its quota. So a source stands on neighbouring rows, the same in each step but
for the rows at its two ends, and its rows of two steps differ by one at most.
Source: docs/decisions/0080-mixtures.md
"""

# Shapes: T steps of a stretch, I sources

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from trajload.errors import ConfigError

__all__ = ["Cells", "check_stretch_steps", "choose_quotas"]

_LONGEST_EXACT = 16
_ROUNDED_STEPS = 8
_MAX_STEPS = 2**12
_TOLERANCE = Fraction(1, 10**9)


def check_stretch_steps(stretch_steps: int | None) -> int | None:
    """Return `stretch_steps` if it is None or an int in [1, 2**12], else raise ConfigError."""
    if stretch_steps is None:
        return None
    is_int = isinstance(stretch_steps, (int, np.integer)) and not isinstance(stretch_steps, bool)
    if not is_int or not 1 <= stretch_steps <= _MAX_STEPS:
        raise ConfigError(
            f"stretch_steps={stretch_steps!r} is invalid: expected an int with 1 <= stretch_steps <= {_MAX_STEPS}, or None."
        )
    return int(stretch_steps)


def choose_quotas(
    share_I: Sequence[Fraction],
    global_batch_size: int,
    names: Sequence[str],
    *,
    begin: int = 0,
    stretch_steps: int | None = None,
    is_row_bound: bool = False,
) -> tuple[int, tuple[int, ...]]:
    """Return (P, quota_I) of a phase: the train_steps of a stretch, and the rows it takes of each source.

    P is the smallest up to 16 for which all shares come out whole. Where there is none it is 8, and shares are rounded
    by largest remainder, earlier sources first.

    Args:
        share_I: Share of rows of each source, with a sum of 1.
        global_batch_size: Rows of a train_step.
        names: Of the sources, for messages.
        begin: First train_step of the phase, for messages.
        stretch_steps: P, where it is asked for.
        is_row_bound: Whether a source must stay on its rows, so that P is 1.

    Raises:
        ConfigError: A share above 0 that gets no row of a stretch, or an unusable `stretch_steps`.
    """
    check_stretch_steps(stretch_steps)
    if is_row_bound and stretch_steps not in (None, 1):
        raise ConfigError(
            f"stretch_steps={stretch_steps} does not go with order 'continuous', where a source stays on its rows: "
            "expected 1 or None."
        )
    if is_row_bound:
        num_steps = 1
    elif stretch_steps is not None:
        num_steps = int(stretch_steps)
    else:
        exact = (
            p
            for p in range(1, _LONGEST_EXACT + 1)
            if all(_is_whole(share * p * global_batch_size) for share in share_I)
        )
        num_steps = next(exact, _ROUNDED_STEPS)
    num_cells = num_steps * global_batch_size
    quota_I = _rounded([share * num_cells for share in share_I])
    for name, share, quota in zip(names, share_I, quota_I, strict=True):
        if share and not quota:
            enough = -(-share.denominator // (share.numerator * global_batch_size))
            longer = "" if is_row_bound or enough > _MAX_STEPS else f", pass Mixture(stretch_steps={enough})"
            raise ConfigError(
                f"source {name!r} gets no row from train_step {begin} on: its share of {float(share):.3g} of the windows is "
                f"less than one in the {num_cells} rows of a stretch of {num_steps} train_steps. The smallest share possible "
                f"here is 1/{num_cells} = {1 / num_cells:.3g}. Raise its weight or global_batch_size{longer}, or leave it out."
            )
    return num_steps, quota_I


def _is_whole(number: Fraction) -> bool:
    return abs(number - round(number)) <= _TOLERANCE


def _rounded(wanted_I: Sequence[Fraction]) -> tuple[int, ...]:
    """Return whole numbers with the same sum, by largest remainder; near-whole ones count as whole."""
    near = [Fraction(round(x)) if _is_whole(x) else x for x in wanted_I]
    whole = [x.numerator // x.denominator for x in near]
    lacking = round(sum(wanted_I)) - sum(whole)
    by_rest = sorted(range(len(near)), key=lambda i: (whole[i] - near[i], i))
    for i in by_rest[:lacking]:
        whole[i] += 1
    return tuple(whole)


class Cells:
    """The cells of one phase: (step of a stretch, row) <-> (source, place among the source's own cells).

    A source's own cells are counted step by step, by row inside a step. Immutable and thread-safe.
    """

    def __init__(self, quota_I: Sequence[int], num_steps: int) -> None:
        """Divide the rows.

        Args:
            quota_I: Cells of each source, >= 0; their sum is a multiple of `num_steps`.
            num_steps: P.
        """
        self.num_steps = num_steps
        self.quota_I = tuple(int(n) for n in quota_I)
        end_I1 = np.concatenate([[0], np.cumsum(np.array(self.quota_I, dtype=np.int64))])
        # Cell b * P + t lies at or behind `end` from row ceil((end - t) / P) on.
        step_T1 = np.arange(num_steps, dtype=np.int64)[:, None]
        self.first_row_TI1 = -((step_T1 - end_I1) // num_steps)
        """Source i takes rows [first_row[t, i], first_row[t, i + 1]) of step t."""
        self.before_TI = np.zeros((num_steps + 1, len(self.quota_I)), dtype=np.int64)
        """Own cells of each source before step t."""
        np.cumsum(np.diff(self.first_row_TI1, axis=1), axis=0, out=self.before_TI[1:])

    def rows(self, step: int, source: int) -> tuple[int, int]:
        """Return the half-open range of rows that a source takes in a step of the stretch."""
        return int(self.first_row_TI1[step, source]), int(self.first_row_TI1[step, source + 1])

    def before(self, step: int, source: int) -> int:
        """Return how many own cells a source has in the steps before this one; `step` may be P."""
        return int(self.before_TI[step, source])

    def source_of(self, step: int, row: int) -> int:
        """Return which source takes a cell."""
        return int(np.searchsorted(self.first_row_TI1[step], row, side="right")) - 1

    def cell(self, source: int, number: int) -> tuple[int, int]:
        """Return (step, row) of a source's own cell `number`; the inverse of `source_of` and `before`."""
        step = int(np.searchsorted(self.before_TI[:, source], number, side="right")) - 1
        return step, self.rows(step, source)[0] + number - self.before(step, source)

    def __repr__(self) -> str:
        return f"Cells({list(self.quota_I)} in {self.num_steps} train_steps)"
