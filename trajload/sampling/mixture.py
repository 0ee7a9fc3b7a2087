"""Which windows of which source a train_step of a mixture trains on: computed, like everything about order.

Each source keeps the window sequence it would have alone (`Sampler`), under a seed of its own; this module says which
positions of a source's own sequence stand in which cells of the global batches. Positions of the mixture and of its
sources map to each other in closed form, and no cost grows with the train_step.
Source: docs/decisions/0080-mixtures.md
"""

# Shapes: B rows of a global batch, I sources

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from trajload.errors import ConfigError, WindowError, at
from trajload.rng import check_seed, key_u64
from trajload.sampling.cells import Cells, choose_quotas
from trajload.sampling.interleaved import BlockUses
from trajload.sampling.orders import Continuous, Interleaved, OrderConfig
from trajload.sampling.phases import Phase, make_phases
from trajload.sampling.sampler import ALL_ROWS, BatchRefs, Sampler, check_rows, check_train_step, positions_from
from trajload.sampling.weights import Weight, weight_json, weight_phases
from trajload.sampling.windows import WindowTable
from trajload.types import Int64Array

__all__ = ["By", "MixturePart", "MixtureSampler", "check_by", "source_seed"]

By = Literal["windows", "episodes"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MixturePart:
    """One source as the sampler sees it."""

    name: str
    weight: Weight
    table: WindowTable
    order: OrderConfig
    """As asked for; `lanes_per_row` counts lanes of a row of the global batch."""


def source_seed(seed: int, name: str) -> int:
    """Return the seed of a source: a function of the run's seed and the source's name, whatever else is mixed in."""
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)
    return key_u64(check_seed(seed), "mixture source", number)[0] >> 1


def check_by(by: Any) -> By:
    """Return `by` if it says what weights are shares of, else raise ConfigError."""
    if not isinstance(by, str) or by not in get_args(By):
        raise ConfigError(
            f"Mixture(by={by!r}) is unknown: expected 'windows' (weights are shares of the windows drawn) or 'episodes' "
            "(of the episodes gone through)."
        )
    return by  # type: ignore[return-value]


class MixtureSampler:
    """The windows of every train_step of a mixture. Immutable and thread-safe; offers what `Sampler` offers.

    Runs without end: sources come to the ends of their epochs at different train_steps, so the mixture has none.
    """

    order: ClassVar[str] = "mixture/1"
    num_epochs: ClassVar[None] = None
    num_train_steps: ClassVar[None] = None

    def __init__(
        self,
        parts: Sequence[MixturePart],
        *,
        by: By,
        seed: int,
        global_batch_size: int,
        stretch_steps: int | None = None,
    ) -> None:
        """Fix the sequence.

        Args:
            parts: The sources, in an order that matters: it is that of their rows.
            by: What weights are shares of: 'windows' drawn, or 'episodes' gone through.
            seed: The run's seed.
            global_batch_size: Windows per train_step over all ranks and sources.
            stretch_steps: Train_steps in which shares come out exactly; None finds the least of each phase, up to 16.

        Raises:
            ConfigError: Weights that are unusable, or too small for the batch.
        """
        self.by, self.seed = check_by(by), check_seed(seed)
        self._parts = tuple(parts)
        self.names = tuple(part.name for part in parts)
        self.seeds = tuple(source_seed(self.seed, name) for name in self.names)
        weights = weight_phases({part.name: part.weight for part in parts})
        alone = [self._sampler(i, part.order, global_batch_size) for i, part in enumerate(parts)]
        self.global_batch_size = alone[0].global_batch_size  # checked
        self.num_windows = sum(sampler.num_windows for sampler in alone)
        size_I = [Fraction(1) if self.by == "windows" else _windows_per_episode(sampler) for sampler in alone]
        self.stretch_steps = stretch_steps
        is_row_bound = any(isinstance(part.order, Continuous) for part in parts)
        cells, samplers = [], []
        known: dict[Any, Sampler] = {}
        for phase in weights:
            num_steps, quota_I = choose_quotas(
                _shares(phase.weights, size_I),
                self.global_batch_size,
                self.names,
                begin=phase.begin,
                stretch_steps=stretch_steps,
                is_row_bound=is_row_bound,
            )
            cells.append(Cells(quota_I, num_steps))
            samplers.append([self._known(known, i, quota, num_steps) for i, quota in enumerate(quota_I)])
        self.phases = make_phases([phase.begin for phase in weights], cells, samplers)
        self._begins = [phase.begin for phase in self.phases]
        self.samplers: tuple[Sampler, ...] = tuple(
            next(found for here in samplers if (found := here[i]) is not None) for i in range(len(parts))
        )
        """Of each source alone, with its own seed; under another quota its lanes may be others, never its windows."""

    def _known(self, known: dict[Any, Sampler], source: int, quota: int, num_steps: int) -> Sampler | None:
        """Return the sampler of a source under a quota, the same one where nothing that decides its order differs."""
        if not quota:
            return None
        order = _own_order(self._parts[source].order, num_steps)
        key = (source, quota, repr(order)) if _depends_on_batch(order) else source
        if key not in known:
            known[key] = self._sampler(source, order, quota)
        return known[key]

    def _sampler(self, source: int, order: OrderConfig, batch_size: int) -> Sampler:
        part = self._parts[source]
        with at(dataset=part.name):
            return Sampler(part.table, order=order, seed=self.seeds[source], global_batch_size=batch_size)

    @property
    def has_lanes(self) -> bool:
        """Whether rows of some source go on from batch to batch, so that they must stay on their rank."""
        return any(_depends_on_batch(part.order) for part in self._parts)

    # ---- train_steps ----

    def check_train_step(self, train_step: int) -> int:
        """Return `train_step` if it is an int of at least 0, else raise ConfigError."""
        return check_train_step(train_step)

    def phase_of(self, train_step: int) -> Phase:
        """Return the phase of weights that a train_step is in."""
        return self.phases[bisect_right(self._begins, train_step) - 1]

    def shares(self, train_step: int = 0) -> dict[str, float]:
        """Return the share of the windows of a stretch that each source has, exactly, at `train_step`."""
        quota_I = self.phase_of(self.check_train_step(train_step)).cells.quota_I
        return {name: quota / sum(quota_I) for name, quota in zip(self.names, quota_I, strict=True)}

    def refs(self, train_step: int, rows: slice = ALL_ROWS) -> BatchRefs:
        """Return the windows of `rows` of the global batch of `train_step`, as `Sampler.refs` does.

        Rows of a source stand together, sources in the order of the mixture.
        """
        train_step = self.check_train_step(train_step)
        first_row, stop_row = check_rows(rows, self.global_batch_size)
        parts = []
        with at(train_step=train_step):
            for source, start, stop, first in self._runs(train_step, first_row, stop_row):
                sampler = self.phase_of(train_step).samplers[source]
                assert sampler is not None
                found = sampler.windows_at(first, np.arange(stop - start, dtype=np.int64))
                parts.append((np.full(stop - start, source, dtype=np.int32), *found))
        if not parts:
            none_B = np.zeros(0, dtype=np.int64)
            parts = [(none_B.astype(np.int32), none_B, none_B, none_B, none_B)]
        source_B, epoch_B, window_id_B, episode_B, start_B = (np.concatenate(x) for x in zip(*parts, strict=True))
        num_rows = len(source_B)
        return BatchRefs(
            train_step=train_step,
            position_B=positions_from(
                train_step * self.global_batch_size + first_row, np.arange(num_rows, dtype=np.int64)
            ),
            epoch_B=epoch_B,
            window_id_B=window_id_B,
            episode_B=episode_B,
            start_B=start_B,
            row_is_pad_B=np.zeros(num_rows, dtype=np.bool_),
            source_B=source_B,
        )

    def _runs(self, train_step: int, first_row: int, stop_row: int) -> list[tuple[int, int, int, int]]:
        """Return (source, first row, stop row, own position of the first) for each source with rows in the range."""
        phase = self.phase_of(train_step)
        out = []
        for source in range(len(self.names)):
            start, stop = phase.rows(train_step, source)
            start, stop = max(start, first_row), min(stop, stop_row)
            if start < stop:
                out.append((source, start, stop, phase.own_position(train_step, start, source)))
        return out

    def block_uses(self, refs: BatchRefs) -> BlockUses | None:
        """Return the block behind each row, numbered in its own source, as `Sampler.block_uses`; None without blocks.

        A row of a source whose order has no blocks is a use of its own: block and lane -1, beginning and ending there.
        Where weights change, uses may be cut off (an epoch that ends early) or go on on another row.
        """
        if not any(isinstance(part.order, Interleaved) for part in self._parts) or not len(refs):
            return None
        phase, parts = self.phase_of(refs.train_step), []
        first_row = int(refs.position_B[0] - refs.train_step * self.global_batch_size)
        for source, start, stop, first in self._runs(refs.train_step, first_row, first_row + len(refs)):
            sampler = phase.samplers[source]
            assert sampler is not None
            here = slice(start - first_row, stop - first_row)
            offset = first % sampler.num_windows
            offset_B = (offset + np.arange(stop - start, dtype=np.int64)) % sampler.num_windows
            uses = sampler.block_uses_at(refs.epoch_B[here], offset_B)
            parts.append(uses or _single_uses(refs, here))
        return BlockUses(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(BlockUses)))

    # ---- positions ----

    def own_position(self, position: int) -> tuple[int, int]:
        """Return (source, position in the source's own window sequence) of a position of the mixture."""
        train_step, row = divmod(position, self.global_batch_size)
        phase = self.phase_of(self.check_train_step(train_step))
        source = phase.source_of(train_step, row)
        return source, phase.own_position(train_step, row, source)

    def position(self, source: int, own_position: int) -> int:
        """Return where in the mixture a position of a source's own sequence comes; the inverse of `own_position`.

        Raises:
            WindowError: Nowhere, since a change of weights cut its epoch off.
        """
        for phase in self.phases:
            if phase.holds(source, own_position):
                train_step, row = phase.cell(source, own_position)
                return train_step * self.global_batch_size + row
        raise WindowError(
            f"position {own_position} of source {self.names[source]!r} never comes: a change of weights cut its epoch off."
        )

    def position_of(self, source: int, epoch: int, window_id: int) -> int:
        """Return the position at which a window comes in an epoch of its source.

        Raises:
            WindowError: It does not come in that epoch, which a change of weights cut off.
            ConfigError: The order draws with replacement.
        """
        for phase in self.phases:
            sampler = phase.samplers[source]
            if sampler is None:
                continue
            offset = int(sampler.window_order.offsets(epoch, np.array([window_id], dtype=np.int64))[0])
            own = epoch * sampler.num_windows + offset
            if phase.holds(source, own):
                return self.position(source, own)
        raise WindowError(
            f"window {window_id} of source {self.names[source]!r} does not come in its epoch {epoch}: a change of weights "
            "cut the epoch off."
        )

    # ---- what the state records ----

    def config_json(self) -> dict[str, Any]:
        """Return everything that decides the sequence, besides the episodes' lengths, as JSON."""
        return {
            "order": {"version": self.order, "by": self.by, "stretch_steps": self.stretch_steps},
            "seed": self.seed,
            "global_batch_size": self.global_batch_size,
            "num_epochs": None,
            "drop_last": False,
            "num_windows": self.num_windows,
            "sources": {
                part.name: {
                    "place": place,  # of its rows; what is the same in another order may come back sorted from JSON
                    "weight": weight_json(part.weight),
                    "order": part.order.to_json(),
                    "num_windows": sampler.num_windows,
                    "window": part.table.window.to_json(),
                }
                for place, (part, sampler) in enumerate(zip(self._parts, self.samplers, strict=True))
            },
        }

    def __repr__(self) -> str:
        shares = ", ".join(f"{name!r}: {share:.3g}" for name, share in self.shares().items())
        return f"MixtureSampler({shares} of global_batch_size={self.global_batch_size}, seed={self.seed})"


def _windows_per_episode(sampler: Sampler) -> Fraction:
    """Return the mean over the episodes that give windows; the others are never gone through."""
    table: WindowTable = sampler.table
    num_E: Int64Array = np.diff(table.first_E1)
    return Fraction(sampler.num_windows, int((num_E > 0).sum()))


def _shares(weights: Sequence[Fraction], size_I: Sequence[Fraction]) -> list[Fraction]:
    scaled = [weight * size for weight, size in zip(weights, size_I, strict=True)]
    total = sum(scaled, Fraction(0))
    return [share / total for share in scaled]


def _depends_on_batch(order: OrderConfig) -> bool:
    return isinstance(order, (Interleaved, Continuous))


def _own_order(order: OrderConfig, stretch_steps: int) -> OrderConfig:
    """Return the order over a source's own batches, which are stretches.

    A row of the global batch is P own rows, so K lanes on it are K / P on each of those.
    """
    if not isinstance(order, Interleaved):
        return order
    return replace(order, lanes_per_row=max(1, -(-order.lanes_per_row // stretch_steps)))


def _single_uses(refs: BatchRefs, here: slice) -> BlockUses:
    none_B, all_B = np.full(here.stop - here.start, -1, dtype=np.int64), np.ones(here.stop - here.start, dtype=np.bool_)
    return BlockUses(
        block_B=none_B,
        lane_B=none_B,
        episode_B=refs.episode_B[here],
        first_window_id_B=refs.window_id_B[here],
        size_B=all_B.astype(np.int64),
        use_size_B=all_B.astype(np.int64),
        use_epoch_B=refs.epoch_B[here],
        begins_B=all_B,
        ends_B=all_B,
    )
