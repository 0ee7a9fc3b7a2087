"""A cost table out of what was measured: of some windows, of some episodes, in a profile or in a run."""

# Shapes: E episodes

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trajload.costs.fit import KindCost, Measured, fit_kinds
from trajload.costs.kinds import Kind, stream_kind
from trajload.costs.table import CostTable
from trajload.errors import TrajloadError
from trajload.sources.base import Dataset
from trajload.types import Int64Array

__all__ = ["table_of"]

_MAX_NS = 2**40 - 1


def table_of(
    dataset: Dataset,
    streams: Iterable[str],
    windows: Mapping[tuple[str, int], list[Measured]],
    info: Mapping[str, Any],
    *,
    by_gop: bool = True,
) -> tuple[CostTable, dict[Kind, KindCost]]:
    """Return the table that measured windows give, and what each kind of stream costs.

    Args:
        dataset: What was measured.
        streams: Names of its streams.
        windows: (stream, episode) → what was seen. Episodes without get what their kind costs, or the mean of all kinds
            where theirs was not met.
        info: What the table says of itself.
        by_gop: Whether videos of different keyframe distance are of different kinds. Where windows are known as sums only,
            it is the differences between them that tell rows and frames before them apart.
    """
    row_ns: dict[str, Int64Array] = {}
    lead_ns: dict[str, Int64Array] = {}
    all_kinds: dict[Kind, KindCost] = {}
    for name in streams:
        seen = {episode: found for (stream, episode), found in windows.items() if stream == name}
        kinds: dict[int, Kind | None] = {e: _kind(dataset, e, name, by_gop) for e in range(dataset.num_episodes)}
        known = {e: found for e, found in seen.items() if kinds[e] is not None}
        sums = {e: _summed(found) for e, found in known.items()}
        by_kind, by_episode = fit_kinds(sums, {e: kinds[e] for e in sums}, known)
        all_kinds.update({kind: cost for kind, cost in by_kind.items() if isinstance(kind, Kind)})
        rows_E, lead_E = np.zeros((2, dataset.num_episodes), dtype=np.int64)
        mean = _mean_of(list(by_episode.values()))
        for episode, kind in kinds.items():
            if kind is not None:
                cost = by_episode.get(episode) or by_kind.get(kind) or mean
                rows_E[episode] = min(round(cost.row_ns), _MAX_NS)
                lead_E[episode] = min(round(cost.lead_ns), _MAX_NS) if kind.has_leads else 0
        row_ns[name] = rows_E
        if lead_E.any():
            lead_ns[name] = lead_E
    return CostTable(row_ns, dataset_digest=dataset.digest, info=info, lead_ns=lead_ns), all_kinds


def _kind(dataset: Dataset, episode: int, stream: str, by_gop: bool) -> Kind | None:
    try:
        kind = stream_kind(dataset, episode, stream)
        return kind if kind is None or by_gop else replace(kind, gop=0)
    except TrajloadError:
        return None  # a file that cannot be read costs nothing: whoever wants its windows learns what is wrong


def _summed(windows: list[Measured]) -> Measured:
    total = Measured()
    for w in windows:
        total.num_windows += w.num_windows
        total.num_rows += w.num_rows
        total.num_lead += w.num_lead
        total.ns += w.ns
    return total


def _mean_of(costs: list[KindCost]) -> KindCost:
    if not costs:
        return KindCost(0.0, 0.0)
    return KindCost(sum(c.row_ns for c in costs) / len(costs), sum(c.lead_ns for c in costs) / len(costs))
