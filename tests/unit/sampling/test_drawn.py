"""What an order has given, computed, against counting it row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trajload.sampling.drawn import num_drawn, order_digest
from trajload.sampling.mixture import MixturePart, MixtureSampler
from trajload.sampling.orders import order_config
from trajload.sampling.sampler import Sampler
from trajload.sampling.windows import WindowTable
from trajload.spec import Window

TABLE = WindowTable(np.array([5, 9, 12]), Window(num_steps=1))


def mixture(seed: int = 1) -> MixtureSampler:
    """Three sources whose weights change; the last joins later, and the order of one depends on its share."""
    weights: list[dict[int, Any]] = [{0: 0.5, 7: 0.2}, {0: 0.5, 7: 0.5, 19: 0}, {0: 0, 7: 0.3, 19: 0.8}]
    return MixtureSampler(
        [
            MixturePart(name=name, weight=weight, table=TABLE, order=order_config(order))
            for name, weight, order in zip("abc", weights, ["shuffled", "interleaved", "sequential"], strict=True)
        ],
        by="windows",
        seed=seed,
        global_batch_size=10,
    )


def single(**options: Any) -> Sampler:
    return Sampler(TABLE, **{"order": "shuffled", "seed": 1, "global_batch_size": 4, **options})


@pytest.mark.parametrize("sampler", [mixture(), single(), single(num_epochs=2), single(num_epochs=2, drop_last=True)])
def test_numbers_of_windows_are_those_of_the_rows(sampler: Any) -> None:
    """Of each source, within and across phases, up to the padded end."""
    stop = sampler.num_train_steps or 40
    rows = [sampler.refs(step) for step in range(stop)]
    for begin, end in ((0, 0), (0, 1), (0, stop), (3, 9), (6, 20), (7, 19), (stop - 2, stop)):
        counted = np.zeros(len(getattr(sampler, "names", "a")), dtype=np.int64)
        for refs in rows[begin:end]:
            counted += np.bincount(refs.source_B[~refs.row_is_pad_B], minlength=len(counted))
        assert num_drawn(sampler, begin, end) == counted.tolist(), (begin, end)


def test_digest_of_an_order_tells_orders_apart_and_nothing_else() -> None:
    """Seed, version, place; at the beginning and at the end of a finite run too."""
    end = single(num_epochs=2).num_train_steps
    assert end is not None
    digests = [order_digest(single(seed=seed), step) for seed in (1, 2) for step in (0, 1, 5)]
    digests += [order_digest(single(order="sequential"), 5), order_digest(mixture(), 5), order_digest(mixture(2), 5)]
    digests += [order_digest(single(num_epochs=2), end)]
    assert len(set(digests)) == len(digests)
    assert order_digest(single(), 5) == digests[2]
