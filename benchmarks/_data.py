"""Seeded video data for benchmarks: a native dataset, and the same mp4 files loose for loaders that want files."""

from __future__ import annotations

import tarfile
from fractions import Fraction
from pathlib import Path

import numpy as np
from workloads import barcode

from trajload import Modality, StreamSpec, Writer
from trajload.rng import key_rng
from trajload.shards.video_encode import VideoEncode


def make_pictures(episode: int, num_steps: int, height: int, width: int, view: int = 0) -> np.ndarray:
    """Return (N, H, W, 3) uint8: drifting smooth texture, moving blobs, sensor noise: neither flat nor white noise.

    A barcode in the corner tells episode and frame; `view` is the camera, of which the barcode knows nothing.
    """
    rng = key_rng(0, "bench-video", episode, *([view] if view else []))
    coarse = rng.uniform(0, 255, (height // 20 + 4, width // 20 + 4, 3)).astype(np.float32)
    ys = np.linspace(0, coarse.shape[0] - 2.001, height + num_steps // 4 + 1, dtype=np.float32)
    xs = np.linspace(0, coarse.shape[1] - 2.001, width + num_steps + 1, dtype=np.float32)
    y0, x0 = ys.astype(int), xs.astype(int)
    fy, fx = (ys - y0)[:, None, None], (xs - x0)[None, :, None]
    big = (coarse[y0][:, x0] * (1 - fy) + coarse[y0 + 1][:, x0] * fy) * (1 - fx) + (
        coarse[y0][:, x0 + 1] * (1 - fy) + coarse[y0 + 1][:, x0 + 1] * fy
    ) * fx
    noise = rng.normal(0, 3, (8, height, width, 1)).astype(np.float32)
    yy, xx = np.mgrid[:height, :width]
    blobs = rng.uniform(0, 1, (4, 6))
    out = np.empty((num_steps, height, width, 3), np.uint8)
    for i in range(num_steps):
        frame = big[i // 4 : i // 4 + height, i : i + width] + noise[i % 8]
        for cy, cx, vy, vx, r, shade in blobs:
            y = (cy * height + (vy - 0.5) * 4 * i) % height
            x = (cx * width + (vx - 0.5) * 6 * i) % width
            frame[(yy - y) ** 2 + (xx - x) ** 2 < (8 + 24 * r) ** 2] = 255 * shade
        out[i] = np.clip(frame, 0, 255)
        barcode.draw(out[i], episode, i)
    return out


def read_barcode(frame_CHW: np.ndarray) -> tuple[int, int]:
    """Return (episode, frame) burnt into a picture."""
    return barcode.read(np.asarray(frame_CHW))


def make_video_dataset(
    out: Path,
    *,
    num_episodes: int = 40,
    num_steps: int = 300,
    height: int = 240,
    width: int = 320,
    gop: int = 10,
    crf: int = 23,
) -> Path:
    """Write `out/native` and `out/files/NNN.mp4` (the very bytes of the shard); does nothing where both are complete."""
    done = out / "complete"
    if done.exists():
        return out
    spec = StreamSpec(name="cam", modality=Modality.RGB, encoding="mp4", shape=(height, width, 3), dtype="uint8")
    action = StreamSpec(name="action", modality=Modality.ACTION, encoding="npy", shape=(7,), dtype="float32")
    with Writer(
        out / "native",
        streams=[spec, action],
        step_rate_hz=Fraction(30),
        video={"cam": VideoEncode(codec="h264", gop=gop, crf=crf)},
    ) as writer:
        for episode in range(num_episodes):
            rng = key_rng(0, "bench-action", episode)
            writer.add_episode(
                {
                    "cam": make_pictures(episode, num_steps, height, width),
                    "action": rng.normal(size=(num_steps, 7)).astype(np.float32),
                },
                key=f"ep{episode:05d}",
            )
    (out / "files").mkdir(exist_ok=True)
    for shard in sorted((out / "native" / "shards").glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".mp4"):
                    key = Path(member.name).name.split(".")[0]
                    (out / "files" / f"{int(key.removeprefix('ep')):05d}.mp4").write_bytes(
                        tar.extractfile(member).read()
                    )  # type: ignore[union-attr]
    done.touch()
    return out
