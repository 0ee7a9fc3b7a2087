"""How many train_steps are in the works: chosen from what was measured, within what memory allows."""

from __future__ import annotations

import heapq
import itertools
import pickle
import random
from pathlib import Path

import pytest

import trajload as tl
from trajload.errors import ConfigError
from trajload.pipeline.depth import Depth, DepthControl, Seen, choose_depth, next_depth

X = tl.StreamSpec(name="x", modality=tl.Modality.PROPRIOCEPTION, shape=(3,), dtype="float32", encoding="npy")


def seen(*, period: float, longest: float, waited: float = 0.0, count: int = 16) -> Seen:
    elapsed = period * count / (1 - waited)
    return Seen(elapsed, elapsed * waited, count, count if waited > 0.5 else 1, longest, longest / 2)


@pytest.mark.parametrize(
    ("depth", "stretch", "expected"),
    [
        (4, seen(period=0.050, longest=0.010), 2),
        (2, seen(period=0.050, longest=0.120), 4),
        (4, seen(period=0.010, longest=5.0), 16),
        (4, seen(period=0.050, longest=0.010, waited=0.02), 5),
        (8, seen(period=0.001, longest=0.500, waited=0.9), 3),
        (2, seen(period=0.001, longest=0.500, waited=0.9), 3),
        (16, seen(period=0.050, longest=0.010, waited=0.02), 16),
    ],
    ids=["prompt", "hiccup", "bound", "waited", "slow-workers", "slow-workers-few", "full"],
)
def test_depth_follows_the_longest_batch_and_the_consumers_period(depth: int, stretch: Seen, expected: int) -> None:
    """As many as are taken while the longest is made, one more where the consumer waited, few where workers are the limit."""
    assert next_depth(depth, Depth(4, 16, "auto", limited=3), stretch)[0] == expected


def run(control: DepthControl, service: list[float], period: float, servers: int = 2) -> list[float]:
    """Simulate: batches wait for one of `servers`, at most `control.value` are open. Returns the consumer's waits."""
    free = [0.0] * servers
    ready: dict[int, float] = {}
    opened, now, waits = 0, 0.0, []

    def open_more(taken: int, at: float) -> None:
        nonlocal opened
        while opened < len(service) and opened - taken < control.value:
            begin = max(heapq.heappop(free), at)
            ready[opened] = begin + service[opened]
            heapq.heappush(free, ready[opened])
            control.made(ready[opened] - at)
            opened += 1

    control.begin()
    for i in range(len(service)):
        open_more(i, now)
        waited = max(0.0, ready[i] - now)
        now += waited
        control.taken(now, waited)
        waits.append(waited)
        open_more(i + 1, now)
        now += period
    return waits


def test_a_prompt_pipeline_ends_with_two() -> None:
    """Nothing is gained by more where each batch is ready long before it is asked for."""
    control = DepthControl(Depth(4, 16, "auto", limited=3))
    waits = run(control, [0.004] * 600, period=0.050)
    assert control.value == 2
    assert max(waits[1:]) == 0.0


def test_hiccups_are_covered_where_workers_keep_up_on_average() -> None:
    """Every 40th batch takes twelve periods: in the end the consumer does not wait for it."""
    control = DepthControl(Depth(4, 16, "auto", limited=3))
    service = [0.010 if i % 40 else 0.600 for i in range(2000)]
    waits = run(control, service, period=0.050)
    assert control.value > 10
    assert sum(waits[1000:]) == 0.0
    fixed = run(DepthControl(Depth(4, 4, "asked for")), service, period=0.050)
    assert sum(fixed[1000:]) > 5.0


def test_workers_that_are_the_limit_hold_few_batches() -> None:
    """More batches in the works would take memory and change nothing."""
    rng = random.Random(0)
    control = DepthControl(Depth(4, 16, "auto", limited=3))
    run(control, [rng.uniform(0.05, 0.15) for _ in range(600)], period=0.001)
    assert control.value == 3


def test_a_number_asked_for_stays() -> None:
    """Whatever is measured."""
    control = DepthControl(Depth(5, 5, "asked for"))
    run(control, [0.5] * 100, period=0.01)
    assert (control.value, control.why) == (5, "asked for")


def test_memory_bounds_what_is_chosen() -> None:
    """Large batches leave room for few, but two are there always; a pool leaves less."""
    assert choose_depth("auto", 2, 100 << 20).most == 5
    assert choose_depth("auto", 2, 1 << 40).most == 2
    assert choose_depth("auto", 2, 1000).most == 16
    assert (choose_depth("auto", 2, 1000).limited, choose_depth("auto", 2, 50 << 20).limited) == (16, 3)
    assert choose_depth("auto", 2, 60_000_000, has_pool=True).most == 2
    assert choose_depth("auto", 0, 1000).most == 1
    assert choose_depth(7, 2, 1 << 40) == Depth(7, 7, "asked for")
    with pytest.raises(ConfigError, match="prefetch=0"):
        choose_depth(0, 2, 1)


def test_a_control_travels_without_what_it_measured() -> None:
    """A worker process measures for itself."""
    control = DepthControl(Depth(4, 16, "auto", limited=3))
    run(control, [0.004] * 200, period=0.050)
    copy = pickle.loads(pickle.dumps(control))
    assert (copy.value, copy.most) == (4, 16)


def test_batches_do_not_depend_on_a_depth_that_changes(tmp_path: Path) -> None:
    """While it goes up and down, batches stay those of the oracle, and stats tell what was measured."""
    with tl.Writer(tmp_path / "d", streams=[X], step_rate_hz=10) as writer:
        for episode in range(4):
            writer.add_episode({"x": [[float(episode), float(t), 0.0] for t in range(20)]})
    window = tl.Window(num_steps=4)
    with tl.Loader(tmp_path / "d", window=window, global_batch_size=4, seed=3, num_workers=2) as loader:
        control = loader._engine._control
        for batch in itertools.islice(loader, 120):
            control.value = 1 + batch.train_step * 7 % 16
            assert batch.digest() == loader.batch_at(batch.train_step).digest()
        stats = loader.stats()
    assert 1 <= stats["prefetch"] <= 16
    assert "the consumer took one every" in stats["prefetch_why"]
