"""A disk that is full, broken, over its quota or read-only, at each operation: an error of ours, and nothing lost."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crashlab.faults import ERRORS, OPERATIONS, FailingDisk
from crashlab.refusals import num_operations, refuse_everywhere
from crashlab.scenario import SHORT_SCRIPT

from trajload.checkpoint.disk import Disk

STRIDE = 16
"""Each test takes each so-many-th operation, each other ones; scripts/crash-tests takes all."""


def test_every_operation_of_a_disk_can_be_made_to_fail() -> None:
    """A new operation must join the list, or nobody would see it refuse."""
    public = {name for name, value in vars(Disk).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert public == set(OPERATIONS)


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from-then-on"])
@pytest.mark.parametrize("error", ERRORS)
def test_refused_operation_raises_our_error_and_loses_nothing(error: str, lasting: bool, memory_folder: Path) -> None:
    """The last checkpoint loads, also while the disk still refuses; the next save works once it does not."""
    first = 1 + 2 * list(ERRORS).index(error) + 9 * lasting
    points = range(first, num_operations(memory_folder, SHORT_SCRIPT) + 1, STRIDE)
    tally = refuse_everywhere(memory_folder, SHORT_SCRIPT, error, points, lasting=lasting)
    assert tally.violations == []
    assert tally.total > len(points) // 2


class RetryingDisk(FailingDisk):
    """Syncs again where a sync has failed: the kernel then says yes, and has thrown the pages away."""


def _retry(name: str) -> Callable[..., Any]:
    once = getattr(FailingDisk, name)

    def operation(self: FailingDisk, *arguments: Any) -> None:
        try:
            once(self, *arguments)
        except OSError:
            once(self, *arguments)

    return operation


RetryingDisk.fsync = _retry("fsync")  # type: ignore[method-assign]


def test_sync_that_is_tried_again_is_caught(memory_folder: Path) -> None:
    """The rule "never retry fsync" is one that the harness sees broken."""
    points = range(1, num_operations(memory_folder, SHORT_SCRIPT[:1]) + 1, 2)
    tally = refuse_everywhere(memory_folder, SHORT_SCRIPT[:1], "EIO", points, make_disk=RetryingDisk)
    assert [text for text in tally.violations if "synced again" in text]
