"""LeRobot v2.0, v2.1 and v3.0 folders, read where they are."""

# Shapes: E episodes, N rows

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trajload.errors import ConfigError, SourceError, WindowError, at
from trajload.refs import TableTrack, Track, VideoIndex
from trajload.sources.base import Dataset, EpisodeInfo, Reopening
from trajload.sources.columns import ClockColumns
from trajload.sources.index_cache import IndexCache, default_cache_dir
from trajload.sources.lerobot_episodes import EpisodesV3, EpisodeTable, read_episodes
from trajload.sources.lerobot_files import dataset_digest, present_data, present_video, scan_files
from trajload.sources.lerobot_meta import LeRobotInfo, read_info, read_json, read_tasks
from trajload.sources.lerobot_rows import ImageRows, NumericRows, TaskRows, TextRows
from trajload.sources.lerobot_streams import Probe, StreamColumn, plan_streams
from trajload.sources.lerobot_times import StepTimes
from trajload.sources.lerobot_totals import total_notes
from trajload.sources.lerobot_video import EpisodeVideos
from trajload.sources.notes import Note
from trajload.sources.parquet import DEFAULT_CACHE_BYTES, ParquetTables, open_parquet, pyarrow_parquet
from trajload.spec import StreamSpec
from trajload.storage import LocalStore
from trajload.storage.locks import ForkLock
from trajload.types import BoolArray, Int64Array, PathLikeStr

__all__ = ["LeRobotSource"]

Missing = Literal["error", "skip"]
_META_FILES = ("meta/info.json", "meta/tasks.jsonl", "meta/tasks.parquet", "meta/modality.json")


class LeRobotSource(Dataset):
    """A LeRobot folder as a `Dataset`. What `tl.open` returns for one; nothing is written beside the data.

    Beside the Dataset contract it has `notes` (what info.json says otherwise than the files, what was left out),
    `tasks` (strings by task_index) and `info` (the parsed info.json).
    """

    notes: list[Note]
    tasks: Mapping[int, str]
    info: LeRobotInfo

    def __init__(
        self,
        path: PathLikeStr,
        *,
        name: str | None = None,
        cache_dir: PathLikeStr | None = None,
        missing: Missing = "error",
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        """Open the folder.

        Args:
            path: Folder that holds `meta/info.json`.
            name: Name in batches and errors; the folder's name by default.
            cache_dir: Where packet tables of videos are kept; `default_cache_dir()` by default.
            missing: What an episode without its files does: "error" refuses to open, "skip" leaves it out (no
                data file) or gives it without the camera (no video file), with a Note.
            cache_bytes: Budget of decoded parquet columns.

        Raises:
            SourceError: The metadata or the files do not hold what they must.
            ConfigError: A bad argument, or metadata with a path that leaves the folder.
            MissingDependencyError: pyarrow is not installed.
        """
        if missing not in ("error", "skip"):
            raise ConfigError(f"missing={missing!r} is unknown: expected 'error' or 'skip'.")
        pyarrow_parquet()
        root = Path(path)
        self.path = str(root)
        self.name = name if name is not None else root.resolve().name
        options = {"cache_dir": cache_dir, "missing": missing, "cache_bytes": cache_bytes}
        self._arguments = {"path": str(root.absolute()), **options}
        self.store = LocalStore(root)
        self.notes = []
        self._lock = ForkLock()
        with at(dataset=self.name):
            self._open(root, cache_dir, missing, cache_bytes)

    def _open(self, root: Path, cache_dir: PathLikeStr | None, missing: Missing, cache_bytes: int) -> None:
        self.info = info = read_info(root)
        self.kind = f"lerobot-{info.version}"
        self.step_rate_hz = float(info.fps)
        self.tasks = read_tasks(root, info.version)
        episodes, meta_files = read_episodes(root, info)
        self.notes += total_notes(info, episodes.length_E, len(self.tasks))
        tops = {t.top for t in (info.data_path, info.video_path) if t is not None}
        files = scan_files(root, {"data", "videos", "images"} | tops if "" not in tops else {""})
        self.digest = dataset_digest(root, [*_META_FILES, *meta_files], files)
        self._episodes = episodes = self._present_episodes(episodes, files, missing)
        self.num_steps_E = episodes.length_E
        self.terminated_E = np.full(len(episodes), -1, dtype=np.int8)
        self._tables = ParquetTables(str(root), cache_bytes)
        self._indexes = IndexCache(cache_dir if cache_dir is not None else default_cache_dir())
        self._videos = EpisodeVideos(root, episodes, info.fps, self._indexes, self._add_note)
        self._first_row_E = np.full(len(episodes), -1, dtype=np.int64)
        self._times = StepTimes(info.fps, len(episodes))
        self._present: dict[str, BoolArray] = {
            camera: present_video(info, episodes, camera, files) for camera in info.cameras
        }
        plan = plan_streams(info, self._probe(root), self.tasks, _annotations(root), self._first_video)
        self.streams = plan.streams
        # A camera without files may share its name with a column's stream, or be left out.
        self._present = {
            c: there_E for c, there_E in self._present.items() if c in plan.streams and plan.streams[c].is_video
        }
        self._columns = plan.columns
        self._absent = plan.absent
        self.notes += plan.notes
        self._check_cameras(missing)
        self._report_cache()

    def _present_episodes(self, episodes: EpisodeTable, files: dict[str, int], missing: Missing) -> EpisodeTable:
        there_E = present_data(episodes, files)
        num = len(episodes)
        if there_E.all():
            return episodes
        first = episodes.data_file(int(np.flatnonzero(~there_E)[0]))
        num_absent = int((~there_E).sum())
        said = f"data file {first!r} does not exist; {num_absent} of {num} episodes lack theirs"
        if num_absent == num:
            raise SourceError(f"{said}, so there is nothing to read. Restore the data files.")
        if missing == "error":
            raise SourceError(
                f"{said}. Restore them, or open the other {num - num_absent} with missing='skip' (--skip-missing on the command line)."
            )
        self.notes.append(Note("missing-episodes", f"{said}; they are left out.", file=first))
        return episodes.select(there_E)

    def _check_cameras(self, missing: Missing) -> None:
        """Refuse, or note, cameras that some episodes have and others lack."""
        for camera, there_E in self._present.items():
            if there_E.all():
                continue
            first = self._episodes.video_file(int(np.flatnonzero(~there_E)[0]), camera)
            said = (
                f"video file {first!r} does not exist; {int((~there_E).sum())} of {len(there_E)} episodes lack theirs"
            )
            if missing == "error":
                with at(stream=camera):
                    raise SourceError(
                        f"{said}. Restore them, or open the dataset with missing='skip' (--skip-missing on the command line)."
                    )
            self._add_note(Note("missing-files", f"{said}; the stream is missing there.", camera, first))

    def _probe(self, root: Path) -> Probe | None:
        if not len(self._episodes):
            return None
        # An empty first episode would show no list length.
        file = self._episodes.data_file(int(np.argmax(self.num_steps_E > 0)))
        with at(shard=file), open_parquet(root / file, file) as handle:
            return Probe.read(handle, file)

    def _first_video(self, camera: str) -> tuple[str, Callable[[], VideoIndex]] | None:
        there_E = self._present[camera]
        if not there_E.any():
            return None
        file = self._episodes.video_file(int(np.argmax(there_E)), camera)
        return file, lambda: self._videos.index(file)

    def _add_note(self, note: Note) -> None:
        with self._lock:
            if not any(n.kind == note.kind and n.stream == note.stream for n in self.notes):
                self.notes.append(note)

    def _report_cache(self) -> None:
        if self._indexes.problem is not None:
            self._add_note(Note("cache", self._indexes.problem))

    def reopening(self) -> Reopening:
        return Reopening(type(self), self._arguments, self.name, self.digest)

    def video_file(self, episode: int, stream: str) -> tuple[str, bool] | None:
        """Return the file of a camera in an episode, and whether it is the episode's alone; None where it is absent."""
        i = self.check_episode(episode)
        if stream not in self._present or not self._present[stream][i]:
            return None
        return self._episodes.video_file(i, stream), not isinstance(self._episodes, EpisodesV3)

    # ---- the Dataset contract ----

    def spec(self, stream: str) -> StreamSpec:
        if stream in self._absent and stream not in self.streams:
            raise ConfigError(
                f"stream {stream!r} {self._absent[stream]} The dataset {self.name!r} has {', '.join(map(repr, self.streams))}."
            )
        return super().spec(stream)

    def episode_key(self, episode: int) -> str:
        return f"episode_{int(self._episodes.index_E[self.check_episode(episode)]):06d}"

    def episode(self, episode: int) -> EpisodeInfo:
        i = self.check_episode(episode)
        with at(dataset=self.name, episode=self.episode_key(i)):
            return EpisodeInfo(
                index=i,
                key=self.episode_key(i),
                num_steps=int(self.num_steps_E[i]),
                file=self._episodes.data_file(i),
                terminated=None,
                metadata=self._episodes.metadata(i),
            )

    def track(self, episode: int, stream: str) -> Track | None:
        i = self.check_episode(episode)
        spec = self.spec(stream)
        with at(dataset=self.name, episode=self.episode_key(i), stream=stream):
            if stream in self._present:
                track = self._videos.track(i, stream) if self._present[stream][i] else None
                self._report_cache()
                return track
            return self._table_track(i, spec, self._columns[stream])

    def _table_track(self, i: int, spec: StreamSpec, column: StreamColumn) -> TableTrack:
        file, num_rows = self._episodes.data_file(i), int(self.num_steps_E[i])
        where = (self._tables, file, column.column, self._first_row(i), num_rows)
        reader: NumericRows | TextRows | TaskRows | ImageRows
        if column.use == "numeric":
            reader = NumericRows(*where, spec.shape, spec.dtype)
        elif column.use == "task":
            reader = TaskRows(*where, self.tasks)
        else:
            reader = TextRows(*where) if column.use == "text" else ImageRows(*where, spec)
        return TableTrack(file, reader, num_rows)

    def _first_row(self, i: int) -> int:
        """Return the row of its data file where episode i begins, after checking that all its rows are there."""
        known = int(self._first_row_E[i])
        if known >= 0:
            return known
        file, length = self._episodes.data_file(i), int(self.num_steps_E[i])
        with at(shard=file):
            first = self._first_shared_row(i, file) if isinstance(self._episodes, EpisodesV3) else 0
            num_rows = self._tables.footer(file).num_rows - first
            if not isinstance(self._episodes, EpisodesV3) and num_rows != length:
                raise SourceError(
                    f"the data file has {num_rows} rows, but the metadata promise {length} steps. Restore the file, or "
                    "correct meta/episodes.jsonl."
                )
        self._first_row_E[i] = first
        return first

    def _first_shared_row(self, i: int, file: str) -> int:
        index, length = int(self._episodes.index_E[i]), int(self.num_steps_E[i])
        index_N = self._tables.scan(file, "episode_index").reshape(-1)
        rows = np.flatnonzero(index_N == index)
        if len(rows) != length:
            raise SourceError(
                f"the data file has {len(rows)} rows of episode_index {index}, but the metadata promise {length} steps. "
                "Restore both from the same version."
            )
        if length and rows[-1] - rows[0] != length - 1:
            raise SourceError(
                f"rows of episode_index {index} do not stand together: {length} rows lie between {rows[0]} and {rows[-1]}."
            )
        # The file was read for one episode: place its other episodes as well, where their counts are right.
        starts = np.flatnonzero(np.diff(index_N, prepend=index_N[:1] - 1 if len(index_N) else 0))
        counts = np.diff(np.append(starts, len(index_N)))
        values, first_of, times = np.unique(index_N[starts], return_index=True, return_counts=True)
        mates = np.searchsorted(self._episodes.index_E, values)
        for mate, k, num in zip(mates.tolist(), first_of.tolist(), times.tolist(), strict=True):
            if mate >= len(self._episodes) or num != 1 or self._episodes.index_E[mate] != index_N[starts[k]]:
                continue
            if counts[k] == self.num_steps_E[mate] and self._episodes.data_file(mate) == file:
                self._first_row_E[mate] = starts[k]
        return int(rows[0]) if length else 0

    def step_times_ns(self, episode: int, steps: Int64Array) -> Int64Array:
        i = self.check_episode(episode)
        steps = np.asarray(steps, dtype=np.int64)
        num_steps = int(self.num_steps_E[i])
        if steps.size and not (int(steps.min()) >= 0 and int(steps.max()) < num_steps):
            raise WindowError(
                f"steps [{int(steps.min())}, {int(steps.max()) + 1}) leave episode {self.episode_key(i)!r}: it has {num_steps} steps."
            )
        with at(dataset=self.name, episode=self.episode_key(i), stream="timestamp"):
            return self._times.times_ns(i, steps, lambda: self._timestamps(i))

    def clock_columns(self, episode: int) -> ClockColumns | None:
        i = self.check_episode(episode)
        self.step_times_ns(i, np.zeros(1, dtype=np.int64))  # looks at the episode's timestamps, once
        clock = self._times.uniform(i)
        if clock is None:
            return None
        rate = clock.rate_hz
        num_1, den_1, start_1 = (
            np.array([x], dtype=np.int64) for x in (rate.numerator, rate.denominator, clock.start_ns)
        )
        return ClockColumns(i, num_1, den_1, start_1)

    def _timestamps(self, i: int) -> np.ndarray | None:
        file = self._episodes.data_file(i)
        first = self._first_row(i)
        if "timestamp" not in self._tables.footer(file).columns:
            return None
        rows_N = np.arange(first, first + int(self.num_steps_E[i]), dtype=np.int64)
        return np.asarray(self._tables.rows(file, "timestamp", rows_N)).reshape(len(rows_N))

    def stream_times_ns(self, episode: int, stream: str) -> Int64Array:
        self.spec(stream)
        raise ConfigError(
            f"stream {stream!r} is stepwise: LeRobot datasets hold no clocked streams. Use step_times_ns."
        )

    def stats(self) -> Mapping[str, Any]:
        """Return `meta/stats.json` as it is, for the streams there are; empty where the folder has none."""
        file = Path(self.path, "meta", "stats.json")
        if not file.is_file():
            return {}
        with at(dataset=self.name):
            stats = read_json(file, "meta/stats.json")
        return {k: v for k, v in stats.items() if k in self.streams} if isinstance(stats, dict) else {}

    def provenance(self) -> Mapping[str, Any]:
        return {
            "format": self.kind,
            "name": self.name,
            "digest": self.digest,
            "robot_type": self.info.raw.get("robot_type"),
        }


def _annotations(root: Path) -> frozenset[str]:
    """Return the columns that GR00T's `meta/modality.json` lists as annotations: indices into the table of tasks."""
    path = root / "meta" / "modality.json"
    if not path.is_file():
        return frozenset()
    raw = read_json(path, "meta/modality.json")
    entries = raw.get("annotation", {}) if isinstance(raw, dict) else {}
    if not isinstance(entries, dict):
        return frozenset()
    return frozenset(
        str(v.get("original_key", f"annotation.{k}")) if isinstance(v, dict) else f"annotation.{k}"
        for k, v in entries.items()
    )
