"""What whole episodes and shards cost: all their windows, in an order that shares nothing between them."""

# Shapes: E episodes, W windows

from __future__ import annotations

import numpy as np

from trajload.align.rows import window_offsets
from trajload.costs.leads import row_of_step, window_leads
from trajload.costs.sample import anchors_of
from trajload.costs.table import CostTable
from trajload.errors import ConfigError
from trajload.sources.base import Dataset
from trajload.spec import Window
from trajload.types import Int64Array

__all__ = ["check_table", "epoch_ns", "shard_of_episode"]


def check_table(table: CostTable, dataset: Dataset) -> CostTable:
    """Return `table` if it is of `dataset`, else raise ConfigError."""
    if table.dataset_digest != dataset.digest or table.num_episodes != dataset.num_episodes:
        raise ConfigError(
            f"the cost table belongs to other data: got digest {table.dataset_digest[:12]}… and {table.num_episodes} episodes, "
            f"dataset {dataset.name!r} has {dataset.digest[:12]}… and {dataset.num_episodes}. Measure the costs of this "
            "version: trajload profile."
        )
    return table


def epoch_ns(dataset: Dataset, table: CostTable, window: Window) -> dict[str, Int64Array]:
    """Return what all windows of each episode cost together, by stream, int64 (E,): an epoch in a random order.

    An episode too short for a window counts as one window of its own length, so that none is free.
    """
    check_table(table, dataset)
    offsets_T = window_offsets(window)
    out: dict[str, Int64Array] = {}
    for name, row_ns_E in table.row_ns.items():
        lead_ns_E = table.lead_ns.get(name)
        total_E = np.zeros(dataset.num_episodes, dtype=np.int64)
        for episode, num_steps in enumerate(dataset.num_steps_E.tolist()):
            if not num_steps:
                continue
            anchor_W = anchors_of(num_steps, window)
            total_E[episode] = len(anchor_W) * min(window.num_steps, num_steps) * row_ns_E[episode]
            if lead_ns_E is None or not lead_ns_E[episode]:
                continue
            track = dataset.track(episode, name)
            if track is None or not track.num_rows:
                continue
            row_S = row_of_step(dataset, episode, name)
            num_lead = int(window_leads(track, anchor_W, num_steps, window, offsets_T, row_S).sum())
            total_E[episode] += num_lead * lead_ns_E[episode]
        out[name] = total_E
    return out


def shard_of_episode(dataset: Dataset) -> tuple[Int64Array, list[str]]:
    """Return the number of each episode's file, (E,), and the names of the files in the order they are met."""
    numbers: dict[str, int] = {}
    shard_E = np.zeros(dataset.num_episodes, dtype=np.int64)
    for episode in range(dataset.num_episodes):
        shard_E[episode] = numbers.setdefault(dataset.episode(episode).file, len(numbers))
    return shard_E, list(numbers)
