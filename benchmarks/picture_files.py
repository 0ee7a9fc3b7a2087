"""Encoded pictures and depth: each way to decode them that was considered, per picture, one thread.

    python benchmarks/picture_files.py                 # writes benchmarks/results/picture_files.json
    python benchmarks/picture_files.py --json out.json --repeats 9

JPEG: Pillow against simplejpeg, whole and scaled by the DCT, each ending with planar RGB in an array that exists already.
PNG: Pillow against our own decoder. Depth: 16-bit PNG, FFV1 video of gray16 and zstd chunks of the same frames. All outputs are
compared before anything is timed; CPU time of the thread; warm cache. Pictures are generated: a camera's are about as hard.
"""

from __future__ import annotations

import argparse
import io
from fractions import Fraction
from typing import Any

import av
import numpy as np
import xxhash
from _common import cpu_microseconds, write_result
from PIL import Image as PillowImage

from trajload.decode import DecodeContext, decode_rows, plan_reads
from trajload.decode.image import write_image
from trajload.refs import ByteRange, ChunkTrack, ImageTrack, Track, VideoTrack
from trajload.shards.video_index import build_video_index
from trajload.shards.zst import compress_rows
from trajload.spec import Image, Signal, StreamSpec
from trajload.types import Modality

SIZES = [(240, 320), (480, 640), (720, 1280)]
SCALED = (112, 112)
DEPTH = (480, 640)
NUM_DEPTH = 8


class Memory:
    """A byte store over one blob."""

    root = "memory"

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, where: ByteRange) -> bytes:
        return self.data[where.offset : where.offset + where.size]

    def size(self, file: str) -> int:
        return len(self.data)

    def close(self) -> None:
        pass


def colour(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    noise = np.random.default_rng(0).normal(0, 4, (height, width, 3))
    base = np.stack([np.sin(5 * x + 2 * y), np.cos(4 * y - x), np.sin(3 * (x + y))], axis=-1) * 100 + 128
    return np.clip(base + noise, 0, 255).astype(np.uint8)


def depth_frames() -> np.ndarray:
    """Return millimetres (N, H, W) of slanted planes with holes and sensor noise."""
    rng = np.random.default_rng(1)
    y, x = np.mgrid[0 : DEPTH[0], 0 : DEPTH[1]]
    frames = []
    for i in range(NUM_DEPTH):
        planes = 900 + 2 * y + 3 * ((x + 5 * i) % 200) + 400 * ((x // 160 + y // 120) % 3)
        noisy = planes + rng.integers(0, 3, DEPTH)
        noisy[(x // 40 + y // 30 + i) % 11 == 0] = 0
        frames.append(noisy.astype(np.uint16))
    return np.stack(frames)


def saved(array: np.ndarray, fmt: str, **kwargs: Any) -> bytes:
    buffer = io.BytesIO()
    PillowImage.fromarray(array).save(buffer, fmt, **kwargs)
    return buffer.getvalue()


def jpeg_case(height: int, width: int, repeats: int) -> dict[str, Any]:
    data = saved(colour(height, width), "JPEG", quality=90)
    spec = StreamSpec(name="c", modality=Modality.RGB, encoding="jpg", shape=(height, width, 3), dtype="uint8")
    pillow, fast = DecodeContext(use_simplejpeg=False), DecodeContext()
    if fast.fast_jpeg() is None:
        raise SystemExit(fast.jpeg_reason)
    result: dict[str, Any] = {"size": [height, width], "bytes": len(data)}
    for name, size, scaling in (("whole", None, False), ("resized", SCALED, False), ("scaled", SCALED, True)):
        request, outs = Image(size=size, jpeg_scaling=scaling), []
        for who, context in (("pillow", pillow), ("simplejpeg", fast)):
            out = np.zeros((3, *(size or (height, width))), np.uint8)

            def work(context: DecodeContext = context, out: np.ndarray = out, request: Image = request) -> None:
                write_image(data, "jpg", out, "picture", spec=spec, request=request, context=context)

            result[f"{name}_{who}_us"] = cpu_microseconds(work, repeats)
            outs.append(out)
        if not np.array_equal(*outs):
            raise SystemExit(f"JPEG {height}x{width} {name}: Pillow and simplejpeg differ")
    return result


def png_case(name: str, array: np.ndarray, repeats: int) -> dict[str, Any]:
    data, is_depth = saved(array, "PNG"), array.ndim == 2
    shape = (*array.shape, 1) if is_depth else array.shape
    modality = Modality.DEPTH if is_depth else Modality.RGB
    spec = StreamSpec(name="c", modality=modality, encoding="png", shape=shape, dtype=str(array.dtype))
    out, context = np.zeros((shape[2], *shape[:2]), array.dtype), DecodeContext()
    other = np.zeros_like(out)

    def ours() -> None:
        write_image(data, "png", out, "picture", spec=spec, request=Image(), context=context)

    def pillow() -> None:
        with PillowImage.open(io.BytesIO(data), formats=("PNG",)) as image:
            picture = np.asarray(image)
        other[...] = picture[None] if is_depth else picture.transpose(2, 0, 1)

    ours()
    pillow()
    if not np.array_equal(out, other):
        raise SystemExit(f"PNG {name}: Pillow and ours differ")
    return {
        "name": name,
        "bytes": len(data),
        "ours_us": cpu_microseconds(ours, repeats),
        "pillow_us": cpu_microseconds(pillow, repeats),
    }


def depth_tracks(frames: np.ndarray) -> list[tuple[str, Track, bytes, StreamSpec]]:
    picture = {"name": "d", "modality": Modality.DEPTH, "shape": (*DEPTH, 1), "dtype": "uint16"}
    pngs = [saved(frame, "PNG") for frame in frames]
    sizes = np.array([len(p) for p in pngs], np.int64)
    sums = np.array([xxhash.xxh3_64_intdigest(p) for p in pngs], np.uint64)
    images = ImageTrack("d", "png", (*DEPTH, 1), np.cumsum(sizes) - sizes, sizes, sums)
    member, detail = compress_rows(frames)
    chunks = ChunkTrack(
        "d", frames.dtype, DEPTH, len(frames), detail.rows_per_chunk, detail.offset_K, detail.size_K, detail.checksum_K
    )
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as output:
        stream: Any = output.add_stream("ffv1", rate=30)
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = DEPTH[1], DEPTH[0], "gray16le"
        context.gop_size, context.thread_count = 1, 1
        for i, frame in enumerate(frames):
            made = av.VideoFrame.from_ndarray(frame, format="gray16le")
            made.pts, made.time_base = i, Fraction(1, 30)
            output.mux(stream.encode(made))
        output.mux(stream.encode(None))
    video = buffer.getvalue()
    return [
        ("png16", images, b"".join(pngs), StreamSpec(encoding="png", **picture)),
        ("ffv1", VideoTrack("d", build_video_index(video), 0, len(frames)), video, StreamSpec(encoding="mkv", **picture)),
        ("npy.zst", chunks, member, StreamSpec(encoding="npy.zst", **{**picture, "shape": DEPTH})),
    ]  # fmt: skip


def depth_cases(repeats: int) -> list[dict[str, Any]]:
    frames, rows, results = depth_frames(), np.arange(NUM_DEPTH), []
    for name, track, data, spec in depth_tracks(frames):
        store, context = Memory(data), DecodeContext()
        blobs = [store.read(where) for where in plan_reads(track, rows)]
        shape = (NUM_DEPTH, 1, *DEPTH) if spec.is_picture else (NUM_DEPTH, *DEPTH)
        out, request = np.zeros(shape, np.uint16), Image() if spec.is_picture else Signal()

        def work() -> None:
            decode_rows(track, rows, blobs, out, spec=spec, request=request, store=store, context=context)  # noqa: B023

        work()
        if not np.array_equal(out.reshape(frames.shape), frames):
            raise SystemExit(f"depth {name} is not exact")
        results.append(
            {"name": name, "bytes_per_frame": len(data) // NUM_DEPTH, "us": cpu_microseconds(work, repeats, NUM_DEPTH)}
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="where to write the result")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    pngs = [("rgb 480x640", colour(480, 640)), ("rgb 240x320", colour(240, 320)), ("depth 480x640", depth_frames()[0])]
    result = {
        "jpeg": [jpeg_case(*size, args.repeats) for size in SIZES],
        "png": [png_case(name, array, args.repeats) for name, array in pngs],
        "depth": depth_cases(args.repeats),
    }
    print(write_result("picture_files", result, args.json))


if __name__ == "__main__":
    main()
