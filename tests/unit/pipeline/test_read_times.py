"""Who reads: reader threads ahead, or decoders where they need the bytes."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload.pipeline.read_times import ReadTimes
from trajload.refs import ByteRange
from trajload.storage.local import LocalStore


def test_readers_read_until_reads_are_seen_to_be_quick_and_again_once_they_are_slow() -> None:
    """One slow read in many changes nothing; a run of them does, with some way between the two limits."""
    times = ReadTimes()
    assert not times.are_quick
    for _ in range(1000):
        times.note(50e-6)
    assert times.are_quick
    times.note(0.02)  # a thread that lost its core, say
    assert times.are_quick
    for _ in range(500):
        times.note(400e-6)
    assert times.are_quick
    for _ in range(100):
        times.note(5e-3)
    assert not times.are_quick
    for _ in range(1000):
        times.note(400e-6)
    assert not times.are_quick


@pytest.mark.parametrize("order", ["shuffled", "interleaved"])
@pytest.mark.parametrize("who", ["reader", "decoder", "both"])
def test_whoever_reads_the_batches_are_the_same(
    demo_dataset: Path, order: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All reads by readers, all but the first by decoders, and both in turns."""
    names: Counter[str] = Counter()
    read = LocalStore.read

    def noted(store: LocalStore, where: ByteRange) -> bytes:
        names[threading.current_thread().name.rpartition("-")[0]] += 1
        return read(store, where)

    def note(times: ReadTimes, seconds: float) -> None:
        times.are_quick = who == "decoder" or (who == "both" and not times.are_quick)

    monkeypatch.setattr(LocalStore, "read", noted)
    monkeypatch.setattr(ReadTimes, "note", note)
    dataset = tl.open(demo_dataset)
    arguments: dict[str, Any] = {"window": tl.Window(num_steps=4), "global_batch_size": 8, "order": order}
    with tl.Loader(dataset, num_workers=2, **arguments) as loader:
        digests = [batch.digest() for batch in islice(loader, 24)]
    # a decoder that needs the first block at once may be the one whose read says that reads are quick
    assert names["trajload-read"] > 0 or (order, who) == ("interleaved", "decoder")
    if who == "reader":
        # but for arrays of numbers, and for blocks that are needed at once
        assert order == "interleaved" or names["trajload-read"] > names["trajload-decode"]
    else:
        assert names["trajload-decode"] > 0
    with tl.Loader(dataset, num_workers=0, **arguments) as plain:
        assert digests == [plain.batch_at(k).digest() for k in range(24)]
