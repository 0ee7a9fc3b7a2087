"""Statistics count exactly, whoever writes them: threads that come and go, other processes, while others read."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajload.loader import Loader
from trajload.pipeline.stats import StageStats
from trajload.pipeline.stats_costs import CostLog
from trajload.pipeline.stats_meter import Meter, quantile
from trajload.spec import Window


def meter_of(values: list[float]) -> Meter:
    meter = Meter("trajload-decode-0", 1)
    for value in values:
        meter.add("decode", value)
    return meter


@given(st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=300))
def test_quantiles_are_within_a_bucket_of_the_sorted_values(values: list[float]) -> None:
    """Eight buckets for each doubling: a quantile is off by 13 % at most, wherever it falls in its bucket."""
    buckets = meter_of(values).tallies["decode"].buckets
    for share in (0.01, 0.5, 0.99, 1.0):
        exact = sorted(values)[max(0, int(np.ceil(share * len(values))) - 1)]
        got = quantile(buckets, share)
        assert got is not None and exact / 1.13 <= got <= exact * 1.13


def test_quantile_of_nothing_is_none() -> None:
    """No observation has no median."""
    assert quantile({}, 0.5) is None and quantile([{}, {}], 0.99) is None


def test_histogram_stands_for_all_though_it_keeps_one_of_eight() -> None:
    """After the first thousand a note of eight is kept and counts for eight; seconds and count stay exact."""
    values = [0.001] * 1000 + [0.008] * 9000
    tally = meter_of(values).tallies["decode"]
    assert tally.count == len(values) and tally.seconds == pytest.approx(sum(values))
    assert sum(tally.buckets.values()) == pytest.approx(len(values), rel=0.01)
    assert quantile(tally.buckets, 0.05) == pytest.approx(0.001, rel=0.13)
    assert quantile(tally.buckets, 0.5) == pytest.approx(0.008, rel=0.13)


def test_histogram_sees_both_of_two_that_take_turns() -> None:
    """Rows of two sources in turns, one of them eight times as slow: both stand in it, by halves."""
    buckets = meter_of([0.001, 0.008] * 8000).tallies["decode"].buckets
    assert quantile(buckets, 0.48) == pytest.approx(0.001, rel=0.13)
    assert quantile(buckets, 0.52) == pytest.approx(0.008, rel=0.13)


def in_threads(number: int, work: object) -> None:
    threads = [threading.Thread(target=work, name=f"trajload-decode-{i}") for i in range(number)]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_nothing_is_lost_between_threads_or_by_reading_meanwhile() -> None:
    """Each thread writes its own meter; the sums are exact once they are done."""
    stats = StageStats()

    def work() -> None:
        for _ in range(500):
            stats.window_read(0.5, 0.25, 10)
            stats.window_decoded(0.125, 4, 5)
            stats.snapshot()

    in_threads(4, work)
    got = stats.snapshot()
    assert (got["windows"], got["frames"], got["frames_decoded"], got["bytes_read"]) == (2000, 8000, 10000, 20000)
    assert got["seconds"]["plan"] == 1000 and got["seconds"]["read"] == 500 and got["seconds"]["decode"] == 250
    assert got["stages"]["decode"]["count"] == 2000
    assert sorted(thread["name"] for thread in got["threads"]) == [f"decode-{i}" for i in range(4)]
    assert {thread["role"] for thread in got["threads"]} == {"decode"}


def test_threads_of_ended_runs_are_put_together() -> None:
    """Iterating again and again starts threads anew: what is kept of them stays bounded, and the sums stay."""
    stats = StageStats()
    for _ in range(30):
        in_threads(5, lambda: stats.add("decode", 1.0))
    assert len(stats.snapshot()["threads"]) <= 70
    assert stats.snapshot()["seconds"]["decode"] == 150


def test_deltas_of_another_process_add_up_to_what_it_counted() -> None:
    """What was taken is not taken again; threads that ended in between count once."""
    there, here = StageStats(), StageStats()
    for round_ in range(80):
        in_threads(1, lambda: there.window_decoded(0.5, 2, 3))
        if round_ % 3 == 0:
            here.merge_taken(pickle.loads(pickle.dumps(there.take())), 1)
    here.merge_taken(there.take(), 1)
    here.merge_taken(there.take(), 1)  # nothing new
    got = here.snapshot()
    assert (got["windows"], got["frames"], got["seconds"]["decode"]) == (80, 160, 40)
    assert got["stages"]["decode"]["count"] == 80 and got["stages"]["decode"]["median_s"] == pytest.approx(
        0.5, rel=0.13
    )
    assert {thread["worker"] for thread in got["threads"]} == {1}


def test_queue_tells_how_often_nothing_was_ready() -> None:
    """Means over the times that a batch was asked for."""
    stats = StageStats()
    assert stats.queue() == {"asked": 0, "mean_ready": None, "empty_share": None}
    for ready in (0, 0, 3, 1000):
        stats.asked(ready)
    assert stats.queue() == {"asked": 4, "mean_ready": (3 + 64) / 4, "empty_share": 0.5}


def test_spans_lie_side_by_side_in_their_thread() -> None:
    """A window's plan ends where its reading begins, though both are noted at the end."""
    stats = StageStats()
    stats.add("decode", 1.0)  # before the trace
    stats.start_trace()
    stats.at_step(7)
    stats.window_read(0.25, 0.5, 10)
    ((meter, spans),) = stats.stop_trace()
    stats.add("decode", 1.0)  # after it
    (plan, plan_begin, plan_s, step), (read, read_begin, read_s, _) = np.array(spans).reshape(-1, 4).tolist()
    assert (plan, read, step, plan_s, read_s) == (0, 1, 7, 0.25, 0.5)
    assert plan_begin + plan_s == pytest.approx(read_begin, abs=0.01)
    assert meter.spans is None


def test_stats_begin_anew_in_another_process() -> None:
    """A worker counts its own work only, and its costs as densely as it is told."""
    stats = StageStats()
    stats.add("decode", 1.0)
    stats.costs.every = 1
    there = pickle.loads(pickle.dumps(stats))
    assert there.snapshot()["seconds"]["decode"] == 0 and there.costs.every == 1


# ---- costs ----


def test_costs_are_summed_by_stream_and_episode_across_threads_and_processes() -> None:
    """Each note counts once, in the arrays of its source and stream; the first of each thread, which opens decoders, not at all."""
    log, there = CostLog(), CostLog()

    def work() -> None:
        log.add(0, 2, 4, 1000, 1000, 1000, 1000)
        for i in range(3000):
            log.add(0, 2, i % 5, 4, 6, 100, 90)

    in_threads(3, work)
    for _ in range(2):
        there.add(0, 2, 7, 1, 1, 5, 4)
        there.add(1, 0, 0, 2, 2, 2, 2)
    log.merge(there.take())
    log.merge(there.take())
    sums = log.sums(0)[2]
    assert sums.rows.tolist() == [7200] * 5 + [0, 0, 1]
    assert sums.frames[0] == 10800 and sums.wall_ns[0] == 180000 and sums.cpu_ns.tolist()[-1] == 4
    assert list(log.sums(1)) == [0] and log.sums(2) == {}
    log.reset()
    assert log.sums(0) == {}


def test_one_window_of_so_many_is_measured() -> None:
    """`every` says how many; they are spread, so that both of two sources that take turns are met."""
    log = CostLog(every=8)
    taken = np.array([log.laps() is not None for _ in range(8000)])
    assert taken.sum() == pytest.approx(1000, rel=0.02)
    assert taken[::2].sum() == pytest.approx(500, rel=0.05)
    assert pickle.loads(pickle.dumps(log)).every == 8
    every = CostLog(every=1)
    assert all(every.laps() is not None for _ in range(100))


@pytest.mark.parametrize("more", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "order": "interleaved"}])
def test_loader_notes_costs_of_the_episodes_it_delivers(demo_dataset: Path, more: dict[str, object]) -> None:
    """Costs are where the windows are, by stream; rows and frames are those delivered and decoded."""
    arguments = {"window": Window(num_steps=4), "streams": ["cam_front", "action"], "global_batch_size": 8, **more}
    with Loader(demo_dataset, rank=0, world_size=1, **arguments) as loader:  # type: ignore[arg-type]
        loader.stats_recorder.costs.every = 1
        batches = iter(loader)
        seen = {episode for _ in range(6) for episode in next(batches)["episode_index"].tolist()}
        num_threads = max(1, int(more["num_workers"]))  # type: ignore[call-overload]
        sums = loader.stats_recorder.costs.sums()[0]
        stats = loader.stats()
        assert len(seen - set(np.flatnonzero(sums.rows).tolist())) <= num_threads, "first windows are not measured"
        assert (sums.frames >= 0).all() and (sums.cpu_ns[sums.rows > 0] > 0).all()
        if not more["num_workers"]:
            # All but the first window.
            assert sums.rows.sum() == 6 * 8 * 4 - 4 == stats["frames"] - 4
            assert stats["frames_decoded"] > sums.frames.sum() >= sums.rows.sum()
        loader.reset_stats()
        assert loader.stats_recorder.costs.sums(), "costs outlive reset_stats"
