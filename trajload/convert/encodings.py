"""Which videos are encoded anew and how: one setting for all of them, or one for each stream, also as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

from trajload.errors import ConfigError
from trajload.shards.video_encode import VideoEncode
from trajload.sources.base import Dataset
from trajload.spec import StreamSpec
from trajload.storage.atomic import write_atomic
from trajload.types import PathLikeStr

__all__ = ["Reencode", "check_reencode", "encode_of", "load_encodings", "reencode_json", "save_encodings"]

Reencode: TypeAlias = "VideoEncode | Mapping[str, VideoEncode] | None"
"""How all videos are encoded anew, or those of some streams; None and streams left out keep their bits."""

_VERSION = 1


def check_reencode(reencode: Reencode, dataset: Dataset) -> Reencode:
    """Return `reencode` if it names video streams of the dataset and settings, else raise ConfigError."""
    if reencode is None or isinstance(reencode, VideoEncode):
        return reencode
    if not isinstance(reencode, Mapping):
        raise ConfigError(f"reencode={reencode!r} is unusable: expected VideoEncode(...), or one for each stream.")
    videos = [name for name, spec in dataset.streams.items() if spec.is_video]
    for name, value in reencode.items():
        if name not in videos:
            raise ConfigError(f"reencode names {name!r}: expected one of the video streams {videos}.")
        if not isinstance(value, VideoEncode):
            raise ConfigError(f"reencode[{name!r}]={value!r} is unusable: expected VideoEncode(...).")
    return dict(reencode)


def encode_of(spec: StreamSpec, reencode: Reencode) -> VideoEncode | None:
    """Return how a stream is encoded anew, None where it keeps its bits."""
    if not spec.is_video or reencode is None:
        return None
    return reencode if isinstance(reencode, VideoEncode) else reencode.get(spec.name)


def reencode_json(reencode: Reencode) -> Any:
    """Return the settings as a manifest's provenance states them."""
    if reencode is None or isinstance(reencode, VideoEncode):
        return None if reencode is None else reencode.to_json()
    return {name: value.to_json() for name, value in reencode.items()}


def save_encodings(path: PathLikeStr, encodings: Mapping[str, VideoEncode], info: Mapping[str, Any]) -> None:
    """Write settings of streams as a JSON file, whole or not at all."""
    value = {"format_version": _VERSION, "streams": reencode_json(dict(encodings)), "info": dict(info)}
    write_atomic(path, json.dumps(value, indent=1).encode() + b"\n")


def load_encodings(path: PathLikeStr) -> dict[str, VideoEncode]:
    """Return the settings of streams that `save_encodings` wrote.

    Raises:
        ConfigError: The file is absent, or does not hold such settings.
    """
    try:
        value = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"file {str(path)!r} does not exist: expected what 'trajload tune-encoding --out' writes."
        ) from None
    except (OSError, ValueError) as err:
        raise ConfigError(f"file {str(path)!r} holds no encodings: {err}.") from err
    streams = value.get("streams") if isinstance(value, dict) and value.get("format_version") == _VERSION else None
    if not isinstance(streams, dict) or not streams:
        raise ConfigError(f"file {str(path)!r} holds no encodings: expected 'streams', an object of stream → settings.")
    known = {f.name for f in fields(VideoEncode)}
    out: dict[str, VideoEncode] = {}
    for name, settings in streams.items():
        if not isinstance(settings, dict) or set(settings) - known:
            raise ConfigError(
                f"file {str(path)!r} says {settings!r} of stream {name!r}: expected an object with some of {', '.join(sorted(known))}."
            )
        out[str(name)] = VideoEncode(**settings)
    return out
