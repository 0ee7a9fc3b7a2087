"""What a profile says for people and programs: costs by kind, by stream, and how uneven shards and episodes are."""

# Shapes: E episodes

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trajload.costs.balance import Spread
from trajload.costs.epoch import epoch_ns, shard_of_episode
from trajload.costs.fit import KindCost
from trajload.costs.kinds import Kind
from trajload.costs.table import CostTable
from trajload.sources.base import Dataset
from trajload.spec import Window

__all__ = ["ProfileReport"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileReport:
    """One profile of one dataset. Costs are CPU seconds of one thread."""

    dataset: str
    path: str
    digest: str
    window: dict[str, Any]
    num_episodes: int
    num_measured: int
    """Episodes measured; the others are estimated from their kind."""
    num_wanted: int
    """Episodes that were to be measured."""
    stopped: bool
    """Ended early: before all of them were, or before each was measured as often as asked for."""
    seconds: float
    """Time that measuring took."""
    backend: str
    kinds: list[dict[str, Any]]
    """Of each kind of stream: ms for a row delivered, ms for a frame decoded and not delivered."""
    streams: dict[str, dict[str, Any]]
    """Of each stream: CPU seconds of an epoch of random windows, and its share."""
    shards: list[dict[str, Any]]
    """Of each file: episodes, and CPU seconds of an epoch of random windows, in all and by stream."""
    spread: dict[str, Any]
    """Of the shards' costs."""
    dearest: list[dict[str, Any]]
    """The episodes that cost most, with what a step of each costs against the average."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        table: CostTable,
        kinds: Mapping[Kind, KindCost],
        *,
        window: Window,
        num_measured: int,
        num_wanted: int,
        stopped: bool,
        seconds: float,
    ) -> ProfileReport:
        """Return the report of `table`."""
        by_stream = epoch_ns(dataset, table, window)
        total_E = np.sum(list(by_stream.values()), axis=0)
        shard_E, names = shard_of_episode(dataset)
        shards = []
        for number, name in enumerate(names):
            is_in_E = shard_E == number
            shards.append(
                {
                    "shard": name,
                    "num_episodes": int(is_in_E.sum()),
                    "seconds": float(total_E[is_in_E].sum()) / 1e9,
                    "streams": {stream: float(ns_E[is_in_E].sum()) / 1e9 for stream, ns_E in by_stream.items()},
                }
            )
        total = float(total_E.sum()) or 1.0
        per_step_E = total_E / np.maximum(dataset.num_steps_E, 1)
        mean_step = float(total_E.sum()) / max(dataset.num_steps, 1) or 1.0
        dearest = np.argsort(-total_E, kind="stable")[:5].tolist()
        return cls(
            dataset=dataset.name,
            path=dataset.path,
            digest=dataset.digest,
            window=window.to_json(),
            num_episodes=dataset.num_episodes,
            num_measured=num_measured,
            num_wanted=num_wanted,
            stopped=stopped,
            seconds=round(seconds, 3),
            backend=str(table.info.get("backend", "")),
            kinds=[
                {
                    **kind.to_json(),
                    "row_ms": cost.row_ns / 1e6,
                    "lead_ms": cost.lead_ns / 1e6 if kind.has_leads else 0.0,
                }
                for kind, cost in sorted(kinds.items())
            ],
            streams={
                name: {"seconds": float(ns_E.sum()) / 1e9, "share": float(ns_E.sum()) / total}
                for name, ns_E in by_stream.items()
            },
            shards=shards,
            spread=Spread.of(np.array([shard["seconds"] for shard in shards])).to_json(),
            dearest=[
                {
                    "episode": dataset.episode_key(e),
                    "seconds": float(total_E[e]) / 1e9,
                    "step_over_mean": float(per_step_E[e]) / mean_step,
                }
                for e in dearest
            ],
        )
