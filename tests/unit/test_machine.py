"""What the machine has is asked in one place, and control groups of both versions are heard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from trajload import machine
from trajload.machine import free_memory, num_cpus, total_memory

MIB = 1 << 20
MEMINFO = "MemTotal:       8388608 kB\nMemFree:  1024 kB\nMemAvailable:   4194304 kB\n"


def fake(root: Path, files: Mapping[str, str]) -> str:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


V2 = {"proc/self/cgroup": "0::/jobs/job-1\n"}
V1 = {"proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/slurm/job_1\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "total", "free"),
    [
        ({}, 8192, 4096),
        ({"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5\n"}, 8192, 4096),
        ({"sys/fs/cgroup/memory.max": f"{512 * MIB}\n", "sys/fs/cgroup/memory.current": f"{200 * MIB}\n"}, 512, 312),
        (
            {
                **V2,
                "sys/fs/cgroup/jobs/memory.max": f"{1000 * MIB}\n",
                "sys/fs/cgroup/jobs/memory.current": f"{900 * MIB}\n",
                "sys/fs/cgroup/jobs/memory.stat": f"anon 5\ninactive_file {300 * MIB}\nactive_file {100 * MIB}\n",
                "sys/fs/cgroup/jobs/job-1/memory.max": "max\n",
                "sys/fs/cgroup/jobs/job-1/memory.high": f"{2000 * MIB}\n",
                "sys/fs/cgroup/jobs/job-1/memory.current": f"{900 * MIB}\n",
            },
            1000,
            500,
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{7000 * MIB}\n",
                "sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes": f"{600 * MIB}\n",
                "sys/fs/cgroup/memory/slurm/job_1/memory.usage_in_bytes": f"{550 * MIB}\n",
                "sys/fs/cgroup/memory/slurm/job_1/memory.stat": (
                    f"active_file 1\ninactive_file 1\ntotal_active_file {60 * MIB}\ntotal_inactive_file {40 * MIB}\n"
                ),
            },
            600,
            150,
        ),
        (
            # in a container the path is the host's, and the group stands at the top
            {
                "proc/self/cgroup": "4:memory:/docker/0a1b\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{64 * MIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{100 * MIB}\n",
            },
            64,
            0,
        ),
    ],
    ids=[
        "no groups",
        "no limit",
        "top group",
        "version 2, of the group above",
        "version 1, Slurm",
        "version 1, container",
    ],
)
def test_memory_is_that_of_the_tightest_group(tmp_path: Path, files: Mapping[str, str], total: int, free: int) -> None:
    """In MiB; what files have cached is free, since the kernel gives it back."""
    root = fake(tmp_path, files)
    assert (total_memory(root), free_memory(root)) == (total * MIB, free * MIB)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 64),
        (
            {**V2, "sys/fs/cgroup/jobs/cpu.max": "250000 100000\n", "sys/fs/cgroup/jobs/job-1/cpu.max": "max 100000\n"},
            2.5,
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
    ],
    ids=["no groups", "version 2, of the group above", "version 1"],
)
def test_cpus_are_those_of_the_tightest_group(
    tmp_path: Path, files: Mapping[str, str], cpus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota of time counts like a set of CPUs: a container with `--cpus=2.5` on a large host gets so many threads."""
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert num_cpus(fake(tmp_path, files)) == cpus


def test_this_machine_tells() -> None:
    """Whatever stands in /proc here."""
    free, total = free_memory(), total_memory()
    assert free is None or total is None or 0 <= free <= total
    assert num_cpus() > 0


def test_what_is_not_told_is_none(tmp_path: Path) -> None:
    """No guess in its place; physical memory is asked of the system where there is no /proc."""
    assert free_memory(str(tmp_path)) is None
    assert total_memory(str(tmp_path)) is not None
