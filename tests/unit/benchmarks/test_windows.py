"""The random order that hand-written loaders are given: whole epochs, only real windows, the same for all."""

from __future__ import annotations

import itertools

import pytest

NAMES = ("video240", "video128", "video64", "policy", "state")


@pytest.mark.parametrize("name", NAMES)
def test_every_window_comes_once_an_epoch(name: str) -> None:
    """An epoch is a permutation, and the next epoch another one."""
    from workloads.spec import WORKLOADS
    from workloads.windows import epoch_order

    workload = WORKLOADS[name]
    first, second = (epoch_order(workload, epoch) for epoch in (0, 1))
    assert sorted(first.tolist()) == list(range(workload.num_windows))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_windows_lie_inside_their_episodes(name: str) -> None:
    """The last window ends with its episode's last step."""
    from workloads.spec import WORKLOADS
    from workloads.windows import locate

    workload = WORKLOADS[name]
    episode, start = locate(workload, workload.num_windows - 1)
    assert (episode, start + workload.span) == (workload.data.num_episodes - 1, workload.data.num_steps)
    assert locate(workload, workload.starts) == (1, 0)


def test_endless_order_goes_through_epoch_after_epoch() -> None:
    """Loaders draw from it one by one; no window is lost where epochs meet."""
    from workloads.spec import WORKLOADS
    from workloads.windows import endless, epoch_order

    workload = WORKLOADS["policy"]
    n = workload.num_windows
    got = list(itertools.islice(endless(workload), n + 5))
    assert got == [*epoch_order(workload, 0).tolist(), *epoch_order(workload, 1).tolist()[:5]]


def test_stored_windows_survive_packing() -> None:
    """Records hold ints and bytes, also empty ones."""
    from workloads.clips import pack, unpack

    sample = {"window": 12, "cam": b"\x00mp4", "cam.skip": 3, "action": b""}
    assert unpack(pack(sample)) == sample
