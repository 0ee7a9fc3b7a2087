"""What a dataset holds, as one JSON-able dict: what `trajload inspect` prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trajload.errors import TrajloadError
from trajload.refs import VideoTrack
from trajload.sources.base import Dataset
from trajload.spec import StreamSpec

__all__ = ["summarize"]

_EPISODES_LOOKED_AT = 8


def summarize(dataset: Dataset) -> dict[str, Any]:
    """Return a summary of an opened dataset. Reads indices and statistics, decodes nothing.

    What only tracks tell (codec, GOP, rows) is taken from at most eight episodes, spread over the dataset.
    """
    steps_E = dataset.num_steps_E
    rate = dataset.step_rate_hz
    stats = dataset.stats()
    return {
        "name": dataset.name,
        "path": dataset.path,
        "kind": dataset.kind,
        "digest": dataset.digest,
        "num_episodes": dataset.num_episodes,
        "num_steps": dataset.num_steps,
        "step_rate_hz": rate,
        "hours": dataset.num_steps / rate / 3600 if rate else None,
        "episode_steps": {
            "min": int(steps_E.min()),
            "median": float(np.median(steps_E)),
            "max": int(steps_E.max()),
        }
        if len(steps_E)
        else None,
        "num_terminated": int((dataset.terminated_E == 1).sum()),
        "num_truncated": int((dataset.terminated_E == 0).sum()),
        "num_bytes": _folder_bytes(dataset.path),
        "streams": {name: _stream(dataset, spec, stats.get(name)) for name, spec in dataset.streams.items()},
        "provenance": dict(dataset.provenance()),
        "notes": [remark.to_json() for remark in getattr(dataset, "notes", ())],
    }


def _folder_bytes(path: str) -> int | None:
    folder = Path(path)
    if not folder.is_dir():
        return None
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _stream(dataset: Dataset, spec: StreamSpec, stats: Mapping[str, Any] | None) -> dict[str, Any]:
    out: dict[str, Any] = spec.to_json()
    looked_at = np.unique(
        np.linspace(0, dataset.num_episodes - 1, min(dataset.num_episodes, _EPISODES_LOOKED_AT)).astype(np.int64)
    ).tolist()
    present, video = 0, None
    for episode in looked_at:
        try:
            track = dataset.track(episode, spec.name)
        except TrajloadError as err:
            out.setdefault("problem", str(err))
            continue
        present += track is not None
        if isinstance(track, VideoTrack):
            video = video or track
    out["present_in"] = {"episodes": present, "of": len(looked_at)}
    if video is not None:
        index = video.index
        gops = np.diff(np.append(index.gop_start_G, len(index.pts_P)))
        out["video"] = {
            "codec": index.codec,
            "pixel_format": index.pix_fmt,
            "rotation": index.rotation,
            "max_gop": int(gops.max()) if len(gops) else 0,
            "bytes_per_frame": float(index.size_P.mean()) if len(index.size_P) else 0.0,
        }
    if stats:
        out["stats"] = dict(stats)
    return out
