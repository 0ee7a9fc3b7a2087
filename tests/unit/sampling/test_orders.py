"""Laws every order keeps, and the names they go by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.errors import ConfigError
from trajload.sampling.orders import make_order, resolve_order

VERSIONS = ["sequential/1", "shuffled/1"]
SEEDS = st.integers(-(2**63), 2**63 - 1)
EPOCHS = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize("version", VERSIONS)
@given(num_windows=st.integers(1, 3000), seed=SEEDS, epoch=EPOCHS)
@settings(max_examples=100, deadline=None)
def test_order_gives_each_window_exactly_once_an_epoch(version: str, num_windows: int, seed: int, epoch: int) -> None:
    """An epoch is a permutation of all window ids, and `offsets` is its inverse."""
    order = make_order(version, num_windows=num_windows, seed=seed)
    all_B = np.arange(num_windows)
    ids = order.window_ids(epoch, all_B)
    assert (order.version, order.num_windows) == (version, num_windows)
    assert np.array_equal(np.sort(ids), all_B)
    assert np.array_equal(order.offsets(epoch, ids), all_B)


@pytest.mark.parametrize("version", VERSIONS)
def test_order_of_part_of_an_epoch_equals_that_part_of_the_whole(version: str) -> None:
    """What stands at an offset does not depend on which others are asked for along with it."""
    order = make_order(version, num_windows=1000, seed=5)
    whole = order.window_ids(3, np.arange(1000))
    assert np.array_equal(order.window_ids(3, np.arange(200, 300)), whole[200:300])
    assert order.window_ids(3, np.array([999])).tolist() == [whole[999]]


def test_sequential_order_is_the_identity_in_every_epoch() -> None:
    """Sequential order counts up, whatever seed and epoch, and hands out its own array."""
    order = make_order("sequential", num_windows=10, seed=1)
    offsets = np.arange(10)
    ids = order.window_ids(4, offsets)
    assert ids.tolist() == list(range(10))
    ids[0] = 99
    assert offsets[0] == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((7, 0), (7, 1)),
        ((7, 0), (8, 0)),
        ((8, 0), (7, 1)),
        ((43, 0), (42, 1)),
        ((-1, 5), (5, -1 % 2**62)),
        ((0, 0), (-1, 0)),
    ],
    ids=["epochs", "seeds", "seed+1/epoch+1", "run 43 epoch 0/run 42 epoch 1", "swapped", "sign"],
)
def test_shuffled_order_of_other_seed_or_epoch_differs(one: tuple[int, int], other: tuple[int, int]) -> None:
    """Any two (seed, epoch) are unrelated: they agree in about one of 2000 places, as two shuffles would."""
    a, b = (
        make_order("shuffled/1", num_windows=2000, seed=seed).window_ids(epoch, np.arange(2000))
        for seed, epoch in (one, other)
    )
    assert (a == b).sum() < 12


def test_shuffled_order_is_no_shift_of_another_epoch() -> None:
    """No epoch is another one moved along or added to, which additive keys would give."""
    order = make_order("shuffled", num_windows=499, seed=9)
    a, b = order.window_ids(0, np.arange(499)), order.window_ids(1, np.arange(499))
    assert max((a == np.roll(b, shift)).sum() for shift in range(499)) < 15
    assert np.bincount((a - b) % 499, minlength=499).max() < 15


@pytest.mark.parametrize(
    ("name", "version"),
    [("shuffled", "shuffled/1"), ("sequential", "sequential/1"), *((v, v) for v in VERSIONS)],
)
def test_resolve_order_gives_the_version(name: str, version: str) -> None:
    """A name stands for its newest version, a version for itself."""
    assert resolve_order(name) == version


@pytest.mark.parametrize("name", ["random", "shuffled/9", "", None, "Shuffled"])
def test_resolve_order_of_an_unknown_name_lists_the_known_ones(name: object) -> None:
    """An order nobody knows is refused with all names and versions."""
    with pytest.raises(
        ConfigError, match=rf"order={name!r} is unknown: .*'shuffled', .*'interleaved', .*'sequential/1', 'shuffled/1'"
    ):
        resolve_order(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", VERSIONS)
def test_order_of_an_impossible_size_or_seed_is_refused(version: str) -> None:
    """Both are named."""
    with pytest.raises(ConfigError, match="num_windows=0 is invalid"):
        make_order(version, num_windows=0, seed=1)
    with pytest.raises(ConfigError, match=r"seed must be an int: got 1\.5"):
        make_order(version, num_windows=1, seed=1.5)  # type: ignore[arg-type]
