"""Fixtures shared by all tests: where real data stand, a small generated dataset, and guards against leaks."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from by_path import load
from hypothesis import HealthCheck, settings

REPO = Path(__file__).resolve().parents[1]
_LOOKS, _PAUSE_S = 1000, 0.01
"""What is on its way out is looked for so often; only failing tests pay it. Looks are counted and no clock is read: a
process that was stopped for a minute, or got no core, has not been patient for that minute."""
_COLLECT_EVERY = 50
"""Looks."""


# How long an example takes, and how long making them takes, says how busy the machine is.
settings.register_profile("trajload", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trajload")

_SIBLINGS = bool(os.environ.get("PYTEST_XDIST_WORKER"))
"""Whether other processes run tests beside this one."""


def pytest_configure() -> None:
    """Take Ctrl-C as usual where the tests run in the background of a shell, which lets every child ignore it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--part`: the half of the tests that may run side by side, or the half that may not (scripts/test)."""
    parser.addoption("--part", choices=["beside", "alone"], help="only tests without, or only with, the marker 'alone'")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the part asked for."""
    if part := config.getoption("--part"):
        dropped = [item for item in items if (item.get_closest_marker("alone") is not None) != (part == "alone")]
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in set(dropped)]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real trajectory data made by others; skips where absent, fails where CI promises it."""
    folder = Path(os.environ.get("TRAJLOAD_REAL_DATA", REPO.parent / "shared" / "data"))
    if not (folder / "INDEX.md").is_file():
        message = f"real data not found at {folder}: set TRAJLOAD_REAL_DATA"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture(scope="session")
def demo_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A native dataset of three generated episodes with every modality; read-only, shared by all tests."""
    from trajload.demo import EpisodeLength, generate

    folder = tmp_path_factory.mktemp("shared") / "demo-dataset"
    return generate(folder, num_episodes=3, seed=3, length=EpisodeLength(min_steps=60, max_steps=80))


@pytest.fixture(scope="module")
def dataset(demo_dataset: Path) -> Iterator[Any]:
    """`demo_dataset`, opened; modules with a dataset of their own call it by the same name."""
    import trajload

    opened = trajload.open(demo_dataset)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def maker() -> ModuleType:
    """The module that writes tiny LeRobot folders."""
    return load(REPO / "tests" / "unit" / "sources" / "lerobot_maker.py")


@pytest.fixture(scope="session")
def mixed_data() -> ModuleType:
    """The module that writes the dataset: the benchmark's own."""
    return load(REPO / "benchmarks" / "mixed_data.py", name="mixed_data_of_tests", importable=True)


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory, mixed_data: ModuleType) -> Path:
    """Twelve episodes in three shards: small pictures, larger ones, larger ones with keyframes far apart. Read-only."""
    parts = [
        mixed_data.Part("cam_small", 8, 4),
        mixed_data.Part("cam_large", 8, 4),
        mixed_data.Part("cam_large", 48, 4),
    ]
    sizes = {"cam_small": (48, 64), "cam_large": (96, 128)}
    return mixed_data.write_mixed(tmp_path_factory.mktemp("mixed") / "data", parts=parts, sizes=sizes, num_frames=60)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes in one thread: on a busy machine small kernels wait longer for their helpers than they compute."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- random state ----


def _rng_state() -> dict[str, Any]:
    """Return the state of every global generator there is; a library that is not imported is not imported here."""
    state: dict[str, Any] = {"random": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy.random"] = (name, keys.tobytes(), *rest)
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "get_rng_state"):
        state["torch"] = torch.get_rng_state().numpy().tobytes()
    return state


def _restore(state: dict[str, Any]) -> None:
    random.setstate(state["random"])
    if "numpy.random" in state:
        import numpy as np

        name, keys, *rest = state["numpy.random"]
        np.random.set_state((name, np.frombuffer(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    if "torch" in state:
        import torch

        torch.set_rng_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))


@pytest.fixture(autouse=True)
def rng_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that draws from a global generator: whoever does so makes runs depend on each other."""
    before = _rng_state()
    yield
    after = _rng_state()
    changed = [name for name, state in before.items() if after.get(name) != state]
    if changed:
        _restore(before)
        if request.node.get_closest_marker("global_rng") is None:
            pytest.fail(f"the test changed the global state of {', '.join(changed)}: draw from rng.key_rng instead")


# ---- threads, processes, descriptors, shared memory ----


def _children() -> set[int]:
    """Return the children of this process, without Python's own long-lived helpers."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            found.update(int(pid) for pid in task.read_text().split())
        except OSError:
            continue  # the thread has ended
    return {pid for pid in found if not _is_helper(pid)}


def _is_helper(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True  # gone
    return b"resource_tracker" in command or b"forkserver" in command


def _descriptors() -> dict[int, str]:
    """Return what each open descriptor points to."""
    found = {}
    for fd in Path("/proc/self/fd").iterdir() if Path("/proc/self/fd").is_dir() else ():
        try:
            found[int(fd.name)] = os.readlink(fd)
        except OSError:
            continue  # the descriptor that lists the folder
    return found


def _shared_memory() -> set[str]:
    try:
        return set(os.listdir("/dev/shm"))
    except OSError:
        return set()


def _names_of_ours() -> set[str]:
    """Return the segments that this project or torch would name so; other processes of the machine use /dev/shm too.

    None where the developer says that others who get killed are at work beside the tests.
    """
    if os.environ.get("TRAJLOAD_TESTS_SHARE_MACHINE"):
        return set()
    return {name for name in _shared_memory() if name.startswith(("trajload", "torch_", "psm_", "sem."))}


def _is_of_another_process(name: str) -> bool:
    """Whether a segment is in use by a process that is none of ours: by its name, torch_<pid>_<number>, or its mappings."""
    ours = {os.getpid(), *_children()}
    for maps in Path("/proc").glob("[0-9]*/maps") if name.startswith(("sem.", "psm_")) else ():
        try:
            if int(maps.parent.name) not in ours and f"/dev/shm/{name}" in maps.read_text():
                return True
        except OSError:
            continue  # it has ended, or belongs to another user
    parts = name.split("_")
    if parts[0] != "torch" or len(parts) < 2 or not parts[1].isdigit():
        return False
    pid = int(parts[1])
    return pid != os.getpid() and pid not in _children() and Path(f"/proc/{pid}").exists()


def _is_checked(target: str, own_folder: bool) -> bool:
    """Whether an open descriptor counts as leaked.

    Files count only in tests whose fixtures all end with the test: a dataset that several tests share may keep the
    file open that one of them read first. Descriptors that have been deleted under /tmp belong to pytest's capture.
    """
    if target.startswith(("pipe:", "socket:", "/memfd:")):
        return True
    return (
        own_folder
        and target.startswith("/")
        and not target.startswith(("/dev/", "/proc/"))
        and "(deleted)" not in target
    )


def _patiently(look: Callable[[], list[str]]) -> list[str]:
    """Return what is seen again and again; nothing as soon as nothing is seen.

    What only waits for the collector is no leak, also where it began to wait a moment ago, when a thread ended.
    """
    for number in range(_LOOKS):
        if not look():
            return []
        if number % _COLLECT_EVERY == 0:
            gc.collect()
        time.sleep(_PAUSE_S)
    return look()


def _own_fixtures_only(request: pytest.FixtureRequest) -> bool:
    definitions = request.node._fixtureinfo.name2fixturedefs.values()
    return all(d[-1].scope == "function" or d[-1].argname in ("real_data", "tmp_path_factory") for d in definitions)


@pytest.fixture(autouse=True)
def leak_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, child process, descriptor or shared memory segment behind."""
    threads, children, fds, segments = set(threading.enumerate()), _children(), _descriptors(), _shared_memory()
    yield
    own_folder = _own_fixtures_only(request)

    def new_threads() -> set[threading.Thread]:
        return set(threading.enumerate()) - threads

    def new_fds() -> dict[int, str]:
        now = _descriptors()
        return {fd: to for fd, to in now.items() if fds.get(fd) != to and _is_checked(to, own_folder)}

    def new_names() -> set[str]:
        names = {n for n in _names_of_ours() - segments if not _is_of_another_process(n)}
        # Beside others a segment of nobody alive may be theirs: the session as a whole answers for it, see below.
        return {n for n in names if n.startswith(f"torch_{os.getpid()}_")} if _SIBLINGS else names

    def leaks() -> list[str]:
        found = {
            "threads": sorted(t.name for t in new_threads()),
            "child processes": sorted(_children() - children),
            "open descriptors": new_fds(),
            "shared memory": sorted(new_names()),
        }
        return [f"{what} {left}" for what, left in found.items() if left]

    # Threads of a library's own (Arrow's that read ahead) may close a file a moment after the call that opened it.
    if left := _patiently(leaks):
        pytest.fail("left behind: " + "; ".join(left))


_before: pytest.StashKey[set[str]] = pytest.StashKey()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note what shared memory there is before any test, in the process that all others are started by."""
    session.stash[_before] = _names_of_ours()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if its tests, in however many processes, have left shared memory behind."""
    if _SIBLINGS or _before not in session.stash:
        return
    names = {n for n in _names_of_ours() - session.stash[_before] if not _is_of_another_process(n)}
    if names and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if names:
        sys.stderr.write(f"\nthe tests left behind: shared memory {sorted(names)}\n")
