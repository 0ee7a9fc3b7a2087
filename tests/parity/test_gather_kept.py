"""Rows kept in memory by the gather, and batches that it opens together: within their bounds, and the bytes of `batch_at`."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.pipeline.gather_table import ResidentBudget
from trajload.rng import key_rng
from trajload.spec import StreamSpec
from trajload.types import Modality

COMMON: dict[str, Any] = {"global_batch_size": 7, "seed": 3, "rank": 0, "world_size": 1}
STREAMS = {"large": ((17,), "float32"), "middle": ((2, 2), "float16"), "flag": ((), "bool")}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tl.Dataset]:
    """Thirteen ragged episodes in several shards; every third lacks a stream."""
    folder, rng = tmp_path_factory.mktemp("kept") / "d", key_rng(1, "kept")
    specs = [
        StreamSpec(name=name, modality=Modality.PROPRIOCEPTION, encoding="npy", shape=shape, dtype=dtype)
        for name, (shape, dtype) in STREAMS.items()
    ]
    with tl.Writer(folder, streams=specs, step_rate_hz=30, shard_bytes=8_000) as writer:
        for e in range(13):
            num_steps = 1 + (7 * e) % 25
            writer.add_episode(
                {
                    name: rng.integers(0, 250, (num_steps, *shape)).astype(dtype)
                    for name, (shape, dtype) in STREAMS.items()
                    if e % 3 or name != "middle"
                }
            )
    found = tl.open(folder)
    yield found
    found.close()


def oracle(dataset: tl.Dataset, num_batches: int | None, **kwargs: Any) -> list[str]:
    """Return the digests of `batch_at` of so many train_steps; None for all."""
    with tl.Loader(dataset, num_workers=0, **COMMON, **kwargs) as loader:
        return [loader.batch_at(k).digest() for k in range(len(loader) if num_batches is None else num_batches)]


@pytest.mark.parametrize("names", [[], ["flag"], ["flag", "middle"], list(STREAMS)], ids=len)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_raw_streams_are_kept_within_the_budget_and_mapped_beyond_it(
    dataset: tl.Dataset, names: list[str], num_workers: int, monkeypatch: pytest.MonkeyPatch, no_rows: Any
) -> None:
    """The smallest first; what is kept is counted, is never more than was said, and goes with `close`."""
    window = tl.Window(num_steps=5, pad="edge")
    want = oracle(dataset, 40, window=window)
    no_rows()
    sizes = {
        n: dataset.num_steps * math.prod(shape) * np.dtype(dtype).itemsize for n, (shape, dtype) in STREAMS.items()
    }
    allowed = sum(sizes[name] for name in names)
    monkeypatch.setattr(ResidentBudget, "of_machine", classmethod(lambda cls: ResidentBudget(10**9, allowed)))
    with tl.Loader(dataset, window=window, num_workers=num_workers, **COMMON) as loader:
        assert [batch.digest() for batch in itertools.islice(loader, 40)] == want
        stats = loader.stats()
        figures = stats["signals"]
        part: Any = loader._engine.gather
        table = part._parts[0].table
        assert {c.key for c in table.choices if not table.is_mapped(c)} == set(names)
    assert figures["most_resident_bytes"] == allowed
    assert allowed * 0.6 <= figures["resident_bytes"] <= allowed  # not all: some episodes lack a stream
    if len(names) == len(STREAMS):
        assert stats["bytes_read"] == figures["resident_bytes"]  # each array once
    assert loader.stats()["signals"]["resident_bytes"] == 0


def test_sources_of_a_mixture_share_the_budget(dataset: tl.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first source keeps is not there for the second, which is mapped."""
    size = dataset.num_steps * 17 * 4
    monkeypatch.setattr(ResidentBudget, "of_machine", classmethod(lambda cls: ResidentBudget(10**9, size)))
    mixture = tl.Mixture({"a": (dataset, 0.5), "b": (dataset, 0.5)}, by="windows")
    kwargs: dict[str, Any] = {"window": tl.Window(num_steps=5), "streams": ["large"]}
    want = oracle(mixture, 10, **kwargs)  # type: ignore[arg-type]
    with tl.Loader(mixture, num_workers=1, **COMMON, **kwargs) as loader:
        assert [batch.digest() for batch in itertools.islice(loader, 10)] == want
        part: Any = loader._engine.gather
        assert [p.table.is_mapped(p.table.choices[0]) for p in part._parts] == [False, True]
        assert loader.stats()["signals"]["most_resident_bytes"] == size


@pytest.mark.parametrize("prefetch", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("num_epochs", [None, 2])
def test_batches_opened_together_are_those_of_each_step(
    dataset: tl.Dataset, prefetch: int, num_epochs: int | None, no_rows: Any
) -> None:
    """Any depth, up to the padded end, from a seek in the middle."""
    kwargs: dict[str, Any] = {"window": tl.Window(num_steps=4, pad="zero"), "num_epochs": num_epochs}
    want = oracle(dataset, None if num_epochs else 45, **kwargs)
    no_rows()
    for start in (0, len(want) - 3):
        with tl.Loader(dataset, num_workers=2, prefetch=prefetch, **COMMON, **kwargs) as loader:
            loader.seek(start)
            most = None if num_epochs else len(want) - start
            assert [batch.digest() for batch in itertools.islice(loader, most)] == want[start:]


@pytest.mark.parametrize("prefetch", [1, 2, 5, 8])
def test_batches_opened_together_stay_within_the_depth(dataset: tl.Dataset, prefetch: int) -> None:
    """While the consumer is busy, no more than the depth is made ahead of it."""
    with tl.Loader(dataset, window=tl.Window(num_steps=4), num_workers=1, prefetch=prefetch, **COMMON) as loader:
        batches = iter(loader)
        for k in range(12):
            next(batches)
            time.sleep(0.01)
            prefetcher: Any = loader._prefetcher
            assert len(prefetcher._shared.open_jobs) <= prefetch
            assert prefetcher._shared.next_plan <= k + 1 + prefetch


def test_step_that_cannot_be_planned_comes_after_those_before_it(
    dataset: tl.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several batches opened together the good ones are delivered first."""
    window = tl.Window(num_steps=4)
    want = oracle(dataset, 5, window=window)
    with tl.Loader(dataset, window=window, num_workers=1, prefetch=8, **COMMON) as loader:
        open_job = loader._engine.builder.open_job

        def fails_at_5(train_step: int, refs: Any = None) -> Any:
            if train_step == 5:
                raise tl.errors.ConfigError("train_step 5 cannot be planned.")
            return open_job(train_step, refs)

        monkeypatch.setattr(loader._engine.builder, "open_job", fails_at_5)
        got = []
        with pytest.raises(tl.errors.ConfigError, match="cannot be planned"):
            for batch in loader:
                got.append(batch.digest())
        assert got == want
