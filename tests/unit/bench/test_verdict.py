"""A verdict follows from what was observed alone: hand-made observations give the words they should."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trajload.bench.headspace import _test
from trajload.bench.knobs import Facts
from trajload.bench.loads import loads_of, slow_worker
from trajload.bench.observe import Observation, ThreadUse
from trajload.bench.verdict import LIMITS, Verdict, judge
from trajload.machine import CpuTime
from trajload.pipeline.interpreter import GilUse, Pause


def thread(role: str, *, worker: int | None = None, blocked: float = 0.0, **seconds: float) -> ThreadUse:
    """A thread of a run of one second: busy seconds by stage, `blocked` of them off the CPU."""
    busy = sum(spent for stage, spent in seconds.items() if stage != "wait")
    return ThreadUse(worker, f"{role}-0", role, seconds, CpuTime(busy * (1 - blocked), 0.0))


def seen(
    *threads: ThreadUse,
    wait: float = 0.9,
    gil: float | None = 0.0,
    num_cpus: float = 8.0,
    worker_gil: dict[int, float] | None = None,
    pauses: dict[int | None, float] | None = None,
) -> Observation:
    return Observation(
        elapsed_s=1.0,
        first_batch_s=0.1,
        step_s=0.0,
        asked_s=[0.0],
        waits_s=[wait],
        rates=[100.0] * 3,
        num_windows=100,
        episodes_per_batch=[4],
        stats={},
        threads=list(threads),
        gil=GilUse() if gil is None else GilUse(100, int(100 * gil), 0.1),
        worker_gil={number: GilUse(100, int(100 * held), 0.1) for number, held in (worker_gil or {}).items()},
        pauses=[Pause(0.0, seconds) for worker, seconds in (pauses or {}).items() if worker is None],
        worker_pauses={worker: [Pause(0.0, s)] for worker, s in (pauses or {}).items() if worker is not None},
        num_cpus=num_cpus,
        rss_mb=0.0,
        peak_rss_mb=0.0,
    )


def verdict(*threads: ThreadUse, facts: dict[str, Any] | None = None, **more: Any) -> Verdict:
    return judge(seen(*threads, **more), Facts(**{"num_workers": 2, "num_cpus": 8.0, **(facts or {})}))


IDLE_READER = thread("read", read=0.1, plan=0.1)


@pytest.mark.parametrize(
    ("threads", "more", "limit", "change"),
    [
        ([thread("read", read=0.9, plan=0.1), thread("decode", decode=0.4)], {}, "storage", {"num_readers": 4}),
        ([thread("read", read=0.1, plan=0.9), thread("decode", decode=0.4)], {}, "plan", {"num_readers": 4}),
        ([IDLE_READER, thread("decode", decode=0.9, augment=0.1)], {}, "decode", {"num_workers": 8}),
        ([IDLE_READER, thread("decode", decode=0.1, augment=0.9)], {}, "transform", {"num_workers": 8}),
        ([IDLE_READER, thread("decode", decode=0.3)], {}, "queue", {"prefetch": 8}),
        ([IDLE_READER, thread("decode", decode=0.9)], {"wait": 0.01}, "consumer", {}),
        (
            [IDLE_READER, thread("decode", decode=0.3), thread("consumer", collate=0.4, wait=0.5)],
            {"wait": 0.5},
            "collate",
            {"device": "cpu"},
        ),
        ([IDLE_READER, thread("decode", decode=0.3), thread("device", transfer=0.9, collate=0.05)], {}, "transfer", {}),
        (
            [IDLE_READER, thread("decode", augment=1.0, blocked=0.5), thread("decode", augment=1.0, blocked=0.5)],
            {"gil": 0.7},
            "gil",
            {"workers": "processes:8", "num_workers": 8},
        ),
        (
            [thread("decode", worker=0, decode=0.95), thread("decode", worker=1, decode=0.3)],
            {"facts": {"workers": "processes:2"}},
            "worker",
            {"workers": "threads"},
        ),
        (
            [thread("consumer", decode=0.8, read=0.1, wait=1.0)],
            {"facts": {"num_workers": 0}},
            "decode",
            {"num_workers": 8, "prefetch": "auto"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_verdict_blames_the_thread_that_is_never_idle(
    threads: list[ThreadUse], more: dict[str, Any], limit: str, change: dict[str, Any]
) -> None:
    """Limit and knob belong together, whatever other threads do."""
    got = verdict(*threads, **more)
    assert (got.limit, got.change) == (limit, change), got.sentence
    assert got.limit in LIMITS and got.sentence.endswith(".")


def test_interpreter_that_others_hold_now_and_then_is_not_blamed() -> None:
    """Threads that compute side by side hold it for short times only."""
    busy = [thread("decode", decode=1.0, blocked=0.0), thread("decode", decode=1.0, blocked=0.1)]
    assert verdict(IDLE_READER, *busy, gil=0.6).limit == "decode"
    assert verdict(IDLE_READER, *busy, gil=None).limit == "decode"
    assert verdict(IDLE_READER, *busy, gil=0.9).limit == "gil", "held nearly always: nobody else can run"


def test_more_workers_are_not_advised_where_the_cpus_are_taken() -> None:
    """On two CPUs that are both busy, frames must be decoded less often instead."""
    busy = [thread("decode", decode=1.0), thread("decode", decode=1.0)]
    facts = {"num_cpus": 2.0, "has_pictures": True, "decoded_per_delivered": 1.25}
    got = verdict(IDLE_READER, *busy, facts=facts, num_cpus=2.0)
    assert got.change == {"order": "interleaved"}
    assert 'order="interleaved"' in got.sentence and got.gain > 2
    got = verdict(IDLE_READER, *busy, facts={**facts, "order": "interleaved/2", "decoded_per_delivered": 3.0})
    assert got.change == {} or "order" not in got.change


def test_blocks_shorter_than_a_window_are_told_of() -> None:
    """A block of 16 windows of 64 steps decodes 79 frames: 4.9 a window, where blocks of 64 decode 2."""
    busy = [thread("decode", decode=1.0), thread("decode", decode=1.0)]
    facts = {"num_cpus": 2.0, "has_pictures": True, "order": "interleaved/3", "block_windows": 16}
    got = verdict(IDLE_READER, *busy, facts={**facts, "num_steps": 64, "span": 64}, num_cpus=2.0)
    assert got.change["order"] == {"version": "interleaved/3", "block_windows": 64, "lanes_per_row": 4}
    assert "block_windows=64" in got.sentence and "2.5 times fewer" in got.sentence
    json.dumps(got.to_json())
    for short in ({"num_steps": 16, "span": 16}, {"num_steps": 64, "span": 64, "stride": 64}):
        assert "order" not in verdict(IDLE_READER, *busy, facts={**facts, **short}, num_cpus=2.0).change


def test_long_gops_are_told_of_where_no_argument_helps() -> None:
    """Many frames decoded for each one delivered: the data are to be encoded anew."""
    busy = [thread("decode", decode=1.0), thread("decode", decode=1.0)]
    facts = {"num_cpus": 2.0, "has_pictures": True, "decoded_per_delivered": 8.0, "order": "continuous/1"}
    got = verdict(IDLE_READER, *busy, facts=facts)
    assert got.change == {} and "8.0 frames are decoded for each one delivered" in got.sentence


def test_gain_is_bound_by_what_comes_next() -> None:
    """Four times the readers do not help four times where decoding is nearly as busy."""
    got = verdict(thread("read", read=1.0), thread("decode", decode=0.8))
    assert got.limit == "storage" and got.gain == pytest.approx(1 / 0.8)
    assert got.next_limit == "decode threads" and got.headroom == pytest.approx(1 / 0.8)
    alone = verdict(thread("read", read=1.0), thread("decode", decode=0.1), wait=1.0)
    assert alone.gain == pytest.approx(4.0)
    half_fed = verdict(thread("read", read=1.0), thread("decode", decode=0.1), wait=0.5)
    assert half_fed.gain == pytest.approx(2.0), "the consumer itself is busy half of the time"


def test_help_that_other_threads_give_with_the_limit_is_not_what_comes_next() -> None:
    """Decoders that read blocks themselves would be free of that, too."""
    got = verdict(thread("read", read=1.0), thread("decode", read=0.9, decode=0.1), wait=1.0)
    assert got.limit == "storage" and got.gain == pytest.approx(4.0)


def test_headroom_of_a_fed_consumer_is_what_the_loader_could_do_more() -> None:
    """A loader whose busiest thread works a fifth of the time could feed a consumer five times as fast."""
    got = verdict(thread("read", read=0.05), thread("decode", decode=0.2), wait=0.0)
    assert got.limit == "consumer" and got.headroom == pytest.approx(5.0) and "5.0 times" in got.sentence


@pytest.mark.parametrize(
    ("num_workers", "change"),
    [(4, {"workers": "processes:4", "num_workers": 4}), (2, {"workers": "processes:8", "num_workers": 8})],
)
def test_interpreter_of_a_worker_process_is_the_limit(num_workers: int, change: dict[str, Any]) -> None:
    """Of the busiest process, whatever that of the loader does: threads get an interpreter each, then more CPUs."""
    threads = [IDLE_READER]
    for worker in range(2):
        threads += [thread("decode", worker=worker, augment=0.9, blocked=0.6) for _ in range(num_workers // 2)]
    facts = {"num_workers": num_workers, "workers": "processes:2"}
    got = verdict(*threads, worker_gil={0: 0.9, 1: 0.9}, facts=facts)
    assert got.limit == "gil" and got.change == change and "of a worker process" in got.sentence
    assert verdict(*threads, worker_gil={0: 0.1, 1: 0.1}, gil=0.9, facts=facts).limit == "transform"


def test_no_more_processes_are_advised_than_cpus_can_serve() -> None:
    """Each thread has its interpreter, and all CPUs are taken: less Python is what is left."""
    busy = [thread("decode", worker=worker, augment=0.95) for worker in range(2)]
    facts = {"num_workers": 2, "workers": "processes:2", "num_cpus": 2.0}
    got = verdict(*busy, worker_gil={0: 0.9, 1: 0.9}, num_cpus=2.0, facts=facts)
    assert got.limit == "gil" and got.change == {} and "NumPy" in got.sentence


def test_processes_that_work_alike_have_no_slow_one() -> None:
    """A process is slow only beside others."""
    alike = seen(thread("decode", worker=0, decode=0.9), thread("decode", worker=1, decode=0.8))
    assert slow_worker(alike) is None
    assert slow_worker(seen(thread("decode", worker=0, decode=0.9))) is None
    slow = seen(thread("decode", worker=0, decode=0.9), thread("decode", worker=1, decode=0.3))
    assert slow_worker(slow) == (0, pytest.approx(3.0))


def test_loads_are_of_the_busiest_process_and_tell_what_blocks() -> None:
    """Of a role in several processes the busiest counts; what is neither running nor queued is blocked."""
    one, two = thread("decode", worker=0, decode=0.4), thread("decode", worker=1, decode=0.8, blocked=0.75)
    (load,) = loads_of(seen(one, two))
    assert (load.worker, load.use, load.num_threads) == (1, pytest.approx(0.8), 1)
    assert load.blocked_share == pytest.approx(0.75)
    untold = ThreadUse(None, "decode-0", "decode", {"decode": 0.5}, None)
    assert loads_of(seen(untold))[0].blocked_share is None


@pytest.mark.parametrize(
    ("threads", "runs", "supports"),
    [
        ([IDLE_READER, thread("decode", decode=1.0)], (100, 500, 600, None), True),
        ([IDLE_READER, thread("decode", decode=1.0)], (100, 105, 600, None), False),
        ([thread("read", read=1.0)], (100, 110, 900, None), True),
        ([thread("read", read=1.0)], (100, 110, 115, None), False),
        ([IDLE_READER, thread("decode", augment=1.0)], (100, 110, 115, 900), True),
        ([IDLE_READER, thread("decode", decode=0.1)], (100, 500, 600, None), None),
    ],
)
def test_headspace_run_confirms_or_contradicts(
    threads: list[ThreadUse], runs: tuple[float, float, float, float | None], supports: bool | None
) -> None:
    """Leaving out what limits must help; leaving out something else must not."""
    fits, words = _test(verdict(*threads), *runs)
    assert fits is supports and ("does not fit" in words) == (supports is False)


@pytest.mark.parametrize(
    ("pauses", "workers", "limit"),
    [
        ({None: 0.6}, "threads", "collector"),
        ({None: 0.3}, "threads", "transform"),
        ({1: 0.6}, "processes:2", "collector"),
        ({1: 0.3}, "processes:2", "transform"),
        ({None: 0.9}, "processes:2", "transform"),
    ],
    ids=str,
)
def test_collections_limit_where_they_are_most_of_what_the_busy_threads_do(
    pauses: dict[int | None, float], workers: str, limit: str
) -> None:
    """In the process of those threads: pauses elsewhere say nothing. Where they take less, the work itself comes first."""
    number = 1 if workers.startswith("processes") else None
    threads = [
        thread("decode", worker=number, augment=0.95),
        thread("decode", worker=0 if number else None, augment=0.9),
    ]
    got = verdict(*threads, IDLE_READER, pauses=pauses, gil=0.1, facts={"workers": workers})
    assert got.limit == limit
    if limit == "collector":
        assert "gc.freeze()" in got.sentence and got.sentence.startswith("Python's garbage collector is the limit")
        assert 1.5 < got.gain < 4 and ("in their module" in got.sentence) == (number is not None)
        assert (got.knobs[-1].change != {}) == (number is None), "processes collect each for itself"


def test_threads_that_get_no_cpu_are_not_idle() -> None:
    """Where other programs take the CPUs, threads seem busy for little of the time; more batches in the works would not help."""
    waiting = ThreadUse(None, "decode-0", "decode", {"decode": 0.3}, CpuTime(0.15, 0.75))
    got = verdict(IDLE_READER, waiting, num_cpus=2.0)
    assert got.limit == "decode" and "busy or waiting for a CPU for 90% of it" in got.sentence
    asleep = ThreadUse(None, "decode-0", "decode", {"decode": 0.3}, CpuTime(0.15, 0.05))
    got = verdict(IDLE_READER, asleep, num_cpus=2.0)
    assert got.limit == "queue" and "busy for 30% of it" in got.sentence
