"""Bytes on their way to a file: cut into pieces, small ones gathered, and hashed while they are being written."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable, Iterator

from trajload.checkpoint.digests import Digest
from trajload.checkpoint.disk import MAX_PIECE_BYTES, Bytes

__all__ = ["hashed"]

_BESIDE_BYTES = 1 << 20
"""Pieces from this size on are hashed in a thread while the consumer writes them; below, handing over costs more. So
chunks below are gathered first: copying is cheaper than hashing."""
_GATHER_BYTES = 4 << 20


class _Beside:
    """A thread that adds pieces to a digest. Not from `concurrent.futures`, which refuses work once the main thread has
    ended, when a save in the background may still have to finish."""

    def __init__(self, digest: Digest) -> None:
        self._digest = digest
        self._pieces: queue.SimpleQueue[Bytes | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="trajload-digest", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            try:
                self._digest.update(piece)
            except BaseException as err:
                self._done.put(err)
            else:
                self._done.put(None)
            del piece  # the consumer may release its buffer now

    def add(self, piece: Bytes) -> None:
        self._pieces.put(piece)

    def wait(self) -> None:
        if (err := self._done.get()) is not None:
            raise err

    def close(self) -> None:
        self._pieces.put(None)
        self._thread.join()


def hashed(chunks: Iterable[Bytes], digest: Digest) -> Generator[Bytes, None, None]:
    """Yield the bytes of `chunks` in pieces of at most 8 MiB, adding each to `digest` while the consumer uses it.

    A chunk may be overwritten once the next one is asked for: no piece of it is in use by then.
    """
    helper: _Beside | None = None
    try:
        for piece in _pieces(chunks):
            if memoryview(piece).nbytes >= _BESIDE_BYTES:
                helper = helper or _helper(digest)
            if memoryview(piece).nbytes < _BESIDE_BYTES or helper is None:
                digest.update(piece)
                yield piece
                continue
            helper.add(piece)
            try:
                yield piece
            finally:
                helper.wait()
    finally:
        if helper is not None:
            helper.close()


def _helper(digest: Digest) -> _Beside | None:
    try:
        return _Beside(digest)
    except RuntimeError:
        return None  # the interpreter is ending and starts no threads any more


def _pieces(chunks: Iterable[Bytes]) -> Iterator[Bytes]:
    gathered = bytearray()
    for chunk in chunks:
        view = memoryview(chunk)
        if view.nbytes < _BESIDE_BYTES:
            gathered += view
            if len(gathered) >= _GATHER_BYTES:
                yield gathered
                gathered = bytearray()
            continue
        if gathered:
            yield gathered
            gathered = bytearray()
        flat = view.cast("B")
        for start in range(0, view.nbytes, MAX_PIECE_BYTES):
            yield flat[start : start + MAX_PIECE_BYTES]
    if gathered:
        yield gathered
