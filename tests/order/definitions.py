"""What each order version is, in plain Python and as directly as can be: the golden ids come from here.

A layout is a case of the orders that depend on more than a number of windows: `windows_of_episodes` as runs
[number of windows, how many such episodes], the batch size, and the parameters of all such orders.
"""

from __future__ import annotations

from itertools import accumulate, islice
from math import gcd
from typing import Any

from trajload.rng import key_u64
from trajload.sampling.permute import reference_forward, reference_mix64

GOLDEN = 0x9E3779B97F4A7C15
U64 = 2**64 - 1
Layout = dict[str, Any]


def layout(episodes: list[list[int]], batch: int, block: int, lanes: int, tile: int, weights: list[int]) -> Layout:
    """Return a layout; weights are repeated over the episodes."""
    return {
        "windows_of_episodes": episodes,
        "global_batch_size": batch,
        "block_windows": block,
        "lanes_per_row": lanes,
        "tile_windows": tile,
        "weights": weights,
    }


LAYOUTS: list[Layout] = [
    layout([[1, 1]], 1, 16, 4, 1, [1]),
    layout([[1, 1]], 7, 1, 1, 3, [5]),
    layout([[20, 1]], 3, 4, 2, 2, [1]),
    layout([[3, 4], [0, 2], [5, 2]], 4, 2, 4, 3, [1, 0, 2]),
    layout([[7, 3], [1, 5]], 2, 16, 4, 1, [3, 1, 0]),
    layout([[16, 2]], 8, 16, 4, 4, [2**50, 1]),
    layout([[30, 1], [0, 1], [2, 1]], 40, 3, 65536, 5, [0, 9, 1]),
    layout([[285, 40]], 32, 16, 8, 16, [1, 2, 3]),
    layout([[5, 10], [400, 3], [77, 9]], 16, 16, 4, 8, [7, 0, 1]),
    layout([[1000, 20], [0, 5], [999, 2]], 5, 32, 3, 16, [1]),
    layout([[1, 3000]], 64, 16, 4, 1, [1, 1, 2]),
    layout([[50_000, 2]], 256, 16, 2, 16, [1, 3]),
    layout([[333, 30]], 7, 1, 1, 333, [10**6, 1]),
    layout([[64, 100]], 100, 64, 4, 63, [1]),
    layout([[1_000, 3], [10, 50]], 9, 1_000, 2, 7, [0, 1]),
]


def episodes_of(case: Layout) -> list[int]:
    """Return the number of windows of each episode."""
    return [num for num, times in case["windows_of_episodes"] for _ in range(times)]


def weights_of(case: Layout) -> list[int]:
    """Return the weight of each episode."""
    weights, num = case["weights"], len(episodes_of(case))
    return (weights * num)[:num]


def num_windows_of(version: str, case: Layout) -> int:
    """Return the windows of an epoch."""
    if version == "continuous/1":
        return sum(-(-num // case["tile_windows"]) for num in episodes_of(case))
    return sum(episodes_of(case))


def round_keys(seed: int, purpose: str, epoch: int, part: int = 0) -> tuple[int, ...]:
    """Return the twelve keys of a bijection."""
    return key_u64(seed, purpose, epoch, 2 * part, num=6) + key_u64(seed, purpose, epoch, 2 * part + 1, num=6)


def sequential_1(num_windows: int, seed: int, epoch: int, offset: int) -> int:
    """Return the window id at `offset`."""
    return offset


def shuffled_1(num_windows: int, seed: int, epoch: int, offset: int) -> int:
    """Return the window id at `offset`."""
    return reference_forward(offset, num_windows, round_keys(seed, "order", epoch))


def lane_index(offset: int, num_windows: int, num_lanes: int) -> int:
    """Return which place of the sequence stands at `offset`: written into lanes, read across them."""
    length, num_longer = divmod(num_windows, num_lanes)
    column, lane = divmod(offset, num_lanes)
    return lane * length + min(lane, num_longer) + column


def interleaved_1(case: Layout, seed: int, epoch: int, offsets: list[int]) -> list[int]:
    """Return the window ids at `offsets`: blocks in keyed order, windows in keyed order inside each, then lanes."""
    blocks, first = [], 0
    for num in episodes_of(case):
        for start in range(0, num, case["block_windows"]):
            blocks.append((first + start, min(case["block_windows"], num - start)))
        first += num
    outer, inner = (round_keys(seed, "interleaved", epoch, part) for part in (0, 1))
    sequence = []  # (block, rank) of each place
    for place in range(len(blocks)):
        block = reference_forward(place, len(blocks), outer)
        sequence += [(block, rank) for rank in range(blocks[block][1])]
    batch = case["global_batch_size"]
    lanes_per_row = max(1, min(case["lanes_per_row"], len(blocks) // batch))
    ids = []
    for offset in offsets:
        block, rank = sequence[lane_index(offset, len(sequence), batch * lanes_per_row)]
        keys = tuple(reference_mix64(key + block * GOLDEN) for key in inner)
        start, size = blocks[block]
        ids.append(start + reference_forward(rank, size, keys))
    return ids


def even_parts(values: list[Any], num_parts: int) -> list[list[Any]]:
    """Return neighbouring parts as equal as can be, the longer ones first."""
    length, num_longer = divmod(len(values), num_parts)
    ends = list(accumulate(length + (part < num_longer) for part in range(num_parts)))
    return [values[end - length - (part < num_longer) : end] for part, end in enumerate(ends)]


def slots_2(case: Layout, seed: int, epoch: int) -> list[tuple[int, int]]:
    """Return the sequence of `interleaved/2`: (block, rank) of each place."""
    width = case["block_windows"]
    sizes = [min(width, num - start) for num in episodes_of(case) for start in range(0, num, width)]
    whole_keys, _, run_keys, *hand_keys = (round_keys(seed, "interleaved/2", epoch, part) for part in range(11))
    whole = [block for block, size in enumerate(sizes) if size == width]
    short = sorted((block for block, size in enumerate(sizes) if size < width), key=lambda block: sizes[block])
    whole = [whole[reference_forward(place, len(whole), whole_keys)] for place in range(len(whole))]
    dealt = [0, 4, 2, 6, 1, 5, 3, 7]
    lengths = {hand: len(range(i, len(short), 8)) for i, hand in enumerate(dealt)}
    firsts = [0, *accumulate(lengths[hand] for hand in range(8))]
    short = [
        short[firsts[hand] + reference_forward(place // 8, lengths[hand], hand_keys[hand])]
        for place in range(len(short))
        for hand in [dealt[place % 8]]
    ]
    windows = [(block, rank) for block in short for rank in range(sizes[block])]
    num_slots = len(windows) // width
    slots = [windows[slot * width : (slot + 1) * width] for slot in range(num_slots)]
    num_runs = max(1, min(len(whole), num_slots, len(sizes) // 128))
    sequence = []
    for run, (blocks, run_slots) in enumerate(
        zip(even_parts(whole, num_runs), even_parts(slots, num_runs), strict=True)
    ):
        before = reference_mix64(run_keys[0] + run * GOLDEN) % max(len(blocks), 1)
        stratum = [[(block, rank) for rank in range(width)] for block in blocks]
        sequence += [window for slot in (*stratum[:before], *run_slots, *stratum[before:]) for window in slot]
    return sequence + windows[num_slots * width :]


def largest_term(a: int, b: int) -> int:
    """Return the largest term of the continued fraction of a / b."""
    return max(a // b, largest_term(b, a % b)) if b else 0


def multiplier_2(num: int) -> int:
    """Return of the numbers within 31 of 0.618 num, and coprime to it, the one whose fraction has the smallest terms."""
    target = max(1, round(num * 0.6180339887498949))
    near = [m for m in range(max(1, target - 31), min(num, target + 31) + 1) if gcd(m, num) == 1]
    return min(near, key=lambda m: (largest_term(num, m), abs(m - target), -m))


def turned(values: list[Any], first: int, phase: int, width: int, later: int) -> list[Any]:
    """Return a circle, which starts at place `first` of the sequence, read from a place of that phase in its slot."""
    shift = (phase - first) % width + later if len(values) >= 5 * width else 0
    return values[shift:] + values[:shift]


def lanes_2(sequence: list[Any], batch: int, lanes_per_row: int, width: int) -> list[list[Any]]:
    """Return what each lane of `interleaved/2` reads."""
    lanes: list[list[Any]] = [[] for _ in range(batch * lanes_per_row)]
    length, num_longer = divmod(len(sequence), len(lanes))
    differing = num_longer // batch
    num_turns = max(1, min(4, (len(sequence) // batch // width - 1) // 2))
    turns = [k for k in range(lanes_per_row) if k != differing] + [differing]
    first = 0
    for row, piece in enumerate(even_parts(sequence, batch)):
        spread = row * multiplier_2(batch) % batch
        if batch >= width:
            piece = turned(piece, first, spread * width // batch, width, row % num_turns * 2 * width)
        at = 0
        for turn, k in enumerate(turns):
            lane = k * batch + row
            lanes[lane] = piece[at : at + length + (lane < num_longer)]
            if batch < width:
                place = spread * lanes_per_row + turn * multiplier_2(lanes_per_row) % lanes_per_row
                lanes[lane] = turned(lanes[lane], first + at, place * width // len(lanes), width, 0)
            at += length + (lane < num_longer)
        first += len(piece)
    return lanes


def interleaved_2(case: Layout, seed: int, epoch: int, offsets: list[int]) -> list[int]:
    """Return the window ids at `offsets`."""
    width, batch = case["block_windows"], case["global_batch_size"]
    firsts, first = [], 0
    for num in episodes_of(case):
        firsts += [(first + start, min(width, num - start)) for start in range(0, num, width)]
        first += num
    lanes_per_row = max(1, min(case["lanes_per_row"], len(firsts) // batch))
    lanes = lanes_2(slots_2(case, seed, epoch), batch, lanes_per_row, width)
    inner = round_keys(seed, "interleaved/2", epoch, part=1)
    ids = []
    for offset in offsets:
        block, rank = lanes[offset % len(lanes)][offset // len(lanes)]
        keys = tuple(reference_mix64(key + block * GOLDEN) for key in inner)
        start, size = firsts[block]
        ids.append(start + reference_forward(rank, size, keys))
    return ids


def has_seams_3(case: Layout, sizes: list[int], lanes_per_row: int) -> bool:
    """Return whether data are large enough for blocks across the ends of epochs."""
    width, batch = case["block_windows"], case["global_batch_size"]
    num_lanes, num_short = batch * lanes_per_row, sum(size < width for size in sizes)
    spare = lanes_per_row * (sum(sizes) // num_lanes - 2 * width) - -(-num_short // batch) * (width - 1) - width
    return sum(sizes) >= 6 * width * num_lanes and spare >= 0 and (len(sizes) - num_short) // 2 >= num_lanes


def read_before_3(epoch: int, num_windows: int, batch: int, lanes_per_row: int, width: int) -> list[int]:
    """Return for each lane how many windows of its slot at the start of `epoch` lie before it."""
    num_lanes = batch * lanes_per_row
    out = []
    for lane in range(num_lanes):
        k, row = divmod(lane, batch)
        spread = row * multiplier_2(batch) % batch * lanes_per_row + k * multiplier_2(lanes_per_row) % lanes_per_row
        phase = spread * width // num_lanes + k * width // lanes_per_row
        num_read = max(0, -(-(epoch * num_windows - lane) // num_lanes))  # positions of the lane before the epoch
        out.append((num_read + phase) % width)
    return out


def seam_3(seed: int, epoch: int, num_whole: int, num_lanes: int) -> list[int]:
    """Return the whole blocks across the end of `epoch`, one a lane, by their numbers among whole blocks."""
    numbers = range(epoch % 2, num_whole, 2)
    keys = round_keys(seed, "interleaved/3", epoch, part=3)
    return [numbers[reference_forward(lane, len(numbers), keys)] for lane in range(num_lanes)]


def dealt_3(short: list[int], seed: int, epoch: int) -> list[int]:
    """Return short blocks, given by size, as they are dealt."""
    dealt = [0, 4, 2, 6, 1, 5, 3, 7]
    lengths = {hand: len(range(i, len(short), 8)) for i, hand in enumerate(dealt)}
    firsts = [0, *accumulate(lengths[hand] for hand in range(8))]
    keys = [round_keys(seed, "interleaved/3", epoch, part=4 + hand) for hand in range(8)]
    return [
        short[firsts[hand] + reference_forward(place // 8, lengths[hand], keys[hand])]
        for place in range(len(short))
        for hand in [dealt[place % 8]]
    ]


def slots_3(
    case: Layout, seed: int, epoch: int, sizes: list[int], lanes_per_row: int, heads: list[int], tails: list[int]
) -> list[list[Any]]:
    """Return the windows of the whole slots of each row: (block, rank, epoch whose key orders the block)."""
    width, batch = case["block_windows"], case["global_batch_size"]
    num_lanes = batch * lanes_per_row
    whole = [block for block, size in enumerate(sizes) if size == width]
    short = sorted((block for block, size in enumerate(sizes) if size < width), key=lambda block: sizes[block])
    before, after = (seam_3(seed, e, len(whole), num_lanes) for e in (epoch - 1, epoch))
    free = [block for number, block in enumerate(whole) if number not in {*before, *after}]
    keys = round_keys(seed, "interleaved/3", epoch, part=0)
    blocks = iter([free[reference_forward(place, len(free), keys)] for place in range(len(free))])
    pieces: list[tuple[int, int, int]] = []  # of short slots
    starts = [0]
    for row, short_of_row in enumerate(even_parts(dealt_3(short, seed, epoch), batch)):
        for lane in range(row, num_lanes, batch):
            pieces += [(whole[after[lane]], rank, epoch) for rank in range(tails[lane], width)]
            pieces += [(whole[before[lane]], rank, epoch - 1) for rank in range(width - heads[lane])]
        pieces += [(block, rank, epoch) for block in short_of_row for rank in range(sizes[block])]
        starts.append(len(pieces) // width)
    run_key = round_keys(seed, "interleaved/3", epoch, part=2)[0]
    in_runs = min(len(sizes) // 128, sum(sizes[block] for block in short) // width)
    num_runs = max(1, in_runs // batch)
    num_windows = sum(sizes)
    shift = epoch * num_windows % num_lanes
    rows = []
    for row in range(batch):
        lanes = range(row, num_lanes, batch)
        lengths = [(num_windows - 1 - (lane - shift) % num_lanes) // num_lanes + 1 for lane in lanes]
        num_slots = sum((n - heads[lane] - tails[lane]) // width for n, lane in zip(lengths, lanes, strict=True))
        short_slots = [pieces[slot * width : (slot + 1) * width] for slot in range(starts[row], starts[row + 1])]
        num_whole = num_slots - len(short_slots)
        windows: list[Any] = []
        for run, (run_slots, places) in enumerate(
            zip(even_parts(short_slots, num_runs), even_parts(list(range(num_whole)), num_runs), strict=True)
        ):
            size = len(run_slots) + len(places)
            of_lane = size // max(1, lanes_per_row // num_runs)
            room = size - len(run_slots) - of_lane
            draw = reference_mix64(run_key + run * GOLDEN)
            draw -= 2**64 if draw >= 2**63 else 0
            skipped = draw % (max(room, 0) // max(of_lane, 1) + 1) * of_lane
            turn = (row + run_key) % batch
            first = skipped + turn * (of_lane if room >= 0 else size - len(run_slots)) // batch
            first = min(first, max(len(places) - 1, 0))
            stratum = [[(block, rank, epoch) for rank in range(width)] for block in islice(blocks, len(places))]
            windows += [window for slot in (*stratum[:first], *run_slots, *stratum[first:]) for window in slot]
        rows.append(windows)
    return rows


def interleaved_3(case: Layout, seed: int, epoch: int, offsets: list[int]) -> list[int]:
    """Return the window ids at `offsets`: lanes that go on over the ends of epochs, with a block across each end."""
    width, batch = case["block_windows"], case["global_batch_size"]
    firsts, first = [], 0
    for num in episodes_of(case):
        firsts += [(first + start, min(width, num - start)) for start in range(0, num, width)]
        first += num
    sizes = [size for _, size in firsts]
    lanes_per_row = max(1, min(case["lanes_per_row"], len(sizes) // batch))
    if not has_seams_3(case, sizes, lanes_per_row):
        return interleaved_2(case, seed, epoch, offsets)
    num_lanes, num_windows = batch * lanes_per_row, sum(sizes)
    heads = [width - n for n in read_before_3(epoch, num_windows, batch, lanes_per_row, width)]
    tails = read_before_3(epoch + 1, num_windows, batch, lanes_per_row, width)
    whole = [block for block, size in enumerate(sizes) if size == width]
    before, after = (seam_3(seed, e, len(whole), num_lanes) for e in (epoch - 1, epoch))
    rows = slots_3(case, seed, epoch, sizes, lanes_per_row, heads, tails)
    shift = epoch * num_windows % num_lanes
    lanes: list[list[tuple[int, int, int]]] = []
    for lane in range(num_lanes):
        row = rows[lane % batch]
        length = (num_windows - 1 - (lane - shift) % num_lanes) // num_lanes + 1
        num_inner = length - heads[lane] - tails[lane]
        lanes.append([(whole[before[lane]], rank, epoch - 1) for rank in range(width - heads[lane], width)])
        lanes[lane] += row[:num_inner]
        lanes[lane] += [(whole[after[lane]], rank, epoch) for rank in range(tails[lane])]
        del row[:num_inner]
    inner = {e: round_keys(seed, "interleaved/3", e, part=1) for e in (epoch - 1, epoch)}
    ids = []
    for offset in offsets:
        column, lane = divmod(shift + offset, num_lanes)
        block, rank, key_epoch = lanes[lane][column - (lane < shift)]
        keys = tuple(reference_mix64(key + block * GOLDEN) for key in inner[key_epoch])
        start, size = firsts[block]
        ids.append(start + reference_forward(rank, size, keys))
    return ids


def continuous_1(case: Layout, seed: int, epoch: int, offsets: list[int]) -> list[int]:
    """Return the window ids at `offsets`: episodes in keyed order, every tile-th window of each, then one lane a row."""
    counts = episodes_of(case)
    firsts = [0, *accumulate(counts)]
    keys = round_keys(seed, "continuous", epoch)
    sequence = []
    for place in range(len(counts)):
        episode = reference_forward(place, len(counts), keys)
        sequence += range(firsts[episode], firsts[episode + 1], case["tile_windows"])
    return [sequence[lane_index(offset, len(sequence), case["global_batch_size"])] for offset in offsets]


def weighted_1(case: Layout, seed: int, epoch: int, offsets: list[int]) -> list[int]:
    """Return the window ids at `offsets`: an episode by weight, then one of its windows."""
    counts = episodes_of(case)
    firsts = [0, *accumulate(counts)]
    ends = list(accumulate(w if num else 0 for w, num in zip(weights_of(case), counts, strict=True)))
    keys = key_u64(seed, "weighted", epoch, num=4)
    ids = []
    for offset in offsets:
        number = (offset * GOLDEN) & U64
        first, second = (reference_mix64(reference_mix64(keys[i] + number) + keys[i + 1]) for i in (0, 2))
        ticket = (first * ends[-1]) >> 64
        episode = next(e for e, end in enumerate(ends) if ticket < end)
        ids.append(firsts[episode] + ((second * counts[episode]) >> 64))
    return ids
