"""The contact sheet of a stretch of one episode: what the data hold, before any sampling."""

# Shapes: T steps shown

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from trajload.decode import DecodeContext
from trajload.errors import ConfigError, WindowError
from trajload.pipeline.rows import nearest_rows, read_rows, read_value
from trajload.sources.base import Dataset
from trajload.types import Int64Array, PathLikeStr
from trajload.view.pixels import as_frames, to_rgb
from trajload.view.sheet import Panel, Plot, Strip, draw_sheet
from trajload.view.window import pick_signals, pick_steps

__all__ = ["episode_sheet"]

_STEPS_PER_PANEL = 8


def episode_sheet(
    dataset: Dataset,
    episode: int,
    path: PathLikeStr,
    *,
    start: int = 0,
    stop: int | None = None,
    max_steps: int = 16,
    streams: Iterable[str] | None = None,
    tile: int = 96,
) -> Path:
    """Draw steps [start, stop) of an episode as a PNG and return its path.

    Eight steps stand beside each other, the next eight below. Clocked streams show the row nearest in time.

    Args:
        dataset: The opened dataset.
        episode: Position of the episode; negative counts from the end.
        path: PNG file to write; missing folders are made.
        start: First step.
        stop: Half-open end; None for the episode's end.
        max_steps: Steps drawn, evenly spaced over the stretch.
        streams: Streams to draw; None for all.
        tile: Longer side of a drawn frame in pixels.

    Raises:
        WindowError: The episode or the stretch does not exist.
        TrajloadError: Bytes cannot be read or decoded; located.
    """
    episode = dataset.check_episode(episode)
    num_steps = int(dataset.num_steps_E[episode])
    stop = num_steps if stop is None else stop
    if not 0 <= start < stop <= num_steps:
        raise WindowError(f"steps [{start}, {stop}) do not exist: episode {episode} has {num_steps} steps.")
    if max_steps < 1:
        raise ConfigError(f"max_steps={max_steps!r} is invalid: expected at least 1.")
    names = list(dataset.streams) if streams is None else [dataset.spec(name).name for name in streams]
    shown_T = start + pick_steps(stop - start, max_steps)
    context = DecodeContext()
    try:
        chunks = [shown_T[i : i + _STEPS_PER_PANEL] for i in range(0, len(shown_T), _STEPS_PER_PANEL)]
        panels = [_panel(dataset, episode, names, steps_T, i == 0, context) for i, steps_T in enumerate(chunks)]
    finally:
        context.close()
    draw_sheet(panels, path, tile=tile)
    return Path(path)


def _panel(
    dataset: Dataset, episode: int, names: list[str], steps_T: Int64Array, is_first: bool, context: DecodeContext
) -> Panel:
    key, num_steps = dataset.episode_key(episode), int(dataset.num_steps_E[episode])
    title = f"{dataset.name} / {key}   {num_steps} steps" if is_first else f"{key}, continued"
    strips: list[Strip] = []
    remarks: list[str] = []
    signals: dict[str, Plot] = {}
    is_pad_T = np.zeros(len(steps_T), dtype=bool)
    for name in names:
        spec = dataset.spec(name)
        if spec.is_text:
            value = read_value(dataset, episode, name, int(steps_T[0]), context=context)
            if isinstance(value, str) and value:
                title += f"   “{value[:80]}”"
            continue
        rows_T = nearest_rows(dataset, episode, name, steps_T)
        if rows_T is None:
            remarks.append(f"{name}: missing in this episode")
            continue
        values = read_rows(dataset, episode, name, rows_T, context=context)
        assert values is not None  # nearest_rows has just found the track
        label = f"{name} ({spec.units})" if spec.units else name
        frames_TCHW = as_frames(values)
        if frames_TCHW is not None:
            rgb_THWC, scale = to_rgb(frames_TCHW)
            label = f"{name} ({scale} {spec.units or ''})".replace(" )", ")") if scale else name
            strips.append(Strip(label, rgb_THWC, is_pad_T))
        elif values.dtype.kind in "biuf":
            signals[name] = Plot(label, values.reshape(len(steps_T), -1).astype(np.float64), is_pad_T)
    plots = [signals[name] for name in pick_signals(list(signals))]
    return Panel(title, [str(int(step)) for step in steps_T], strips, plots, remarks)
