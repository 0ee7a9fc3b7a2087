"""Bytes on their way to a file: cut into pieces, small ones gathered, and hashed while they are being written."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from trajload.checkpoint.digests import Digest
from trajload.checkpoint.disk import MAX_PIECE_BYTES, Bytes

__all__ = ["hashed"]

_SMALL_BYTES = 64 << 10
_GATHER_BYTES = 1 << 20
_BESIDE_BYTES = 1 << 20
"""Pieces from this size on are hashed in a thread while the consumer writes them; below, handing over costs more."""


def hashed(chunks: Iterable[Bytes], digest: Digest) -> Generator[Bytes, None, None]:
    """Yield the bytes of `chunks` in pieces of at most 8 MiB, adding each to `digest` while the consumer uses it.

    A chunk may be overwritten once the next one is asked for: no piece of it is in use by then.
    """
    helper: ThreadPoolExecutor | None = None
    try:
        for piece in _pieces(chunks):
            if memoryview(piece).nbytes < _BESIDE_BYTES:
                digest.update(piece)
                yield piece
                continue
            helper = helper or ThreadPoolExecutor(1, thread_name_prefix="trajload-digest")
            added = helper.submit(digest.update, piece)
            try:
                yield piece
            finally:
                added.result()
    finally:
        if helper is not None:
            helper.shutdown(wait=True)


def _pieces(chunks: Iterable[Bytes]) -> Iterator[Bytes]:
    gathered = bytearray()
    for chunk in chunks:
        view = memoryview(chunk)
        size = view.nbytes
        if size <= _SMALL_BYTES:
            gathered += view
            if len(gathered) >= _GATHER_BYTES:
                yield bytes(gathered)
                gathered.clear()
            continue
        if gathered:
            yield bytes(gathered)
            gathered.clear()
        flat = view.cast("B")
        for start in range(0, size, MAX_PIECE_BYTES):
            yield flat[start : start + MAX_PIECE_BYTES]
    if gathered:
        yield bytes(gathered)
