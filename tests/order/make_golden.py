"""Write the golden orders: window ids that every later release must give for the same (version, size, seed, epoch).

    python tests/order/make_golden.py            writes files that are not there yet (a new order version)
    python tests/order/make_golden.py --force    writes all; only ever right before a version is released

A file that would change means that a released order changed: give the new rule a new version instead.
The ids come from plain Python (`definitions.py`), not from the compiled path that the tests compare with them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import definitions

FOLDER = Path(__file__).parent / "golden"
SIZES = (1, 2, 3, 4, 5, 16, 17, 100, 1000, 1_048_577, 25_000_000, 2**32 + 1, 2**61 + 12345, 2**62)
SEEDS = (0, 1, 7, -1, 2**63 - 1, -(2**63))
EPOCHS = (0, 1, 2, 1_000_000, 2**63 - 1)
HEAD, TAIL = 24, 8
"""Offsets written at the start and the end of each epoch; small epochs are written whole."""


DEFINITIONS = {"sequential/1": definitions.sequential_1, "shuffled/1": definitions.shuffled_1}
OF_EPISODES = {
    "interleaved/1": definitions.interleaved_1,
    "interleaved/2": definitions.interleaved_2,
    "interleaved/3": definitions.interleaved_3,
    "continuous/1": definitions.continuous_1,
    "weighted/1": definitions.weighted_1,
}
"""Orders that depend on episodes, batch size or parameters: written for LAYOUTS instead of SIZES."""
LAYOUTS = definitions.LAYOUTS


def is_thinned(num_windows: int, seed: int, epoch: int) -> bool:
    """Large sizes differ in nothing but the number of bits, so not every seed is written with every epoch."""
    return num_windows > HEAD + TAIL and (SEEDS.index(seed) + EPOCHS.index(epoch)) % 3 != 0


def offsets_of(num_windows: int) -> list[int]:
    """Return the offsets that are written."""
    if num_windows > HEAD + TAIL:
        return [*range(HEAD), *range(num_windows - TAIL, num_windows)]
    return list(range(num_windows))


def golden_of_episodes(version: str) -> dict[str, Any]:
    """Return the content of the file of an order that depends on episodes."""
    cases = []
    for layout, seed, epoch in itertools.product(LAYOUTS, SEEDS, EPOCHS):
        num_windows = definitions.num_windows_of(version, layout)
        if is_thinned(num_windows, seed, epoch):
            continue
        offsets = offsets_of(num_windows)
        ids = OF_EPISODES[version](layout, seed, epoch, offsets)
        cases.append(
            {**layout, "num_windows": num_windows, "seed": seed, "epoch": epoch, "offsets": offsets, "window_ids": ids}
        )
    return {"order": version, "cases": cases}


def golden(version: str) -> dict[str, Any]:
    """Return the content of a version's file."""
    cases = []
    for num_windows, seed, epoch in itertools.product(SIZES, SEEDS, EPOCHS):
        if is_thinned(num_windows, seed, epoch):
            continue
        offsets = offsets_of(num_windows)
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
    for version in (*DEFINITIONS, *OF_EPISODES):
        path = file_of(version)
        if path.exists() and not force:
            sys.stderr.write(f"{path} exists: not overwritten without --force.\n")
            refused = True
            continue
        path.parent.mkdir(exist_ok=True)
        content = golden(version) if version in DEFINITIONS else golden_of_episodes(version)
        rows = ",\n".join(json.dumps(case, separators=(",", ":")) for case in content["cases"])
        path.write_text(f'{{"order": {json.dumps(version)}, "cases": [\n{rows}\n]}}\n')
        sys.stdout.write(f"wrote {path}: {len(content['cases'])} cases\n")
    return int(refused)


if __name__ == "__main__":
    raise SystemExit(main())
