"""The metadata of a LeRobot folder: `info.json`, path templates, tasks, and the table of episodes (v2.x and v3.0)."""

# Shapes: E episodes

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from trajload.errors import ConfigError, SourceError, at
from trajload.sources.parquet import describe_bytes, open_parquet
from trajload.storage.lfs import LFS_ADVICE, is_lfs_pointer
from trajload.storage.local import check_inside

__all__ = ["Feature", "LeRobotInfo", "PathTemplate", "read_info", "read_json", "read_tasks"]

SUPPORTED = ("v2.0", "v2.1", "v3.0")
_FIELD = re.compile(r"\{([a-z_]+)(?::(0?\d{0,2}d))?\}")
_MAX_FPS = 1e6
_V2_FIELDS = frozenset(["episode_chunk", "episode_index", "video_key"])
_V3_FIELDS = frozenset(["chunk_index", "file_index", "video_key"])


@dataclass(frozen=True, slots=True)
class PathTemplate:
    """A path pattern of info.json, such as `data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet`.

    Only plain fields with an integer width are accepted: `str.format` on text from a file could reach attributes.
    """

    name: str
    text: str
    allowed: frozenset[str]

    def __post_init__(self) -> None:
        rest = _FIELD.sub("", self.text)
        fields = {m.group(1) for m in _FIELD.finditer(self.text)}
        if "{" in rest or "}" in rest or not fields <= self.allowed:
            raise ConfigError(
                f"{self.name} {self.text!r} of meta/info.json is unusable: expected only the fields "
                f"{', '.join('{' + f + '}' for f in sorted(self.allowed))}, with a width such as ':03d' at most."
            )
        check_inside(_FIELD.sub("0", self.text))

    @property
    def top(self) -> str:
        """First folder of the pattern, or '' where it is not fixed."""
        first = self.text.split("/", 1)[0]
        return first if "{" not in first and "/" in self.text else ""

    @property
    def suffix(self) -> str:
        return Path(self.text).suffix

    def fill(self, **values: Any) -> str:
        """Return the path for `values`. It is to be checked before it is opened: a key may be hostile."""
        return self.text.format(**values)


@dataclass(frozen=True, slots=True)
class Feature:
    """One entry of info.json's `features`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any
    info: dict[str, Any] = field(default_factory=dict)

    def picture_shape(self) -> tuple[int, int, int] | None:
        """Return the declared (H, W, C), also where it is declared as (C, H, W); None where it is no picture's."""
        if len(self.shape) != 3:
            return None
        words = [str(n).lower() for n in self.names] if isinstance(self.names, list) else []
        channel_first = bool(words and words[0].startswith("channel")) or (
            not words and self.shape[0] in (1, 3) and self.shape[2] not in (1, 3)
        )
        a, b, c = self.shape
        return (b, c, a) if channel_first else (a, b, c)

    def component_names(self, size: int) -> tuple[str, ...] | None:
        """Return the names of `size` components, flattened from the nestings people write, or None."""
        flat = list(_strings(self.names))
        return tuple(flat) if size and len(flat) == size else None


def _strings(value: Any) -> Any:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)


@dataclass(frozen=True, slots=True)
class LeRobotInfo:
    """What `meta/info.json` declares."""

    version: str
    fps: Fraction
    features: dict[str, Feature]
    data_path: PathTemplate
    video_path: PathTemplate | None
    chunks_size: int
    raw: dict[str, Any]

    @property
    def is_v3(self) -> bool:
        return self.version.startswith("v3")

    @property
    def cameras(self) -> list[str]:
        """Names of the features stored as video."""
        return [name for name, f in self.features.items() if f.dtype == "video"]


def read_json(path: Path, file: str) -> Any:
    """Return the JSON value in `path`, or raise SourceError that names `file` and what it holds."""
    try:
        return json.loads(path.read_bytes())
    except OSError as err:
        raise SourceError(f"file {file!r} cannot be read: {err.strerror}.") from err
    except ValueError as err:
        raise SourceError(f"file {file!r} is not JSON: {describe_bytes(path)}. ({err})") from err


def read_info(root: Path) -> LeRobotInfo:
    """Return the checked contents of `meta/info.json`.

    Raises:
        SourceError: It is no JSON object, lacks a field, or is of a version that is not read in place.
        ConfigError: A path pattern leaves the folder or has unknown fields.
    """
    with at(shard="meta/info.json"):
        raw = read_json(root / "meta" / "info.json", "meta/info.json")
        if not isinstance(raw, dict):
            raise SourceError(f"meta/info.json holds a {type(raw).__name__}, expected an object.")
        for name in ("codebase_version", "fps", "features", "data_path"):
            if name not in raw:
                raise SourceError(f"meta/info.json lacks {name!r}: it has {', '.join(map(repr, raw))}.")
        version = str(raw["codebase_version"])
        if version not in SUPPORTED:
            raise SourceError(
                f"LeRobot dataset version {version!r} is not read in place: expected one of {', '.join(SUPPORTED)}. "
                "Convert it with LeRobot's own scripts first."
            )
        allowed = _V3_FIELDS if version.startswith("v3") else _V2_FIELDS
        video_path = raw.get("video_path")
        return LeRobotInfo(
            version=version,
            fps=_fps(raw["fps"]),
            features=_features(raw["features"]),
            data_path=PathTemplate("data_path", str(raw["data_path"]), allowed),
            video_path=PathTemplate("video_path", str(video_path), allowed) if video_path else None,
            chunks_size=_positive("chunks_size", raw.get("chunks_size", 1000)),
            raw=raw,
        )


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SourceError(f"{name}={value!r} in meta/info.json is unusable: expected an int of at least 1.")
    return value


def _fps(value: Any) -> Fraction:
    text = str(value)
    try:
        # As a float first: the exact value of '1e999999999' would take all memory.
        exact = Fraction(text) if "/" in text or 0 < float(text) <= _MAX_FPS else Fraction(0)
    except (ValueError, ZeroDivisionError):
        exact = Fraction(0)
    if isinstance(value, bool) or not 1 / _MAX_FPS <= exact <= _MAX_FPS:
        raise SourceError(
            f"fps={text[:40]!r} in meta/info.json is unusable: expected a rate above 0 Hz, from {1 / _MAX_FPS} to {_MAX_FPS:.0f}."
        )
    # 29.97002997002997 was meant to be 30000/1001.
    nice = exact.limit_denominator(1001)
    return nice if abs(nice - exact) <= exact / 10**9 else exact


def _features(raw: Any) -> dict[str, Feature]:
    if not isinstance(raw, dict) or not all(isinstance(v, dict) and "dtype" in v for v in raw.values()):
        raise SourceError("'features' of meta/info.json is unusable: expected an object of objects with a 'dtype'.")
    out: dict[str, Feature] = {}
    for name, value in raw.items():
        shape = value.get("shape") or ()
        if not isinstance(shape, list | tuple) or not all(isinstance(n, int) for n in shape):
            raise SourceError(f"shape {shape!r} of feature {name!r} in meta/info.json is unusable: expected ints.")
        info = value.get("info") or value.get("video_info") or {}
        out[name] = Feature(
            name, str(value["dtype"]), tuple(shape), value.get("names"), info if isinstance(info, dict) else {}
        )
    return out


def read_tasks(root: Path, version: str) -> dict[int, str]:
    """Return the task strings by `task_index`; empty where the folder has no table of tasks."""
    return _tasks_v3(root) if version.startswith("v3") else _tasks_v2(root)


def _tasks_v2(root: Path) -> dict[int, str]:
    file = "meta/tasks.jsonl"
    path = root / file
    out: dict[int, str] = {}
    if not path.is_file():
        return out
    with at(shard=file):
        text = path.read_bytes()
        if is_lfs_pointer(text):
            raise SourceError(f"file {file!r} {LFS_ADVICE}.")
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                out[int(row["task_index"])] = str(row["task"])
            except (ValueError, KeyError, TypeError) as err:
                raise SourceError(
                    f"line {number} of {file!r} is no task: got {line[:60]!r}, expected an object with 'task_index' and 'task'."
                ) from err
    return out


def _tasks_v3(root: Path) -> dict[int, str]:
    file = "meta/tasks.parquet"
    path = root / file
    if not path.is_file():
        return {}
    with at(shard=file), open_parquet(path, file) as handle:
        table = handle.read(use_threads=False)
        names = table.column_names
        # LeRobot keeps the string as the index of a data frame, which pandas writes as __index_level_0__.
        text = next((n for n in ("task", "__index_level_0__") if n in names), None)
        if text is None or "task_index" not in names:
            raise SourceError(
                f"{file!r} is no table of tasks: got columns {', '.join(map(repr, names))}, expected 'task_index' and 'task'."
            )
        return {
            int(i): str(s)
            for i, s in zip(table.column("task_index").to_pylist(), table.column(text).to_pylist(), strict=True)
        }
