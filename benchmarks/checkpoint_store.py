"""What the checkpoint store costs beside a plain write and fsync of the same bytes.

    python benchmarks/checkpoint_store.py --gib 1          # writes benchmarks/results/checkpoint_store.json

Repeats alternate: a plain file written in the same pieces and synced, then a save with each digest, which includes all
records, syncs and the publishing; the files of the one before are removed, and the file system is synced, outside the
times. `verify` reads the save back, from the page cache. `small_save_ms` is a save of 100 bytes: what is paid for
anything. `--folder` must be on the disk in question.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from _common import summary, write_result

from trajload.checkpoint.disk import MAX_PIECE_BYTES
from trajload.checkpoint.store import Store

CHUNK = 64 << 20


def chunks(block: memoryview, num_bytes: int) -> Iterator[memoryview]:
    """Yield `num_bytes`, as tensors of 64 MiB would come."""
    for start in range(0, num_bytes, CHUNK):
        yield block[: min(CHUNK, num_bytes - start)]


def plain(path: Path, block: memoryview, num_bytes: int) -> float:
    """Return the seconds of a plain write and fsync."""
    begin = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    for chunk in chunks(block, num_bytes):
        for start in range(0, chunk.nbytes, MAX_PIECE_BYTES):
            os.write(fd, chunk[start : start + MAX_PIECE_BYTES])
    os.fsync(fd)
    os.close(fd)
    return time.perf_counter() - begin


def saved(store: Store, step: int, block: memoryview, num_bytes: int, algorithm: str) -> tuple[float, float]:
    """Return the seconds of a save, and of verifying it."""
    begin = time.perf_counter()
    generation = store.begin(step, need_bytes=num_bytes)
    part = generation.part(0)
    part.write("state.safetensors", chunks(block, num_bytes), algorithm=algorithm)
    commit = store.commit(generation, [part.finish()], {})
    committed = time.perf_counter()
    if faults := store.verify(commit):
        raise SystemExit(str(faults[0]))
    return committed - begin, time.perf_counter() - committed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    num_bytes = int(args.gib * 2**30)
    block = memoryview(os.urandom(CHUNK))
    times: dict[str, list[float]] = {"plain": [], "blake3": [], "sha256": []}
    verifying: dict[str, list[float]] = {"blake3": [], "sha256": []}
    small = []
    folder = Path(tempfile.mkdtemp(prefix="trajload-bench-", dir=args.folder))
    try:
        for step in range(args.repeats + 1):  # the first of each warms up
            os.sync()
            times["plain"].append(plain(folder / "plain", block, num_bytes))
            (folder / "plain").unlink()
            for algorithm in verifying:
                os.sync()
                store = Store(folder / algorithm)
                with store.writer():
                    seconds, check = saved(store, step, block, num_bytes, algorithm)
                    times[algorithm].append(seconds)
                    verifying[algorithm].append(check)
                    small.append(saved(store, step, block[:100], 100, algorithm)[0])
                shutil.rmtree(store.root)
    finally:
        shutil.rmtree(folder)
    gib_s = {name: summary([args.gib / value for value in values[1:]]) for name, values in times.items()}
    of_plain = {name: gib_s[name]["median"] / gib_s["plain"]["median"] for name in verifying}
    out = write_result(
        "checkpoint_store",
        {
            "gib": args.gib,
            "gib_per_s": gib_s,
            "of_plain_write_and_fsync": of_plain,
            "verify_gib_per_s": {n: summary([args.gib / v for v in values[1:]]) for n, values in verifying.items()},
            "small_save_ms": summary([value * 1e3 for value in small[2:]]),
        },
        args.json,
    )
    print(
        f"plain write and fsync {gib_s['plain']['median']:.2f} GiB/s; "
        + ", ".join(f"{name} {gib_s[name]['median']:.2f} ({share:.0%})" for name, share in of_plain.items())
        + f" -> {out}"
    )


if __name__ == "__main__":
    main()
