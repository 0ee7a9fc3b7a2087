"""Sequential video reading with PyAV, as torchvision's `pyav` backend offers it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import av
import torch


class VideoReader:
    """Iterates over decoded frames: {"data": uint8 (C, H, W), "pts": seconds}. `seek` goes to the keyframe before."""

    def __init__(self, src: str, stream: str = "video", num_threads: int = 0) -> None:
        self.container = av.open(src)
        self._stream = self.container.streams.video[0]
        self._frames: Iterator[Any] = self.container.decode(self._stream)

    def seek(self, time_s: float, keyframes_only: bool = False) -> VideoReader:
        self.container.seek(int(time_s / self._stream.time_base), stream=self._stream, backward=True)
        self._frames = self.container.decode(self._stream)
        return self

    def __iter__(self) -> VideoReader:
        return self

    def __next__(self) -> dict[str, Any]:
        frame = next(self._frames)
        picture = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
        return {"data": picture, "pts": float(frame.pts * frame.time_base)}
