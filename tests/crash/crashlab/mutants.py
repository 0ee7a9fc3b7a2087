"""Protocols with one fault each. A harness that lets one of them pass does not test what it says it tests."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crashlab.scenario import FROZEN

from trajload.checkpoint.disk import Bytes, Disk
from trajload.checkpoint.entries import Commit, Fault
from trajload.checkpoint.store import Store

__all__ = ["MUTANTS", "Mutant", "RenamingDisk"]


class NoFileSync(Disk):
    """Nothing that is written is brought to the disk; names are."""

    def fsync(self, fd: int, path: Path) -> None:
        pass


class NoFolderSync(Disk):
    """No name is brought to the disk; contents are."""

    def fsync_dir(self, path: Path) -> None:
        pass


class NoSyncOfCommits(Disk):
    """The last step is missing: the record's name is not brought to the disk before the save counts."""

    def fsync_dir(self, path: Path) -> None:
        if path.name != "commits":
            super().fsync_dir(path)


class NoSyncOfGenerations(Disk):
    """The names of parts and files are not brought to the disk; those of records are."""

    def fsync_dir(self, path: Path) -> None:
        if "gen" not in path.parts:
            super().fsync_dir(path)


class NoSyncOfTheRecord(Disk):
    """The record is published without its content having been brought to the disk."""

    def fsync(self, fd: int, path: Path) -> None:
        if path.parent.name != "commits":
            super().fsync(fd, path)


class NoSyncOfForeignFiles(Disk):
    """What another library has written is taken in without bringing it to the disk."""

    def sync_file(self, path: Path) -> None:
        pass


class SyncBeforeWrite(Disk):
    """Files are synced before what a buffer still holds has been written to them, the classic missing flush."""

    def __init__(self) -> None:
        self._held: dict[int, list[bytes]] = {}

    def write(self, fd: int, path: Path, piece: Bytes) -> None:
        self._held.setdefault(fd, []).append(bytes(piece))

    def close(self, fd: int, path: Path) -> None:
        for piece in self._held.pop(fd, []):
            super().write(fd, path, piece)
        super().close(fd, path)


class RecordBeforeParts(Disk):
    """The record is published first, and the parts are brought to the disk afterwards, but before the save counts."""

    def __init__(self) -> None:
        self._owed: list[Path] = []

    def fsync(self, fd: int, path: Path) -> None:
        if "gen" in path.parts:
            self._owed.append(path)
        else:
            super().fsync(fd, path)

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        if target.parent.name == "commits":
            super().fsync_dir(target.parent)
            for path in self._owed:
                self.sync_file_really(path)
            self._owed.clear()

    def sync_file_really(self, path: Path) -> None:
        """Sync a file, this time."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class DeleteBeforeCommit(Disk):
    """The checkpoints before are removed to make room, and then the new one is committed."""

    def link(self, source: Path, target: Path) -> None:
        if target.parent.name == "commits":
            for path in sorted(target.parent.glob("0*.json")):
                super().unlink(path)
            super().fsync_dir(target.parent)
        super().link(source, target)


class PayloadBeforeRecord(Disk):
    """Retention removes the files of a checkpoint first and its record last."""

    def unlink(self, path: Path) -> None:
        if path.parent.name == "commits" and path.suffix == ".json":
            for folder in (path.parents[1] / "gen").glob(f"{path.stem}-*"):
                for file in folder.glob("*/*"):
                    if file.is_file() and file.name != FROZEN:  # which later ones refer to
                        super().unlink(file)
        super().unlink(path)


class RemovalNotSynced(Disk):
    """Retention does not bring the removal of records to the disk before it removes the files."""

    def __init__(self) -> None:
        self._removed = False

    def link(self, source: Path, target: Path) -> None:
        self._removed = False
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._removed |= path.parent.name == "commits" and path.suffix == ".json"
        super().unlink(path)

    def fsync_dir(self, path: Path) -> None:
        if not (self._removed and path.name == "commits"):
            super().fsync_dir(path)


class PointerInPlace(Disk):
    """Which checkpoint is the newest stands in a small file that is written over."""

    def rename(self, source: Path, target: Path) -> None:
        if target.name != "LATEST":
            super().rename(source, target)
            return
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            os.write(fd, source.read_bytes())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.unlink(source)
        super().fsync_dir(target.parent)


class PointerStore(Store):
    """Believes the pointer: what it names is the newest, and where it is torn there is nothing."""

    def newest(self, **options: Any) -> tuple[Commit | None, list[Fault]]:  # type: ignore[override]
        try:
            seq = json.loads((self.root / "LATEST").read_bytes().splitlines()[0])["seq"]
        except (OSError, ValueError, IndexError, KeyError):
            return None, []
        return next((commit for commit in self.commits() if commit.seq == seq), None), []


class RenamingDisk(Disk):
    """Publishes by a rename, which replaces what another writer has published under that number."""

    def link(self, source: Path, target: Path) -> None:
        if target.parent.name == "commits":
            time.sleep(0.002)  # the other one's turn to look, also where a single processor is left to both
            os.replace(source, target)
            source.write_bytes(b"")
        else:
            super().link(source, target)


@dataclass(frozen=True)
class Mutant:
    """A broken protocol, and what reads its stores."""

    disk: type[Disk]
    reader: type[Store] = Store

    @property
    def name(self) -> str:
        """What is broken."""
        return self.disk.__name__

    def open_to_write(self) -> Callable[[Path], Store]:
        """Return what opens a store that is written the broken way."""
        return lambda root: Store(root, disk=self.disk())

    def open_to_read(self) -> Callable[[Path], Store]:
        """Return what opens a store to judge it."""
        return lambda root: self.reader(root)


MUTANTS = (
    Mutant(NoFileSync),
    Mutant(NoFolderSync),
    Mutant(NoSyncOfCommits),
    Mutant(NoSyncOfGenerations),
    Mutant(NoSyncOfTheRecord),
    Mutant(NoSyncOfForeignFiles),
    Mutant(SyncBeforeWrite),
    Mutant(RecordBeforeParts),
    Mutant(DeleteBeforeCommit),
    Mutant(PayloadBeforeRecord),
    Mutant(RemovalNotSynced),
    Mutant(PointerInPlace, PointerStore),
)
"""All that a power cut, or a kill, brings to light."""
