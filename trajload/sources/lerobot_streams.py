"""From the features a LeRobot folder declares to the streams it really holds.

The files win over info.json: shapes and dtypes are those of the first data file and the first video of each camera; what
info.json says differently becomes a `Note`. See docs/decisions/0030-lerobot-in-place.md for the rules.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trajload.errors import DecodeError, SourceError, TrajloadError
from trajload.refs import VideoIndex
from trajload.sources.lerobot_meta import Feature, LeRobotInfo
from trajload.sources.lerobot_video import frame_times_s
from trajload.sources.notes import Note
from trajload.sources.parquet_columns import ColumnType, column_type
from trajload.spec import RESERVED_NAMES, Encoding, StreamSpec
from trajload.types import Modality

__all__ = ["Probe", "StreamColumn", "StreamPlan", "plan_streams"]

BOOKKEEPING = frozenset(["index", "episode_index", "frame_index", "timestamp", "task_index"])
TASK_STREAM = "task"
ColumnUse = Literal["numeric", "text", "task", "image"]


@dataclass(frozen=True, slots=True)
class StreamColumn:
    """Which column a stream's rows come from, and how they are read."""

    column: str
    use: ColumnUse


@dataclass(slots=True)
class StreamPlan:
    """Streams of a dataset, the columns behind them, and what was left out and why."""

    streams: dict[str, StreamSpec] = field(default_factory=dict)
    columns: dict[str, StreamColumn] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Declared streams that cannot be had: name to reason."""
    unread: dict[str, list[str]] = field(default_factory=dict)
    """Columns of types that are not read, by Arrow type."""
    notes: list[Note] = field(default_factory=list)

    def leave_out(self, kind: str, name: str, reason: str) -> None:
        self.absent[name] = reason
        self.notes.append(Note(kind, f"stream {name!r} {reason}", name))


@dataclass(frozen=True, slots=True)
class Probe:
    """What was seen in the first data file: its schema, and one row of the columns whose shape the schema leaves open."""

    file: str
    columns: Mapping[str, ColumnType]
    first_row: Mapping[str, Any]

    @classmethod
    def read(cls, handle: Any, file: str) -> Probe:
        """Return the probe of an open `pyarrow.parquet.ParquetFile`."""
        columns = {f.name: column_type(f.type) for f in handle.schema_arrow}
        open_ended = [n for n, c in columns.items() if c.kind == "image" or (c.kind == "numeric" and c.shape is None)]
        first: dict[str, Any] = {}
        if open_ended and handle.metadata.num_rows:
            batch = next(handle.iter_batches(batch_size=1, columns=open_ended, use_threads=False))
            first = {name: batch.column(name)[0].as_py() for name in open_ended}
        return cls(file, columns, first)

    def row_shape(self, name: str) -> tuple[int, ...] | None:
        """Return the row shape of a numeric column, or None where no row shows it."""
        shape = self.columns[name].shape
        if shape is not None:
            return shape
        value, out = self.first_row.get(name), []
        for _ in range(self.columns[name].depth):
            if not isinstance(value, list):
                return None
            out.append(len(value))
            value = value[0] if value else None
        return tuple(out)


def modality_of(name: str) -> Modality:
    """Return the modality of a low-dimensional LeRobot feature, told from its name."""
    if name == "action" or name.startswith(("action.", "action_", "actions")):
        return Modality.ACTION
    if name.startswith("observation.state") or name == "state" or name.startswith("state."):
        return Modality.PROPRIOCEPTION
    if name in ("next.reward", "reward"):
        return Modality.REWARD
    return Modality.METADATA


def plan_streams(
    info: LeRobotInfo,
    probe: Probe | None,
    tasks: Mapping[int, str],
    annotations: frozenset[str],
    first_video: Callable[[str], tuple[str, Callable[[], VideoIndex]] | None],
) -> StreamPlan:
    """Return the streams of a dataset.

    Args:
        info: What info.json declares.
        probe: First data file, None where the dataset has no episode.
        tasks: Task strings by index.
        annotations: Columns that `meta/modality.json` lists as annotations.
        first_video: Gives the first file present of a camera and a way to its packet table, None where there is none.
    """
    plan = StreamPlan()
    for name, feature in info.features.items():
        if name in BOOKKEEPING:
            continue
        if name in RESERVED_NAMES or name.endswith(("_is_pad", "_is_missing")):
            plan.leave_out("column", name, "has a name reserved for a batch key; rename the feature to use it.")
        elif feature.dtype == "video":
            _plan_video(plan, info, feature, first_video(name))
        elif probe is not None:
            _plan_column(plan, info, feature, probe, tasks, annotations)
    if probe is not None:
        _plan_task(plan, probe, tasks, float(info.fps))
        for arrow, names in plan.unread.items():
            why = " They are often pickles, and nothing read here is ever unpickled." if "binary" in arrow else ""
            plan.notes.append(
                Note("column", f"{len(names)} columns of {arrow} are not read: {', '.join(map(repr, names))}.{why}")
            )
        extra = [n for n in probe.columns if n not in info.features and n not in BOOKKEEPING]
        if extra:
            plan.notes.append(
                Note("column", f"columns {', '.join(map(repr, extra))} are not declared in info.json and are not read.")
            )
    return plan


def _plan_task(plan: StreamPlan, probe: Probe, tasks: Mapping[int, str], rate_hz: float) -> None:
    if TASK_STREAM in plan.streams or "task_index" not in probe.columns:
        return
    if not tasks:
        plan.leave_out("missing-files", TASK_STREAM, "has no strings: the folder has no table of tasks.")
        return
    plan.streams[TASK_STREAM] = StreamSpec(
        name=TASK_STREAM, modality=Modality.LANGUAGE, encoding="table", shape=(), dtype="str", rate_hz=rate_hz
    )
    plan.columns[TASK_STREAM] = StreamColumn("task_index", "task")


def _plan_column(
    plan: StreamPlan,
    info: LeRobotInfo,
    feature: Feature,
    probe: Probe,
    tasks: Mapping[int, str],
    annotations: frozenset[str],
) -> None:
    name, rate_hz = feature.name, float(info.fps)
    column = probe.columns.get(name)
    if column is None:
        plan.leave_out("column", name, f"is declared in info.json but is no column of {probe.file!r}.")
    elif column.kind == "image":
        _plan_image(plan, feature, probe, rate_hz)
    elif column.kind == "text" or (
        column.kind == "numeric" and name in annotations and tasks and column.dtype.startswith(("int", "uint"))
    ):
        plan.streams[name] = StreamSpec(
            name=name, modality=Modality.LANGUAGE, encoding="table", shape=(), dtype="str", rate_hz=rate_hz
        )
        plan.columns[name] = StreamColumn(name, "text" if column.kind == "text" else "task")
        if column.kind == "text" and feature.dtype not in ("string", "str", "large_string"):
            plan.notes.append(
                Note("dtype", f"info.json says {feature.dtype} for {name!r}, the files hold strings.", name)
            )
    elif column.kind != "numeric":
        plan.absent[name] = f"is a column of {column.arrow}, which is not read: only numbers, strings and pictures are."
        plan.unread.setdefault(column.arrow, []).append(name)
    else:
        shape = probe.row_shape(name)
        if shape is None:
            shape = feature.shape
        plan.streams[name] = StreamSpec(
            name=name,
            modality=modality_of(name),
            encoding="table",
            shape=shape,
            dtype=column.dtype,
            rate_hz=rate_hz,
            names=feature.component_names(shape[0] if len(shape) == 1 else 0),
        )
        plan.columns[name] = StreamColumn(name, "numeric")
        if feature.dtype != column.dtype:
            plan.notes.append(
                Note("dtype", f"info.json says {feature.dtype} for {name!r}, the files hold {column.dtype}.", name)
            )
        if (feature.shape or (1,)) != (shape or (1,)):
            plan.notes.append(
                Note("shape", f"info.json says shape {feature.shape} for {name!r}, the files hold {shape}.", name)
            )


def _plan_image(plan: StreamPlan, feature: Feature, probe: Probe, rate_hz: float) -> None:
    from PIL import Image as Pictures

    name = feature.name
    value = probe.first_row.get(name) or {}
    encoding: Encoding = "png"
    shape, dtype, modality = feature.picture_shape(), "uint8", Modality.RGB
    if value.get("bytes"):
        try:
            with Pictures.open(io.BytesIO(value["bytes"])) as picture:
                encoding = "jpg" if picture.format == "JPEG" else "png"
                if picture.mode.startswith("I"):
                    modality, dtype = Modality.DEPTH, "uint16"
                channels = 1 if picture.mode.startswith("I") else 3
                height, width = picture.size[::-1]
                if picture.getexif().get(0x0112, 1) in (5, 6, 7, 8):  # EXIF orientations that lie on their side
                    height, width = width, height
                seen = (height, width, channels)
        except Exception as err:  # PIL raises many kinds for damaged bytes
            raise DecodeError(
                f"first picture of {name!r} in {probe.file!r} is no png or jpg: its bytes start with {value['bytes'][:8]!r}."
            ) from err
        if shape is not None and shape != seen:
            plan.notes.append(
                Note("shape", f"info.json says (H, W, C) {shape} for {name!r}, the pictures are {seen}.", name)
            )
        shape = seen
    elif value.get("path"):
        encoding = "jpg" if str(value["path"]).lower().endswith((".jpg", ".jpeg")) else "png"
    if shape is None:
        plan.leave_out("shape", name, f"has no picture shape: info.json says {feature.shape} and no row shows one.")
        return
    plan.streams[name] = StreamSpec(
        name=name, modality=modality, encoding=encoding, shape=shape, dtype=dtype, rate_hz=rate_hz
    )
    plan.columns[name] = StreamColumn(name, "image")


def _plan_video(
    plan: StreamPlan, info: LeRobotInfo, feature: Feature, first: tuple[str, Callable[[], VideoIndex]] | None
) -> None:
    name, declared = feature.name, feature.picture_shape()
    if first is None:
        plan.leave_out("missing-files", name, "is declared in info.json but has no video file in the folder.")
        return
    file, load = first
    encoding: Encoding = "mp4" if file.lower().endswith((".mp4", ".m4v", ".mov")) else "mkv"
    modality, dtype = Modality.RGB, "uint8"
    try:
        index = load()
    except TrajloadError as err:
        # State and actions of a folder cloned without its large files are still good: the camera fails when asked for.
        if declared is None:
            raise SourceError(f"camera {name!r} has neither a readable video nor a declared shape: {err}") from err
        plan.notes.append(Note("unreadable", f"video {file!r} cannot be read: {err.message}", name, file))
        plan.streams[name] = StreamSpec(
            name=name, modality=modality, encoding=encoding, shape=declared, dtype=dtype, rate_hz=float(info.fps)
        )
        return
    height, width = (index.width, index.height) if index.rotation in (90, 270) else (index.height, index.width)
    shape = (height, width, 3)
    if (
        index.pix_fmt.startswith("gray")
        and not index.pix_fmt.startswith(("gray8", "grayf"))
        and index.pix_fmt != "gray"
    ):
        modality, dtype, shape = Modality.DEPTH, "uint16", (height, width, 1)
    if declared is not None and declared != shape:
        plan.notes.append(
            Note("shape", f"info.json says (H, W, C) {declared} for {name!r}, {file!r} holds {shape}.", name, file)
        )
    if feature.info.get("video.is_depth_map") and modality is not Modality.DEPTH:
        plan.notes.append(
            Note(
                "dtype",
                f"info.json calls {name!r} a depth map, but it is stored as {index.pix_fmt} and is read as rgb.",
                name,
                file,
            )
        )
    time_F = frame_times_s(index)
    if len(time_F) > 1:
        rate = (len(time_F) - 1) / max(float(time_F[-1]), 1e-9)
        if abs(rate - float(info.fps)) > 0.01 * float(info.fps):
            plan.notes.append(
                Note("rate", f"info.json says {float(info.fps):g} Hz, {file!r} runs at {rate:.4g} Hz.", name, file)
            )
    plan.streams[name] = StreamSpec(
        name=name, modality=modality, encoding=encoding, shape=shape, dtype=dtype, rate_hz=float(info.fps)
    )
