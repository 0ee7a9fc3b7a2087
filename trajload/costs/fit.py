"""From measured windows to costs: what a row and a frame before it take, episode by episode.

Windows of the same kind of video (codec, size, keyframe distance) share the split between the two, which a few windows of
one episode do not tell; an episode then costs so many times what its kind costs.
"""

# Shapes: N windows or episodes measured

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trajload.types import NDArray

__all__ = ["KindCost", "Measured", "fit_kind", "fit_kinds"]


_NUM_TURNS = 3
_LEAD_SHARE = 0.6
"""What a frame costs that is decoded and not delivered, as a share of one that is: no conversion, no copy."""
_PRIOR_WEIGHT = 0.2
"""Of that share, against one window."""


@dataclass(slots=True)
class Measured:
    """What was seen of one stream in one episode, summed over its windows."""

    num_windows: int = 0
    num_rows: int = 0
    num_lead: int = 0
    """Frames decoded and not delivered."""
    ns: float = 0.0

    def add(self, num_rows: int, num_lead: int, ns: float) -> None:
        """Take one window."""
        self.num_windows += 1
        self.num_rows += num_rows
        self.num_lead += num_lead
        self.ns += ns


@dataclass(frozen=True, slots=True)
class KindCost:
    """What windows of one kind of video cost."""

    row_ns: float
    """A row delivered, with its share of what a window costs by itself."""
    lead_ns: float
    """A frame decoded and not delivered."""

    def ns(self, num_rows: float, num_lead: float) -> float:
        """Return what so many rows and frames before them cost."""
        return self.row_ns * num_rows + self.lead_ns * num_lead


def fit_kind(rows_N: NDArray, lead_N: NDArray, ns_N: NDArray) -> KindCost:
    """Return the costs of a row and of a frame before it that explain the windows best, neither negative.

    Windows without any frame before them give a guess of what one would cost.

    Relative errors are what is made small: a window that costs ten times as much is not worth ten times as much.
    """
    rows_N, lead_N, ns_N = (np.asarray(a, dtype=np.float64) for a in (rows_N, lead_N, ns_N))
    is_known_N = (ns_N > 0) & (rows_N > 0)
    rows_N, lead_N, ns_N = rows_N[is_known_N], lead_N[is_known_N], ns_N[is_known_N]
    if not len(ns_N):
        return KindCost(0.0, 0.0)
    per_frame = float(ns_N.sum() / (rows_N + lead_N).sum())
    # One more equation, weighed lightly: where all windows have about the same share of frames before them, nothing else
    # tells the two apart, and noise would.
    prior_2 = np.array([-_LEAD_SHARE, 1.0]) * _PRIOR_WEIGHT / per_frame
    design_N2 = np.vstack([np.stack([rows_N / ns_N, lead_N / ns_N], axis=1), prior_2])
    (row, lead), *_ = np.linalg.lstsq(design_N2, np.append(np.ones(len(ns_N)), 0.0), rcond=None)
    if lead <= 0 or row <= 0:  # noise misled the fit: what is known beforehand is better
        row = float(ns_N.sum() / (rows_N + _LEAD_SHARE * lead_N).sum())
        lead = _LEAD_SHARE * row
    return KindCost(float(row), float(lead))


def fit_kinds(
    measured: Mapping[int, Measured],
    kinds: Mapping[int, Hashable],
    windows: Mapping[int, Sequence[Measured]] | None = None,
) -> tuple[dict[Hashable, KindCost], dict[int, KindCost]]:
    """Return the cost of each kind, and of each episode that was measured.

    Args:
        measured: Episode → what was seen of it.
        kinds: Episode → kind; of all that were measured.
        windows: Episode → its windows one by one, where they are known: they tell the split better than sums do.
    """
    of_kind: dict[Hashable, list[int]] = {}
    for episode, seen in measured.items():
        if seen.num_windows and seen.ns > 0:
            of_kind.setdefault(kinds[episode], []).append(episode)
    by_kind: dict[Hashable, KindCost] = {}
    by_episode: dict[int, KindCost] = {}
    for kind, episodes in of_kind.items():
        points = [(e, w) for e in episodes for w in (windows[e] if windows is not None else [measured[e]])]
        rows_N = np.array([w.num_rows for _, w in points])
        lead_N = np.array([w.num_lead for _, w in points])
        scale = dict.fromkeys(episodes, 1.0)
        for _ in range(_NUM_TURNS):
            # Without their own levels, dear episodes that happen to have long leads would make leads dear.
            cost = fit_kind(rows_N, lead_N, np.array([w.ns / scale[e] for e, w in points]))
            for episode in episodes:
                seen = measured[episode]
                expected = cost.ns(seen.num_rows, seen.num_lead)
                scale[episode] = seen.ns / expected if expected > 0 else 1.0
        level = float(np.median(list(scale.values())))
        by_kind[kind] = KindCost(cost.row_ns * level, cost.lead_ns * level)
        for episode in episodes:
            by_episode[episode] = KindCost(cost.row_ns * scale[episode], cost.lead_ns * scale[episode])
    return by_kind, by_episode
