"""The generated data in the formats that rivals read. Each is written once and kept beside the native data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workloads.clips import clips
from workloads.signals import make_signals
from workloads.spec import FPS, Workload

NUM_TARS = 8


def lerobot_key(name: str) -> str:
    """Return the feature name that LeRobot data sets use for one of our cameras or signals."""
    known = {"action": "action", "reward": "next.reward", "state": "observation.state", "obs": "observation.state"}
    return known.get(name, f"observation.images.{name}")


def _lerobot(workload: Workload, folder: Path, out: Path) -> None:
    """LeRobot v3: one video file an episode (the very bytes), one parquet file."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = workload.data
    total = data.num_episodes * data.num_steps
    features: dict[str, Any] = {
        lerobot_key(camera): {
            "dtype": "video",
            "shape": [data.height, data.width, 3],
            "names": ["height", "width", "channels"],
        }
        for camera in data.cameras
    }
    for name, size in data.signals.items():
        features[lerobot_key(name)] = {"dtype": "float32", "shape": [size], "names": None}
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    for name in ("frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "int64", "shape": [1], "names": None}
    step = np.tile(np.arange(data.num_steps, dtype=np.int64), data.num_episodes)
    columns: dict[str, Any] = {
        "timestamp": (step / FPS).astype(np.float32),
        "frame_index": step,
        "episode_index": np.repeat(np.arange(data.num_episodes, dtype=np.int64), data.num_steps),
        "index": np.arange(total, dtype=np.int64),
        "task_index": np.zeros(total, np.int64),
    }
    signals = [make_signals(data, episode) for episode in range(data.num_episodes)]
    for name, size in data.signals.items():
        flat = pa.array(np.concatenate([episode[name] for episode in signals]).ravel())
        columns[lerobot_key(name)] = pa.FixedSizeListArray.from_arrays(flat, size) if size > 1 else flat
    episodes: dict[str, Any] = {
        "episode_index": list(range(data.num_episodes)),
        "tasks": [["move"]] * data.num_episodes,
        "length": [data.num_steps] * data.num_episodes,
        "data/chunk_index": [0] * data.num_episodes,
        "data/file_index": [0] * data.num_episodes,
        "dataset_from_index": [e * data.num_steps for e in range(data.num_episodes)],
        "dataset_to_index": [(e + 1) * data.num_steps for e in range(data.num_episodes)],
        "meta/episodes/chunk_index": [0] * data.num_episodes,
        "meta/episodes/file_index": [0] * data.num_episodes,
    }
    for camera in data.cameras:
        key = lerobot_key(camera)
        episodes[f"videos/{key}/chunk_index"] = [0] * data.num_episodes
        episodes[f"videos/{key}/file_index"] = list(range(data.num_episodes))
        episodes[f"videos/{key}/from_timestamp"] = [0.0] * data.num_episodes
        episodes[f"videos/{key}/to_timestamp"] = [data.num_steps / FPS] * data.num_episodes
        videos = out / "videos" / key / "chunk-000"
        videos.mkdir(parents=True)
        for episode in range(data.num_episodes):
            shutil.copyfile(data.mp4(folder, camera, episode), videos / f"file-{episode:03d}.mp4")
    for place in ("data", "meta/episodes"):
        (out / place / "chunk-000").mkdir(parents=True)
    pq.write_table(pa.table(columns), out / "data/chunk-000/file-000.parquet")
    pq.write_table(pa.table(episodes), out / "meta/episodes/chunk-000/file-000.parquet")
    pd.DataFrame({"task_index": [0]}, index=["move"]).to_parquet(out / "meta/tasks.parquet")
    info = {
        "codebase_version": "v3.0", "robot_type": "bench", "fps": FPS, "total_episodes": data.num_episodes,
        "total_frames": total, "total_tasks": 1, "chunks_size": 1000, "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200, "splits": {"train": f"0:{data.num_episodes}"}, "features": features,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }  # fmt: skip
    (out / "meta/info.json").write_text(json.dumps(info))
    (out / "meta/stats.json").write_text("{}")


def _webdataset(workload: Workload, folder: Path, out: Path) -> None:
    """Tars of whole episodes: the very mp4 bytes, signals as npy."""
    import webdataset as wds

    data = workload.data
    per_tar = -(-data.num_episodes // NUM_TARS)
    out.mkdir()
    with wds.ShardWriter(str(out / "%03d.tar"), maxcount=per_tar, maxsize=1 << 40, verbose=0) as sink:
        for episode in range(data.num_episodes):
            sample: dict[str, Any] = {"__key__": f"ep{episode:05d}"}
            sample |= {f"{camera}.mp4": data.mp4(folder, camera, episode).read_bytes() for camera in data.cameras}
            sink.write(sample | {f"{name}.npy": values for name, values in make_signals(data, episode).items()})


def _mds(workload: Workload, folder: Path, out: Path) -> None:
    from rivals import stand_in

    stand_in.use_where_torchvision_is_missing()
    from streaming import MDSWriter

    columns = {"window": "int", **dict.fromkeys([*workload.cameras, *workload.signal_steps], "bytes")}
    columns |= {f"{camera}.skip": "int" for camera in workload.cameras}
    with MDSWriter(out=str(out), columns=columns, size_limit=1 << 25) as writer:
        for clip in clips(workload, folder):
            writer.write(clip)


def _litdata(workload: Workload, folder: Path, out: Path) -> None:
    from litdata.streaming.writer import BinaryWriter

    out.mkdir()
    writer = BinaryWriter(str(out), chunk_bytes=1 << 25)
    for i, clip in enumerate(clips(workload, folder)):
        writer.add_item(i, clip)
    writer.done()
    writer.merge()


def _arrayrecord(workload: Workload, folder: Path, out: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    from workloads.clips import pack

    out.mkdir()
    # One record a group, as random access wants it.
    writer = ArrayRecordWriter(str(out / "windows.array_record"), "group_size:1,uncompressed")
    for clip in clips(workload, folder):
        writer.write(pack(clip))
    writer.close()


def _raw(workload: Workload, folder: Path, out: Path) -> None:
    """Every picture decoded, uint8 (N, C, H, W) of all episodes one after the other; signals float32 (N, D)."""
    from workloads.truth import decode_file

    data = workload.data
    out.mkdir()
    for camera in workload.cameras:
        with open(out / f"{camera}.u8", "wb") as file:
            for episode in range(data.num_episodes):
                file.write(decode_file(data.mp4(folder, camera, episode), workload.size).tobytes())
    for name in workload.signal_steps:
        values = np.concatenate([make_signals(data, episode)[name] for episode in range(data.num_episodes)])
        values.tofile(out / f"{name}.f32")


# name → (writer, what of the workload it depends on beside the data: part of the folder's name)
_WRITERS: dict[str, tuple[Callable[[Workload, Path, Path], None], Callable[[Workload], str]]] = {
    "lerobot": (_lerobot, lambda w: "lerobot"),
    "webdataset": (_webdataset, lambda w: "webdataset"),
    "mds": (_mds, lambda w: f"mds-{w.span}"),
    "litdata": (_litdata, lambda w: f"litdata-{w.span}"),
    "arrayrecord": (_arrayrecord, lambda w: f"arrayrecord-{w.span}"),
    "raw": (_raw, lambda w: "raw" if w.size is None else f"raw-{w.size[0]}x{w.size[1]}"),
}


def num_bytes(path: Path) -> int:
    """Return the size of a file or of all files below a folder."""
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) if path.is_dir() else path.stat().st_size


def format_path(name: str, workload: Workload, folder: Path) -> Path:
    """Return where a format of the workload's data stands: 'native' and 'files' too."""
    root = workload.data.root(folder)
    return root / (name if name in ("native", "files") else _WRITERS[name][1](workload))


def make_format(name: str, workload: Workload, folder: Path) -> Path:
    """Write a format unless it is there, and return its path. Half-written ones are made again."""
    from workloads.native import make_native  # not at the top: rivals import this file, and should not pay for it

    make_native(workload.data, folder)
    out = format_path(name, workload, folder)
    if name in ("native", "files") or (done := out.with_name(out.name + ".complete")).exists():
        return out
    shutil.rmtree(out, ignore_errors=True)
    _WRITERS[name][0](workload, folder, out)
    done.write_text(str(num_bytes(out)))
    return out
