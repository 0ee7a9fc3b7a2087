"""Starts training processes quickly: one process imports torch once and forks the others, which are killed one by one.

A trainee is a process of its own with nothing inherited but imported modules: the parent of them all runs no tensor
operation and starts no thread, so a fork of it is as good as a fresh start, and 4 s of CPU time cheaper.

    asked on stdin, one JSON line each                answered on stdout
    {"target": ..., "arguments": [...], "stderr": path}   {"pid": 17}
    {"poll": 17}                                          {"code": null} or the exit code, -9 after SIGKILL
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from trajload.checkpoint.targets import find_target, target_of
from trajload.errors import StageFailedError

__all__ = ["Child", "Nursery"]

_PRELOADED = (
    "torch",
    "torch._dynamo",  # the first step of an optimiser imports it, for 2 s
    "torch.distributed",
    "trajload.loader",
    "trajload.checkpoint.checkpointer",
    "trajload.checkpoint.restoring",
    "trajload.checkpoint.store",
    "trajload.checkpoint.trace",
    "trajload.checkpoint.trainee",
)


class Child:
    """One training process."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.code is None:
            self.code = self._nursery.ask({"poll": self.pid})["code"]
        return self.code

    def kill(self) -> None:
        """Send SIGKILL, and wait until it is gone. Its number is not given to another process before it is polled."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Nursery:
    """The process that forks trainees; leaving the context ends it, and all that it has started.

    All look for modules where this process does.
    """

    def __init__(self) -> None:
        paths = [str(Path(path).resolve()) for path in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(paths)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()  # what makes it end
        self._process.wait()
        self._process.stdout.close()

    def start(self, function: Callable[..., Any], *arguments: Any, stderr: Path) -> Child:
        """Call a function in a process of its own.

        Args:
            function: At the top level of a file.
            arguments: JSON values.
            stderr: File for what it prints.
        """
        request = {"target": target_of(function), "arguments": arguments, "stderr": str(stderr)}
        return Child(self, self.ask(request)["pid"])

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise StageFailedError("the process that starts training processes has died; its message stands on stderr.")
        answer: dict[str, Any] = json.loads(line)
        return answer


_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from trajload.checkpoint.nursery import serve
serve()
"""


def serve() -> NoReturn:
    """Answer requests until stdin ends; then end all children."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)  # of answers: nobody else writes to it
    os.dup2(2, 1)
    for name in _PRELOADED:
        importlib.import_module(name)
    children: set[int] = set()
    try:
        while line := sys.stdin.buffer.readline():
            request = json.loads(line)
            if "poll" in request:
                pid = request["poll"]
                done, status = os.waitpid(pid, os.WNOHANG)
                code = os.waitstatus_to_exitcode(status) if done else None
                if done:
                    children.discard(pid)
                answer: dict[str, Any] = {"code": code}
            else:
                pid = os.fork()
                if pid == 0:
                    _be_a_child(out.fileno(), request)
                children.add(pid)
                answer = {"pid": pid}
            out.write(json.dumps(answer).encode() + b"\n")
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    sys.exit(0)


def _be_a_child(answers: int, request: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        os.close(answers)
        stderr = os.open(request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (stderr, 1), (stderr, 2)):
            os.dup2(source, target)
        find_target(request["target"])(*request["arguments"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
