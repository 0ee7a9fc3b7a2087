"""The table of episodes of a LeRobot folder, in columns: index, length, and in which files each stands."""

# Shapes: E episodes

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trajload.errors import SourceError, at
from trajload.sources.lerobot_meta import LeRobotInfo
from trajload.sources.parquet import open_parquet
from trajload.storage.lfs import LFS_ADVICE, is_lfs_pointer
from trajload.storage.local import check_inside
from trajload.types import BoolArray, Int64Array

__all__ = ["EpisodeTable", "read_episodes"]


class EpisodeTable(ABC):
    """Episodes in rising order of `episode_index`. Holds arrays; objects per episode are made on request."""

    index_E: Int64Array
    """`episode_index` as the metadata number them; not always 0..E-1."""
    length_E: Int64Array
    """Steps of each episode as the metadata promise."""

    @abstractmethod
    def select(self, keep_E: BoolArray) -> EpisodeTable:
        """Return the table of the episodes where `keep_E` is True."""

    @abstractmethod
    def data_name(self, episode: int) -> str:
        """Return the name of the parquet file with the rows of an episode (by position), not checked."""

    @abstractmethod
    def video_name(self, episode: int, camera: str) -> str:
        """Return the name of the video file with the frames of an episode, not checked."""

    def data_file(self, episode: int) -> str:
        """Return the parquet file of an episode; ConfigError where its name leaves the folder."""
        return check_inside(self.data_name(episode))

    def video_file(self, episode: int, camera: str) -> str:
        """Return the video file of an episode; ConfigError where its name leaves the folder."""
        return check_inside(self.video_name(episode, camera))

    @abstractmethod
    def metadata(self, episode: int) -> Mapping[str, Any]:
        """Return what the metadata say of an episode beside its length and place."""

    def __len__(self) -> int:
        return len(self.index_E)


class EpisodesV2(EpisodeTable):
    """Episodes of v2.x: one line of `episodes.jsonl`, one parquet and one video per camera each."""

    def __init__(
        self, info: LeRobotInfo, index_E: Int64Array, length_E: Int64Array, lines: bytes, span_E2: Int64Array
    ) -> None:
        self.info = info
        self.index_E = index_E
        self.length_E = length_E
        self._lines = lines
        self._span_E2 = span_E2

    def select(self, keep_E: BoolArray) -> EpisodesV2:
        return EpisodesV2(self.info, self.index_E[keep_E], self.length_E[keep_E], self._lines, self._span_E2[keep_E])

    def _values(self, episode: int) -> dict[str, int]:
        index = int(self.index_E[episode])
        return {"episode_index": index, "episode_chunk": index // self.info.chunks_size}

    def data_name(self, episode: int) -> str:
        return self.info.data_path.fill(**self._values(episode), video_key="")

    def video_name(self, episode: int, camera: str) -> str:
        assert self.info.video_path is not None
        return self.info.video_path.fill(**self._values(episode), video_key=camera)

    def metadata(self, episode: int) -> Mapping[str, Any]:
        start, stop = self._span_E2[episode].tolist()
        row = json.loads(self._lines[start:stop])
        return {k: v for k, v in row.items() if k != "length"}


class EpisodesV3(EpisodeTable):
    """Episodes of v3.0: rows of `meta/episodes/**/*.parquet`; several share a parquet and a video."""

    def __init__(self, info: LeRobotInfo, table: Any) -> None:
        self.info = info
        self._table = table
        self.index_E = self._ints("episode_index")
        self.length_E = self._ints("length")
        self._data_chunk_E = self._ints("data/chunk_index")
        self._data_file_E = self._ints("data/file_index")
        self._video_E = {
            camera: (self._ints(f"videos/{camera}/chunk_index"), self._ints(f"videos/{camera}/file_index"))
            for camera in info.cameras
            if f"videos/{camera}/chunk_index" in table.column_names
        }

    def _ints(self, name: str) -> Int64Array:
        column = self._table.column(name)
        if column.null_count:
            raise SourceError(f"column {name!r} of meta/episodes has {column.null_count} nulls, expected an int each.")
        return np.asarray(column.to_numpy()).astype(np.int64)

    def select(self, keep_E: BoolArray) -> EpisodesV3:
        import pyarrow as pa

        return EpisodesV3(self.info, self._table.filter(pa.array(keep_E)))

    def data_name(self, episode: int) -> str:
        chunk, file = int(self._data_chunk_E[episode]), int(self._data_file_E[episode])
        return self.info.data_path.fill(chunk_index=chunk, file_index=file, video_key="")

    def data_key_E(self) -> Int64Array:
        """Return one number per episode, equal where episodes share a data file."""
        return self._data_chunk_E * (1 << 32) + self._data_file_E

    def has_camera(self, camera: str) -> bool:
        """True where the metadata say in which files the camera's frames stand."""
        return camera in self._video_E

    def video_key_E(self, camera: str) -> Int64Array:
        """Return one number per episode, equal where episodes share a file of `camera`."""
        chunk_E, file_E = self._video_E[camera]
        return chunk_E * (1 << 32) + file_E

    def video_name(self, episode: int, camera: str) -> str:
        assert self.info.video_path is not None
        chunk_E, file_E = self._video_E[camera]
        return self.info.video_path.fill(
            chunk_index=int(chunk_E[episode]), file_index=int(file_E[episode]), video_key=camera
        )

    def video_times_E(self, camera: str, which: str) -> np.ndarray | None:
        """Return `from_timestamp` or `to_timestamp` (float64 seconds) of each episode in its file, None if absent."""
        name = f"videos/{camera}/{which}_timestamp"
        if name not in self._table.column_names:
            return None
        return np.asarray(self._table.column(name).to_numpy()).astype(np.float64)

    def metadata(self, episode: int) -> Mapping[str, Any]:
        hidden = ("data/", "videos/", "meta/", "stats/", "dataset_")
        names = [n for n in self._table.column_names if not n.startswith(hidden) and n != "length"]
        return {n: self._table.column(n)[episode].as_py() for n in names}


def read_episodes(root: Path, info: LeRobotInfo) -> tuple[EpisodeTable, list[str]]:
    """Return the table of episodes and the metadata files it was read from.

    Raises:
        SourceError: The table is absent, lacks a column, or names an episode twice.
    """
    table, files = _read_v3(root, info) if info.is_v3 else _read_v2(root, info)
    repeated = np.flatnonzero(np.diff(table.index_E) == 0)
    if len(repeated):
        raise SourceError(
            f"episode_index {int(table.index_E[repeated[0]])} stands twice in the metadata. Remove one of them."
        )
    if len(table) and int(table.length_E.min()) < 0:
        bad = int(np.argmin(table.length_E))
        raise SourceError(
            f"episode_index {int(table.index_E[bad])} has length {int(table.length_E[bad])}: expected at least 0."
        )
    return table, files


def _read_v2(root: Path, info: LeRobotInfo) -> tuple[EpisodeTable, list[str]]:
    file = "meta/episodes.jsonl"
    path = root / file
    if not path.is_file():
        raise SourceError(f"{file!r} does not exist, but LeRobot {info.version} keeps its episodes there. Restore it.")
    lines = path.read_bytes()
    if is_lfs_pointer(lines):
        raise SourceError(f"file {file!r} {LFS_ADVICE}.")
    index: list[int] = []
    length: list[int] = []
    span: list[tuple[int, int]] = []
    start = 0
    with at(shard=file):
        for number, line in enumerate(lines.split(b"\n"), 1):
            stop = start + len(line)
            if line.strip():
                try:
                    row = json.loads(str(line, "utf-8"))
                    index.append(int(row["episode_index"]))
                    length.append(int(row["length"]))
                except (ValueError, KeyError, TypeError) as err:
                    raise SourceError(
                        f"line {number} of {file!r} is no episode: got {line[:60]!r}, expected an object with "
                        "'episode_index' and 'length'."
                    ) from err
                span.append((start, stop))
            start = stop + 1
    order = np.argsort(np.asarray(index, dtype=np.int64), kind="stable")
    table = EpisodesV2(
        info,
        np.asarray(index, dtype=np.int64)[order],
        np.asarray(length, dtype=np.int64)[order],
        lines,
        np.asarray(span, dtype=np.int64).reshape(-1, 2)[order],
    )
    return table, [file]


def _read_v3(root: Path, info: LeRobotInfo) -> tuple[EpisodeTable, list[str]]:
    import pyarrow as pa

    folder = root / "meta" / "episodes"
    paths = sorted(folder.rglob("*.parquet"))
    if not paths:
        raise SourceError(
            "'meta/episodes' holds no parquet file, but LeRobot v3.0 keeps its episodes there. Restore it."
        )
    needed = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    tables, files = [], []
    for path in paths:
        file = path.relative_to(root).as_posix()
        files.append(file)
        with at(shard=file), open_parquet(path, file) as handle:
            names = handle.schema_arrow.names
            lacking = [n for n in needed if n not in names]
            if lacking:
                raise SourceError(f"column {lacking[0]!r} is absent: the file has {', '.join(names[:12])}, ...")
            # Per-episode statistics are most of the file and are not needed to find anything.
            tables.append(handle.read(columns=[n for n in names if not n.startswith("stats/")], use_threads=False))
    table = pa.concat_tables(tables, promote_options="default")
    with at(shard=files[0]):
        table = table.sort_by("episode_index").combine_chunks()
        return EpisodesV3(info, table), files
