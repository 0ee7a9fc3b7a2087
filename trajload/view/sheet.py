"""Draws a contact sheet: panels from top to bottom, in each one strip per camera and one plot per signal."""

# Shapes: T steps shown, H height, W width, C channels, D signal size

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from trajload.errors import ConfigError
from trajload.storage.atomic import write_atomic
from trajload.types import BoolArray, NDArray, PathLikeStr
from trajload.view.pixels import resize, tile_size

__all__ = ["Panel", "Plot", "Strip", "draw_sheet"]

_BACKGROUND, _INK, _FAINT, _ALARM = (250, 250, 248), (20, 20, 20), (130, 130, 130), (200, 40, 40)
_LINES = ((31, 119, 180), (214, 90, 20), (44, 140, 44), (140, 80, 170), (160, 60, 60), (110, 110, 110))
_FONT_PX, _LINE_PX, _GAP_PX, _PLOT_PX, _MAX_LINES = 11, 14, 4, 44, 12


@dataclass(frozen=True, slots=True)
class Strip:
    """Frames of one camera, one tile per step shown."""

    label: str
    frames_THWC: NDArray
    """uint8 RGB."""
    is_pad_T: BoolArray


@dataclass(frozen=True, slots=True)
class Plot:
    """One signal over the steps shown, a line per component."""

    label: str
    values_TD: NDArray
    is_pad_T: BoolArray


@dataclass(frozen=True, slots=True)
class Panel:
    """One window: title, captions under each step, strips and plots."""

    title: str
    captions_T: Sequence[str]
    strips: Sequence[Strip] = ()
    plots: Sequence[Plot] = ()
    remarks: Sequence[str] = field(default=())


def draw_sheet(panels: Sequence[Panel], path: PathLikeStr, *, tile: int = 96) -> None:
    """Draw `panels` into the PNG file `path`, atomically; missing folders are made.

    Args:
        panels: At least one; each with at least one step.
        path: File to write.
        tile: Longer side of a frame on the sheet, in pixels.
    """
    if not panels:
        raise ConfigError("nothing to draw: expected at least one window.")
    if tile < 16:
        raise ConfigError(f"tile={tile!r} is too small: expected at least 16 pixels.")
    drawn = [_draw_panel(panel, tile) for panel in panels]
    width = max(image.width for image in drawn)
    height = sum(image.height for image in drawn) + _GAP_PX * (len(drawn) - 1)
    sheet = Image.new("RGB", (width, height), _BACKGROUND)
    top = 0
    for image in drawn:
        sheet.paste(image, (0, top))
        top += image.height + _GAP_PX
    png = io.BytesIO()
    sheet.save(png, format="PNG")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, png.getvalue())


def _draw_panel(panel: Panel, tile: int) -> Image.Image:
    font = ImageFont.load_default(size=_FONT_PX)
    tiles = [tile_size(strip.frames_THWC.shape[1], strip.frames_THWC.shape[2], tile) for strip in panel.strips]
    column = max([tile, *(w for _, w in tiles)]) + _GAP_PX
    lines = [panel.title, *panel.remarks]
    labels = [strip.label for strip in panel.strips] + [plot.label for plot in panel.plots]
    text_px = max(int(font.getlength(line)) for line in lines + labels)
    lengths = [len(strip.frames_THWC) for strip in panel.strips] + [len(plot.values_TD) for plot in panel.plots]
    num_columns = max([len(panel.captions_T), *lengths])
    width = max(column * num_columns, text_px) + 2 * _GAP_PX
    height = _LINE_PX * len(lines) + sum(h + _LINE_PX + _GAP_PX for h, _ in tiles)
    height += len(panel.plots) * (_PLOT_PX + _LINE_PX + _GAP_PX) + _LINE_PX + 2 * _GAP_PX
    image = Image.new("RGB", (width, height), _BACKGROUND)
    pen = ImageDraw.Draw(image)
    top = _GAP_PX
    for i, line in enumerate(lines):
        pen.text((_GAP_PX, top), line, fill=_INK if i == 0 else _ALARM, font=font)
        top += _LINE_PX
    for strip, (tile_h, tile_w) in zip(panel.strips, tiles, strict=True):
        pen.text((_GAP_PX, top), strip.label, fill=_FAINT, font=font)
        top += _LINE_PX
        for t, frame_HWC in enumerate(strip.frames_THWC):
            left = _GAP_PX + t * column
            image.paste(resize(frame_HWC, tile_h, tile_w), (left, top))
            if strip.is_pad_T[t]:
                _cross_out(pen, left, top, tile_w, tile_h)
        top += tile_h + _GAP_PX
    for plot in panel.plots:
        pen.text((_GAP_PX, top), plot.label, fill=_FAINT, font=font)
        top += _LINE_PX
        _draw_plot(pen, plot, top, column)
        top += _PLOT_PX + _GAP_PX
    for t, caption in enumerate(panel.captions_T):
        pen.text((_GAP_PX + t * column, top), _fit(caption, column - _GAP_PX, font), fill=_INK, font=font)
    return image


def _cross_out(pen: ImageDraw.ImageDraw, left: int, top: int, width: int, height: int) -> None:
    """Mark a tile that is no real data: a frame and a cross, so that a repeated last frame is not taken for one."""
    right, bottom = left + width - 1, top + height - 1
    pen.rectangle((left, top, right, bottom), outline=_ALARM, width=2)
    pen.line((left, top, right, bottom), fill=_ALARM)
    pen.line((left, bottom, right, top), fill=_ALARM)


def _draw_plot(pen: ImageDraw.ImageDraw, plot: Plot, top: int, column: int) -> None:
    values_TD = np.asarray(plot.values_TD, dtype=np.float64)[:, :_MAX_LINES]
    num_steps = len(values_TD)
    pen.rectangle((_GAP_PX, top, _GAP_PX + column * num_steps - _GAP_PX, top + _PLOT_PX - 1), outline=(215, 215, 215))
    is_real_TD = np.isfinite(values_TD) & ~np.asarray(plot.is_pad_T)[:, None]
    if not is_real_TD.any():
        return
    low, high = values_TD[is_real_TD].min(), values_TD[is_real_TD].max()
    span = high - low if high > low else 1.0
    for d in range(values_TD.shape[1]):
        colour = _LINES[d % len(_LINES)]
        points: list[tuple[float, float]] = []
        for t in range(num_steps):
            if not is_real_TD[t, d]:
                points = []
                continue
            y = top + _PLOT_PX - 4 - (values_TD[t, d] - low) / span * (_PLOT_PX - 8)
            points.append((_GAP_PX + (t + 0.5) * column, y))
            pen.ellipse((points[-1][0] - 1, y - 1, points[-1][0] + 1, y + 1), fill=colour)
            if len(points) > 1:
                pen.line((points[-2], points[-1]), fill=colour)


def _fit(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Return `text`, cut with an ellipsis where it is wider than `width` pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
