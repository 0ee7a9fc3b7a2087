"""Messages between a loader and its worker processes: length, then pickle, over a socket pair that only they hold."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from trajload import errors
from trajload.errors import Locus, StageFailedError, TrajloadError, described

__all__ = ["Channel", "FrameReader", "RemoteTraceback", "pack_error", "unpack_error", "unpickled_file"]

_HEAD = struct.Struct("<QB")
"""Bytes of the pickle, descriptors that come with it."""
_CHUNK = 1 << 16
_MAX_FDS = 8


def unpickled_file(fd: int) -> Any:
    """Return the object that the loader pickled into an anonymous file."""
    return pickle.loads(os.pread(fd, os.fstat(fd).st_size, 0))


class Channel:
    """One end. `send` may be called from several threads, `receive` from one."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._sending = threading.Lock()

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message, and copies of descriptors with it.

        Raises:
            OSError: The other end is gone.
        """
        body = pickle.dumps(message, protocol=5)
        head = _HEAD.pack(len(body), len(fds))
        # Without MSG_NOSIGNAL a program that restored SIGPIPE's default would die with its worker.
        with self._sending:
            if fds:
                socket.send_fds(self.socket, [head], list(fds), socket.MSG_NOSIGNAL)
                self.socket.sendall(body, socket.MSG_NOSIGNAL)
            else:
                self.socket.sendall(head + body, socket.MSG_NOSIGNAL)

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for a message, and return it with the descriptors that came with it.

        Raises:
            EOFError: The other end is gone.
        """
        # Not by socket.recv_fds, which drops its flags: a program that a transform starts would inherit the memory.
        room = socket.CMSG_SPACE(_MAX_FDS * 4)
        head, ancillary, _, _ = self.socket.recvmsg(_HEAD.size, room, socket.MSG_CMSG_CLOEXEC)
        fds = [fd for _, kind, data in ancillary if kind == socket.SCM_RIGHTS for fd in _ints(data)]
        head += self._exactly(_HEAD.size - len(head))
        size, _ = _HEAD.unpack(head)
        return pickle.loads(self._exactly(size)), fds

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.socket.recv(min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close this end. Idempotent."""
        self.socket.close()


def _ints(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])


class FrameReader:
    """Reads without ever blocking: a worker may be killed in the middle of a message."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self.ended = False
        """The other end is gone; what is left of a torn message is dropped."""

    def messages(self) -> Iterator[Any]:
        """Yield the messages that have wholly arrived."""
        while not self.ended:
            try:
                part = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                part = b""
            self.ended = not part
            self._buffer += part
        while len(self._buffer) >= _HEAD.size:
            size, _ = _HEAD.unpack_from(self._buffer)
            if len(self._buffer) < _HEAD.size + size:
                return
            body = bytes(self._buffer[_HEAD.size : _HEAD.size + size])
            del self._buffer[: _HEAD.size + size]
            yield pickle.loads(body)


# ---- errors ----


class RemoteTraceback(Exception):
    """Cause of an error that came from a worker process: its traceback there, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def pack_error(err: BaseException) -> tuple[str, str, dict[str, Any], str]:
    """Return an error as plain values: class, message, location, traceback."""
    text = "".join(traceback.format_exception(type(err), err, err.__traceback__))
    if not isinstance(err, TrajloadError):
        message = f"a worker process failed with {described(err)}. This is a bug in trajload or in a source; please report it."
        return StageFailedError.__name__, message, {}, text
    own = next(c.__name__ for c in type(err).__mro__ if c.__module__ == errors.__name__)
    return own, err.message, asdict(err.at), text


def unpack_error(packed: tuple[str, str, dict[str, Any], str]) -> TrajloadError:
    """Return what `pack_error` took apart, with the far traceback as its cause."""
    name, message, locus, text = packed
    err: TrajloadError = getattr(errors, name)(message, at=Locus(**locus))
    err.__cause__ = RemoteTraceback(text)
    return err
