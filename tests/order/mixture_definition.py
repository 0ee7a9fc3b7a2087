"""What mixture/1 is, in plain Python and as directly as can be: stretches of cells written out, own positions counted."""

from __future__ import annotations

import hashlib
import json
import sys
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import definitions

from trajload.rng import key_u64

FILE = Path(__file__).parent / "golden" / "mixture" / "mixture-1.json"
Case = dict[str, Any]


def source(name: str, weights: dict[int, str], windows: list[int], order: str, block: int = 4, lanes: int = 3) -> Case:
    """Return one source; weights are fractions by train_step, written as text."""
    return {
        "name": name,
        "weights": {str(k): v for k, v in weights.items()},
        "windows_of_episodes": windows,
        "order": order,
        "block_windows": block,
        "lanes_per_row": lanes,
    }


CASES: list[Case] = [
    {"seed": 7, "global_batch_size": 8, "by": "windows", "sources": [source("only", {0: "1"}, [9, 4], "shuffled/1")]},
    {
        "seed": 0,
        "global_batch_size": 16,
        "by": "windows",
        "sources": [
            source("a", {0: "7/10"}, [40, 0, 33], "interleaved/1"),
            source("b", {0: "3/10"}, [25] * 3, "interleaved/1"),
        ],
    },
    {
        "seed": -1,
        "global_batch_size": 10,
        "by": "windows",
        "sources": [
            source("a", {0: "1/2", 7: "1/5", 30: "1/5"}, [50, 21], "interleaved/1", 5, 9),
            source("b", {0: "1/2", 7: "1/5", 30: "3/10"}, [30], "shuffled/1"),
            source("c", {0: "0", 7: "3/5", 30: "1/2"}, [17, 5], "sequential/1"),
        ],
    },
    {
        "seed": 2**63 - 1,
        "global_batch_size": 7,
        "by": "episodes",
        "sources": [
            source("long", {0: "1/3"}, [90, 70], "shuffled/1"),
            source("short", {0: "2/3"}, [10, 0, 7, 9], "interleaved/1", 3, 1),
        ],
    },
    {
        "seed": 3,
        "global_batch_size": 6,
        "by": "windows",
        "sources": [
            source("a", {0: "1/2", 5: "2/3"}, [20, 11], "continuous/1"),
            source("b", {0: "1/2", 5: "1/3"}, [8, 30], "shuffled/1"),
        ],
    },
    {
        "seed": 11,
        "global_batch_size": 8,
        "by": "windows",
        "sources": [
            source("a", {0: "1/2", 5: "7/10", 8: "5/7", 31: "7/10"}, [60, 45], "interleaved/1"),
            source("b", {0: "1/2", 5: "3/10", 8: "2/7", 31: "3/10"}, [70, 3], "shuffled/1"),
        ],
    },
    {
        "seed": -(2**63),
        "global_batch_size": 16,
        "by": "windows",
        "sources": [
            source("a", {0: "7/10"}, [40, 0, 33], "interleaved/2"),
            source("b", {0: "3/10"}, [25] * 3, "interleaved/1"),
        ],
    },
    {
        "seed": 5,
        "global_batch_size": 10,
        "by": "windows",
        "sources": [
            source("a", {0: "1/2", 7: "1/5", 30: "1/5"}, [50, 21, 160], "interleaved/2", 5, 9),
            source("b", {0: "1/2", 7: "1/5", 30: "3/10"}, [30], "interleaved/2", 1, 2),
            source("c", {0: "0", 7: "3/5", 30: "1/2"}, [17, 5], "shuffled/1"),
        ],
    },
    {
        "seed": 1,
        "global_batch_size": 7,
        "by": "episodes",
        "sources": [
            source("long", {0: "1/3", 6: "1/2"}, [90, 70], "interleaved/2", 16, 4),
            source("short", {0: "2/3", 6: "1/2"}, [10, 0, 7, 9, 1], "interleaved/2", 3, 1),
        ],
    },
]
INTERLEAVED = {"interleaved/1": definitions.interleaved_1, "interleaved/2": definitions.interleaved_2}
TRAIN_STEPS = (0, 1, 2, 4, 5, 6, 7, 8, 13, 29, 30, 31, 50, 1000, 1001, 10**9, 10**15 + 3)


def shares_of(case: Case, train_step: int) -> list[Fraction]:
    """Return the share of rows of each source at a train_step."""
    shares = []
    for one in case["sources"]:
        weight = Fraction(one["weights"][str(max(int(k) for k in one["weights"] if int(k) <= train_step))])
        counts = [num for num in one["windows_of_episodes"] if num]
        shares.append(weight * (Fraction(sum(counts), len(counts)) if case["by"] == "episodes" else 1))
    return [share / sum(shares) for share in shares]


def quotas_of(shares: list[Fraction], num_cells: int) -> list[int]:
    """Return largest-remainder numbers of cells."""
    wanted = [share * num_cells for share in shares]
    quotas = [int(x) for x in wanted]
    while sum(quotas) < num_cells:
        quotas[max(range(len(quotas)), key=lambda i: (wanted[i] - quotas[i], -i))] += 1
    return quotas


def stretch_of(case: Case, begin: int) -> int:
    """Return the train_steps of a stretch from a train_step on."""
    if any(one["order"] == "continuous/1" for one in case["sources"]):
        return 1
    for steps in range(1, 17):
        if all((share * steps * case["global_batch_size"]).denominator == 1 for share in shares_of(case, begin)):
            return steps
    return 8


def cells_of(quotas: list[int], num_steps: int, size: int) -> list[list[int]]:
    """Return the source of each row of each step of a stretch: cells are dealt along the rows."""
    dealt = [i for i, quota in enumerate(quotas) for _ in range(quota)]
    return [[dealt[row * num_steps + step] for row in range(size)] for step in range(num_steps)]


def mixture_1(case: Case, train_steps: tuple[int, ...]) -> list[list[list[int]]]:
    """Return [source, epoch, window id] of each row of some train_steps."""
    size = case["global_batch_size"]
    begins = sorted({int(step) for one in case["sources"] for step in one["weights"]})
    begins = [b for i, b in enumerate(begins) if i == 0 or shares_of(case, b) != shares_of(case, begins[i - 1])]
    base = [0] * len(case["sources"])
    lanes_of: list[tuple[int, int] | None] = [None] * len(base)
    out: dict[int, list[list[int]]] = {}
    for number, begin in enumerate(begins):
        num_steps = stretch_of(case, begin)
        quotas = quotas_of(shares_of(case, begin), num_steps * size)
        cells = cells_of(quotas, num_steps, size)
        for i, one in enumerate(case["sources"]):
            if quotas[i] and one["order"] in (*INTERLEAVED, "continuous/1"):
                lanes = (quotas[i], lanes_per_cell(one, num_steps))
                if lanes_of[i] not in (None, lanes):
                    num = num_windows_of(one)
                    base[i] = -(-base[i] // num) * num
                lanes_of[i] = lanes
        end = begins[number + 1] if number + 1 < len(begins) else None
        for train_step in train_steps:
            if train_step < begin or (end is not None and train_step >= end):
                continue
            stretch, step = divmod(train_step - begin, num_steps)
            rows = []
            for row, i in enumerate(cells[step]):
                before = [cells[t][b] for t in range(step) for b in range(size)] + cells[step][:row]
                own = base[i] + stretch * quotas[i] + before.count(i)
                rows.append([i, *window_of(case, i, own, quotas[i], num_steps)])
            out[train_step] = rows
        if end is not None:
            stretches, rest = divmod(end - begin, num_steps)
            done = [cell for t in range(rest) for cell in cells[t]]
            base = [base[i] + stretches * quotas[i] + done.count(i) for i in range(len(base))]
    return [out[step] for step in train_steps]


def num_windows_of(one: Case) -> int:
    """Return the windows of an epoch; windows of one step, so that a tiling holds all of them."""
    return sum(one["windows_of_episodes"])


def lanes_per_cell(one: Case, num_steps: int) -> int:
    """Return the lanes on each own row: what was asked for is on each row of the global batch."""
    return max(1, -(-one["lanes_per_row"] // num_steps)) if one["order"] in INTERLEAVED else 1


def window_of(case: Case, i: int, own: int, quota: int, num_steps: int) -> tuple[int, int]:
    """Return (epoch, window id) at a position of a source's own sequence."""
    one = case["sources"][i]
    digest = hashlib.blake2b(one["name"].encode(), digest_size=8).digest()
    seed = key_u64(case["seed"], "mixture source", int.from_bytes(digest, "little", signed=True))[0] >> 1
    epoch, offset = divmod(own, num_windows_of(one))
    if one["order"] in ("sequential/1", "shuffled/1"):
        function = definitions.shuffled_1 if one["order"] == "shuffled/1" else definitions.sequential_1
        return epoch, function(num_windows_of(one), seed, epoch, offset)
    return epoch, epoch_in_lanes(json.dumps(one), quota, lanes_per_cell(one, num_steps), seed, epoch)[offset]


@lru_cache
def epoch_in_lanes(source_json: str, quota: int, lanes: int, seed: int, epoch: int) -> list[int]:
    """Return the window ids of a whole epoch of a source whose order depends on its rows."""
    one = json.loads(source_json)
    episodes = [[num, 1] for num in one["windows_of_episodes"]]
    layout = definitions.layout(episodes, quota, one["block_windows"], lanes, 1, [1])
    order = INTERLEAVED.get(one["order"], definitions.continuous_1)
    return order(layout, seed, epoch, list(range(num_windows_of(one))))


def main() -> int:
    """Write the golden file, if it is not there yet; a released order never changes."""
    if FILE.exists():
        sys.stderr.write(f"{FILE} exists: not overwritten.\n")
        return 1
    FILE.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(
        json.dumps(
            {**case, "train_steps": list(TRAIN_STEPS), "rows": mixture_1(case, TRAIN_STEPS)}, separators=(",", ":")
        )
        for case in CASES
    )
    FILE.write_text(f'{{"order": "mixture/1", "cases": [\n{rows}\n]}}\n')
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
