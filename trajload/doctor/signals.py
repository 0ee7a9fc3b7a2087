"""Numbers that cannot be right: NaN, streams that never move, values far from all others."""

# Shapes: N rows of a stream in an episode, D components, E episodes examined

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trajload.doctor.report import Collector, shorten
from trajload.spec import StreamSpec
from trajload.types import Modality, NDArray

__all__ = ["SignalCheck"]

_FROZEN_MIN_ROWS = 10
_SAMPLE_PER_EPISODE = 256
_OUTLIER_RANGES = 10.0
"""Distance from the 1st or 99th percentile, in ranges between them, beyond which a value is called an outlier. Far
out on purpose: joints that mostly rest and then move are normal, a value ten ranges away is a unit error or a glitch."""


@dataclass(slots=True)
class SignalCheck:
    """Looks at one low-dimensional stream, episode by episode; `finish` judges the whole. Not thread-safe."""

    spec: StreamSpec
    found: Collector
    _keys: list[str] = field(default_factory=list)
    _low_ED: list[NDArray] = field(default_factory=list)
    _high_ED: list[NDArray] = field(default_factory=list)
    _num_rows: int = 0
    _sample: list[NDArray] = field(default_factory=list)

    def look(self, key: str, values_N: NDArray) -> None:
        """Take the rows (N, ...) of episode `key` into account."""
        if values_N.dtype.kind not in "biuf" or len(values_N) == 0:
            return
        values_ND = values_N.reshape(len(values_N), -1)
        self._look_for_nan(key, values_ND)
        with np.errstate(invalid="ignore"):
            finite_ND = values_ND[np.isfinite(values_ND).all(axis=1)].astype(np.float64)
        if len(finite_ND) == 0:
            return
        self._keys.append(key)
        self._num_rows += len(finite_ND)
        self._low_ED.append(finite_ND.min(axis=0))
        self._high_ED.append(finite_ND.max(axis=0))
        self._sample.append(finite_ND[:: max(1, len(finite_ND) // _SAMPLE_PER_EPISODE)])

    def _look_for_nan(self, key: str, values_ND: NDArray) -> None:
        is_bad_N = ~np.isfinite(values_ND).all(axis=1)
        if not is_bad_N.any():
            return
        rows = np.flatnonzero(is_bad_N)
        first = int(rows[0])
        value = values_ND[first][~np.isfinite(values_ND[first])][0]
        self.found.add(
            "warning",
            "nan-values",
            f"stream {self.spec.name!r} holds {value} in {len(rows)} of {len(values_ND)} rows, first in row {first}.",
            "One such value turns a loss into NaN: repair the recording, drop the episode, or mask these steps.",
            stream=self.spec.name,
            episode=key,
            steps=(first, int(rows[-1]) + 1) if self.spec.clock == "stepwise" else None,
        )

    def finish(self) -> None:
        """Judge constants and outliers over all episodes seen."""
        if self._num_rows < 2:
            return
        low_ED, high_ED = np.stack(self._low_ED), np.stack(self._high_ED)
        is_constant_D = low_ED.min(axis=0) == high_ED.max(axis=0)
        self._judge_constants(is_constant_D, low_ED)
        if self.spec.modality in (Modality.REWARD, Modality.METADATA):
            return  # a reward of zero throughout, or one large bonus, is a reward
        if not is_constant_D.all():
            self._judge_frozen(low_ED, high_ED)
        self._judge_outliers(low_ED, high_ED)

    def _name(self, d: int) -> str:
        return self.spec.names[d] if self.spec.names and d < len(self.spec.names) else str(d)

    def _judge_constants(self, is_constant_D: NDArray, low_ED: NDArray) -> None:
        name = self.spec.name
        if is_constant_D.all():
            self.found.add(
                "warning",
                "constant-stream",
                f"stream {name!r} never changes: every row of {len(low_ED)} episodes is {low_ED[0].tolist()[:8]}.",
                "A stream without information; check the recording, or leave it out with streams=[...].",
                stream=name,
            )
        elif is_constant_D.any():
            which = [self._name(int(d)) for d in np.flatnonzero(is_constant_D)]
            self.found.add(
                "note",
                "constant-component",
                f"stream {name!r}: {len(which)} of {len(is_constant_D)} components never change ({shorten(which)}).",
                "Dividing by their standard deviation gives NaN or infinity: add an epsilon, or drop them.",
                stream=name,
            )

    def _judge_frozen(self, low_ED: NDArray, high_ED: NDArray) -> None:
        for e in np.flatnonzero((low_ED == high_ED).all(axis=1)):
            if len(self._sample[e]) >= _FROZEN_MIN_ROWS:
                self.found.add(
                    "warning",
                    "frozen-episode",
                    f"stream {self.spec.name!r} stands still for the whole episode, while it moves in others.",
                    "Often a sensor or teleoperation that was not running; look at it with 'trajload view'.",
                    stream=self.spec.name,
                    episode=self._keys[e],
                )

    def _judge_outliers(self, low_ED: NDArray, high_ED: NDArray) -> None:
        low_D, high_D = np.quantile(np.concatenate(self._sample), [0.01, 0.99], axis=0)
        # A component that rests 98 % of the time has no range to measure with, and is left alone.
        reach_D = np.where(high_D > low_D, _OUTLIER_RANGES * (high_D - low_D), np.inf)
        is_out_ED = (low_ED < low_D - reach_D) | (high_ED > high_D + reach_D)
        for e, d in np.argwhere(is_out_ED):
            value = low_ED[e, d] if low_ED[e, d] < low_D[d] - reach_D[d] else high_ED[e, d]
            self.found.add(
                "warning",
                "outlier",
                f"stream {self.spec.name!r} component {self._name(int(d))} reaches {value:.6g}, where 98 % of all values lie "
                f"in [{low_D[d]:.6g}, {high_D[d]:.6g}].",
                "Look for unit errors and glitches; one such value ruins mean and standard deviation.",
                stream=self.spec.name,
                episode=self._keys[e],
            )
