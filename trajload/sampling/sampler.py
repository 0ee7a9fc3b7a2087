"""Which windows a train_step trains on: a pure function of (windows, order, seed, global_batch_size, train_step)."""

# Shapes: B rows of a global batch, or a rank's part of it

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from trajload.checks import check_bool, check_int
from trajload.errors import ConfigError, LoaderExhaustedError, at
from trajload.rng import check_seed
from trajload.sampling.continuous import ContinuousOrder
from trajload.sampling.interleaved import BlockUses, InterleavedOrder
from trajload.sampling.order_base import Order
from trajload.sampling.orders import OrderConfig, make_order, order_config
from trajload.sampling.weighted import WeightedOrder
from trajload.sampling.windows import WindowTable
from trajload.types import BoolArray, Int32Array, Int64Array, NDArray

__all__ = ["ALL_ROWS", "BatchRefs", "Sampler", "check_rows", "check_train_step", "positions_from"]

ALL_ROWS = slice(None)
MAX_GLOBAL_BATCH_SIZE = 2**31


@dataclass(frozen=True, slots=True, eq=False)
class BatchRefs:
    """The windows of one train_step, one row each."""

    train_step: int
    position_B: Int64Array
    """Place in the global window sequence; int64, or Python ints (dtype object) once positions pass 2**63."""
    epoch_B: Int64Array
    window_id_B: Int64Array
    episode_B: Int64Array
    start_B: Int64Array
    """First step of the window in its episode."""
    row_is_pad_B: BoolArray
    """True in the last batch of a finite run for rows beyond its end; they repeat the run's last window."""
    source_B: Int32Array
    """Place of each row's source among those of a mixture; 0 without one. The other arrays are the source's own,
    except for the position."""

    def __len__(self) -> int:
        return len(self.window_id_B)


class Sampler:
    """The windows of every train_step, computed, never replayed. Immutable and thread-safe.

    The global window sequence runs through epoch after epoch; train_step s takes positions
    [s * global_batch_size, (s + 1) * global_batch_size), across epoch ends. It knows nothing of ranks: a rank asks for
    its rows of the same global batch.
    """

    def __init__(
        self,
        table: WindowTable,
        *,
        order: str | OrderConfig | Mapping[str, Any],
        seed: int,
        global_batch_size: int,
        num_epochs: int | None = None,
        drop_last: bool = False,
    ) -> None:
        """Fix the sequence.

        Args:
            table: The windows.
            order: Name ('shuffled'), version ('shuffled/1') or value (`Interleaved(block_windows=8)`) of an order.
            seed: The run's seed, -2**63 <= seed < 2**63.
            global_batch_size: Windows per train_step over all ranks.
            num_epochs: Length of a finite run; None runs on for ever.
            drop_last: Finite runs only: True drops a last batch that is not full, False pads it
                (`BatchRefs.row_is_pad_B`). Without num_epochs every batch is full.

        Raises:
            ConfigError: An argument out of range, or a finite run without a single batch.
        """
        self.table = table
        self.order_config = order_config(order)
        self.order = self.order_config.version
        self.seed = check_seed(seed)
        self.global_batch_size = check_int("global_batch_size", global_batch_size, 1, MAX_GLOBAL_BATCH_SIZE)
        self.num_epochs = None if num_epochs is None else check_int("num_epochs", num_epochs, 1, 2**63)
        self.drop_last = check_bool("drop_last", drop_last)
        self._order = make_order(
            self.order_config, table=table, seed=self.seed, global_batch_size=self.global_batch_size
        )
        self._num_positions = None if self.num_epochs is None else self.num_epochs * self.num_windows
        if self.num_train_steps == 0:
            raise ConfigError(
                f"drop_last=True leaves no batch: {self._num_positions} windows in num_epochs={self.num_epochs} do not "
                f"fill global_batch_size={self.global_batch_size}. Use drop_last=False or a smaller batch."
            )

    @property
    def window_order(self) -> Order:
        """The order itself, bound to the windows."""
        return self._order

    @property
    def has_lanes(self) -> bool:
        """Whether a row of the batch belongs to what earlier batches have on that row: shared blocks, or a continuation."""
        return isinstance(self._order, (InterleavedOrder, ContinuousOrder))

    @property
    def num_windows(self) -> int:
        """Windows of one epoch: those of the table, or of the part of it that the order takes."""
        return self._order.num_windows

    @property
    def num_train_steps(self) -> int | None:
        """Batches of a finite run; None without num_epochs."""
        if self._num_positions is None:
            return None
        num_full, rest = divmod(self._num_positions, self.global_batch_size)
        return num_full + (rest > 0 and not self.drop_last)

    def check_train_step(self, train_step: int) -> int:
        """Return `train_step` if the run has it, else raise ConfigError or LoaderExhaustedError."""
        train_step = check_train_step(train_step)
        num_train_steps = self.num_train_steps
        if num_train_steps is not None and train_step >= num_train_steps:
            raise LoaderExhaustedError(
                f"train_step={train_step} is beyond the end of the run: num_epochs={self.num_epochs} gives "
                f"{num_train_steps} train_steps. Raise num_epochs, or use num_epochs=None for a run without end."
            )
        return train_step

    def refs(self, train_step: int, rows: slice = ALL_ROWS) -> BatchRefs:
        """Return the windows of `rows` of the global batch of `train_step`.

        Same arguments, same windows, whatever was asked before; the cost does not grow with train_step.

        Args:
            train_step: 0-based, any size as long as its epoch stays below 2**63.
            rows: A contiguous part of the global batch, from `assign.rank_rows`.

        Raises:
            LoaderExhaustedError: At or beyond `num_train_steps`.
            ConfigError: Negative, or rows with a step.
        """
        train_step = self.check_train_step(train_step)
        first_row, stop_row = check_rows(rows, self.global_batch_size)
        num_rows = stop_row - first_row

        # Python ints up to here: train_step * global_batch_size may pass int64; what is added below may not.
        first = train_step * self.global_batch_size + first_row
        step_B = np.arange(num_rows, dtype=np.int64)
        row_is_pad_B = np.zeros(num_rows, dtype=np.bool_)
        if self._num_positions is not None and first + num_rows > self._num_positions:
            row_is_pad_B = step_B >= max(0, self._num_positions - first)
            step_B = np.minimum(step_B, self._num_positions - 1 - first)

        with at(train_step=train_step):
            epoch_B, window_id_B, episode_B, start_B = self.windows_at(first, step_B)
        return BatchRefs(
            train_step=train_step,
            position_B=positions_from(first, step_B),
            epoch_B=epoch_B,
            window_id_B=window_id_B,
            episode_B=episode_B,
            start_B=start_B,
            row_is_pad_B=row_is_pad_B,
            source_B=np.zeros(num_rows, dtype=np.int32),
        )

    def refs_ahead(self, train_step: int, num_train_steps: int, rows: slice = ALL_ROWS) -> list[BatchRefs]:
        """Return `refs` of several train_steps in a row, for little more than one of them costs.

        Stops early where the run or the range of int64 ends; there is always one at least.
        """
        stop_at = self.num_train_steps
        last = train_step + max(num_train_steps, 1)
        num_steps = min(last, last if stop_at is None else stop_at) - train_step
        if num_steps <= 1 or last * self.global_batch_size >= 2**62:
            return [self.refs(train_step, rows)]
        first_row, stop_row, _ = rows.indices(self.global_batch_size)
        num_rows = stop_row - first_row
        step_K = np.arange(train_step, train_step + num_steps, dtype=np.int64)
        position_N = (step_K[:, None] * self.global_batch_size + np.arange(first_row, stop_row)).reshape(-1)
        row_is_pad_N = np.zeros(len(position_N), dtype=np.bool_)
        if self._num_positions is not None and int(position_N[-1]) >= self._num_positions:
            row_is_pad_N = position_N >= self._num_positions
            position_N = np.minimum(position_N, self._num_positions - 1)
        epoch_N, offset_N = np.divmod(position_N, self.num_windows)
        first_epoch = int(epoch_N[0])
        window_id_N = self._window_ids(first_epoch, epoch_N - first_epoch, offset_N)
        episode_N, start_N = self.table.locate(window_id_N)
        source_B = np.zeros(num_rows, dtype=np.int32)
        parts = [slice(k * num_rows, (k + 1) * num_rows) for k in range(num_steps)]
        return [
            BatchRefs(
                train_step=train_step + k,
                position_B=position_N[part],
                epoch_B=epoch_N[part],
                window_id_B=window_id_N[part],
                episode_B=episode_N[part],
                start_B=start_N[part],
                row_is_pad_B=row_is_pad_N[part],
                source_B=source_B,
            )
            for k, part in enumerate(parts)
        ]

    def windows_at(self, first: int, step_B: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """Return (epoch_B, window_id_B, episode_B, start_B) of positions of the window sequence, whatever batch they are in.

        Args:
            first: A position, >= 0, of any size as long as its epoch stays below 2**63.
            step_B: Added to `first`: rising, from 0 on.
        """
        epoch, offset = divmod(first, self.num_windows)
        last = int(step_B[-1]) + 1 if len(step_B) else 0
        if epoch + (offset + last) // self.num_windows >= 2**63 - 1:
            raise ConfigError(f"position {first} is out of range: its epoch {epoch} passes 2**63.")
        later_B, offset_B = np.divmod(offset + step_B, self.num_windows)
        window_id_B = self._window_ids(epoch, later_B, offset_B)
        return epoch + later_B, window_id_B, *self.table.locate(window_id_B)

    def _window_ids(self, epoch: int, later_B: Int64Array, offset_B: Int64Array) -> Int64Array:
        """Return the ids of rows that fall `later_B` epochs (rising by at most 1) after `epoch`."""
        if not later_B.size or later_B[0] == later_B[-1]:
            return self._order.window_ids(epoch + int(later_B[0]), offset_B) if later_B.size else offset_B
        cuts = np.flatnonzero(np.diff(later_B)) + 1
        bounds = [0, *cuts.tolist(), len(later_B)]
        out_B = np.empty_like(offset_B)
        for lo, hi in pairwise(bounds):
            out_B[lo:hi] = self._order.window_ids(epoch + int(later_B[lo]), offset_B[lo:hi])
        return out_B

    def block_uses(self, refs: BatchRefs) -> BlockUses | None:
        """Return the blocks behind the rows of a batch, and where each use begins and ends; None without blocks.

        Rows that pad the end of a finite run repeat the last window's use, so they begin and end nothing of their own.
        """
        return self.block_uses_ahead([refs])

    def block_uses_ahead(self, refs_K: Sequence[BatchRefs]) -> BlockUses | None:
        """Return `block_uses` of several batches, joined, for little more than one of them costs."""
        epoch_N = np.concatenate([refs.epoch_B for refs in refs_K])
        if not len(epoch_N):
            return None
        position_N = np.concatenate([refs.position_B for refs in refs_K])
        uses = self.block_uses_at(epoch_N, (position_N % self.num_windows).astype(np.int64))
        if uses is not None:
            is_pad_N = np.concatenate([refs.row_is_pad_B for refs in refs_K])
            for is_edge_N in (uses.begins_B, uses.ends_B):
                is_edge_N[is_pad_N] = False
        return uses

    def block_uses_at(self, epoch_B: Int64Array, offset_B: Int64Array) -> BlockUses | None:
        """Return the blocks behind offsets of epochs, which rise; None without blocks."""
        if not isinstance(self._order, InterleavedOrder):
            return None
        parts = [
            self._order.block_uses(int(epoch), offset_B[epoch_B == epoch]) for epoch in dict.fromkeys(epoch_B.tolist())
        ]
        return BlockUses(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(BlockUses)))

    def eligible_id(self, draw: int) -> int:
        """Return a window that the order takes, for a draw from [0, num_windows): how bad windows are replaced."""
        if isinstance(self._order, (ContinuousOrder, WeightedOrder)):
            return int(self._order.window_ids(0, np.array([draw], dtype=np.int64))[0])
        return draw

    def config_json(self) -> dict[str, Any]:
        """Return everything that decides the sequence, besides the episodes' lengths, as JSON."""
        return {
            "order": self.order_config.to_json(),
            "seed": self.seed,
            "global_batch_size": self.global_batch_size,
            "num_epochs": self.num_epochs,
            "drop_last": self.drop_last,
            "num_windows": self.num_windows,
            "window": self.table.window.to_json(),
        }

    def __repr__(self) -> str:
        return f"Sampler({self.order!r}, seed={self.seed}, global_batch_size={self.global_batch_size}, {self.table!r})"


def check_rows(rows: slice, global_batch_size: int) -> tuple[int, int]:
    """Return the half-open range of rows that a slice takes of a global batch; ConfigError if it has a step."""
    if not isinstance(rows, slice) or rows.step not in (None, 1):
        raise ConfigError(f"rows={rows!r} is invalid: expected a slice without a step.")
    first, stop, _ = rows.indices(global_batch_size)
    return first, max(first, stop)


def check_train_step(train_step: int) -> int:
    """Return a train_step as an int of at least 0, else raise ConfigError."""
    return check_int("train_step", train_step, 0)


def positions_from(first: int, step_B: Int64Array) -> NDArray:
    """Return `first + step_B`: int64, or Python ints (dtype object) once positions pass 2**63."""
    return first + (step_B if first + len(step_B) < 2**63 else step_B.astype(object))
