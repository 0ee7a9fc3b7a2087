"""Write the golden orders: window ids that every later release must give for the same (version, size, seed, epoch).

    python tests/order/make_golden.py            writes files that are not there yet (a new order version)
    python tests/order/make_golden.py --force    writes all; only ever right before a version is released

A file that would change means that a released order changed: give the new rule a new version instead.
The ids come from the plain-Python reference, not from the compiled path that the tests compare with them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from trajload.rng import key_u64
from trajload.sampling.permute import reference_forward

FOLDER = Path(__file__).parent / "golden"
SIZES = (1, 2, 3, 4, 5, 16, 17, 100, 1000, 1_048_577, 25_000_000, 2**32 + 1, 2**61 + 12345, 2**62)
SEEDS = (0, 1, 7, -1, 2**63 - 1, -(2**63))
EPOCHS = (0, 1, 2, 1_000_000, 2**63 - 1)
HEAD, TAIL = 24, 8
"""Offsets written at the start and the end of each epoch; small epochs are written whole."""


def sequential_1(num_windows: int, seed: int, epoch: int, offset: int) -> int:
    """Return the window id at `offset`, as sequential/1 defines it."""
    return offset


def shuffled_1(num_windows: int, seed: int, epoch: int, offset: int) -> int:
    """Return the window id at `offset`, as shuffled/1 defines it."""
    keys = key_u64(seed, "order", epoch, 0, num=6) + key_u64(seed, "order", epoch, 1, num=6)
    return reference_forward(offset, num_windows, keys)


DEFINITIONS = {"sequential/1": sequential_1, "shuffled/1": shuffled_1}


def golden(version: str) -> dict[str, Any]:
    """Return the content of a version's file."""
    cases = []
    for num_windows, seed, epoch in itertools.product(SIZES, SEEDS, EPOCHS):
        if num_windows > HEAD + TAIL:
            # Large sizes differ in nothing but the number of bits, so not every seed is written with every epoch.
            if (SEEDS.index(seed) + EPOCHS.index(epoch)) % 3:
                continue
            offsets = [*range(HEAD), *range(num_windows - TAIL, num_windows)]
        else:
            offsets = list(range(num_windows))
        ids = [DEFINITIONS[version](num_windows, seed, epoch, offset) for offset in offsets]
        cases.append({"num_windows": num_windows, "seed": seed, "epoch": epoch, "offsets": offsets, "window_ids": ids})
    return {"order": version, "cases": cases}


def file_of(version: str) -> Path:
    """Return where a version's golden ids stand."""
    return FOLDER / f"{version.replace('/', '-')}.json"


def main(argv: list[str] | None = None) -> int:
    """Write the files; return 1 if one is there already and --force is not given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="overwrite files of released versions")
    force = parser.parse_args(argv).force
    refused = False
    for version in DEFINITIONS:
        path = file_of(version)
        if path.exists() and not force:
            sys.stderr.write(f"{path} exists: not overwritten without --force.\n")
            refused = True
            continue
        path.parent.mkdir(exist_ok=True)
        content = golden(version)
        rows = ",\n".join(json.dumps(case, separators=(",", ":")) for case in content["cases"])
        path.write_text(f'{{"order": {json.dumps(version)}, "cases": [\n{rows}\n]}}\n')
        sys.stdout.write(f"wrote {path}: {len(content['cases'])} cases\n")
    return int(refused)


if __name__ == "__main__":
    raise SystemExit(main())
