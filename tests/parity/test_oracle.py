"""Iteration equals `batch_at`, byte for byte, under every setting that only changes speed."""

from __future__ import annotations

import itertools
import json
import threading

import pytest

import trajload as tl

NUM_BATCHES = 12
COMMON = {"global_batch_size": 6, "seed": 3, "rank": 0, "world_size": 1}


@pytest.fixture(scope="module")
def oracle(dataset: tl.Dataset) -> dict[tuple[str, str], list[str]]:
    """Digests of the first batches by `batch_at`, for each order and padding."""
    out = {}
    for order, pad in itertools.product(("sequential", "shuffled"), ("none", "edge", "zero")):
        with tl.Loader(
            dataset, window=tl.Window(num_steps=7, stride=2, dilation=2, pad=pad), order=order, num_workers=0, **COMMON
        ) as loader:
            out[order, pad] = [loader.batch_at(k).digest() for k in range(NUM_BATCHES)]
    return out


@pytest.mark.parametrize("pad", ["none", "edge", "zero"])
@pytest.mark.parametrize("order", ["sequential", "shuffled"])
@pytest.mark.parametrize("num_workers", [0, 1, 4])
@pytest.mark.parametrize("prefetch", [1, 3, "auto"])
def test_iterated_batches_equal_the_oracle(dataset, oracle, order, pad, num_workers, prefetch) -> None:  # type: ignore[no-untyped-def]
    """Workers, prefetch depth, order and padding change no byte."""
    window = tl.Window(num_steps=7, stride=2, dilation=2, pad=pad)
    with tl.Loader(dataset, window=window, order=order, num_workers=num_workers, prefetch=prefetch, **COMMON) as loader:
        got = [batch.digest() for batch in itertools.islice(loader, NUM_BATCHES)]
    assert got == oracle[order, pad]


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_ranks_together_hold_the_global_batch(dataset: tl.Dataset, world_size: int) -> None:
    """Rows of the ranks, joined, are the rows of a single rank's batch."""
    window = tl.Window(num_steps=5)
    with tl.Loader(dataset, window=window, num_workers=0, **COMMON) as whole:
        expected = whole.batch_at(4)
    parts = []
    for rank in range(world_size):
        with tl.Loader(
            dataset, window=window, num_workers=1, **{**COMMON, "rank": rank, "world_size": world_size}
        ) as loader:
            loader.seek(4)
            parts.append(next(iter(loader)))
    for key, value in expected.items():
        if isinstance(value, list):
            assert [v for part in parts for v in part[key]] == value
        else:
            joined = [row for part in parts for row in part[key]]
            assert len(joined) == len(value)
            assert all(a.equal(b) for a, b in zip(joined, value, strict=True)), key
    assert [ref for part in parts for ref in part.refs] == list(expected.refs)


def test_state_taken_mid_run_continues_with_the_next_batch(dataset: tl.Dataset, oracle: dict) -> None:
    """Saved with a full queue, restored elsewhere with other workers: batch 5 follows batch 4."""
    window = tl.Window(num_steps=7, stride=2, dilation=2)
    with tl.Loader(dataset, window=window, num_workers=2, prefetch=4, **COMMON) as loader:
        for _ in itertools.islice(loader, 5):
            state = json.dumps(loader.state_dict())
    assert len(state) < 4096
    assert json.loads(state)["pending"]["train_steps"] == [5, 9]
    with tl.Loader(dataset, window=window, num_workers=1, **COMMON) as loader:
        loader.load_state_dict(json.loads(state))
        got = [batch.digest() for batch in itertools.islice(loader, NUM_BATCHES - 5)]
    assert got == oracle["shuffled", "none"][5:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_seek_while_iterating_takes_effect_at_the_next_batch(
    dataset: tl.Dataset, oracle: dict, num_workers: int
) -> None:
    """A seek inside the loop wins over what was prefetched."""
    got = []
    with tl.Loader(
        dataset, window=tl.Window(num_steps=7, stride=2, dilation=2), num_workers=num_workers, **COMMON
    ) as loader:
        for batch in loader:
            got.append((batch.train_step, batch.digest()))
            if batch.train_step == 2:
                loader.seek(9)
            if batch.train_step == 11:
                break
    assert got == [(k, oracle["shuffled", "none"][k]) for k in (0, 1, 2, 9, 10, 11)]


def test_two_iterators_of_one_loader_share_its_cursor(dataset: tl.Dataset) -> None:
    """A second iterator takes over; the stream has no gap and no repeat."""
    with tl.Loader(dataset, window=tl.Window(num_steps=4), num_workers=1, **COMMON) as loader:
        first, second = iter(loader), iter(loader)
        assert [next(it).train_step for it in (first, second, second, first, second)] == [0, 1, 2, 3, 4]
        first.close()
        second.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_finite_run_ends_after_its_epochs_and_pads_its_last_batch(dataset: tl.Dataset, num_workers: int) -> None:
    """Each window is delivered exactly num_epochs times; filling rows say so."""
    with tl.Loader(
        dataset, window=tl.Window(num_steps=16, stride=5), num_workers=num_workers, num_epochs=2, **COMMON
    ) as loader:
        seen: dict[int, int] = {}
        steps = 0
        for batch in loader:
            steps += 1
            for window, pad in zip(batch["window_id"].tolist(), batch["row_is_pad"].tolist(), strict=True):
                if not pad:
                    seen[window] = seen.get(window, 0) + 1
        assert steps == len(loader)
        assert seen == dict.fromkeys(range(loader.num_windows), 2)
        with pytest.raises(tl.errors.LoaderExhaustedError, match=rf"train_step={steps}"):
            loader.batch_at(steps)


def test_iteration_that_is_left_stops_its_threads(dataset: tl.Dataset) -> None:
    """Break, an exception in the body, and a dropped iterator leave no thread."""
    loader = tl.Loader(dataset, window=tl.Window(num_steps=4), num_workers=3, **COMMON)

    def alive() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("trajload")]

    for _ in loader:
        break
    assert alive() == []
    with pytest.raises(ZeroDivisionError):
        for batch in loader:
            batch.train_step / 0
    assert alive() == []
    iterator = iter(loader)
    next(iterator)
    assert len(alive()) == 5
    del iterator
    assert alive() == []
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert alive() == []
    assert next(iterator).train_step == 4, "a closed loader goes on where it was"
    iterator.close()
    assert alive() == []
