"""What a measurement says, as one value that is printed, written as JSON, drawn and compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["FORMAT", "BenchReport"]

FORMAT = "trajload-bench/2"


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchReport:
    """One measurement of one loader."""

    format: str = FORMAT
    dataset: str
    """Its name; of a mixture those of the sources, joined."""
    order: str
    sources: list[dict[str, Any]] = field(default_factory=list)
    """Of a mixture, each source: `name`, `share` of the rows, `decode_share` of the decoding (CPU time), and `decode_ms` of it for a
    step of a window; empty for one dataset."""
    num_workers: int
    num_readers: int
    workers: str
    prefetch: int
    global_batch_size: int
    num_steps: int
    seconds: float
    """Time measured, after the warm-up."""
    batches: int
    stopped: bool
    """Ended before its time: figures are of the batches until then, and the verdict may not have been tested."""
    first_batch_s: float
    """From the first call of next() to the first batch: opening files and decoders, compiling kernels, the work itself."""
    windows_per_s: float
    """Median of the slices that the time is cut into."""
    windows_per_s_min: float
    windows_per_s_max: float
    frames_per_s: float
    """Frames delivered, all cameras together."""
    consumer_ms: float
    """What the consumer spent on each batch."""
    wait_share: float
    """Share of the time that the consumer was blocked in next(): the number that counts."""
    wait_median_ms: float
    wait_p99_ms: float
    longest_wait_ms: float
    stages: dict[str, dict[str, Any]]
    """Stage → pieces of work (`count`), `seconds`, `median_ms` and `p99_ms` of a piece, `use`: share of the time that its
    threads spent on it."""
    threads: list[dict[str, Any]]
    """Each thread: `use`, its CPU time and its wait for a CPU, as shares of the time."""
    queue: dict[str, Any]
    """Finished batches that stood ready when one was asked for."""
    read_mb_per_s: float
    bytes_per_window: float
    gop_bytes_per_window: float | None
    """Of all groups of pictures that a window touches; None without video."""
    gop_frames: float | None
    """Length of a group, in frames."""
    decoded_per_delivered: float | None
    """Frames that went through the decoder for each frame delivered; None without pictures."""
    distinct_episodes_per_batch: float
    """Speed bought with little mixing shows here."""
    distinct_episodes_uniform: float
    """What drawing windows uniformly would give on average."""
    order_score: float
    """How well the order mixes, 1: like a uniform shuffle (the worse of distinct episodes and distinct blocks, to it)."""
    rss_mb: float
    peak_rss_mb: float
    """Of all processes of the loader."""
    cpus: dict[str, float | None]
    """CPUs there are, CPUs kept busy, and CPUs waited for."""
    gil_held_share: float | None
    """How often another thread held the interpreter when one asked for it; the most of all processes."""
    collector: dict[str, Any]
    """Python's garbage collector, in the process that it stopped longest (`worker`, None for the loader's own): `collections` of
    the oldest generation, `share` of the time, `total_ms`, `longest_ms`, `in_longest_wait_ms`, and `is_longest_wait`."""
    bottleneck: str
    """The verdict in a word: see `trajload.bench.verdict.LIMITS`."""
    advice: str
    """The verdict in a sentence."""
    verdict: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    """What makes the figures doubtful, and what explains the longest wait."""
    headspace: dict[str, Any] | None = None
    tried: dict[str, Any] | None = None
    """What the advice brought, where it was tried: `change`, `windows_per_s`, `gain`."""
    series: dict[str, list[float]] = field(default_factory=dict)
    """`asked_s` and `wait_ms`, batch by batch, thinned."""
    machine: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
