"""Digests of checkpoint files, with the algorithm named in the text: `blake3:<hex>` or `sha256:<hex>`.

Files take blake3 where it is installed, since it is fast enough never to be the slower half of a write, and sha256
elsewhere. Records take sha256 always, so that a store can be listed and cleaned on any machine
(docs/decisions/0111-records-take-sha256.md).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator
from typing import Protocol

from trajload.checkpoint.disk import Bytes, open_regular
from trajload.errors import CheckpointMismatchError, MissingDependencyError

__all__ = ["Digest", "default_algorithm", "digest_bytes", "digest_file", "file_pieces", "is_digest", "new_digest"]

_READ_BYTES = 4 << 20
_DIGEST = re.compile(r"(?P<algorithm>[a-z][a-z0-9_]{0,31}):(?P<hex>[0-9a-f]{64})")


class _Hash(Protocol):
    def update(self, data: Bytes, /) -> object: ...

    def hexdigest(self) -> str: ...


class Digest:
    """A running digest that knows its algorithm. Not thread-safe."""

    __slots__ = ("_hash", "algorithm", "bytes")

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self.bytes = 0
        self._hash = _start(algorithm)

    def update(self, data: Bytes) -> None:
        """Add bytes."""
        self._hash.update(data)
        self.bytes += memoryview(data).nbytes

    def text(self) -> str:
        """Return `<algorithm>:<hex>` of what was added so far."""
        return f"{self.algorithm}:{self._hash.hexdigest()}"


def _start(algorithm: str) -> _Hash:
    if algorithm == "sha256":
        return hashlib.sha256()
    if algorithm == "blake3":
        try:
            from blake3 import blake3
        except ImportError as err:
            raise MissingDependencyError(
                "this checkpoint's digests are blake3; run: pip install 'trajload[checkpoint]'"
            ) from err
        made: _Hash = blake3()
        return made
    raise CheckpointMismatchError(
        f"digest algorithm {algorithm!r} is not known: expected 'blake3' or 'sha256'. "
        "A newer trajload may have written it; upgrade."
    )


def default_algorithm() -> str:
    """Return the algorithm that new files take: 'blake3' where it is installed, else 'sha256'."""
    return "blake3" if importlib.util.find_spec("blake3") is not None else "sha256"


def new_digest(algorithm: str | None = None) -> Digest:
    """Return an empty digest of `algorithm`, or of the default one.

    Example:
        >>> new_digest("sha256").text()[:15]
        'sha256:e3b0c442'
    """
    return Digest(algorithm or default_algorithm())


def digest_bytes(data: Bytes, algorithm: str = "sha256") -> str:
    """Return the digest of `data`, as text."""
    digest = Digest(algorithm)
    digest.update(data)
    return digest.text()


def is_digest(text: object) -> bool:
    """Whether `text` is a digest in canonical form, of whatever algorithm."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def file_pieces(path: str | os.PathLike[str]) -> Iterator[memoryview]:
    """Yield the bytes of a regular file. A piece is overwritten by the next one: take what you need of it first.

    Raises:
        OSError: It cannot be opened or read.
    """
    fd = open_regular(path)
    try:
        buffer = bytearray(min(_READ_BYTES, max(os.fstat(fd).st_size, 1)))
        while size := os.readv(fd, [buffer]):
            yield memoryview(buffer)[:size]
    finally:
        os.close(fd)


def digest_file(path: str | os.PathLike[str], algorithm: str | None = None) -> str:
    """Return the digest of the file at `path`, read in pieces.

    Raises:
        OSError: It cannot be read.
    """
    digest = new_digest(algorithm)
    for piece in file_pieces(path):
        digest.update(piece)
    return digest.text()
