"""Set-ups with one stage slowed on purpose: the verdict names it, and what it advises makes the loader faster.

No time is asserted. Slow parts are slow by large factors, and speeds are compared with each other only. What is not as
it must be is measured again, for longer, if other programs had the CPUs meanwhile; on a machine left alone it counts at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from busy import Others

import trajload as tl
from trajload.bench.headspace import fresh_loader, headspace
from trajload.bench.knobs import Knob, facts_of
from trajload.bench.observe import Observation, observe
from trajload.bench.verdict import Verdict, judge

pytestmark = pytest.mark.alone
SECONDS = 1.2
AGAIN = (1, 2, 4, 8)
"""How many times as long a measurement takes that is made again and again."""
ALONE = {"rank": 0, "world_size": 1}
BASE: dict[str, Any] = {
    "window": tl.Window(num_steps=4),
    "streams": ["cam_front"],
    "global_batch_size": 8,
    "num_workers": 2,
    "seed": 3,
    **ALONE,
}
Slow = Callable[[Any, pytest.MonkeyPatch, tl.Dataset, Path], "list[Any]"]
"""(slow_parts, monkeypatch, dataset, tmp_path) -> transforms; slows something."""


@dataclass(frozen=True)
class Setup:
    """One set-up."""

    limit: str
    slow: Slow
    more: dict[str, Any] = field(default_factory=dict)
    step_s: float = 0.0
    data: str = "demo"
    by_hand: dict[str, Any] | None = None
    """What someone does who takes an advice that is no argument to be turned up; `step_s` for a faster training step."""
    least_gain: float = 1.3
    """0: the advice needs CPUs that are free, so what it brings is not asserted; a set-up that sleeps instead shows it."""


def slow_store(parts: Any, patch: pytest.MonkeyPatch, dataset: Any, tmp: Path) -> list[Any]:
    dataset.store = parts.SlowStore(dataset.store, 0.02)
    return []


def narrow_store(parts: Any, patch: pytest.MonkeyPatch, dataset: Any, tmp: Path) -> list[Any]:
    dataset.store = parts.NarrowStore(dataset.store, 400e3)
    return []


def slow_codec(parts: Any, patch: pytest.MonkeyPatch, dataset: Any, tmp: Path) -> list[Any]:
    from trajload.decode import video
    from trajload.decode.libav_video import LoopSetup
    from trajload.decode.quick_video import QuickVideo

    patch.setattr(LoopSetup, "decode_all", parts.sleepy(LoopSetup.decode_all, 0.03, times=1))
    patch.setattr(QuickVideo, "decode", parts.sleepy(QuickVideo.decode, 0.03))
    patch.setattr(video, "decode_video", parts.sleepy(video.decode_video, 0.03))
    return []


def slow_block_codec(parts: Any, patch: pytest.MonkeyPatch, dataset: Any, tmp: Path) -> list[Any]:
    from trajload.decode import video

    patch.setattr(video, "decode_video", parts.sleepy(video.decode_video, 0.15))
    return []


def slow_planner(parts: Any, patch: pytest.MonkeyPatch, dataset: Any, tmp: Path) -> list[Any]:
    from trajload.decode.quick_video import QuickVideo

    patch.setattr(QuickVideo, "plan", parts.sleepy(QuickVideo.plan, 0.02))
    return []


def slow_collate(parts: Any, patch: pytest.MonkeyPatch, dataset: Any, tmp: Path) -> list[Any]:
    from trajload.collate.slots import BatchSlots

    patch.setattr(BatchSlots, "finish", parts.sleepy(BatchSlots.finish, 0.1))
    return []


def slow_transfer(parts: Any, patch: pytest.MonkeyPatch, dataset: Any, tmp: Path) -> list[Any]:
    from trajload.collate.batch import Batch

    to = Batch.to

    def slow(batch: Any, *args: Any, **kwargs: Any) -> Any:
        parts.time.sleep(batch["cam_front"].numel() / 4e6)
        return to(batch, *args, **kwargs)

    patch.setattr(Batch, "to", slow)
    return []


def nothing(parts: Any, patch: pytest.MonkeyPatch, dataset: Any, tmp: Path) -> list[Any]:
    return []


def transform(name: str, *args: Any) -> Slow:
    def slow(parts: Any, patch: pytest.MonkeyPatch, dataset: Any, tmp: Path) -> list[Any]:
        return [getattr(parts, name)(*args)]

    return slow


def one_slow_thread(parts: Any, patch: pytest.MonkeyPatch, dataset: Any, tmp: Path) -> list[Any]:
    return [parts.OneSlowThread(0.1, str(tmp / "first"))]


SETUPS = {
    "slow store": Setup("storage", slow_store),
    "thin line to the store": Setup("storage", narrow_store),
    "slow store, interleaved": Setup(
        "storage", slow_store, {"order": tl.Interleaved(block_windows=2), "global_batch_size": 8}
    ),
    "slow codec": Setup("decode", slow_codec),
    "slow codec, interleaved": Setup("decode", slow_block_codec, {"order": "interleaved", "num_workers": 1}),
    "slow codec and a consumer": Setup("decode", slow_codec, step_s=0.02),
    "slow codec, no threads": Setup("decode", slow_codec, {"num_workers": 0}),
    "long GOPs": Setup("decode", nothing, {"window": tl.Window(num_steps=8), "streams": ["cam"]}, data="long"),
    "slow transform": Setup("transform", transform("Sleep", 0.03)),
    "slow transform in processes": Setup("transform", transform("Sleep", 0.04), {"workers": "processes:2"}),
    "transform that holds the interpreter": Setup("gil", transform("HoldInterpreter", 0.02), {"num_workers": 4}),
    "transform that holds the interpreter, one thread": Setup(
        "gil", transform("HoldInterpreter", 0.02), {"num_workers": 1}
    ),
    "transform that holds the interpreter, in processes": Setup(
        "gil", transform("HoldInterpreter", 0.02), {"workers": "processes:2", "num_workers": 4}
    ),
    "transform in plain Python": Setup("gil", transform("PlainPython", 400_000), least_gain=0.0),
    "transform that is stopped by the collector": Setup(
        "collector", transform("Collect", 0, 1), {"global_batch_size": 2}, by_hand={"transforms": ()}
    ),
    "transform that is stopped by the collector, in processes": Setup(
        "collector", transform("Collect", 200_000, 2), {"workers": "processes:2"}, by_hand={"transforms": ()}
    ),
    "slow consumer": Setup("consumer", nothing, step_s=0.2, by_hand={"step_s": 0.1}),
    "small queue": Setup("queue", transform("Sleep", 0.04), {"global_batch_size": 1, "num_workers": 4, "prefetch": 1}),
    "small queue, slow store": Setup(
        "queue", slow_store, {"global_batch_size": 1, "num_readers": 4, "num_workers": 4, "prefetch": 1}, step_s=0.005
    ),
    "one slow worker": Setup("worker", one_slow_thread, {"workers": "processes:2"}),
    "slow collate": Setup("collate", slow_collate, step_s=0.1),
    "slow transfer": Setup(
        "transfer",
        slow_transfer,
        {"device": "cpu"},
        by_hand={"streams": {"cam_front": tl.Image(size=(32, 32))}},
    ),
    "slow planner": Setup("plan", slow_planner),
}


@pytest.fixture
def long_or_demo(demo_dataset: Path, long_gops: Path) -> dict[str, Path]:
    return {"demo": demo_dataset, "long": long_gops}


@pytest.fixture(params=SETUPS.values(), ids=SETUPS.keys())
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    yield request.param


def look(loader: tl.Loader, setup: Setup, once: Path) -> tuple[Observation, Verdict]:
    """Return what is seen of such a loader, and the verdict; `once` is a file that slows whoever meets it first."""
    for times in AGAIN:
        once.unlink(missing_ok=True)
        others = Others()
        with fresh_loader(loader) as same:
            seen = observe(same, seconds=times * SECONDS, warmup_batches=2, step_s=setup.step_s)
            verdict = judge(seen, facts_of(same, seen.stats))
        if verdict.limit == setup.limit or not others.disturbed:
            break
    return seen, verdict


def speed(loader: tl.Loader, change: dict[str, Any], step_s: float, seconds: float, once: Path) -> float:
    """Return the windows/s of a loader with some arguments changed."""
    once.unlink(missing_ok=True)
    step_s = change.pop("step_s", step_s)
    with fresh_loader(loader, change) as changed:
        return statistics.median(observe(changed, seconds=seconds, warmup_batches=2, step_s=step_s).rates)


def gains_of(loader: tl.Loader, setup: Setup, seen: Observation, knobs: list[Knob], once: Path) -> dict[str, float]:
    """Return how many times as fast each knob makes it, up to the first that helps enough."""
    before, gains = statistics.median(seen.rates), dict[str, float]()
    for times in AGAIN:
        others = Others()
        if times > 1:
            before = speed(loader, {}, setup.step_s, times * SECONDS, once)
        for knob in knobs:
            gains[knob.text] = speed(loader, dict(knob.change), setup.step_s, times * SECONDS, once) / before
            if gains[knob.text] >= setup.least_gain:
                return gains
        if not others.disturbed:
            break
    return gains


@pytest.mark.slow
@pytest.mark.multiproc
def test_verdict_names_what_is_slow_and_its_advice_helps(
    setup: Setup,
    slow_parts: Any,
    monkeypatch: pytest.MonkeyPatch,
    long_or_demo: dict[str, Path],
    tmp_path: Path,
) -> None:
    """The stage slowed is the one named; of the knobs named, the first or the second makes the loader faster."""
    dataset = tl.open(long_or_demo[setup.data])
    transforms = setup.slow(slow_parts, monkeypatch, dataset, tmp_path)
    with tl.Loader(dataset, **{**BASE, **setup.more}, transforms=transforms) as loader:
        seen, verdict = look(loader, setup, tmp_path / "first")
        assert verdict.limit == setup.limit, f"{verdict.sentence}\n{describe(seen)}"
        if setup.by_hand is not None:
            knobs = [Knob("by hand", setup.by_hand, 1.0)]
        else:
            knobs = [knob for knob in verdict.knobs if knob.change][:2]
        assert knobs, verdict.sentence
        gains = gains_of(loader, setup, seen, knobs, tmp_path / "first")
        assert max(gains.values()) >= setup.least_gain, f"{verdict.sentence} Tried: {gains}.\n{describe(seen)}"


def describe(seen: Observation) -> str:
    lines = [f"waits {seen.wait_share:.2f}, gil {seen.gil}, queue {seen.stats['queue']}, {len(seen.waits_s)} batches"]
    for thread in seen.threads:
        told = {stage: round(spent / seen.elapsed_s, 3) for stage, spent in thread.seconds.items()}
        lines.append(f"{thread.worker} {thread.name}: {told} {thread.cpu}")
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slow store", "slow codec", "slow transform", "slow consumer", "long GOPs"])
def test_headspace_run_confirms_the_verdict(
    name: str, slow_parts: Any, monkeypatch: pytest.MonkeyPatch, long_or_demo: dict[str, Path], tmp_path: Path
) -> None:
    """What is slow is what helps when it is left out."""
    setup = SETUPS[name]
    dataset = tl.open(long_or_demo[setup.data])
    transforms = setup.slow(slow_parts, monkeypatch, dataset, tmp_path)
    with tl.Loader(dataset, **{**BASE, **setup.more}, transforms=transforms) as loader:
        for times in AGAIN:
            others = Others()
            seen, verdict = look(loader, setup, tmp_path / "first")
            rate = statistics.median(seen.rates)
            free = headspace(loader, verdict, rate, seconds=times * 0.5, step_s=setup.step_s)
            if free.supports or not others.disturbed:
                break
    assert verdict.limit == setup.limit and free.supports, f"{verdict.sentence} {free}"


@pytest.mark.slow
@pytest.mark.multiproc
@pytest.mark.parametrize("more", [{}, {"order": "interleaved"}, {"workers": "processes:2"}], ids=str)
def test_loader_with_work_left_out_delivers_zeros_of_the_right_shape(demo_dataset: Path, more: dict[str, Any]) -> None:
    """Same windows, same shapes, no picture; nothing is read where reading is left out too."""
    arguments = {**BASE, "streams": ["cam_front", "depth", "language"], **more}
    with tl.Loader(demo_dataset, **arguments) as loader, fresh_loader(loader) as free:
        free._engine.leave_out(reads=True)
        want, got = next(iter(loader)), next(iter(free))
        assert got["window_id"].tolist() == want["window_id"].tolist() and got["language"] == want["language"]
        for key in ("cam_front", "depth"):
            assert got[key].shape == want[key].shape and got[key].dtype == want[key].dtype
            assert not got[key].any() and want[key].any()
        assert free.stats()["bytes_read"] < loader.stats()["bytes_read"] / 2
