"""A checkpoint being written: a folder nobody looks at until its record is published, with one part a rank."""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trajload.checkpoint.digests import Digest, default_algorithm, digest_bytes, file_pieces
from trajload.checkpoint.disk import Bytes, Disk
from trajload.checkpoint.entries import FileEntry, PartSummary, check_path
from trajload.checkpoint.failures import aborting
from trajload.checkpoint.hashing import hashed
from trajload.checkpoint.medium import LocalMedium, Medium
from trajload.checkpoint.reader import check_pieces
from trajload.checkpoint.record import encode_record
from trajload.checkpoint.temporary import TemporaryFolder
from trajload.errors import CheckpointAbortedError, CheckpointError, ConfigError

__all__ = ["PART_FILE", "Generation", "PartWriter", "generation_path", "parse_generation"]

PART_FILE = "part.json"
_PART = re.compile(r"r\d{5}")
_PATH = re.compile(r"gen/(?P<seq>\d{10,19})-s(?P<step>\d{9,19})-(?P<nonce>[0-9A-Za-z]{1,64})")


def generation_path(seq: int, step: int, nonce: str) -> str:
    """Return the folder of a generation, relative to the store.

    Example:
        >>> generation_path(42, 12_000, "5f3a")
        'gen/0000000042-s000012000-5f3a'
    """
    return f"gen/{seq:010d}-s{step:09d}-{nonce}"


def parse_generation(path: str) -> tuple[int, int, str] | None:
    """Return (seq, step, nonce) of a generation's folder; None of any other."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    parsed = int(found["seq"]), int(found["step"]), found["nonce"]
    return parsed if generation_path(*parsed) == path else None


class Generation:
    """One attempt at a checkpoint. Its folder bears a nonce, so retries and forgotten writers never share one.

    Parts of different ranks may be written at once, by threads or processes. The first error ends it for good.
    """

    def __init__(self, medium: Medium, path: str, nonce: str, world: int | None = None) -> None:
        parsed = parse_generation(path)
        if parsed is None or parsed[2] != nonce:
            raise ConfigError(f"generation {path!r} with nonce {nonce!r} is not of a store: take both from `begin`.")
        self.seq, self.step, self.nonce = parsed
        self.path = path
        self.failed: str | None = None
        """What ended it, None while it may still be committed."""
        self.world = world
        """How many parts it will have; None where only the rank that commits knows."""
        self.committed = False
        self._medium = medium

    @property
    def folder(self) -> Path:
        """Where it stands, for writers that want a folder; a local store's only."""
        found = self._medium.local_folder(self.path)
        if found is None:
            raise ConfigError(f"generation {self.path!r} of {self._medium.name!r} is in no folder of this machine.")
        return found

    def part(self, rank: int) -> PartWriter:
        """Return the writer of a rank's part; once for each rank.

        Raises:
            CheckpointAbortedError: The folder cannot be made, or this rank has one already.
        """
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < 100_000:
            raise ConfigError(f"rank is {rank!r}: expected an integer in [0, 100000).")
        self.check()
        writer = PartWriter(self, self._medium, rank)
        with aborting(f"making folder {writer.path!r}"):
            self._medium.make_folder(writer.path)
        return writer

    def check(self) -> None:
        """Raise CheckpointAbortedError where it has failed."""
        if self.failed is not None:
            raise CheckpointAbortedError(
                f"generation {self.path!r} has failed before: {self.failed} Abandon it and begin another."
            )

    def fail(self, why: str) -> None:
        """Note that it must not be committed; the first reason stays."""
        self.failed = self.failed or why


class PartWriter:
    """Writes one rank's files, durable one by one, and at last the list of them. Not thread-safe."""

    def __init__(self, generation: Generation, medium: Medium, rank: int) -> None:
        self.generation = generation
        self.rank = rank
        self.path = f"{generation.path}/r{rank:05d}"
        self._medium = medium
        self._entries: dict[str, FileEntry] = {}
        self._folders: set[str] = {self.path}
        self._staged: dict[str, TemporaryFolder] = {}
        self._finished = False

    @property
    def folder(self) -> Path:
        """Where the part stands, for writers that want a folder; a local store's only."""
        return self.generation.folder / self.path.rpartition("/")[2]

    def _begin(self, name: str) -> None:
        self.generation.check()
        if self._finished:
            raise CheckpointError(f"part {self.path!r} is finished: nothing can be added to it.")
        if not isinstance(name, str) or name == PART_FILE or name in self._entries:
            raise ConfigError(f"file name {name!r} is taken or reserved: expected a new one.")
        try:
            check_path(name)
        except CheckpointError as err:
            raise ConfigError(f"file name {name!r} is no relative path without '..'.") from err

    def write(self, name: str, chunks: Iterable[Bytes], *, algorithm: str | None = None) -> FileEntry:
        """Write one file and return its entry once the content is durable. Hashes as it writes, never reads back.

        Args:
            name: Relative path below the part.
            chunks: The content. A chunk may be overwritten once the next one is asked for.
            algorithm: Of its digest, None for the default.

        Raises:
            CheckpointAbortedError: The system refused; the generation cannot be committed any more.
        """
        self._begin(name)
        path = f"{self.path}/{name}"
        digest = Digest(algorithm or default_algorithm())
        try:
            # Closed here, since an exception would keep it, and its thread, as long as somebody looks at the traceback.
            with aborting(f"writing checkpoint file {path!r}"), contextlib.closing(hashed(chunks, digest)) as pieces:
                self._make_parents(name)
                self._medium.put(path, pieces)
        except BaseException as err:
            self.generation.fail(f"file {path!r} was not written ({type(err).__name__}).")
            raise
        return self._add(FileEntry(name, digest.bytes, digest.text(), path))

    def _make_parents(self, name: str) -> None:
        folder = self.path
        for piece in name.split("/")[:-1]:
            folder = f"{folder}/{piece}"
            if folder not in self._folders:
                self._medium.make_folder(folder)
                self._folders.add(folder)

    def _add(self, entry: FileEntry) -> FileEntry:
        self._entries[entry.name] = entry
        return entry

    def refer(self, name: str, entry: FileEntry, *, verify: bool = True) -> FileEntry:
        """Record that file `name` is what `entry` of a live commit is, and write nothing.

        Args:
            name: Its name in this part.
            entry: Of a commit that is not going to be removed before this one is committed.
            verify: Read it first, so that an unnoticed fault of the disk does not pass into the new commit.

        Raises:
            CheckpointCorruptError: The old file is missing, or not what its entry says. Write the file instead.
        """
        self._begin(name)
        check_pieces(self._medium, entry, read=verify)
        return self._add(FileEntry(name, entry.bytes, entry.digest, entry.path))

    def make_folder(self, name: str = "dcp", *, shared: bool = False) -> Path:
        """Make a folder for another writer's files and return it; `adopt` takes them in.

        Args:
            name: One name.
            shared: Beside the parts, one for all ranks, instead of inside this part. It may be there already. Of an
                object store each rank has its own, on its own machine.
        """
        path = self._foreign(name, shared)
        if self._medium.local_folder(path) is None:
            return self._staged.setdefault(path, TemporaryFolder()).path
        with aborting(f"making folder {path!r}"):
            try:
                self._medium.make_folder(path)
            except FileExistsError:
                if not shared:
                    raise
        return self.generation.folder.joinpath(*path.split("/")[2:])

    def _foreign(self, name: str, shared: bool) -> str:
        is_name = isinstance(name, str) and name not in ("", ".", "..", PART_FILE) and not set(name) & {"/", "\x00"}
        if not is_name or (shared and _PART.fullmatch(name)):
            raise ConfigError(f"folder name {name!r} is not one plain name, or is taken.")
        return f"{self.generation.path if shared else self.path}/{name}"

    def adopt(
        self, name: str = "dcp", *, shared: bool = False, only: Callable[[str], bool] | None = None
    ) -> list[FileEntry]:
        """Take in the files that another writer made in a folder: bring them to the disk, hash and list them.

        Args:
            name: The folder, as given to `make_folder`.
            shared: Whether the folder is one for all ranks.
            only: Which files are this rank's, by their path below the folder; None for all.

        Raises:
            CheckpointAbortedError: A file cannot be read or synced, is a link, or changed meanwhile.
        """
        path = self._foreign(name, shared)
        staged = self._staged.pop(path, None)
        found = []
        try:
            with aborting(f"taking in folder {path!r}"):
                # Files in a folder of their own are listed there, and sent; the others stay where they are.
                there = LocalMedium(staged.path, Disk()) if staged else self._medium
                for file in there.files("" if staged else path):
                    below = file if staged else file[len(path) + 1 :]
                    if only is None or only(below):
                        found.append(self._adopted(path, below, f"{name}/{below}", staged))
        except BaseException as err:
            self.generation.fail(f"folder {path!r} was not taken in ({type(err).__name__}).")
            raise
        finally:
            if staged is not None:
                staged.close()
        self._folders.add(path)
        return found

    def _adopted(self, path: str, below: str, name: str, staged: TemporaryFolder | None) -> FileEntry:
        self._begin(name)
        file = f"{path}/{below}"
        where = staged.path / below if staged else self.generation.folder.joinpath(*file.split("/")[2:])
        status = where.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointAbortedError(f"file {file!r} is no regular file: a checkpoint holds regular files only.")
        digest = Digest(default_algorithm())
        if staged is not None:
            self._medium.put(file, hashed(file_pieces(where), digest))
        else:
            self._medium.settle_file(file)
            for piece in file_pieces(where):
                digest.update(piece)
            self._folders.add(file.rpartition("/")[0])
        after = where.lstat()
        if (after.st_size, after.st_mtime_ns, digest.bytes) != (status.st_size, status.st_mtime_ns, status.st_size):
            raise CheckpointAbortedError(f"file {file!r} changed while it was taken in: its writer has not finished.")
        return self._add(FileEntry(name, status.st_size, digest.text(), file))

    def finish(self, extra: Mapping[str, Any] | None = None) -> PartSummary:
        """Write the list of files, make all names durable, and return what the rank votes with.

        Args:
            extra: JSON values to keep with the part.
        """
        self.generation.check()
        if self._finished:
            raise CheckpointError(f"part {self.path!r} is finished already.")
        body = {
            "rank": self.rank,
            "nonce": self.generation.nonce,
            "step": self.generation.step,
            "files": [entry.to_json() for entry in self._entries.values()],
            "extra": dict(extra or {}),
        }
        data, _ = encode_record("part", body)
        path = f"{self.path}/{PART_FILE}"
        try:
            with aborting(f"finishing part {self.path!r}"):
                self._medium.put(path, [data])
                inner = sorted(self._folders, key=lambda folder: (-folder.count("/"), folder))
                self._medium.settle([*inner, self.generation.path, "gen"])
        except BaseException as err:
            self.generation.fail(f"part {self.path!r} was not finished ({type(err).__name__}).")
            raise
        self._finished = True
        return PartSummary(self.rank, path, len(data), digest_bytes(data))
