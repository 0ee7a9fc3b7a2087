"""The contract of a byte store."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from trajload.refs import ByteRange

__all__ = ["ByteStore"]


@runtime_checkable
class ByteStore(Protocol):
    """Immutable files under one root, read by range. Thread-safe; safe to use after `close` (it reopens)."""

    root: str

    def read(self, where: ByteRange) -> bytes:
        """Return exactly `where.size` bytes.

        Raises:
            ShardNotFoundError: The file is absent.
            ShardCorruptError: The file ends before the range does.
            ConfigError: The file name leaves the root.
        """
        ...

    def size(self, file: str) -> int:
        """Return the size of `file` in bytes; ShardNotFoundError where it is absent."""
        ...

    def close(self) -> None:
        """Release open files. Idempotent."""
        ...
