"""Laws of the keyed bijection."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.errors import ConfigError, WindowError
from trajload.rng import key_u64
from trajload.sampling import permute
from trajload.sampling.permute import (
    MAX_N,
    NUM_ROUNDS,
    KeyedPermutation,
    half_bits_of,
    reference_forward,
    reference_inverse,
)

KEYS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=NUM_ROUNDS + 1).map(tuple)
BIG_N = [2**16, 2**20 + 1, 10**9 + 7, 2**31, 2**32 - 1, 2**32 + 1, 10**15, 2**53 + 1, 2**61 + 1, 2**62 - 1, 2**62]


def keys_of(seed: int, *counters: int) -> tuple[int, ...]:
    first, second = (key_u64(seed, "test", *counters, part, num=NUM_ROUNDS // 2) for part in (0, 1))
    return first + second


def test_permutation_of_every_small_set_is_a_bijection() -> None:
    """For each n from 1 to 5000 every value is taken once, and inverse undoes forward."""
    for n in range(1, 5001):
        permutation = KeyedPermutation(n, keys_of(11, n))
        all_B = np.arange(n)
        out_B = permutation.forward(all_B)
        assert out_B.min() == 0
        assert out_B.max() == n - 1
        assert np.bincount(out_B, minlength=n).max() == 1
        assert np.array_equal(permutation.inverse(out_B), all_B)


@given(st.one_of(st.integers(1, 300), st.sampled_from(BIG_N), st.integers(1, MAX_N)), KEYS, st.data())
@settings(max_examples=300, deadline=None)
def test_permutation_equals_its_reference_in_both_directions(
    n: int, keys: tuple[int, ...], data: st.DataObject
) -> None:
    """The compiled path gives what the plain-Python definition gives, for any n, keys and number of rounds."""
    i = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8))
    permutation = KeyedPermutation(n, keys)
    out_B, back_B = permutation.forward(np.array(i)), permutation.inverse(np.array(i))
    assert out_B.tolist() == [reference_forward(x, n, keys) for x in i]
    assert back_B.tolist() == [reference_inverse(x, n, keys) for x in i]
    assert permutation.inverse(out_B).tolist() == i
    assert permutation.forward(back_B).tolist() == i


@pytest.mark.parametrize("n", BIG_N)
def test_permutation_of_a_big_set_round_trips_without_collision(n: int) -> None:
    """200,000 values from both ends of a big set stay inside it, distinct, and come back."""
    permutation = KeyedPermutation(n, keys_of(3, n))
    half = min(100_000, n // 2)
    i_B = np.concatenate([np.arange(half), n - 1 - np.arange(half)])
    out_B = permutation.forward(i_B)
    assert out_B.dtype == np.int64
    assert 0 <= out_B.min() <= out_B.max() < n
    assert len(np.unique(out_B)) == len(i_B)
    assert np.array_equal(permutation.inverse(out_B), i_B)
    assert np.array_equal(permutation.forward(permutation.inverse(i_B)), i_B)


def test_permutation_keeps_the_shape_and_leaves_its_argument_alone() -> None:
    """Any shape goes in and comes out, strided input included, and the input is not written."""
    permutation = KeyedPermutation(100, keys_of(1))
    i = np.arange(96).reshape(8, 12)[::2, ::3]
    before = i.copy()
    assert permutation.forward(i).shape == (4, 4)
    assert permutation.forward(i)[1, 2] == permutation.forward(np.array(i[1, 2]))
    assert permutation.forward(np.array([], dtype=np.int64)).shape == (0,)
    assert np.array_equal(i, before)


@pytest.mark.parametrize(
    ("n", "half_bits"), [(1, 1), (2, 1), (4, 1), (5, 2), (16, 2), (17, 3), (2**32, 16), (2**32 + 1, 17), (2**62, 31)]
)
def test_half_bits_of_n_is_the_smallest_even_domain(n: int, half_bits: int) -> None:
    """The domain 4**half_bits holds n and the next smaller one does not."""
    assert half_bits_of(n) == half_bits


@pytest.mark.parametrize("n", [0, -1, 2**62 + 1, 1.5, True, "7"])
def test_permutation_of_an_unusable_size_is_refused(n: object) -> None:
    """Sizes outside [1, 2**62] or that are no integer are named in the error."""
    with pytest.raises(ConfigError, match=rf"n={n!r}".replace("*", r"\*").replace(".", r"\.")):
        KeyedPermutation(n, (1, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("keys", [(), (-1,), (2**64,), (1.0,), (True,)])
def test_permutation_with_unusable_keys_is_refused(keys: tuple[int, ...]) -> None:
    """No key at all, or one that is no unsigned 64-bit integer, is an error."""
    with pytest.raises(ConfigError, match=r"expected at least one int with 0 <= key < 2\*\*64"):
        KeyedPermutation(5, keys)


@pytest.mark.parametrize("value", [-1, 10, 2**62])
def test_permutation_outside_its_set_names_the_value(value: int) -> None:
    """A value outside [0, n) is refused in both directions rather than walked for ever."""
    permutation = KeyedPermutation(10, keys_of(1))
    with pytest.raises(WindowError, match=f"{value} is outside .*0 <= i < 10"):
        permutation.forward(np.array([3, value]))
    with pytest.raises(WindowError, match=f"{value} is outside .*0 <= i < 10"):
        permutation.inverse(np.array([3, value]))


def test_kernel_without_a_place_for_its_cache_is_compiled_all_the_same() -> None:
    """Where no cache can be kept (here: code without a file), the kernel still works."""
    namespace: dict[str, Any] = {}
    exec("def triple(x):\n    return 3 * x", namespace)
    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(namespace["triple"])
    assert permute.njit(namespace["triple"])(14) == 42
