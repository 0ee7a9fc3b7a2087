"""`profile`: what decoding windows of each stream costs in each episode, measured on samples.

CPU time of this thread, not time on the wall; bytes are fetched before the clock starts. Every sampled window is decoded
several times, in passes over the whole dataset, and the least counts: what disturbs a machine only ever adds, and seldom comes at
the same window twice.
"""

# Shapes: E episodes, W windows of an episode

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trajload.checks import check_int
from trajload.costs.build import table_of
from trajload.costs.fit import Measured
from trajload.costs.machine import machine_facts
from trajload.costs.report import ProfileReport
from trajload.costs.sample import SampledWindow, StreamDecoder, sample_windows
from trajload.costs.table import CostTable
from trajload.errors import ConfigError, at
from trajload.sources.base import Dataset
from trajload.spec import Image, StreamRequest, Window, check_request, default_request
from trajload.stop import Stop

__all__ = ["DEFAULT_NUM_STEPS", "Profile", "profile"]

DEFAULT_NUM_STEPS = 16
"""Steps of the windows that are measured where nobody says otherwise."""
_NEAR = 1.1
_SHORT_NS = 50_000
_COLLECT_EVERY = 256


@dataclass(frozen=True, slots=True)
class Profile:
    """What `profile` gives: the table for load weights and rebalancing, and a report of it."""

    table: CostTable
    report: ProfileReport


def profile(
    dataset: Dataset,
    *,
    window: Window | None = None,
    streams: Iterable[str] | Mapping[str, StreamRequest | None] | None = None,
    max_episodes: int | None = None,
    windows_per_episode: int = 4,
    repeats: int = 3,
    progress: Callable[[int, int], None] | None = None,
    stop: Stop | None = None,
) -> Profile:
    """Measure what windows cost to decode in each episode.

    Args:
        dataset: The opened dataset.
        window: Whose number of steps, dilation and padding count; 16 steps by default.
        streams: As for `Loader`; all but text by default.
        max_episodes: Measure so many episodes only, spread evenly; others get what their kind (stream, codec, size, keyframe
            distance) costs. None measures all.
        windows_per_episode: Windows sampled of each stream and episode, with few and with many frames before them.
        repeats: How often each is decoded; up to as often again where no second time came within a tenth of the least.
        progress: Called with (episodes done, episodes in all passes).
        stop: Ends it after the episode in which it is asked for; those that were not measured by then are estimated.

    Raises:
        ConfigError: Bad arguments, or no stream with a cost.
        TrajloadError: A window cannot be read or decoded; the message says which.
    """
    window = Window(num_steps=DEFAULT_NUM_STEPS) if window is None else window
    windows_per_episode = check_int("windows_per_episode", windows_per_episode, 1)
    repeats = check_int("repeats", repeats, 1)
    if max_episodes is not None:
        max_episodes = check_int("max_episodes", max_episodes, 1, expected="an int of at least 1, or None for all")
    requests = _requests(dataset, streams)
    if not dataset.num_episodes:
        raise ConfigError(f"dataset {dataset.name!r} has no episodes: there is nothing to measure.")
    chosen = np.arange(dataset.num_episodes)
    if max_episodes is not None and max_episodes < len(chosen):
        chosen = np.unique(np.linspace(0, len(chosen) - 1, max_episodes).astype(np.int64))
    stop = Stop() if stop is None else stop
    decoder = StreamDecoder(dataset, requests)
    passes = _Passes(dataset, decoder, window, windows_per_episode)
    begin = time.monotonic()
    was_collecting = gc.isenabled()
    gc.disable()  # a collection in the middle of a window would count as its cost
    try:
        for turn in range(repeats):
            # Every other pass backwards: an episode is then not always measured as long after the start.
            order = (chosen if turn % 2 == 0 else chosen[::-1]).tolist()
            for done, episode in enumerate(order, 1):
                passes.measure(episode)
                stop.hold()
                if progress is not None:
                    progress(turn * len(chosen) + done, repeats * len(chosen))
                if stop.wanted:
                    break
            if stop.wanted:
                break
        # Where a machine does other things too, some windows were never measured in peace.
        for _ in range(repeats if repeats > 1 and not stop.wanted else 0):
            if not (left := [e for e in chosen.tolist() if passes.is_unsettled(e)]):
                break
            for episode in left:
                if not stop.wanted:
                    passes.measure(episode, again=True)
    finally:
        if was_collecting:
            gc.enable()
        decoder.close()
    backend = decoder.backend
    seen = passes.measured()
    info: dict[str, Any] = {
        "measured": "profile",
        "clock": "CPU time of one thread, the least of the repeats",
        "window": window.to_json(),
        "sizes": {n: list(r.size) for n, r in requests.items() if isinstance(r, Image) and r.size is not None},
        "episodes_measured": passes.num_episodes,
        "windows_per_episode": windows_per_episode,
        "repeats": repeats,
        "backend": backend,
        "machine": machine_facts(),
    }
    table, kinds = table_of(dataset, list(requests), seen, info)
    seconds = time.monotonic() - begin
    report = ProfileReport.of(
        dataset,
        table,
        kinds,
        window=window,
        num_measured=passes.num_episodes,
        num_wanted=len(chosen),
        stopped=stop.wanted,
        seconds=seconds,
    )
    return Profile(table, report)


class _Passes:
    """What windows took, over and over."""

    def __init__(self, dataset: Dataset, decoder: StreamDecoder, window: Window, count: int) -> None:
        self._dataset, self._decoder, self._window, self._count = dataset, decoder, window, count
        self._taken: dict[tuple[str, int], dict[SampledWindow, list[int]]] = {}
        self._num_measured = 0

    def measure(self, episode: int, *, again: bool = False) -> None:
        """Decode the windows of an episode once more; `again`: only those that are not settled."""
        self._num_measured += 1
        if self._num_measured % _COLLECT_EVERY == 0:
            gc.collect()
        for name in self._decoder.requests:
            taken = self._taken.get((name, episode))
            if taken is None:
                windows = sample_windows(self._dataset, episode, name, self._window, self._count)
                taken = self._taken[name, episode] = {sampled: [] for sampled in windows}
            with at(dataset=self._dataset.name, episode=self._dataset.episode_key(episode), stream=name):
                for sampled, times in taken.items():
                    if not again or _is_unsettled(times):
                        times.append(self._decoder.decode_ns(episode, name, sampled))

    @property
    def num_episodes(self) -> int:
        """Of which windows were measured."""
        return len({episode for _, episode in self._taken})

    def is_unsettled(self, episode: int) -> bool:
        """Return whether any window of the episode should be measured again."""
        return any(
            _is_unsettled(times)
            for name in self._decoder.requests
            for times in self._taken.get((name, episode), {}).values()
        )

    def measured(self) -> dict[tuple[str, int], list[Measured]]:
        """Return the least that each window took, by stream and episode."""
        return {
            key: [Measured(1, sampled.num_places, sampled.num_lead, min(times)) for sampled, times in taken.items()]
            for key, taken in self._taken.items()
            if taken
        }


def _is_unsettled(times: list[int]) -> bool:
    """Return whether no second measurement came near the least one, of what takes long enough for that to be expected."""
    first, second = sorted(times)[:2]
    return second > _NEAR * first and second > _SHORT_NS


def _requests(
    dataset: Dataset, streams: Iterable[str] | Mapping[str, StreamRequest | None] | None
) -> dict[str, StreamRequest]:
    """Return how each stream is wanted, text left out."""
    if streams is None:
        wanted: dict[str, StreamRequest | None] = {n: None for n, spec in dataset.streams.items() if not spec.is_text}
    elif isinstance(streams, Mapping):
        wanted = dict(streams)
    else:
        wanted = dict.fromkeys([streams] if isinstance(streams, str) else streams)
    out = {name: check_request(spec := dataset.spec(name), wanted[name] or default_request(spec)) for name in wanted}
    out = {name: request for name, request in out.items() if not dataset.spec(name).is_text}
    if not out:
        raise ConfigError(f"no stream of {dataset.name!r} has a cost to measure: expected pictures or signals.")
    return out
