"""Helpers of the decode tests: tiny videos of every kind, a store in memory, a plain sequential decode to compare with."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest

from trajload.decode import DecodeContext, decode_rows, plan_reads, row_shape
from trajload.errors import ShardCorruptError
from trajload.refs import ByteRange, VideoTrack
from trajload.shards.video_index import build_video_index
from trajload.spec import Image, Signal, StreamSpec
from trajload.types import Modality


class MemoryStore:
    """A byte store over one blob, whatever the file is called; counts its reads."""

    def __init__(self, data: bytes, root: str = "memory") -> None:
        self.data = data
        self.root = root
        self.reads: list[ByteRange] = []

    def read(self, where: ByteRange) -> bytes:
        self.reads.append(where)
        if where.offset + where.size > len(self.data):
            raise ShardCorruptError(f"truncated: got {len(self.data)} bytes, expected {where.offset + where.size}")
        return self.data[where.offset : where.offset + where.size]

    def size(self, file: str) -> int:
        return len(self.data)

    def close(self) -> None:
        pass


def raw_planes(frame: av.VideoFrame) -> bytes:
    """Return every plane's bytes, cropped to the picture."""
    out = []
    for i, plane in enumerate(frame.planes):
        component = next(c for c in frame.format.components if c.plane == i)
        packed = sum(c.plane == i for c in frame.format.components) if len(frame.planes) == 1 else 1
        row_bytes = component.width * packed * ((component.bits + 7) // 8)
        rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        out.append(rows[: component.height, :row_bytes].tobytes())
    return b"".join(out)


def sequential(source: Any, stream_index: int | None = None) -> list[tuple[int, bytes]]:
    """Return (pts, planes) of every frame of a plain PyAV decode, up to the first error."""
    out: list[tuple[int, bytes]] = []
    with av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source)) as container:
        stream = container.streams[stream_index] if stream_index is not None else container.streams.best("video")
        stream.codec_context.thread_count = 1
        try:
            for packet in container.demux(stream):
                out += [(frame.pts, raw_planes(frame)) for frame in packet.decode()]
        except av.FFmpegError:
            pass
    return out


def scene(count: int, height: int, width: int) -> list[np.ndarray]:
    """Return colour frames (H, W, 3) in which every frame differs and blocks move."""
    y, x = np.mgrid[0:height, 0:width]
    rng = np.random.default_rng(3)
    texture = rng.integers(0, 120, (height, width, 3))
    frames = []
    for i in range(count):
        picture = np.stack([x * 2 + 5 * i, y * 3 + 7 * i, (x + y) * 2 - 3 * i], axis=-1) % 120 + np.roll(
            texture, i, axis=1
        )
        picture[(3 * i) % height, :, :] = (i * 37) % 256
        frames.append(picture.astype(np.uint8))
    return frames


@dataclass(frozen=True)
class Recipe:
    """How a tiny video is made."""

    name: str
    encoder: str
    container: str = "mp4"
    pix_fmt: str = "yuv420p"
    count: int = 36
    gop: int = 12
    size: tuple[int, int] = (48, 64)
    options: tuple[tuple[str, str], ...] = ()
    mux: tuple[tuple[str, str], ...] = ()
    first_tick: int = 0
    tick: int = 1
    """Units of the time base, in 1/3000 s: AVI stores an empty packet for every unit without a frame."""
    ticks: str = "even"
    """'even', or 'jitter' for a variable frame rate."""


def make_video(recipe: Recipe) -> bytes:
    """Return the bytes of the recipe's video, made with PyAV alone."""
    buffer = io.BytesIO()
    height, width = recipe.size
    with av.open(buffer, "w", format=recipe.container, options={"fflags": "+bitexact", **dict(recipe.mux)}) as output:
        stream: Any = output.add_stream(recipe.encoder, rate=30, options=dict(recipe.options))
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = width, height, recipe.pix_fmt
        context.gop_size, context.thread_count = recipe.gop, 1
        context.time_base = Fraction(recipe.tick, 3000)
        tick = recipe.first_tick
        for i, array in enumerate(scene(recipe.count, height, width)):
            frame = av.VideoFrame.from_ndarray(array, format="rgb24").reformat(format=recipe.pix_fmt)
            frame.pts, frame.time_base = tick, Fraction(1, 3000)
            tick += 100 if recipe.ticks == "even" else (40, 260, 100, 33, 900)[i % 5]
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return buffer.getvalue()


def whole_track(data: bytes, **kwargs: Any) -> VideoTrack:
    index = build_video_index(data, **kwargs)
    return VideoTrack("video", index, 0, index.num_frames)


def video_spec(track: VideoTrack, modality: Modality = Modality.RGB, dtype: str = "uint8") -> StreamSpec:
    index = track.index
    size = (index.width, index.height) if index.rotation in (90, 270) else (index.height, index.width)
    channels = 3 if modality is Modality.RGB else 1
    return StreamSpec(name="cam", modality=modality, encoding="mp4", shape=(*size, channels), dtype=dtype)


def get_rows(
    track: Any, data: bytes, rows: Any, spec: StreamSpec, request: Any = None, context: Any = None
) -> np.ndarray:
    """Return decode_rows' output for `rows`, read through a MemoryStore."""
    store = MemoryStore(data)
    request = request or (Image() if spec.is_picture else Signal())
    rows = np.asarray(rows, dtype=np.int64)
    shape, dtype = row_shape(spec, request)
    out = np.full((len(rows), *shape), 77, dtype)
    blobs = [store.read(r) for r in plan_reads(track, rows)]
    decode_rows(track, rows, blobs, out, spec=spec, request=request, store=store, context=context or DecodeContext())
    return out


@pytest.fixture(params=["libav", "pyav"])
def context(request: pytest.FixtureRequest) -> Iterator[DecodeContext]:
    """A context of either engine: what holds for one must hold for the other."""
    found = DecodeContext(engine=request.param)
    yield found
    found.close()


@pytest.fixture(scope="session")
def tools() -> Any:
    """The helpers above, as one namespace: test modules cannot import from conftest."""
    from types import SimpleNamespace

    return SimpleNamespace(
        MemoryStore=MemoryStore,
        Recipe=Recipe,
        get_rows=get_rows,
        make_video=make_video,
        raw_planes=raw_planes,
        scene=scene,
        sequential=sequential,
        video_spec=video_spec,
        whole_track=whole_track,
    )


@pytest.fixture(scope="module")
def video() -> tuple[bytes, VideoTrack]:
    """An H.264 video with B-frames, and its track."""
    data = make_video(Recipe(name="v", encoder="libx264", options=(("bf", "2"), ("sc_threshold", "0"))))
    return data, whole_track(data)
