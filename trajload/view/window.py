"""The contact sheet of a batch: what the model is given, with its masks."""

# Shapes: B windows, T steps, C channels, H height, W width, D signal size

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.errors import ConfigError
from trajload.refs import WindowRef
from trajload.types import BoolArray, Int64Array, NDArray, PathLikeStr
from trajload.view.pixels import as_frames, to_rgb
from trajload.view.sheet import Panel, Plot, Strip, draw_sheet

if TYPE_CHECKING:
    from trajload.collate.batch import Batch

__all__ = ["contact_sheet", "pick_signals", "pick_steps"]

_MAX_PLOTS = 3


def contact_sheet(batch: Batch, path: PathLikeStr, *, max_rows: int = 8, max_steps: int = 8, tile: int = 96) -> Path:
    """Draw windows of a batch as a PNG and return its path.

    Each window is a panel: one strip of frames per camera (depth in false colours), one plot per signal (actions
    first, at most three), the step numbers below. Frames that are padding are crossed out; streams that an episode
    lacks are named in red. Text such as the instruction stands in the title.

    Args:
        batch: A batch of any `Loader`, on any device, in the layout BTCHW.
        path: PNG file to write; missing folders are made.
        max_rows: Windows drawn, the first ones of the batch.
        max_steps: Steps drawn per window, evenly spaced, the first and the last always among them.
        tile: Longer side of a drawn frame in pixels.

    Example:
        >>> contact_sheet(loader.batch_at(12_345), "step-12345.png")  # doctest: +SKIP
    """
    if max_rows < 1 or max_steps < 1:
        raise ConfigError(f"max_rows={max_rows!r}, max_steps={max_steps!r}: expected at least 1 of each.")
    step_index_BT = _numpy(batch["step_index"])
    shown_T = pick_steps(step_index_BT.shape[1], max_steps)
    arrays = {name: _numpy(batch[name]) for name in batch.streams if not isinstance(batch[name], list)}
    refs = batch.refs
    panels = [
        _panel(batch, b, step_index_BT[b], shown_T, max_steps, arrays, refs[b] if b < len(refs) else None)
        for b in range(min(max_rows, len(step_index_BT)))
    ]
    draw_sheet(panels, path, tile=tile)
    return Path(path)


def pick_steps(num_steps: int, max_steps: int) -> Int64Array:
    """Return at most `max_steps` indices of [0, num_steps), evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, num_steps - 1, min(num_steps, max_steps)).round().astype(np.int64))


def pick_signals(names: list[str]) -> list[str]:
    """Return the signals worth a plot: actions first, then rewards, then the rest, at most three."""
    return sorted(names, key=lambda name: ("action" not in name, "reward" not in name))[:_MAX_PLOTS]


def _panel(
    batch: Batch,
    b: int,
    step_index_T: Int64Array,
    shown_T: Int64Array,
    max_steps: int,
    arrays: dict[str, NDArray],
    ref: WindowRef | None,
) -> Panel:
    strips, remarks = [], []
    plottable: dict[str, Plot] = {}
    for name in batch.streams:
        if bool(_numpy(batch[f"{name}_is_missing"])[b]):
            remarks.append(f"{name}: missing in this episode")
            continue
        if name not in arrays:
            continue
        is_pad_T = _is_pad(batch, name, b)
        # streams with steps of their own are shown beside the window's, not under its step numbers
        own_T = shown_T if len(is_pad_T) == len(step_index_T) else pick_steps(len(is_pad_T), max_steps)
        label = name if len(is_pad_T) == len(step_index_T) else f"{name}, {len(is_pad_T)} steps of its own"
        values_T = _newest(batch, name, arrays[name][b], b)
        if (frames_TCHW := as_frames(values_T)) is not None:
            strips.append(_strip(label, frames_TCHW[own_T], is_pad_T[own_T]))
        elif np.issubdtype(values_T.dtype, np.number) or values_T.dtype == bool:
            values_TD = values_T.reshape(len(is_pad_T), -1)[own_T]
            plottable[name] = Plot(label, values_TD.astype(np.float64), is_pad_T[own_T])
    plots = [plottable[name] for name in pick_signals(list(plottable))]
    if "row_is_pad" in batch and bool(_numpy(batch["row_is_pad"])[b]):
        remarks.append("this row only fills up the last batch")
    return Panel(
        title=_title(batch, b, ref),
        captions_T=[_caption(batch, b, int(t), int(step_index_T[t])) for t in shown_T],
        strips=strips,
        plots=plots,
        remarks=remarks,
    )


def _newest(batch: Batch, name: str, values_T: NDArray, b: int) -> NDArray:
    """Return one row a place: of a stream with any number of rows there, the newest, or zeros where there is none."""
    if f"{name}_interval_is_pad" not in batch:
        return values_T
    count_T = _numpy(batch[f"{name}_count"])[b]
    if values_T.shape[1] == 0:
        return np.zeros((len(values_T), *values_T.shape[2:]), values_T.dtype)
    return np.asarray(values_T[np.arange(len(values_T)), np.maximum(count_T - 1, 0)])


def _strip(name: str, frames_TCHW: NDArray, is_pad_T: BoolArray) -> Strip:
    rgb_THWC, scale = to_rgb(frames_TCHW)
    return Strip(f"{name} ({scale})" if scale else name, rgb_THWC, is_pad_T)


def _title(batch: Batch, b: int, ref: WindowRef | None) -> str:
    parts = [f"row {b}"]
    if ref is not None:
        parts = [f"train_step {batch.train_step} row {b}", f"{ref.source} / {ref.episode_key}"]
        parts.append(f"steps [{ref.start}, {ref.stop}) window {ref.window_id} epoch {ref.epoch}")
    for name in batch.streams:
        value = batch[name]
        if isinstance(value, list) and isinstance(value[b], str) and value[b]:
            parts.append(f"“{value[b][:80]}”")
    return "   ".join(parts)


def _caption(batch: Batch, b: int, t: int, step: int) -> str:
    flags = [name for name in ("first", "last", "terminal") if bool(_numpy(batch[f"is_{name}"])[b, t])]
    return " ".join([str(step), *(f for f in flags if not (f == "last" and "terminal" in flags))])


def _is_pad(batch: Batch, name: str, b: int) -> BoolArray:
    return np.asarray(_numpy(batch[f"{name}_is_pad"])[b], dtype=bool)


def _numpy(value: Any) -> NDArray:
    """Return a tensor of any device as an array, without importing torch."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
