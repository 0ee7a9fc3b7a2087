"""Writes tiny LeRobot folders of every version, for tests. Loaded by path: tests are no package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HEIGHT, WIDTH = 32, 48
CAMERA = "observation.images.top"


def picture(episode: int, step: int) -> np.ndarray:
    """Return a frame (H, W, 3) that differs from that of every other step."""
    out = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    out[..., 0] = (np.arange(WIDTH) * 3 + step * 7) % 256
    out[..., 1] = (np.arange(HEIGHT)[:, None] * 5 + episode * 40) % 256
    out[:, (step * 2) % WIDTH, 2] = 255
    return out


def write_video(path: Path, frames: list[np.ndarray], fps: int = 20, gop: int = 12, b_frames: int = 2) -> None:
    """Write frames as H.264 in an mp4."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        options = {"crf": "30", "preset": "veryfast", "sc_threshold": "0", "threads": "1"}
        stream: Any = container.add_stream("libx264", rate=fps, options=options)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = gop
        stream.codec_context.max_b_frames = b_frames
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))


def columns(episode: int, length: int, first: int, fps: int) -> dict[str, pa.Array]:
    """Return the columns of one episode, values telling episode and step."""
    step = np.arange(length)
    state = (episode * 100 + step[:, None] + np.arange(3) / 10).astype(np.float32)
    action = (episode * 1000 + step[:, None] * 2 + np.arange(2)).astype(np.float64)
    return {
        "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(state.reshape(-1)), 3),
        "action": pa.array(action.tolist(), type=pa.list_(pa.float64())),
        "next.reward": pa.array(step.astype(np.float32)),
        "next.done": pa.array(step == length - 1),
        "timestamp": pa.array((step / fps).astype(np.float32)),
        "frame_index": pa.array(step),
        "episode_index": pa.array(np.full(length, episode)),
        "index": pa.array(first + step),
        "task_index": pa.array(np.full(length, episode % 2)),
    }


def features(camera: bool = True) -> dict[str, Any]:
    out: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": [["x", "y", "z"]]},
        "action": {"dtype": "float64", "shape": [2], "names": {"motors": ["left", "right"]}},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
    }
    if camera:
        names = ["height", "width", "channels"]
        out[CAMERA] = {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": names}
    for name, dtype in (("timestamp", "float32"), ("frame_index", "int64"), ("episode_index", "int64")):
        out[name] = {"dtype": dtype, "shape": [1], "names": None}
    for name in ("index", "task_index"):
        out[name] = {"dtype": "int64", "shape": [1], "names": None}
    return out


def info(version: str, lengths: list[int], fps: int, camera: bool) -> dict[str, Any]:
    v3 = version == "v3.0"
    return {
        "codebase_version": version,
        "robot_type": "test",
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": 2,
        "chunks_size": 2 if not v3 else 1000,
        "fps": fps,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        if v3
        else "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        if v3
        else "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": features(camera),
    }


TASKS = ["push the cube", "lift the cube"]


def make_v2(
    root: Path, lengths: list[int], *, version: str = "v2.1", fps: int = 20, camera: bool = True, gop: int = 12
) -> Path:
    """Write a v2.x folder: one parquet and one video per episode, two episodes a chunk."""
    meta = root / "meta"
    meta.mkdir(parents=True)
    (meta / "info.json").write_text(json.dumps(info(version, lengths, fps, camera)))
    (meta / "tasks.jsonl").write_text(
        "".join(json.dumps({"task_index": i, "task": t}) + "\n" for i, t in enumerate(TASKS))
    )
    rows, first = [], 0
    for episode, length in enumerate(lengths):
        rows.append(
            {"episode_index": episode, "tasks": [TASKS[episode % 2]], "length": length, "site": {"lab": episode}}
        )
        folder = root / "data" / f"chunk-{episode // 2:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns(episode, length, first, fps)), folder / f"episode_{episode:06d}.parquet")
        if camera:
            path = root / "videos" / f"chunk-{episode // 2:03d}" / CAMERA / f"episode_{episode:06d}.mp4"
            write_video(path, [picture(episode, s) for s in range(length)], fps, gop)
        first += length
    (meta / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def make_v3(
    root: Path,
    lengths: list[int],
    *,
    fps: int = 20,
    camera: bool = True,
    gop: int = 12,
    per_file: int = 3,
    per_video: int = 2,
    row_group: int | None = None,
) -> Path:
    """Write a v3.0 folder: `per_file` episodes in a parquet, `per_video` in a video; groups run across episodes."""
    meta = root / "meta"
    (meta / "episodes" / "chunk-000").mkdir(parents=True)
    (meta / "info.json").write_text(json.dumps(info("v3.0", lengths, fps, camera)))
    pq.write_table(pa.table({"task_index": [0, 1], "__index_level_0__": TASKS}), meta / "tasks.parquet")
    firsts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    for start in range(0, len(lengths), per_file):
        tables = [
            pa.table(columns(e, lengths[e], firsts[e], fps)) for e in range(start, min(start + per_file, len(lengths)))
        ]
        # Chunks hold two files here.
        number = start // per_file
        path = root / "data" / f"chunk-{number // 2:03d}" / f"file-{number % 2:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables(tables), path, row_group_size=row_group)
    rows: list[dict[str, Any]] = []
    for e, length in enumerate(lengths):
        data = e // per_file
        row: dict[str, Any] = {
            "episode_index": e,
            "tasks": [TASKS[e % 2]],
            "length": length,
            "data/chunk_index": data // 2,
            "data/file_index": data % 2,
            "dataset_from_index": firsts[e],
            "dataset_to_index": firsts[e + 1],
            "stats/action/mean": [0.0, 0.0],
        }
        if camera:
            before = sum(lengths[e // per_video * per_video : e])
            row |= {
                f"videos/{CAMERA}/chunk_index": 0,
                f"videos/{CAMERA}/file_index": e // per_video,
                f"videos/{CAMERA}/from_timestamp": before / fps,
                f"videos/{CAMERA}/to_timestamp": (before + length) / fps,
            }
        rows.append(row)
    half = max(1, len(rows) // 2)  # the table of episodes itself stands in several files
    for number, part in enumerate([rows[:half], rows[half:]]):
        if part:
            pq.write_table(pa.Table.from_pylist(part), meta / "episodes" / "chunk-000" / f"file-{number:03d}.parquet")
    if camera:
        for start in range(0, len(lengths), per_video):
            episodes = range(start, min(start + per_video, len(lengths)))
            frames = [picture(e, s) for e in episodes for s in range(lengths[e])]
            write_video(root / "videos" / CAMERA / "chunk-000" / f"file-{start // per_video:03d}.mp4", frames, fps, gop)
    return root


def edit_info(root: Path, **changes: Any) -> None:
    """Change fields of info.json."""
    path = root / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def add_column(
    root: Path, name: str, values: pa.Array, dtype: str, shape=(1,), file="chunk-000/episode_000000"
) -> None:
    """Add a column to one v2 data file and declare it in info.json."""
    path = root / "data" / f"{file}.parquet"
    pq.write_table(pq.read_table(path).append_column(name, values), path)
    info = root / "meta" / "info.json"
    raw = json.loads(info.read_text())
    raw["features"][name] = {"dtype": dtype, "shape": list(shape), "names": None}
    info.write_text(json.dumps(raw))
