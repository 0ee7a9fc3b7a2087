"""What an order has given between two train_steps, and a digest that tells whether it is still the same order.

Both are computed, not counted: the order is a pure function of its configuration and the train_step.
"""

# Shapes: B rows of a global batch

from __future__ import annotations

import hashlib

import numpy as np

from trajload.sampling.mixture import MixtureSampler
from trajload.sampling.sampler import Sampler

__all__ = ["num_drawn", "order_digest"]

_MAX_ROWS = 4096
"""Of each batch that is digested: beyond, more rows only cost more."""


def num_drawn(sampler: Sampler | MixtureSampler, begin: int, stop: int) -> list[int]:
    """Return how many windows of each source train_steps [begin, stop) hold; one number without a mixture, padding not counted.

    The cost does not grow with the number of train_steps.
    """
    if isinstance(sampler, Sampler):
        first, last = begin * sampler.global_batch_size, stop * sampler.global_batch_size
        if sampler.num_epochs is not None:
            last = min(last, sampler.num_epochs * sampler.num_windows)
        return [max(0, last - first)]
    found = [0] * len(sampler.names)
    ends = [*(phase.begin for phase in sampler.phases[1:]), stop]
    for phase, end in zip(sampler.phases, ends, strict=True):
        low, high = max(begin, phase.begin), min(stop, end)
        if low >= high:
            continue
        for source in range(len(found)):
            if phase.cells.quota_I[source]:
                upto, before = (phase.own_position(at, phase.rows(at, source)[0], source) for at in (high, low))
                found[source] += upto - before
    return found


def order_digest(sampler: Sampler | MixtureSampler, train_step: int) -> str:
    """Return a digest of the windows of the batches before and after the cursor `train_step`.

    Equal for equal configurations, on every machine, with any number of ranks. It differs where arithmetic differs: code
    of the order that was changed without a new version, or a kernel that another processor computes otherwise.
    """
    digest = hashlib.sha256(sampler.order.encode())
    stop = sampler.num_train_steps
    rows = slice(0, min(sampler.global_batch_size, _MAX_ROWS))
    for step in (train_step - 1, train_step):
        if step < 0 or (stop is not None and step >= stop):
            continue
        refs = sampler.refs(step, rows)
        for values_B in (refs.source_B, refs.epoch_B, refs.window_id_B, refs.episode_B, refs.start_B):
            digest.update(np.asarray(values_B, dtype="<i8").tobytes())
    return digest.hexdigest()
