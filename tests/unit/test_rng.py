"""Keyed randomness: no two uses share a key, and keys never change."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.errors import ConfigError
from trajload.rng import check_seed, key_rng, key_u64

INT64 = st.integers(-(2**63), 2**63 - 1)
USES = st.tuples(INT64, st.text("abc.", max_size=5), st.lists(INT64, max_size=4).map(tuple))


@given(USES, USES)
@settings(deadline=None)
def test_keys_of_different_uses_differ_and_of_equal_uses_agree(
    one: tuple[int, str, tuple[int, ...]], other: tuple[int, str, tuple[int, ...]]
) -> None:
    """Seed, purpose, each counter and their number are all part of the key."""
    a, b = (key_u64(seed, purpose, *counters, num=2) for seed, purpose, counters in (one, other))
    assert (a == b) == (one == other)


def test_keys_of_neighbouring_seeds_epochs_and_lengths_are_all_distinct() -> None:
    """What additive seeds mix up stays apart: (seed + 1, epoch) and (seed, epoch + 1), [7, 1] and [7, 1, 0]."""
    uses = [
        (seed, purpose, *counters)
        for seed in range(-4, 5)
        for purpose in ("order", "augment")
        for length in range(4)
        for counters in itertools.product(range(3), repeat=length)
    ]
    keys = {key_u64(seed, purpose, *counters)[0] for seed, purpose, *counters in uses}
    assert len(keys) == len(uses)


def test_keys_are_the_checked_in_ones() -> None:
    """Keys decide order, so they are the same on every machine and in every release."""
    assert key_u64(7, "order", 3, num=2) == (10725977394848003709, 6911770775111897221)
    assert key_u64(-(2**63), "", num=1) == (5087808230948807246,)


def test_keys_spread_over_all_bits() -> None:
    """Over 4096 counters each of the 64 bits is set about half the time."""
    keys = np.array([key_u64(0, "order", k)[0] for k in range(4096)], dtype=np.uint64)
    share = ((keys[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).mean(axis=0)
    assert 0.45 < share.min() < share.max() < 0.55


def test_key_rng_gives_the_same_draws_for_the_same_key_only() -> None:
    """Draws depend on the key alone: not on draws made before, nor on any global state."""
    first = key_rng(7, "augment", 0, 11).random(8)
    key_rng(7, "augment", 0, 12).random(100)
    assert np.array_equal(key_rng(7, "augment", 0, 11).random(8), first)
    for seed, purpose, counters in [
        (8, "augment", (0, 11)),
        (7, "noise", (0, 11)),
        (7, "augment", (11, 0)),
        (7, "augment", (0, 11, 0)),
    ]:
        assert not np.array_equal(key_rng(seed, purpose, *counters).random(8), first)


def test_purpose_longer_than_blake2b_allows_is_refused() -> None:
    """Sixteen bytes are the limit, counted in UTF-8."""
    assert key_u64(0, "x" * 16)
    with pytest.raises(ConfigError, match=r"purpose='é{9}' is too long: got 18 bytes, expected at most 16"):
        key_u64(0, "é" * 9)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), np.int64(5), np.uint8(5)])
def test_check_seed_returns_a_plain_int(seed: int) -> None:
    """Every signed 64-bit integer is a seed."""
    assert check_seed(seed) == int(seed)
    assert type(check_seed(seed)) is int


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (2**63, r"seed=9223372036854775808 is out of range"),
        (-(2**63) - 1, r"out of range"),
        (1.0, r"seed must be an int: got 1\.0 of type float"),
        (True, r"got True of type bool"),
        (None, r"got None of type NoneType"),
        ([7, 1], r"got \[7, 1\] of type list"),
    ],
)
def test_check_seed_refuses_what_is_no_64_bit_integer(seed: object, message: str) -> None:
    """Floats, bools, lists and larger numbers are named."""
    with pytest.raises(ConfigError, match=message):
        check_seed(seed)  # type: ignore[arg-type]
