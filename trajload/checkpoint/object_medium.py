"""The object store's side of the seam: no folders, no rename, no lock; a name is won by a conditional put.

What a lost reply leaves open is settled by reading the object: ours means success, another's means that it was first,
and where neither can be told the put is repeated, which a conditional put survives
(docs/decisions/0113-object-stores-win-a-name-by-a-conditional-put.md).
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trajload.checkpoint.disk import Bytes, Disk
from trajload.checkpoint.record import MAX_RECORD_BYTES
from trajload.checkpoint.temporary import TemporaryFolder
from trajload.errors import MissingDependencyError

__all__ = ["ObjectMedium"]

_PART_BYTES = 8 << 20
"""Of a multipart upload; at most four travel at once, so that a save holds tens of megabytes and not the checkpoint."""
_CONCURRENT = 4
_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.05
T = TypeVar("T")


class ObjectMedium:
    """Objects below one prefix of an obstore store.

    Args:
        store: Any store of obstore: S3, GCS, Azure, memory.
        prefix: Where in it; "" for its root.
        name: For messages.
        pause: Waits between attempts; for tests.
    """

    def __init__(self, store: Any, prefix: str, name: str, *, pause: Callable[[float], None] = time.sleep) -> None:
        try:
            import obstore
            from obstore import exceptions
        except ImportError as err:
            raise MissingDependencyError(
                "checkpoints on object stores need obstore; run: pip install 'trajload[s3]'"
            ) from err
        self._api: Any = obstore
        self._errors: Any = exceptions
        self._store = store
        self._prefix = prefix.strip("/")
        self._pause = pause
        self._durability = ""
        self._cache: TemporaryFolder | None = None
        self.name = name
        self.conditional = True
        """Whether the service refuses to put what is there; found out when the store is opened for writing."""

    def _key(self, path: str) -> str:
        return "/".join(piece for piece in (self._prefix, path) if piece)

    def _call(self, path: str, action: Callable[[], T]) -> T:
        """Return what `action` does, with the service's errors as OSError."""
        try:
            return action()
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such object", path) from None
        except (self._errors.PermissionDeniedError, self._errors.UnauthenticatedError) as err:
            raise PermissionError(errno.EACCES, _first_line(err), path) from err
        except self._errors.BaseError as err:
            raise OSError(errno.EIO, _first_line(err), path) from err

    # ---- reading ----

    def names(self, folder: str) -> list[str]:
        prefix = self._key(folder)
        found = self._call(folder, lambda: self._api.list_with_delimiter(self._store, prefix or None))
        paths = [*(item["path"] for item in found["objects"]), *found["common_prefixes"]]
        return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})

    def read(self, path: str) -> bytes:
        def action() -> bytes:
            got = self._api.get(self._store, self._key(path))
            if got.meta["size"] > MAX_RECORD_BYTES:
                raise OSError(errno.EFBIG, f"it is larger than {MAX_RECORD_BYTES} bytes, so no record of a store", path)
            return bytes(got.bytes())

        return self._call(path, action)

    def size(self, path: str) -> int:
        return int(self._call(path, lambda: self._api.head(self._store, self._key(path)))["size"])

    def pieces(self, path: str) -> Iterator[Bytes]:
        stream = iter(self._call(path, lambda: self._api.get(self._store, self._key(path))).stream())
        while (piece := self._call(path, lambda: next(stream, None))) is not None:
            yield memoryview(piece)

    def files(self, folder: str) -> list[str]:
        cut = len(self._prefix) + 1 if self._prefix else 0
        return sorted(item["path"][cut:] for item in self._below(folder))

    def _below(self, folder: str) -> list[Any]:
        prefix = self._key(folder) + "/"
        found = self._call(folder, lambda: self._api.list(self._store, prefix).collect())
        return [item for item in found if item["path"].startswith(prefix)]

    def age_s(self, folder: str) -> float:
        written = [item["last_modified"].timestamp() for item in self._below(folder)]
        return time.time() - max(written) if written else 0.0

    def free_bytes(self) -> int | None:
        return None

    def local_folder(self, path: str) -> Path | None:
        return None

    def local_file(self, path: str) -> Path:
        """Return a copy of an object, fetched once into a folder that goes with this object."""
        if self._cache is None:
            self._cache = TemporaryFolder()
        disk, where = Disk(), self._cache.path.joinpath(*path.split("/"))
        if not where.exists():
            where.parent.mkdir(parents=True, exist_ok=True)
            fetched = where.with_name(f".{where.name}.fetched")
            fetched.unlink(missing_ok=True)
            fd = disk.create(fetched)
            try:
                for piece in self.pieces(path):
                    disk.write(fd, fetched, piece)
            finally:
                disk.close(fd, fetched)
            disk.rename(fetched, where)
        return where

    def close(self) -> None:
        """Remove the copies that `local_file` made. Idempotent."""
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    # ---- writing ----

    def make_folder(self, path: str) -> None:
        """Do nothing: names hold nonces, and there are no folders."""

    def put(self, path: str, pieces: Iterable[Bytes]) -> None:
        # Not `put` with an iterator: that one is run inside the client's own runtime, where whoever makes the pieces may
        # not call the client, as reading from another object store does.
        key, sent = self._key(path), 0
        writer = self._call(
            path,
            lambda: self._api.open_writer(self._store, key, buffer_size=_PART_BYTES, max_concurrency=_CONCURRENT),
        )
        for piece in pieces:
            data = bytes(piece)  # the caller may use its buffer again while this is on its way
            sent += len(data)
            self._call(path, partial(writer.write, data))
        # Left open where something is raised above: what was not closed never becomes an object.
        self._call(path, writer.close)
        there = self.size(path)
        if there != sent:
            raise OSError(errno.EIO, f"the service holds {there} bytes of {sent}", path)

    def settle_file(self, path: str) -> None:
        """Do nothing: nobody else writes here."""

    def settle(self, folders: Iterable[str]) -> None:
        """Do nothing: an object whose put was answered is durable, name and all."""

    def publish(self, path: str, data: bytes, nonce: str) -> bool:
        if not self.conditional:
            return self._publish_alone(path, data)
        last: OSError | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._pause(_FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                self._put_new(path, data)
                return True
            except FileExistsError:
                pass  # somebody's; ours, perhaps, by an attempt whose reply was lost
            except PermissionError:
                raise
            except OSError as err:
                last = err
            try:
                return self.read(path) == data
            except FileNotFoundError:
                continue  # the put did not arrive, or not yet: the same put again cannot harm
            except OSError as err:
                last = err
        raise OSError(
            errno.EIO, f"whether it was written is not known after {_ATTEMPTS} attempts: {last and last.strerror}", path
        ) from last

    def _put_new(self, path: str, data: bytes) -> None:
        try:
            self._call(
                path, lambda: self._api.put(self._store, self._key(path), data, mode="create", use_multipart=False)
            )
        except OSError as err:
            if isinstance(err.__cause__, (self._errors.AlreadyExistsError, self._errors.PreconditionError)):
                raise FileExistsError(errno.EEXIST, "the object exists", path) from err
            raise

    def _publish_alone(self, path: str, data: bytes) -> bool:
        try:
            return self.read(path) == data
        except FileNotFoundError:
            self._overwrite(path, data)
            return True

    def _overwrite(self, path: str, data: bytes) -> None:
        self._call(path, lambda: self._api.put(self._store, self._key(path), data, use_multipart=False))

    def hint(self, path: str, data: bytes, nonce: str) -> None:
        self._overwrite(path, data)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call(path, lambda: self._api.delete(self._store, self._key(path)))

    def prune(self, folder: str) -> None:
        """Do nothing: there are no folders."""

    def exclusive(self, path: str) -> AbstractContextManager[None]:
        """Keep nobody out: whoever pins looks again afterwards, and so does whoever removes."""
        return contextlib.nullcontext()

    # ---- what the service gives ----

    @property
    def durability(self) -> str:
        return self._durability or "unknown"

    def probe(self, nonce: str, *, locks: bool) -> str:
        """Put an object that must be new, twice: a service that takes it twice cannot tell two writers apart."""
        probe = f".probe-{nonce}"
        try:
            self._put_new(probe, b"probe\n")
            self._put_new(probe, b"probe again\n")
            self.conditional = False
        except FileExistsError:
            self.conditional = True
        except OSError as err:
            if not isinstance(err.__cause__, (self._errors.NotSupportedError, NotImplementedError)):
                raise
            self.conditional = False
        finally:
            with contextlib.suppress(OSError):
                self.remove(probe)
        self._durability = "service" if self.conditional else "service, single writer by agreement"
        return self._durability


def _first_line(err: BaseException) -> str:
    return str(err).partition("\n")[0][:500]
