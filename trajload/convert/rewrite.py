"""A native dataset written anew shard by shard, so that a run that was killed goes on where it was.

What is to be written is fixed in a plan file before the first shard, and every finished shard is noted in it; both are gone
once the manifest stands. Until then the folder holds no dataset. The source is only read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trajload.errors import ConfigError, ShardCorruptError, ShardError, at
from trajload.manifest import MANIFEST_NAME, FileEntry, Manifest, ShardEntry, read_manifest
from trajload.manifest.files import write_manifest
from trajload.shards import layout
from trajload.shards.lock import FolderLock
from trajload.shards.rebuild import file_sha256
from trajload.shards.records import EpisodeRecord
from trajload.shards.shard_writer import ShardWriter
from trajload.sources.base import Dataset
from trajload.sources.native import NativeDataset
from trajload.storage.atomic import TEMP_SUFFIX, fsync_dir, write_atomic
from trajload.storage.own_folder import check_own_folder

__all__ = ["PLAN_NAME", "RewritePlan", "Rewriting", "check_target", "check_unused", "rewritten_from"]

PLAN_NAME = "rewrite-plan.json"
_PLAN_VERSION = 1
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class RewritePlan:
    """What is written where, and what of it is done."""

    source_digest: str
    settings: dict[str, Any]
    """What was asked for: a run that asks for something else does not go on with this plan."""
    shards: list[list[int]]
    """Episodes of the source in each new shard, in order."""
    details: dict[str, Any] = field(default_factory=dict)
    """What the shards were chosen by, for the report of a run that goes on."""
    done: list[dict[str, Any]] = field(default_factory=list)
    """Manifest entries of the finished shards, in order."""

    def save(self, folder: Path) -> None:
        """Write the plan, whole or not at all."""
        value = {
            "format_version": _PLAN_VERSION,
            "source_digest": self.source_digest,
            "settings": self.settings,
            "shards": self.shards,
            "details": self.details,
            "done": self.done,
        }
        write_atomic(folder / PLAN_NAME, json.dumps(value, separators=(",", ":")).encode() + b"\n")

    @classmethod
    def load(cls, folder: Path) -> RewritePlan | None:
        """Return the plan in `folder`, None where there is none.

        Raises:
            ConfigError: The file is no plan of this version.
        """
        try:
            value = json.loads((folder / PLAN_NAME).read_bytes())
            if value["format_version"] != _PLAN_VERSION:
                raise ValueError(f"version {value['format_version']!r}")
            return cls(
                str(value["source_digest"]),
                dict(value["settings"]),
                [[int(e) for e in shard] for shard in value["shards"]],
                dict(value["details"]),
                list(value["done"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise ConfigError(
                f"file {str(folder / PLAN_NAME)!r} is no plan that can be gone on with: {err!r}. Choose another folder, or "
                "delete this one."
            ) from err


def check_target(dataset: Dataset, out: Path) -> NativeDataset:
    """Return `dataset` if it can be rewritten into `out`.

    Raises:
        ConfigError: It is not native, or `out` is its folder, lies inside it or holds it.
    """
    if not isinstance(dataset, NativeDataset):
        raise ConfigError(
            f"{dataset.path!r} is a {dataset.kind} dataset: expected a native one, whose shards can be written anew. Convert it "
            "first: trajload convert."
        )
    source, target = Path(dataset.path).resolve(), out.expanduser().resolve()
    if target == source or source in target.parents or target in source.parents:
        raise ConfigError(
            f"out={str(out)!r} and the dataset {dataset.path!r} lie inside each other: choose a folder beside it, so that the "
            "dataset stays as it is."
        )
    return dataset


def check_unused(out: Path) -> None:
    """Raise ConfigError if `out` holds files, but neither a dataset nor the plan of a rewrite: that both are the wanted ones is
    asked once it is locked."""
    if not any((out / name).exists() for name in (PLAN_NAME, MANIFEST_NAME)):
        mine = (layout.SHARD_FOLDER, PLAN_NAME + TEMP_SUFFIX)
        check_own_folder(out, argument="out", may_hold=lambda name: name in mine)


def rewritten_from(folder: Path, kind: str) -> tuple[Manifest, dict[str, Any]] | None:
    """Return the manifest in `folder` and the last entry of `kind` in its provenance; None where no manifest stands."""
    if not (folder / MANIFEST_NAME).exists():
        return None
    manifest = read_manifest(folder)
    entries = manifest.provenance.get(kind)
    last = entries[-1] if isinstance(entries, list) and entries and isinstance(entries[-1], dict) else {}
    return manifest, last


class Rewriting:
    """The work on one folder: a context manager that holds its lock.

    Args:
        out: Folder to write; made where needed.
        streams: Names of the new dataset's streams, in the order of its manifest.
    """

    def __init__(self, out: Path, streams: Sequence[str]) -> None:
        self.out, self._streams = out, tuple(streams)
        check_unused(out)
        try:
            (out / layout.SHARD_FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise ConfigError(f"out={str(out)!r} cannot be made a folder: {err.strerror}.") from err
        self._lock = FolderLock(out)

    def __enter__(self) -> Rewriting:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def go_on(self, source_digest: str, settings: dict[str, Any]) -> RewritePlan | None:
        """Return the plan that a killed run left, with the shards that are whole; None where nothing was begun.

        Raises:
            ConfigError: The folder holds another plan, or shards that belong to none.
        """
        plan = RewritePlan.load(self.out)
        if plan is None:
            self._check_empty()
            return None
        differing = [name for name in settings if plan.settings.get(name) != settings[name]]
        if plan.source_digest != source_digest:
            differing.insert(0, "dataset")
        if differing:
            raise ConfigError(
                f"out={str(self.out)!r} holds an unfinished rewrite that differs in {', '.join(differing)}: it was begun with "
                f"{plan.settings} of dataset {plan.source_digest[:12]}…. Finish it with these settings, or delete the folder."
            )
        whole: list[dict[str, Any]] = []
        for obj in plan.done:
            entry = ShardEntry.from_json(obj, f"shard {len(whole)} of the plan")
            if not self._is_whole(entry):
                break
            whole.append(obj)
        plan.done = whole
        return plan

    def _check_empty(self) -> None:
        """Refuse a folder with someone else's shards; remove what a run left that was killed before its plan stood."""
        for file in (self.out / layout.SHARD_FOLDER).iterdir():
            raise ConfigError(
                f"out={str(self.out)!r} holds {file.name!r}, which belongs to no dataset and no plan: choose another folder, or "
                "delete it."
            )
        (self.out / (PLAN_NAME + TEMP_SUFFIX)).unlink(missing_ok=True)

    def _is_whole(self, entry: ShardEntry) -> bool:
        for name, num_bytes, sha256 in (
            (entry.name, entry.num_bytes, entry.sha256),
            (entry.index.name, entry.index.num_bytes, entry.index.sha256),
        ):
            file = self.out / name
            if not file.is_file() or file.stat().st_size != num_bytes or file_sha256(file) != sha256:
                return False
        return True

    def write(
        self, plan: RewritePlan, record_of: Callable[[int], EpisodeRecord], progress: Progress | None = None
    ) -> list[ShardEntry]:
        """Write the shards that are not there yet, and return the entries of all.

        Args:
            plan: From `go_on`, or a new one that was saved.
            record_of: Episode of the source → what is written of it.
            progress: Called with (episodes done, episodes in all).

        Raises:
            ShardError: The disk refused the bytes, or does not give them back.
        """
        total = sum(map(len, plan.shards))
        done = sum(len(shard) for shard in plan.shards[: len(plan.done)])
        for number in range(len(plan.done), len(plan.shards)):
            with self._disk_errors(), at(dataset=str(self.out), shard=layout.shard_name(number)):
                writer = ShardWriter(self.out, number, list(self._streams))
                try:
                    for episode in plan.shards[number]:
                        writer.add(record_of(episode))
                        done += 1
                        if progress is not None:
                            progress(done, total)
                    entry = writer.finish()
                    self._read_back(entry)
                    writer.publish()
                    fsync_dir(self.out / layout.SHARD_FOLDER)
                except BaseException:
                    writer.abort()
                    raise
                plan.done.append(entry.to_json())
                plan.save(self.out)
        return [ShardEntry.from_json(obj, f"shard {i} of the plan") for i, obj in enumerate(plan.done)]

    def _read_back(self, entry: ShardEntry) -> None:
        """Compare the files of a shard with what was meant to be written, before they get their names."""
        for name, expected in ((entry.name, entry.sha256), (entry.index.name, entry.index.sha256)):
            if file_sha256(self.out / (name + TEMP_SUFFIX)) != expected:
                raise ShardCorruptError(f"file {name!r} does not hold what was written. Check the disk.")

    def copy_beside(self, source: Path, entry: FileEntry | None) -> FileEntry | None:
        """Copy a file that the source's manifest names, checked, and return its entry."""
        if entry is None:
            return None
        with self._disk_errors():
            data = (source / entry.name).read_bytes() if (source / entry.name).is_file() else b""
            write_atomic(self.out / entry.name, data)
            if file_sha256(self.out / entry.name) != entry.sha256:
                (self.out / entry.name).unlink()
                raise ShardCorruptError(
                    f"file {entry.name!r} of the dataset is absent or changed: expected SHA-256 {entry.sha256}. Restore it."
                )
        return entry

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, which makes the folder a dataset, and drop the plan."""
        with self._disk_errors():
            write_manifest(self.out, manifest)
            self.drop_plan()

    def drop_plan(self) -> None:
        """Remove the plan of a rewrite whose manifest stands."""
        for name in (PLAN_NAME, PLAN_NAME + TEMP_SUFFIX):
            (self.out / name).unlink(missing_ok=True)
        fsync_dir(self.out)

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as err:
            raise ShardError(
                f"dataset {str(self.out)!r} cannot be written: {err.strerror or err}. Nothing was published; run again to go on "
                "with the shards that are finished."
            ) from err
