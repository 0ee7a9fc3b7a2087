"""What each source of a loader gives: its share of the rows, and its part of the decoding. One dataset is one source."""

# Shapes: E episodes

from __future__ import annotations

from typing import Any

import numpy as np

from trajload.loader import Loader
from trajload.pipeline.source_rows import SourceRows
from trajload.sampling.mixture import MixtureSampler
from trajload.sampling.quality import measure_quality
from trajload.sampling.sampler import Sampler

__all__ = ["order_score", "order_words", "source_figures", "sources_of", "uniform_distinct"]

_QUALITY_BATCHES = 32


def sources_of(loader: Loader) -> list[tuple[SourceRows, Sampler, float]]:
    """Return what makes the rows of each source, its own order, and its share of the rows at the cursor, above 0."""
    sampler = loader._engine.sampler
    if not isinstance(sampler, MixtureSampler):
        return [(loader._engine.builder.sources[0], sampler, 1.0)]
    shares = sampler.shares(loader.train_step)
    parts = zip(loader._engine.builder.sources, sampler.samplers, shares.values(), strict=True)
    return [part for part in parts if part[2] > 0]


def order_words(loader: Loader) -> str:
    """Return the order of the windows, of all sources."""
    return ", ".join(dict.fromkeys(sampler.order for _, sampler, _ in sources_of(loader)))


def order_score(loader: Loader) -> float:
    """Return how well the order mixes, 1 for like a uniform shuffle of each source."""
    found = [measure_quality(own, num_batches=_QUALITY_BATCHES, num_ranks=()) for _, own, _ in sources_of(loader)]
    pairs = [(quality.got, quality.uniform) for quality in found]
    episodes = sum(got.distinct_episodes for got, _ in pairs) / sum(uniform.distinct_episodes for _, uniform in pairs)
    blocks = sum(got.distinct_blocks for got, _ in pairs) / sum(uniform.distinct_blocks for _, uniform in pairs)
    return float(min(1.0, episodes, blocks))


def uniform_distinct(loader: Loader) -> float:
    """Return the expected number of distinct episodes among the windows of a batch, drawn uniformly from each source."""
    expected = 0.0
    for source, _, share in sources_of(loader):
        steps_E, window = np.asarray(source.dataset.num_steps_E), source.window
        if window.pad == "none":
            num_E = np.maximum((steps_E - window.span) // window.stride + 1, 0)
        else:
            num_E = (steps_E + window.stride - 1) // window.stride
        expected += float((1 - (1 - num_E / num_E.sum()) ** (share * loader.rank_batch_size)).sum())
    return expected


def source_figures(loader: Loader) -> list[dict[str, Any]]:
    """Return of each source of a mixture: `name`, `share` of the rows, `decode_share`, `decode_ms`; empty for one dataset.

    `decode_ms` is the CPU time that a step of a window takes with all its streams, from a sample of the windows.
    """
    sampler = loader._engine.sampler
    if not isinstance(sampler, MixtureSampler):
        return []
    out: list[dict[str, Any]] = []
    spent: list[int] = []
    for number, (name, share) in enumerate(sampler.shares(loader.train_step).items()):
        sums = loader.stats_recorder.costs.sums(number).values()
        spent.append(sum(int(stream.cpu_ns.sum()) for stream in sums))
        step_ms = sum(float(s.cpu_ns.sum()) / 1e6 / int(s.rows.sum()) for s in sums if int(s.rows.sum()))
        out.append({"name": name, "share": share, "decode_ms": step_ms if spent[-1] else None})
    for told, mine in zip(out, spent, strict=True):
        told["decode_share"] = mine / sum(spent) if sum(spent) else None
    return out
