"""What a checkpoint costs: synchronous saves against raw write + fsync, the share that blocks in the background, the loader's state.

    python benchmarks/checkpoint_cost.py            # writes benchmarks/results/checkpoint_cost.json

The state is 1 GiB of parameters and moments (a third each), changed between saves, so that nothing is left out. Raw is the
same bytes written to as many files in pieces of 8 MiB, each file and its folder synced. Raw, sync and async take turns, now one first and now the other;
before each the disk is given time for what those before left to it (`sync`, and a rest). While an async
save is written, a thread trains on (matrix products), since that is what it is for; what blocks is the time inside `save`.
Bars: sync at least 90 % of raw; async blocks at most 5 % of what sync does, and at most the copy plus 20 ms; loader state at most 4 KiB and 1 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import machine, summary, write_result

PIECE = 8 << 20
REST_S = 1.0


def raw(folder: Path, tensors: dict[str, Any], name: str) -> float:
    """Seconds to write and sync the bytes of all tensors."""
    begin = time.perf_counter()
    (folder / name).mkdir()
    for key, tensor in tensors.items():
        view = memoryview(tensor.numpy()).cast("B")
        fd = os.open(folder / name / key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        for at in range(0, len(view), PIECE):
            os.write(fd, view[at : at + PIECE])
        os.fsync(fd)
        os.close(fd)
    for path in (folder / name, folder):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    taken = time.perf_counter() - begin
    shutil.rmtree(folder / name)
    return taken


def settle() -> None:
    os.sync()
    time.sleep(REST_S)


def save(ckpt: Any, step: int) -> float:
    """Seconds of a synchronous save."""
    begin = time.perf_counter()
    ckpt.save(step)
    taken = time.perf_counter() - begin
    ckpt.wait()
    return taken


def saves(folder: Path, gib: float, repeats: int) -> dict[str, Any]:
    import torch

    import trajload as tl

    number = int(gib * 2**30 / 3 / 4 / 8)
    tensors = {f"{kind}{i}": torch.randn(number) for kind in ("p", "m", "v") for i in range(8)}
    small = torch.randn(600, 600)
    found: dict[str, list[float]] = {
        key: [] for key in ("raw_s", "sync_s", "async_blocked_s", "async_wall_s", "copy_s")
    }
    keep = tl.Keep(last=1)
    copies = [torch.empty_like(tensor) for tensor in tensors.values()]
    checkpointers = {
        mode: tl.Checkpointer(folder / mode, {"state": tensors}, mode=mode, keep=keep) for mode in ("sync", "async")
    }
    for repeat in range(repeats + 1):
        for tensor in tensors.values():
            tensor.add_(1.0)
        step = repeat + 1
        row = {}
        # Each leaves work for the disk behind: files to delete, pages of metadata.
        for what in ("raw_s", "sync_s") if repeat % 2 else ("sync_s", "raw_s"):
            settle()
            row[what] = raw(folder, tensors, f"raw-{step}") if what == "raw_s" else save(checkpointers["sync"], step)
        settle()
        ckpt = checkpointers["async"]
        begin = time.perf_counter()
        ckpt.save(step)
        row["async_blocked_s"] = time.perf_counter() - begin
        while ckpt._outcomes.busy:
            small @ small
        ckpt.wait()
        row["async_wall_s"] = time.perf_counter() - begin
        begin = time.perf_counter()
        for copy, tensor in zip(copies, tensors.values(), strict=True):
            copy.copy_(tensor)
        row["copy_s"] = time.perf_counter() - begin
        if repeat:  # the first one asks for memory
            for key, value in row.items():
                found[key].append(value)
    for ckpt in checkpointers.values():
        ckpt.close()
    return {
        "bytes": 3 * 8 * number * 4,
        **{key: summary(values) for key, values in found.items()},
        "sync_of_raw": summary([a / b for a, b in zip(found["raw_s"], found["sync_s"], strict=True)]),
        "async_of_sync": summary([a / b for a, b in zip(found["async_blocked_s"], found["sync_s"], strict=True)]),
    }


def loader_state(folder: Path) -> dict[str, Any]:
    import trajload as tl
    from trajload.demo import EpisodeLength, generate

    data = generate(folder / "demo", num_episodes=4, length=EpisodeLength(40, 60))
    with tl.Loader(data, window=tl.Window(num_steps=8), global_batch_size=8, seed=7, num_workers=1) as loader:
        for batch in loader:
            if batch.train_step == 20:
                break
        times, opened = [], []
        for _ in range(200):
            begin = time.perf_counter()
            state = loader.state_dict()
            times.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            loader.load_state_dict({**state, "cursor": {"train_step": 1_000_000_007}})
            opened.append(time.perf_counter() - begin)
            loader.load_state_dict(state)
    return {
        "bytes": len(json.dumps(state)),
        "state_ms": summary([1000 * t for t in times]),
        "load_ms": summary([1000 * t for t in opened]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--folder", type=Path, help="on the disk that is meant; the folder for temporary files by default"
    )
    parser.add_argument("--json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        result = {**saves(Path(folder), args.gib, args.repeats), "loader": loader_state(Path(folder))}
    setting = f"{args.gib} GiB in 24 tensors, {args.repeats} repeats after a first, on {machine()['kernel']}"
    out = write_result("checkpoint_cost", {"setting": setting, "result": result}, args.json)
    loader = result["loader"]
    print(
        f"raw {result['raw_s']['median']:.2f} s, sync {result['sync_s']['median']:.2f} s "
        f"({100 * result['sync_of_raw']['median']:.0f} % of raw), async blocks {1000 * result['async_blocked_s']['median']:.0f} ms "
        f"({100 * result['async_of_sync']['median']:.1f} % of sync; a copy takes {1000 * result['copy_s']['median']:.0f} ms), "
        f"loader state {loader['bytes']} bytes in {loader['state_ms']['median']:.3f} ms, loaded in {loader['load_ms']['median']:.3f} ms -> {out}"
    )


if __name__ == "__main__":
    main()
