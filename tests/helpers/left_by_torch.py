"""What torch leaves to nobody where a DataLoader's worker is killed, or its death raised, in the wrong moment."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

__all__ = ["cleared", "sockets"]


@contextlib.contextmanager
def cleared() -> Iterator[None]:
    """Clear it away at the end.

    A shared tensor has a name for a moment, and on the way between two objects a socket is a bare number. Whatever some
    object still holds, or is still connected, stays for the leak guard to find.
    """
    segments, before = set(Path("/dev/shm").glob("torch_*")), sockets()
    yield
    for segment in set(Path("/dev/shm").glob("torch_*")) - segments:
        if not psutil.pid_exists(int(segment.name.split("_")[1])):
            segment.unlink(missing_ok=True)
    if sockets() - before:
        gc.collect()
        # not isinstance: that asks some objects of torch for a class of their own, which warn
        ours = [thing for thing in gc.get_objects() if issubclass(type(thing), socket.socket | Connection)]
        held = {thing.fileno() for thing in ours if not getattr(thing, "closed", False)}
        for fd in {fd for fd, _ in sockets() - before} - held:
            look = select.poll()
            look.register(fd, 0)
            if look.poll(0):  # the other side has hung up
                os.close(fd)


def sockets() -> set[tuple[int, str]]:
    """Return the open descriptors of sockets, with what tells two apart that had the same number."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists the folder
            found.add((int(fd.name), os.readlink(fd)))
    return {(fd, to) for fd, to in found if to.startswith("socket:")}
