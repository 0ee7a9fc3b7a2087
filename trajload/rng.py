"""Keyed randomness: every random value is a function of (seed, purpose, counters).

Two roots, for two promises:

- `key_u64`: integers that decide *order*. Blake2b over packed integers, so they never change with a NumPy
  release, and no two (purpose, counters) share a key: `seed + epoch` makes run 42/epoch 1 equal
  run 43/epoch 0, and `default_rng([7, 1])` equals `default_rng([7, 1, 0])`.
- `key_rng`: a NumPy Generator for *augmentation* draws, which may change with a NumPy release (NEP 19).
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from trajload.errors import ConfigError

__all__ = ["check_seed", "key_rng", "key_u64"]

_PERSON_BYTES = 16


def _digest(seed: int, purpose: str, counters: tuple[int, ...], num_bytes: int) -> bytes:
    person = purpose.encode()
    if len(person) > _PERSON_BYTES:
        raise ConfigError(
            f"purpose={purpose!r} is too long: got {len(person)} bytes, expected at most {_PERSON_BYTES}."
        )
    # The count of counters is part of the packed length and so of the key.
    packed = struct.pack(f"<{1 + len(counters)}q", seed, *counters)
    return hashlib.blake2b(packed, digest_size=num_bytes, person=person).digest()


def check_seed(seed: int) -> int:
    """Return `seed` if it is an int in [-2**63, 2**63), else raise ConfigError."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise ConfigError(f"seed must be an int: got {seed!r} of type {type(seed).__name__}.")
    if not -(2**63) <= int(seed) < 2**63:
        raise ConfigError(f"seed={seed!r} is out of range: expected -2**63 <= seed < 2**63.")
    return int(seed)


def key_u64(seed: int, purpose: str, *counters: int, num: int = 1) -> tuple[int, ...]:
    """Return `num` (at most 8) independent unsigned 64-bit keys of (seed, purpose, counters).

    Args:
        seed: The run's seed, -2**63 <= seed < 2**63.
        purpose: What the keys are for, at most 16 bytes of UTF-8; keeps uses apart.
        counters: Signed 64-bit integers (epoch, round, ...). Their number is part of the key.
        num: How many keys.
    """
    raw = _digest(seed, purpose, counters, 8 * num)
    return struct.unpack(f"<{num}Q", raw)


def key_rng(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Return a NumPy Generator (Philox) keyed by (seed, purpose, counters), for augmentation draws.

    Same arguments give the same draws on any machine with the same NumPy; never used to decide order.
    """
    raw = _digest(seed, purpose, counters, 16)
    return np.random.Generator(np.random.Philox(key=int.from_bytes(raw, "little")))
