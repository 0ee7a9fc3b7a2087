"""Which windows there are: lengths give the numbers in closed form, clocks and missing streams take some away."""

# Shapes: E episodes, A anchors of one episode, R runs of windows kept

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trajload.align.places import reach
from trajload.errors import WindowError, at
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.rowplan import RowPlanner
from trajload.sampling.orders import OrderConfig, Weighted, order_config
from trajload.sampling.select import EpisodeChoice, choose_episodes, episodes_json
from trajload.sampling.windows import WindowTable
from trajload.sources.base import Dataset
from trajload.spec import Window
from trajload.types import BoolArray, Int64Array

__all__ = ["number_windows", "plan_windows"]


def plan_windows(
    dataset: Dataset,
    window: Window,
    choices: Sequence[StreamChoice],
    order: str | OrderConfig | Mapping[str, Any],
    episodes: EpisodeChoice,
) -> tuple[WindowTable, OrderConfig, dict[str, Any]]:
    """Return the windows of the chosen episodes, the order with its weights looked up, and what the state adds."""
    config = order_config(order)
    if isinstance(config, Weighted):
        config = config.bind(dataset.episodes)
    is_chosen_E = choose_episodes(dataset, episodes)
    table = number_windows(dataset, window, choices, is_chosen_E)
    return (
        table,
        config,
        {**table.to_json(), **({} if is_chosen_E is None else {"episodes": episodes_json(is_chosen_E)})},
    )


def number_windows(
    dataset: Dataset, window: Window, choices: Sequence[StreamChoice], is_chosen_E: BoolArray | None = None
) -> WindowTable:
    """Return the windows of a dataset, numbered.

    A window is left out where its episode lacks a stream asked for with on_missing="drop", where a step has no row of
    a stream asked for with on_miss="drop", and, under pad="none", where a time of `delta_timestamps` lies outside the
    episode. Only the last two look into episodes, once each, one after the other.

    Args:
        dataset: Whose episodes are numbered.
        window: The window spec.
        choices: Streams of the batch.
        is_chosen_E: Which episodes are taken (E,), None for all.

    Raises:
        WindowError: No window is there, or none is left.
        AlignError: A clock to be looked at does not rise, under on_bad_clock="error".
    """
    needed = [c.name for c in choices if c.request.on_missing == "drop"]
    if needed:
        is_there_E = [all(dataset.has_stream(e, name) for name in needed) for e in range(dataset.num_episodes)]
        is_chosen_E = np.array(is_there_E, dtype=np.bool_) & (True if is_chosen_E is None else is_chosen_E)
        if not is_chosen_E.any():
            raise WindowError(
                f"no episode is left of {dataset.num_episodes}: each lacks one of {', '.join(map(repr, needed))}, asked "
                "for with on_missing='drop'. Use on_missing='mask', or leave the stream out."
            )
    table = WindowTable(
        dataset.num_steps_E, window, reach=reach(window, (c.places for c in choices)), is_chosen_E=is_chosen_E
    )
    looked_at = [c for c in choices if _drops_misses(c) or (c.places.ns_T is not None and window.pad == "none")]
    if not looked_at:
        return table
    planner = RowPlanner(dataset, window)
    first_R, count_R, num_before = [], [], 0
    for episode in range(dataset.num_episodes):
        anchors_A = table.anchors_of(episode)
        keep_A = np.ones(len(anchors_A), dtype=np.bool_)
        for choice in looked_at if len(anchors_A) else ():
            with at(dataset=dataset.name, episode=dataset.episode_key(episode), stream=choice.name):
                if dataset.has_stream(episode, choice.name):
                    keep_A &= _valid_anchors(planner, choice, episode, anchors_A)
        # a run begins where `keep` turns True and ends where it turns False
        edges = np.flatnonzero(np.diff(np.concatenate([[False], keep_A, [False]]).astype(np.int8)))
        first_R.append(num_before + edges[0::2])
        count_R.append(edges[1::2] - edges[0::2])
        num_before += len(anchors_A)
    counts = np.concatenate(count_R)
    return table if int(counts.sum()) == table.num_windows else table.restricted(np.concatenate(first_R), counts)


def _drops_misses(choice: StreamChoice) -> bool:
    return choice.spec.clock == "clocked" and choice.request.on_miss == "drop"


def _valid_anchors(planner: RowPlanner, choice: StreamChoice, episode: int, anchors_A: Int64Array) -> BoolArray:
    """Return which anchors keep their window as far as `choice` is concerned. O(A) memory, whatever the window."""
    dataset, places = planner.dataset, choice.places
    num_steps = int(dataset.num_steps_E[episode])
    keep_A = np.ones(len(anchors_A), dtype=np.bool_)
    if places.ns_T is not None:
        anchor_time_A = dataset.step_times_ns(episode, anchors_A)
        for delta_ns in places.ns_T.tolist():
            time_A = anchor_time_A + delta_ns
            is_outside_A = planner.is_outside(choice, episode, time_A)
            if planner.window.pad == "none":
                keep_A &= ~is_outside_A
            if _drops_misses(choice):
                none_A = np.zeros(len(time_A), dtype=np.bool_)
                keep_A &= ~planner.align(choice, episode, time_A, anchors_A, none_A).is_pad_T | is_outside_A
        return keep_A
    steps_T = np.arange(num_steps, dtype=np.int64)
    none_T = np.zeros(num_steps, dtype=np.bool_)
    is_miss_T = planner.align(choice, episode, dataset.step_times_ns(episode, steps_T), steps_T, none_T).is_pad_T
    for offset in places.steps_T.tolist():
        step_A = anchors_A + offset
        is_inside_A = (step_A >= 0) & (step_A < num_steps)
        keep_A &= ~(is_inside_A & is_miss_T[np.clip(step_A, 0, num_steps - 1)])
    return keep_A
