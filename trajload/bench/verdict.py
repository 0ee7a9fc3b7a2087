"""Which stage holds a loader up, said in one sentence, with the knob to turn and what to expect of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trajload.bench.knobs import Facts, Knob, knobs_for
from trajload.bench.loads import Load, consumer_work, cpu_use, loads_of, slow_worker
from trajload.bench.observe import Observation

__all__ = ["LIMITS", "Verdict", "judge"]

LIMITS = {
    "consumer": "The consumer is the limit",
    "storage": "Storage is the limit",
    "decode": "Decoding is the limit",
    "transform": "Transforms are the limit",
    "collate": "Putting batches together is the limit",
    "transfer": "The copy to the device is the limit",
    "plan": "Planning rows is the limit",
    "queue": "Too few batches are in the works",
    "worker": "One worker process holds up the others",
    "gil": "The interpreter lock (GIL) is the limit",
    "collector": "Python's garbage collector is the limit",
}
"""What a loader can be bound by."""
_LIMIT_OF_STAGE = {
    "read": "storage",
    "decode": "decode",
    "augment": "transform",
    "collate": "collate",
    "transfer": "transfer",
    "plan": "plan",
}
_FED_SHARE = 0.05
"""A consumer that waits for less than this share of the time is fed: the loader is not what holds it up."""
_FULL = 0.7
"""Threads that are busy for less than this share of the time do not limit by themselves."""
_GIL_TAKEN = 0.65
"""An interpreter held for so much of the time limits: more threads could make it 1.5 times as fast at most."""
_GIL_HELD = 0.5
"""One held for less than this share of the time does not."""
_GIL_BLOCKED = 0.25
_COLLECTED = 0.25
"""A collector that stops a process for less than this share of the time does not limit."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds the loader up, and what to do."""

    limit: str
    """One of `LIMITS`."""
    sentence: str
    use: float
    """How busy what limits is, 1: always."""
    blocked_share: float | None
    """Of its time at work, the share spent waiting: asleep, on the disk, for the interpreter."""
    next_limit: str | None
    """What comes next once this is solved."""
    headroom: float
    """How many times as fast it could be if what limits cost nothing."""
    knobs: tuple[Knob, ...]
    """What to try, best first; empty where no argument of the loader helps."""

    @property
    def change(self) -> dict[str, Any]:
        """Arguments of `Loader` to change first."""
        return dict(self.knobs[0].change) if self.knobs else {}

    @property
    def gain(self) -> float:
        """How many times as fast it is expected to be with `change`."""
        return self.knobs[0].gain if self.knobs else 1.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "change": self.change, "gain": self.gain}


def judge(seen: Observation, facts: Facts) -> Verdict:
    """Return the verdict on a run.

    The one number that counts is how long the consumer was blocked: stages overlap, so their times do not add up to
    anything. What limits is the kind of thread that is never idle while the consumer waits; where all are idle at
    times, too few batches are in the works for them to overlap.

    Args:
        seen: What was observed.
        facts: How the loader is set up.
    """
    loads = loads_of(seen)
    limit, load = _limit(seen, facts, loads)
    own = consumer_work(seen)
    fed = max(0.0, 1 - seen.wait_share)
    # Other threads may help out with what limits: that part goes away with it.
    rest = {
        f"{other.role} threads": other.use if load is None else other.use - other.stages.get(load.stage, 0.0)
        for other in loads
        if load is None or other.role != load.role
    }
    rest["the consumer"] = fed
    next_limit = max(rest, key=lambda name: rest[name]) if rest else None
    ceiling = max([*rest.values(), 0.02])
    use = fed if limit == "consumer" else load.use if load is not None else 0.0
    if limit == "consumer":
        others = max([other.use for other in loads if other.role != "consumer"] or [0.02])
        headroom, next_limit = 1 / max(others, 0.02), loads[0].stage if loads else None
    else:
        headroom = min(1 / ceiling, 50.0)
    cpus = cpu_use(seen.threads, seen.elapsed_s)
    collected = 0.0 if load is None else seen.collected_share(load.worker)
    knobs = knobs_for(limit, load, facts, ceiling=ceiling, cpus=cpus, fed=fed, own=own, collected=collected)
    blocked = None if load is None else load.blocked_share
    return Verdict(
        limit=limit,
        sentence=_sentence(limit, seen, load, knobs, headroom),
        use=use,
        blocked_share=blocked,
        next_limit=next_limit,
        headroom=headroom,
        knobs=knobs,
    )


def _limit(seen: Observation, facts: Facts, loads: list[Load]) -> tuple[str, Load | None]:
    if seen.wait_share < _FED_SHARE:
        return "consumer", None
    collecting = next((load for load in loads if _is_held_up_by_collector(seen, load)), None)
    if collecting is not None:
        return "collector", collecting
    slow = slow_worker(seen)
    if slow is not None:
        return "worker", next((load for load in loads if load.worker == slow[0]), None)
    by_role = {load.role: load for load in loads}
    consumer = by_role.get("consumer")
    if facts.num_workers == 0:
        # Everything happens in the consumer's thread, one thing after the other.
        return (_LIMIT_OF_STAGE[consumer.stage], consumer) if consumer else ("queue", None)
    if consumer is not None and consumer.use >= 0.5 * seen.wait_share:
        return _LIMIT_OF_STAGE[consumer.stage], consumer
    busiest = next((load for load in loads if load.role != "consumer"), None)
    if busiest is None:
        return "queue", None
    if _is_held_up_by_interpreter(seen, busiest):
        return "gil", busiest
    if busiest.not_idle < _FULL:
        return "queue", busiest
    return _LIMIT_OF_STAGE[busiest.stage], busiest


def _is_held_up_by_collector(seen: Observation, load: Load) -> bool:
    """Return whether threads that limit spend most of their time stopped by collections."""
    share = seen.collected_share(load.worker)
    return load.use >= _FULL and share >= max(_COLLECTED, min(load.use, 1.0) / 2)


def _is_held_up_by_interpreter(seen: Observation, load: Load) -> bool:
    """Return whether threads wait for each other's Python, rather than for data or a CPU."""
    gil = seen.gil if load.worker is None else seen.worker_gil.get(load.worker)
    held_share = None if gil is None else gil.held_share
    if held_share is None or held_share < _GIL_HELD:
        return False
    if held_share >= _GIL_TAKEN or load.blocked_share is None:
        return True
    return load.num_threads > 1 and load.blocked_share >= _GIL_BLOCKED


def _sentence(limit: str, seen: Observation, load: Load | None, knobs: tuple[Knob, ...], headroom: float) -> str:
    waits = f"the consumer waits {seen.wait_share:.0%} of the time"
    if limit == "consumer":
        return (
            f"{LIMITS[limit]}: it waits only {seen.wait_share:.0%} of the time, and the loader could feed one "
            f"about {_times(headroom)} as fast; only a faster training step helps."
        )
    assert load is not None or limit in ("queue", "worker")
    what = LIMITS[limit]
    if limit == "worker" and load is not None:
        what = f"Worker process {load.worker} holds up the others"
    busy = ""
    if load is not None:
        role = "consumer's" if load.role == "consumer" else load.role
        whose = "" if load.worker is None else " of a worker process"
        one, verb = ("thread", "is") if load.num_threads == 1 else ("threads", "are")
        threads = f"{'' if verb == 'is' else f'{load.num_threads} '}{role} {one}{whose} {verb}"
        busy = f" ({waits}, and the {threads} busy for {min(load.use, 1.0):.0%} of it)"
        if limit not in ("queue", "worker") and load.use < _FULL <= load.not_idle:
            busy = f" ({waits}, and the {threads} busy or waiting for a CPU for {load.not_idle:.0%} of it)"
    if not knobs:
        return f"{what}{busy}."
    return f"{what}{busy}: {knobs[0].text}, for up to {_times(knobs[0].gain)} the speed."


def _times(factor: float) -> str:
    return f"{factor:.1f} times" if factor < 10 else f"{factor:.0f} times"
