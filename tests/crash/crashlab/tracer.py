"""Runs cases under strace, which kills them at their N-th call of a kind, or makes that call fail."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from crashlab import server

__all__ = ["CHANGING", "Outcome", "Tracer", "calls_of", "why_not"]

CHANGING = tuple(name for name in server.NUMBERS if name != "openat")
"""Calls that change files. `openat` does too when it makes one; it is swept apart, since most of its calls only read."""


@dataclass(frozen=True)
class Outcome:
    """How a case ended: exit status (-9: killed), and what it had noted by then."""

    pid: int
    status: int
    notes: list[tuple[str, dict[str, Any]]]


def why_not() -> str | None:
    """Return why strace cannot be used here, or None."""
    if not server.SUPPORTED:
        return "call numbers are known for x86-64 only"
    if (strace := shutil.which("strace")) is None:
        return "strace is not installed"
    trial = subprocess.run(
        [strace, "-f", "-qq", "-o", "/dev/null", "-e", "trace=mkdir", "-e", "inject=mkdir:signal=SIGKILL:when=1", sys.executable, "-I", "-S", "-c", "import os; os.mkdir('')"],
        capture_output=True, check=False,
    )  # fmt: skip
    return None if trial.returncode == -9 else f"strace cannot inject here: {trial.stderr.decode()[-200:]!r}"


class Tracer:
    """A server under strace, see `server`; use as a context manager.

    Args:
        inject: For instance "signal=SIGKILL" or "error=EIO", or "" to only watch.
        call: Name of the system call that it happens at.
        most: The call is at most the so-many-th one of the case.
        log: File for what strace saw.
    """

    def __init__(self, inject: str = "", call: str = "", most: int = 0, log: Path | None = None) -> None:
        self._call, self._most = call, most
        here, there = socket.socketpair()
        traced = ",".join([call] if inject else server.NUMBERS)
        command = [
            "strace",
            "-f",
            "-qq",
            "-y",
            "-s",
            "0",
            "-e",
            "signal=none",
            "-e",
            f"trace={traced}",
            "-o",
            str(log or "/dev/null"),
        ]
        if inject:
            command += ["-e", f"inject={call}:{inject}:when={most}"]
        command += [sys.executable, "-B", str(Path(server.__file__)), str(there.fileno())]
        self._process = subprocess.Popen(
            command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        there.close()
        self._socket, self._replies = here, here.makefile("r")

    def run(self, root: Path, actions: Sequence[Any], at: int = 0, goes_on: bool = False) -> Outcome:
        """Run one case on the store `root`, with the injection at the `at`-th call (0: none)."""
        assert at <= self._most
        burn = self._most - at if at else 0
        job = {"root": str(root), "actions": list(actions), "call": self._call, "burn": burn, "goes_on": goes_on}
        self._socket.sendall(json.dumps(job).encode() + b"\n")
        if not (line := self._replies.readline()):
            self._process.kill()
            raise RuntimeError(f"the traced server ended: {self._process.communicate()[1].decode()[-2000:]}")
        reply = json.loads(line)
        return Outcome(reply["pid"], reply["status"], [(kind, values) for kind, values in reply["notes"]])

    def close(self) -> None:
        """End the server."""
        self._replies.close()
        self._socket.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def __enter__(self) -> Tracer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_LINE = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\d+)(.*)$")


def calls_of(log: Path, pid: int) -> list[tuple[str, str, int]]:
    """Return (call, arguments, result) of every call that a process made, from strace's log."""
    found = []
    for line in log.read_text().splitlines():
        if (match := _LINE.match(line)) and int(match[1]) == pid:
            found.append((match[2], match[3], int(match[4])))
    return found


def counted(calls: Sequence[tuple[str, str, int]]) -> Counter[str]:
    """Return how often each call was made."""
    return Counter(name for name, _, _ in calls)
