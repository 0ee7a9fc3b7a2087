"""The knobs of a loader, and what turning one is expected to bring."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trajload.bench.collector import collector_cure
from trajload.bench.loads import Load
from trajload.bench.sources import sources_of
from trajload.loader import Loader
from trajload.machine import num_cpus
from trajload.sampling.orders import Interleaved

__all__ = ["Facts", "Knob", "facts_of", "knobs_for"]

_MAX_READERS = 32
_MAX_PREFETCH = 64
_MORE = 4
"""A knob is turned to so many times what it was, and not at once to its end."""
_BLOCK_WINDOWS, _MAX_BLOCK_WINDOWS = 16, 128
_WORTH = 1.2
"""Advice must promise more than noise."""
_IDLE_SHARE = 0.5
_CPUS_TAKEN = 0.8


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to change."""

    text: str
    """An advice, from 'use num_workers=8' on."""
    change: Mapping[str, Any]
    """Arguments of `Loader`; empty where none does it."""
    gain: float
    """How many times as fast it is expected to be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """How a loader is set up."""

    num_workers: int
    num_readers: int = 1
    workers: str = "threads"
    prefetch: int = 2
    order: str = "shuffled/1"
    num_rows: int = 32
    num_cpus: float = 1.0
    device: str | None = None
    num_steps: int = 16
    stride: int = 1
    span: int = 16
    has_pictures: bool = False
    block_windows: int | None = None
    """Of an order of blocks."""
    decoded_per_delivered: float | None = None
    """Frames that went through the decoder for each frame delivered."""

    @property
    def num_processes(self) -> int:
        """Worker processes; 0 for threads."""
        kind, _, number = self.workers.partition(":")
        return int(number) if kind == "processes" else 0

    @property
    def shared(self) -> float:
        """How many times fewer frames would be decoded if each were decoded once for a block of windows; 1 for no gain."""
        if not self.has_pictures or not self.order.startswith(("shuffled", "sequential")):
            return 1.0
        now = max(1.0, self.decoded_per_delivered or 1.0)
        lead_in = (now - 1) * self.num_steps
        return max(1.0, now * _BLOCK_WINDOWS * self.num_steps / (self.frames_of_block(_BLOCK_WINDOWS) + lead_in))

    def frames_of_block(self, block_windows: int) -> int:
        """Return how many frames so many neighbouring windows take together."""
        return min((block_windows - 1) * self.stride + self.span, block_windows * self.num_steps)

    @property
    def longer_blocks(self) -> tuple[int, float] | None:
        """(windows of a block that is about as long as a window, how many times fewer frames it decodes); None for no gain."""
        old = self.block_windows
        if not self.has_pictures or not old:
            return None
        new = min(-(-self.span // (_BLOCK_WINDOWS * self.stride)) * _BLOCK_WINDOWS, _MAX_BLOCK_WINDOWS)
        if new <= old:
            return None
        factor = self.frames_of_block(old) / old / (self.frames_of_block(new) / new)
        return (new, factor) if factor >= _WORTH else None


def facts_of(loader: Loader, stats: Mapping[str, Any]) -> Facts:
    """Return the facts of a loader that was observed.

    Args:
        loader: Whatever it reads; of a mixture the source with most rows counts.
        stats: `Loader.stats` after the observation.
    """
    source, sampler, _ = max(sources_of(loader), key=lambda part: part[2])
    window = source.window
    device = loader.arguments["device"]
    return Facts(
        num_workers=stats["num_workers"],
        num_readers=stats["num_readers"],
        workers=stats["workers"],
        prefetch=stats["prefetch"],
        order=sampler.order,
        num_rows=loader.rank_batch_size,
        num_cpus=num_cpus(),
        device=None if device is None else str(device),
        num_steps=window.num_steps,
        stride=window.stride,
        span=window.span,
        has_pictures=any(choice.spec.is_picture for choice in loader.streams),
        block_windows=getattr(sampler.order_config, "block_windows", None),
        decoded_per_delivered=stats["frames_decoded"] / stats["frames"] if stats["frames"] else None,
    )


def knobs_for(
    limit: str,
    load: Load | None,
    facts: Facts,
    *,
    ceiling: float,
    cpus: tuple[float, float] | None,
    fed: float,
    own: Mapping[str, float],
    collected: float = 0.0,
) -> tuple[Knob, ...]:
    """Return what to try, best first.

    Args:
        limit: One of `verdict.LIMITS`.
        load: Of the threads that limit.
        facts: How the loader is set up.
        ceiling: Use of the busiest of all others, the consumer included: the speed cannot rise by more than its inverse.
        cpus: CPUs that the pipeline kept busy, and waited for.
        fed: Share of the time that the consumer did not wait.
        own: Work in the consumer's thread, as shares of the time.
        collected: Share of the time that the garbage collector stopped the process of the threads that limit.
    """
    use = 1.0 if load is None else max(load.use, 0.05)

    def gain(factor: float) -> float:
        return min(max(factor, 1.0), use / max(ceiling, use / 50.0), 50.0) if factor > 1 else 1.0

    if limit == "collector" and load is not None:
        cure = Knob(collector_cure(load.worker), {}, gain(use / max(use - collected, 0.02)))
        elsewhere = _more_interpreters(load, facts, cpus, gain) if not facts.num_processes else ()
        return (cure, *(knob for knob in elsewhere if knob.change))
    more = _more_workers(load, facts, cpus)
    once = _decode_once(facts)
    if facts.num_workers == 0 and limit not in ("consumer", "queue"):
        # One thread does it all: any overlap helps first.
        number = max(2, int(facts.num_cpus))
        change = {"num_workers": number, "prefetch": "auto"}
        return (Knob(f"use num_workers={number}, so that work overlaps", change, float(number)),)
    if limit == "storage":
        knobs = []
        readers = min(_MAX_READERS, _MORE * facts.num_readers)
        if readers > facts.num_readers:
            text = f"use num_readers={readers}, so that reads overlap"
            knobs.append(Knob(text, {"num_readers": readers}, gain(readers / facts.num_readers)))
        if once is not None:
            text = 'use order="interleaved", which reads each stretch once for several windows'
            knobs.append(Knob(text, {"order": "interleaved"}, gain(once)))
        return (*knobs, Knob("move the data closer, to a local disk", {}, gain(50.0)))
    if limit in ("decode", "transform", "collate") and (load is None or load.role == "decode"):
        knobs = []
        if more is not None:
            text = f"use num_workers={more[0]}"
            knobs.append(Knob(text, {"num_workers": more[0]}, gain(more[1])))
        if limit == "decode" and once is not None:
            text = 'use order="interleaved", which decodes each frame once for several windows'
            knobs.append(Knob(text, {"order": "interleaved"}, gain(once)))
        if limit == "decode" and facts.longer_blocks is not None:
            number, factor = facts.longer_blocks
            text = f"use order=tl.Interleaved(block_windows={number}): blocks as long as a window decode {factor:.1f} times fewer frames, take more memory"
            change = {"order": Interleaved(block_windows=number).to_json()}
            knobs.append(Knob(f"{text} and change the order", change, gain(factor)))
        return (*knobs, _cheaper(limit, facts, gain))
    if limit == "collate":
        return _collate_elsewhere(facts, fed, own)
    if limit == "transfer":
        text = "send fewer bytes: smaller pictures (size=), fewer streams, or converting to float on the device"
        return (Knob(text, {}, gain(2.0)),)
    if limit == "plan":
        if load is not None and load.role == "read":
            readers = min(_MAX_READERS, _MORE * facts.num_readers)
            return (Knob(f"use num_readers={readers}", {"num_readers": readers}, gain(readers / facts.num_readers)),)
        return (Knob("take longer windows, or fewer clocked streams", {}, gain(2.0)),)
    if limit == "queue":
        depth = min(_MAX_PREFETCH, max(_MORE * facts.prefetch, 4))
        if depth <= facts.prefetch:
            return (Knob("take longer windows or larger batches: each piece of work is too small", {}, 1.0),)
        # All overlap at best: then the busiest threads are never idle.
        best = 1 / max(ceiling, use, 0.05)
        return (Knob(f"use prefetch={depth}", {"prefetch": depth}, min(best, 50.0)),)
    if limit == "worker":
        text = 'use workers="threads", which share one queue, or find out what slows that process'
        return (Knob(text, {"workers": "threads"}, gain(2.0)),)
    if limit == "gil":
        return _more_interpreters(load, facts, cpus, gain)
    return ()


def _more_workers(load: Load | None, facts: Facts, cpus: tuple[float, float] | None) -> tuple[int, float] | None:
    """Return (num_workers, by how much that speeds them up); None where the CPUs are taken."""
    if load is None or load.role != "decode":
        return None
    now = facts.num_workers
    if load.blocked_share is not None and load.blocked_share > _IDLE_SHARE:
        return _MORE * now, float(_MORE)  # they wait for something that is no CPU
    if cpus is None:
        return (2 * now, 2.0) if now < facts.num_cpus else None
    if sum(cpus) >= _CPUS_TAKEN * facts.num_cpus:
        return None
    factor = min(float(_MORE), facts.num_cpus / max(sum(cpus), 0.1))
    number = math.ceil(now * factor)
    return (number, number / now) if number > now else None


def _more_interpreters(
    load: Load | None, facts: Facts, cpus: tuple[float, float] | None, gain: Any
) -> tuple[Knob, ...]:
    """Return what helps where threads wait for their interpreter: more of them, or less Python."""
    now = facts.num_processes
    number = max(2, int(facts.num_cpus), facts.num_workers) if now == 0 else facts.num_workers
    if now and number <= now:
        # Each thread has an interpreter of its own already: more help only as far as there are CPUs for them.
        more = _more_workers(load, facts, cpus)
        number = now if more is None else more[0]
    number = max(2, min(facts.num_rows, number))
    knobs = []
    if number > now:
        change = {"workers": f"processes:{number}", "num_workers": max(number, facts.num_workers)}
        text = f'use workers="processes:{number}", each with an interpreter of its own'
        knobs.append(Knob(text, change, gain(number / max(now, 1))))
    if load is not None and load.stage == "augment":
        text = "write transforms in NumPy or torch, which let go of the interpreter, instead of plain Python"
        knobs.append(Knob(text, {}, gain(2.0)))
    return tuple(knobs)


def _decode_once(facts: Facts) -> float | None:
    return facts.shared if facts.shared >= _WORTH else None


def _cheaper(limit: str, facts: Facts, gain: Any) -> Knob:
    """Return what helps where no argument does: less work."""
    if limit == "transform":
        return Knob("make transforms cheaper: crop before all else, or augment on the device", {}, gain(2.0))
    if limit == "collate":
        return Knob("ask for fewer streams or smaller pictures", {}, gain(2.0))
    lead_in = facts.decoded_per_delivered or 1.0
    if lead_in >= 1.5:
        text = f"re-encode with short GOPs: {lead_in:.1f} frames are decoded for each one delivered"
        return Knob(text, {}, gain(lead_in))
    return Knob("give it more CPUs, smaller pictures or fewer cameras", {}, gain(2.0))


def _collate_elsewhere(facts: Facts, fed: float, own: Mapping[str, float]) -> tuple[Knob, ...]:
    """Return what helps where batches are put together in the thread that asks for them."""
    fewer = Knob("ask for fewer streams or smaller pictures", {}, 2.0)
    mine = sum(own.values())
    if facts.device is None and fed > 0.1:
        best = 1 / max(fed, mine, 0.05)
        text = 'use device="cpu" (or "cuda"), so that another thread puts batches together while the consumer computes'
        return (Knob(text, {"device": "cpu"}, best), fewer)
    return (fewer,)
