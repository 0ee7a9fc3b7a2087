"""Fixtures of the crash tests; `crashlab`, the folder beside this file, holds what they and scripts/crash-tests share."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


def _skip(what: str, reason: str) -> None:
    """Skip, saying what is not proved here; TRAJLOAD_REQUIRE_CRASH_TOOLS=1 makes it a failure."""
    message = f"NOT PROVED HERE: {what}: {reason}. scripts/crash-tools installs what is missing"
    if os.environ.get("TRAJLOAD_REQUIRE_CRASH_TOOLS"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def strace() -> None:
    """Kills and errors at system calls need strace."""
    from crashlab import tracer

    if reason := tracer.why_not():
        _skip("what happens at each system call", reason)


@pytest.fixture(scope="session", params=["ext4", "xfs"])
def cut_kind(request: pytest.FixtureRequest, strace: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file system whose power can be cut here."""
    from crashlab import cuts

    if reason := cuts.why_not(request.param, tmp_path_factory.mktemp("try-cut")):
        _skip(f"power cuts on {request.param}", reason)
    return str(request.param)


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, in memory where there is such a thing: thousands of states are laid out in it."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="crash-states-", dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
