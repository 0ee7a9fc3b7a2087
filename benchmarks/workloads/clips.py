"""Windows stored ready-made, for formats that hold samples: each with the packets it needs, not decoded again.

A clip is the mp4 bytes from the keyframe before the window to its last frame, copied packet by packet, and the number
of frames to skip. This suits the rivals best: they decode as few frames as anyone, at the price of storing each frame
once for every window that needs it. Windows are written in a random order, so that neighbours on disk are mixed.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from workloads.signals import make_signals
from workloads.spec import Data, Workload
from workloads.windows import epoch_order, locate

WRITE_ORDER_SEED = 1


class _Packets:
    """The packets of one file, and clips of them."""

    def __init__(self, path: Path) -> None:
        import av

        self.source = av.open(str(path))
        self.stream = self.source.streams.video[0]
        self.packets = [packet for packet in self.source.demux(self.stream) if packet.size]
        self.keyframes = [i for i, packet in enumerate(self.packets) if packet.is_keyframe]
        self.times = [(packet.pts, packet.dts) for packet in self.packets]

    def clip(self, start: int, stop: int) -> tuple[bytes, int]:
        """Return (mp4 bytes, frames to skip) of frames [start, stop). For files without reordered frames."""
        import av

        first = max(i for i in self.keyframes if i <= start)
        out = io.BytesIO()
        with av.open(out, "w", format="mp4") as target:
            stream = target.add_stream_from_template(self.stream, opaque=True)
            stream.time_base = self.stream.time_base
            for packet, (pts, dts) in zip(self.packets[first:stop], self.times[first:stop], strict=True):
                packet.pts, packet.dts = pts - self.times[first][0], dts - self.times[first][1]
                packet.stream = stream
                target.mux(packet)
        return out.getvalue(), start - first


def clips(workload: Workload, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield every window as a flat dict of ints and bytes, in a random order."""
    data: Data = workload.data
    files: dict[tuple[str, int], _Packets] = {}
    signals = [make_signals(data, episode) for episode in range(data.num_episodes)] if workload.signal_steps else []
    for window in epoch_order(workload, 0, WRITE_ORDER_SEED).tolist():
        episode, start = locate(workload, window)
        sample: dict[str, Any] = {"window": window}
        for camera in workload.cameras:
            if (camera, episode) not in files:
                files[camera, episode] = _Packets(data.mp4(folder, camera, episode))
            clip, skip = files[camera, episode].clip(start, start + workload.frame_steps)
            sample |= {camera: clip, f"{camera}.skip": skip}
        for name, steps in workload.signal_steps.items():
            sample[name] = signals[episode][name][start : start + steps].tobytes()
        yield sample


def open_clip(workload: Workload, sample: dict[str, Any], decode: Callable[[bytes, int, int], Any]) -> dict[str, Any]:
    """Return a stored window as arrays; `decode(mp4 bytes, first, end)` gives the frames."""
    out = {
        camera: decode(
            sample[camera], int(sample[f"{camera}.skip"]), int(sample[f"{camera}.skip"]) + workload.frame_steps
        )
        for camera in workload.cameras
    }
    for name, steps in workload.signal_steps.items():
        out[name] = np.frombuffer(bytearray(sample[name]), np.float32).reshape(steps, -1)
    return out


def pack(sample: dict[str, Any]) -> bytes:
    """Return a clip as bytes: length of the header, header (JSON), payloads."""
    header = json.dumps([[name, value if isinstance(value, int) else [len(value)]] for name, value in sample.items()])
    payload = [value for value in sample.values() if not isinstance(value, int)]
    return b"".join([struct.pack("<I", len(header)), header.encode(), *payload])


def unpack(record: bytes) -> dict[str, Any]:
    """Undo `pack`."""
    (length,) = struct.unpack_from("<I", record)
    place, out = 4 + length, {}
    for name, value in json.loads(record[4:place]):
        if isinstance(value, list):
            out[name] = record[place : place + value[0]]
            place += value[0]
        else:
            out[name] = value
    return out
