"""What a batch must hold: which windows, the right frame at each place, its colours, and the signals' very values.

The reference decodes whole files with PyAV, from the first frame to the last, without any seeking.
"""

# Shapes: N steps, B windows, T steps of a window, C channels, H height, W width, D signal size

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from workloads import barcode
from workloads.signals import make_signals
from workloads.spec import Workload

MAX_MEAN_DIFF, MIN_PSNR_DB = 1.0, 42.0
"""Colours at stored size: how far a loader may be from swscale's."""
MAX_MEAN_DIFF_RESIZED = 4.0
"""Filters differ (area, bilinear, bicubic): a sanity bound only."""


class WrongBatchError(Exception):
    """A loader delivered something else than it was asked for."""


def decode_file(path: Path, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return all frames of a file, uint8 RGB (N, C, H, W), resized with an antialiased bilinear filter if asked."""
    import av

    with av.open(str(path)) as container:
        pictures = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    pictures_NCHW = np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))
    return pictures_NCHW if size is None else resize(pictures_NCHW, size)


def resize(pictures_NCHW: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return uint8 pictures resized with torch's antialiased bilinear filter."""
    import torch

    values = torch.from_numpy(pictures_NCHW).float()
    values = torch.nn.functional.interpolate(values, size=size, mode="bilinear", antialias=True)
    return values.round_().clamp_(0, 255).to(torch.uint8).numpy()


def as_pictures(value: Any) -> np.ndarray:
    """Return what a loader delivered for a camera as uint8 (B, T, C, H, W)."""
    pictures = np.asarray(value)
    if pictures.ndim == 4:  # one frame a window, its axis dropped
        pictures = pictures[:, None]
    if pictures.shape[2] != 3 and pictures.shape[-1] == 3:
        pictures = np.moveaxis(pictures, -1, 2)
    if pictures.dtype != np.uint8:
        if float(pictures.max()) > 1.0001:
            raise WrongBatchError(
                f"pictures are {pictures.dtype} up to {pictures.max()}: expected uint8, or floats in [0, 1]."
            )
        pictures = np.rint(pictures * 255).astype(np.uint8)
    return pictures


class Truth:
    """Checks batches of one workload, and remembers what it saw."""

    def __init__(self, workload: Workload, data: Path, pixel_rows: int = 4) -> None:
        self.workload, self.data = workload, data
        self.pixel_rows = pixel_rows
        """Rows of the first batch whose colours are compared; frame numbers are read in every picture."""
        self.num_frames, self.num_values = 0, 0
        self.worst_mean_diff, self.worst_psnr_db = 0.0, np.inf
        self.distinct: list[int] = []
        self.windows: list[tuple[int, int]] = []

    def check(self, batch: dict[str, Any]) -> None:
        """Raise WrongBatchError unless the batch holds whole, right windows."""
        work = self.workload
        pictures = {camera: as_pictures(batch[camera]) for camera in work.cameras}
        signals = {name: np.asarray(batch[name], np.float32) for name in work.signal_steps}
        height, width = work.size or (work.data.height, work.data.width)
        expected = dict.fromkeys(pictures, (work.batch, work.frame_steps, 3, height, width))
        expected |= {name: (work.batch, steps, work.data.signals[name]) for name, steps in work.signal_steps.items()}
        for name, value in {**pictures, **signals}.items():
            if value.shape != expected[name]:
                raise WrongBatchError(f"{name!r} has shape {value.shape}, expected {expected[name]}.")
        rows = self.identify(batch)
        for b, (episode, start) in enumerate(rows):
            if not (0 <= episode < work.data.num_episodes and 0 <= start < work.starts):
                raise WrongBatchError(f"row {b} starts at step {start} of episode {episode}: there is no such window.")
            for camera, value in pictures.items():
                self._check_frames(camera, value[b], episode, start)
            for name, value in signals.items():
                wanted = make_signals(work.data, episode)[name][start : start + value.shape[1]]
                if not np.array_equal(wanted, value[b]):
                    raise WrongBatchError(
                        f"row {b}, {name!r}: values differ from those of episode {episode} at {start}."
                    )
                self.num_values += wanted.size
        if not self.windows:
            self._check_colours(pictures, rows)
        self.distinct.append(len({episode for episode, _ in rows}))
        self.windows += rows

    def identify(self, batch: dict[str, Any]) -> list[tuple[int, int]]:
        """Return (episode, first step) of each row, as the data themselves tell."""
        work = self.workload
        if work.cameras:
            first = as_pictures(batch[work.cameras[0]])[:, 0]
            return [barcode.read(picture, self._stored) for picture in first]
        name = next(name for name in work.signal_steps if work.data.signals[name] >= 2)
        values = np.asarray(batch[name])[:, 0, :2]
        return [(int(episode), int(step)) for episode, step in values]

    @property
    def _stored(self) -> tuple[int, int] | None:
        return (self.workload.data.height, self.workload.data.width) if self.workload.size else None

    def _check_frames(self, camera: str, pictures_TCHW: np.ndarray, episode: int, start: int) -> None:
        for t, picture in enumerate(pictures_TCHW):
            got = barcode.read(picture, self._stored)
            if got != (episode, start + t):
                raise WrongBatchError(f"{camera!r}: got frame {got}, expected {(episode, start + t)}.")
            self.num_frames += 1

    def _check_colours(self, pictures: dict[str, np.ndarray], rows: list[tuple[int, int]]) -> None:
        for camera, value in pictures.items():
            for b, (episode, start) in enumerate(rows[: self.pixel_rows]):
                whole = decode_file(self.workload.data.mp4(self.data, camera, episode))[start : start + value.shape[1]]
                wanted = whole if self.workload.size is None else resize(whole, self.workload.size)
                diff = wanted.astype(np.float64) - value[b]
                self.worst_mean_diff = max(self.worst_mean_diff, float(np.abs(diff).mean()))
                mse = max(float((diff**2).mean()), 1e-12)
                self.worst_psnr_db = min(self.worst_psnr_db, 10 * float(np.log10(255.0**2 / mse)))
        limit = MAX_MEAN_DIFF if self.workload.size is None else MAX_MEAN_DIFF_RESIZED
        if self.worst_mean_diff > limit or (self.workload.size is None and self.worst_psnr_db < MIN_PSNR_DB):
            raise WrongBatchError(
                f"colours differ: mean {self.worst_mean_diff:.2f} grey levels (limit {limit}), PSNR {self.worst_psnr_db:.1f} dB."
            )

    def report(self) -> dict[str, Any]:
        """Return what was compared, for the result file."""
        out: dict[str, Any] = {
            "windows": len(self.windows),
            "distinct_windows": len(set(self.windows)),
            "frames": self.num_frames,
            "values": self.num_values,
            "distinct_episodes_per_batch": float(np.mean(self.distinct)),
            "distinct_episodes_uniform": uniform_distinct(self.workload),
        }
        if self.workload.cameras:
            # Bit-equal pictures have no PSNR to speak of; 120 dB stands for it, since JSON knows no infinity.
            out |= {"mean_abs_diff": self.worst_mean_diff, "psnr_db": min(self.worst_psnr_db, 120.0)}
        return out


def uniform_distinct(workload: Workload) -> float:
    """Return how many episodes a batch of uniformly drawn windows comes from, on average."""
    episodes = workload.data.num_episodes
    return episodes * (1 - (1 - 1 / episodes) ** workload.batch)
