"""How uniform the keyed bijection is, as a function of its number of rounds: the figures of decision 0040.

    python tests/order/round_evidence.py 4 8 12        writes the table's lines for these numbers of rounds

test_rounds.py runs the same measures, with fewer keys, for the number of rounds in use. A measure is a chi-square turned into a standard normal value (Wilson and Hilferty),
so a fair shuffle gives values like -1.3 or 0.8, and anything above 6 is a fault.
"""

# Shapes: K keys, B positions

from __future__ import annotations

import itertools
import sys

import numpy as np

from trajload.rng import key_u64
from trajload.sampling.permute import KeyedPermutation

SMALL_N = (2, 3, 4, 5, 6, 7, 12, 16, 17, 64, 100, 257)


def chi_square_z(counts: np.ndarray) -> float:
    """Return the z value of a chi-square of `counts` against equal expected counts."""
    df = counts.size - 1
    expected = counts.sum() / counts.size
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    return float(((chi2 / df) ** (1 / 3) - (1 - 2 / (9 * df))) / np.sqrt(2 / (9 * df)))


def keys_of(epoch: int, num_rounds: int, seed: int = 7) -> tuple[int, ...]:
    """Return the first `num_rounds` keys of an epoch, as shuffled/1 derives its twelve."""
    return (key_u64(seed, "order", epoch, 0, num=6) + key_u64(seed, "order", epoch, 1, num=6))[:num_rounds]


def heads(n: int, num_rounds: int, num_keys: int, length: int) -> np.ndarray:
    """Return where the first `length` positions go under each of `num_keys` epochs: (K, length)."""
    first = np.arange(min(length, n), dtype=np.int64)
    return np.stack([KeyedPermutation(n, keys_of(k, num_rounds)).forward(first) for k in range(num_keys)])


def first_position_z(n: int, head: np.ndarray) -> float:
    """Uniformity of where position 0 goes, over keys."""
    return chi_square_z(np.bincount(head[:, 0], minlength=n))


def pair_z(n: int, head: np.ndarray) -> float:
    """Uniformity of where positions 0 and 1 go together, over keys (n * (n - 1) cells)."""
    counts = np.bincount(head[:, 0] * n + head[:, 1], minlength=n * n).reshape(n, n)
    return chi_square_z(counts[~np.eye(n, dtype=bool)])


def whole_z(n: int, head: np.ndarray) -> float:
    """Uniformity over all n! bijections of a tiny set."""
    number = {p: i for i, p in enumerate(itertools.permutations(range(n)))}
    counts = np.bincount([number[tuple(row)] for row in head.tolist()], minlength=len(number))
    return chi_square_z(counts)


def spread_z(n: int, num_rounds: int, num_keys: int) -> float:
    """Largest z over keys of a 64 x 64 table of (part of the positions, part of the ids they go to)."""
    worst = -np.inf
    for k in range(num_keys):
        i_B = np.arange(min(n, 1 << 18), dtype=np.int64)
        j_B = KeyedPermutation(n, keys_of(k, num_rounds)).forward(i_B)
        cells = (i_B * 64 // len(i_B)) * 64 + (j_B / n * 64).astype(np.int64)
        worst = max(worst, chi_square_z(np.bincount(cells, minlength=64 * 64)))
    return worst


def neighbour_z(n: int, num_rounds: int, num_keys: int) -> float:
    """Largest z over keys of the step, modulo n, from one position's id to the next one's, in 256 parts."""
    worst = -np.inf
    for k in range(num_keys):
        j_B = KeyedPermutation(n, keys_of(k, num_rounds)).forward(np.arange(min(n, 1 << 18), dtype=np.int64))
        steps = np.diff(j_B) % n
        worst = max(worst, chi_square_z(np.bincount((steps / n * 256).astype(np.int64), minlength=256)))
    return worst


def avalanche(num_rounds: int, flip_key: bool, num_keys: int = 64) -> tuple[float, float]:
    """Return the lowest and highest share of keys in which an output bit flips with one bit of the input or key.

    On a domain of 32 bits, over every pair of a flipped bit and an output bit: a fair shuffle flips half.
    """
    n, i_B = 1 << 32, (np.arange(512, dtype=np.int64) * 2654435761) % (1 << 32)
    shares = []
    for bit in range(32):
        flips = np.zeros(32)
        for k in range(num_keys):
            keys = keys_of(k, num_rounds)
            base_B = KeyedPermutation(n, keys).forward(i_B)
            if flip_key:
                changed = (keys[0] ^ (1 << bit * 2), *keys[1:])
                diff_B = base_B ^ KeyedPermutation(n, changed).forward(i_B)
            else:
                diff_B = base_B ^ KeyedPermutation(n, keys).forward(i_B ^ (1 << bit))
            flips += ((diff_B[:, None] >> np.arange(32)) & 1).mean(axis=0)
        shares.append(flips / num_keys)
    return float(np.min(shares)), float(np.max(shares))


def main() -> None:
    """Write the table of decision 0040."""
    write = sys.stdout.write
    write(
        "| rounds | first position | pair | whole, n = 3, 4 | whole, n = 5, 6 | spread | neighbours | input bit | key bit |\n"
    )
    write("|---|---|---|---|---|---|---|---|---|\n")
    for num_rounds in [int(x) for x in sys.argv[1:]] or range(2, 13):
        head_of = {n: heads(n, num_rounds, 200_000, 6) for n in SMALL_N}
        large = (1_000_003, (1 << 20) + 1, 1 << 40)
        cells = [
            max(first_position_z(n, head_of[n]) for n in SMALL_N),
            max(pair_z(n, head_of[n]) for n in SMALL_N if n > 2),
            max(whole_z(n, head_of[n]) for n in (3, 4)),
            max(whole_z(n, head_of[n]) for n in (5, 6)),
            max(spread_z(n, num_rounds, 10) for n in large),
            max(neighbour_z(n, num_rounds, 10) for n in large),
        ]
        low_i, high_i = avalanche(num_rounds, flip_key=False, num_keys=16)
        low_k, high_k = avalanche(num_rounds, flip_key=True, num_keys=16)
        write(f"| {num_rounds} | " + " | ".join(f"{z:.1f}" for z in cells))
        write(f" | {low_i:.3f} to {high_i:.3f} | {low_k:.3f} to {high_k:.3f} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
