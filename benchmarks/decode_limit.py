"""How near random windows of video come to what the decoder alone can do, on the same packets in the same run.

    python benchmarks/decode_limit.py                       # 240x320 H.264; writes benchmarks/results/decode_limit.json
    python benchmarks/decode_limit.py --size 128            # pictures resized

Three figures, taken in turns, each with two threads, all of the windows of the same train_steps:

- decode only: the compiled loop feeds the packets, takes the frames out, and writes no pixel; plans and bytes are at hand;
- decode and convert: the same, and the pictures are written into memory that exists already;
- loader: `trajload.Loader` with two workers, from order to batch.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _common import run_case, summary, write_result
from _data import make_video_dataset

BATCH, STEPS, SEED, THREADS = 16, 16, 7, 2


def windows_per_s(workload: Any, data: Path, seconds: float, workers: int) -> float:
    """Return the decode-only rate of a workload of `compare.py`, which calls this: all cameras of a window, two threads."""
    if workers != THREADS:
        raise SystemExit(f"the decode limit is measured with {THREADS} threads: got --workers {workers}.")
    windows = Windows(
        workload.data.root(data), workload.size, 12, workload.cameras, workload.frame_steps, workload.span
    )
    return rate_of(windows.decode_only, windows.num_windows, seconds)


def rate_of(make: Callable[[], Callable[[int], None]], count: int, seconds: float) -> float:
    """Return how many of windows 0..count - 1, over and over, two threads do in a second; `make` is called in each."""
    done = [0] * THREADS
    ready = threading.Barrier(THREADS + 1)
    stop = threading.Event()

    def run(thread: int) -> None:
        work = make()
        for i in range(thread, count, max(count // 8, 1)):
            work(i)  # opens the decoder, warms the caches
        ready.wait()
        i = thread
        while not stop.is_set():
            work(i % count)
            done[thread] += 1
            i += THREADS

    threads = [threading.Thread(target=run, args=(k,)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait()
    begin = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    # both threads finish the window they are at, so time runs to the end of the last
    return sum(done) / (time.perf_counter() - begin)


class Windows:
    """The first windows of the order, planned and read."""

    def __init__(
        self,
        data: Path,
        size: tuple[int, int] | None,
        num_batches: int,
        cameras: Sequence[str] = ("cam",),
        steps: int = STEPS,
        span: int = STEPS,
    ) -> None:
        import trajload as tl
        from trajload.decode import plan_reads
        from trajload.sampling.sampler import Sampler
        from trajload.sampling.windows import WindowTable

        self.dataset = tl.open(data / "native")
        self.spec = self.dataset.streams[cameras[0]]
        self.steps, self.num_cameras = steps, len(cameras)
        self.request = tl.Image(size=size)
        self.size = size or self.spec.shape[:2]
        sampler = Sampler(
            WindowTable(self.dataset.num_steps_E, tl.Window(num_steps=span)),
            order="shuffled",
            seed=SEED,
            global_batch_size=BATCH,
        )
        self.items = []
        for step in range(num_batches):
            refs = sampler.refs(step)
            for episode, start in zip(refs.episode_B.tolist(), refs.start_B.tolist(), strict=True):
                rows = np.arange(start, start + steps)
                for camera in cameras:
                    track = self.dataset.track(episode, camera)
                    plan = plan_reads(track, rows)
                    self.items.append((track, rows, plan, [self.dataset.store.read(where) for where in plan]))

    @property
    def num_windows(self) -> int:
        return len(self.items) // self.num_cameras

    def decode_only(self) -> Callable[[int], None]:
        """The loop as it is, told to copy the bytes of pictures that have none."""
        from trajload.decode import DecodeContext, libav_loop
        from trajload.decode.plan import Blobs

        context, nothing = DecodeContext(engine="libav"), np.empty((self.steps, 1, 0, 0), np.uint8)

        def work(i: int) -> None:
            for track, _, plan, blobs in self.items[i * self.num_cameras : (i + 1) * self.num_cameras]:
                setup = context.loop_setup(track.index, self.spec, tuple(self.size))
                setup.expected[libav_loop.KIND_AT] = libav_loop.BYTES
                if (status := setup.decode(plan, Blobs(plan, blobs).addresses(), nothing)) != libav_loop.OK:
                    raise SystemExit(f"window {i} fails with status {status}")

        return work

    def decode_and_convert(self) -> Callable[[int], None]:
        from trajload.decode import DecodeContext, decode_rows

        # memory for several batches, as the loader has: pictures do not land in the processor's cache
        context, out = DecodeContext(), np.zeros((4 * BATCH, STEPS, 3, *self.size), np.uint8)

        def work(i: int) -> None:
            track, rows, plan, blobs = self.items[i]
            decode_rows(
                track,
                rows,
                blobs,
                out[i % len(out)],
                spec=self.spec,
                request=self.request,
                store=self.dataset.store,
                context=context,
                plan=plan,
            )

        return work


def loader_rate(data: Path, size: tuple[int, int] | None, seconds: float) -> float:
    import trajload as tl

    with tl.Loader(
        data / "native",
        window=tl.Window(num_steps=STEPS),
        global_batch_size=BATCH,
        seed=SEED,
        streams={"cam": tl.Image(size=size)},
        num_workers=THREADS,
    ) as loader:
        batches = iter(loader)
        for _ in range(8):
            next(batches)
        begin, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - begin) < seconds:
            next(batches)
            count += BATCH
    return count / spent


def case(name: str, data: Path, size: tuple[int, int] | None, seconds: float) -> dict[str, float]:
    if name == "loader":
        return {"windows_per_s": loader_rate(data, size, seconds)}
    windows = Windows(data, size, num_batches=12)
    make = windows.decode_only if name == "decode_only" else windows.decode_and_convert
    return {"windows_per_s": rate_of(make, windows.num_windows, seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("/tmp/trajload-bench/h264_240x320"))
    parser.add_argument("--size", type=int, help="side of the square that pictures are resized to; default: as stored")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case")
    parser.add_argument("--json")
    args = parser.parse_args()
    size: Any = None if args.size is None else (args.size, args.size)
    if args.case:
        print(json.dumps(case(args.case, args.data, size, args.seconds)))
        return
    make_video_dataset(args.data)
    options = ["--data", str(args.data), "--seconds", str(args.seconds)]
    options += [] if args.size is None else ["--size", str(args.size)]
    runs: dict[str, list[float]] = {"decode_only": [], "decode_and_convert": [], "loader": []}
    for _ in range(args.repeats):
        for name, rates in runs.items():
            rates.append(run_case(__file__, "--case", name, *options)["windows_per_s"])
    # of neighbours in time, since a shared machine is not equally fast all day
    ratios = {
        name: summary([rate / limit for rate, limit in zip(rates, runs["decode_only"], strict=True)])
        for name, rates in runs.items()
        if name != "decode_only"
    }
    out = write_result(
        "decode_limit",
        {
            "setting": f"windows of {STEPS} steps, {args.data.name}, pictures {size or 'as stored'}, random, {THREADS} threads",
            "windows_per_s": {name: summary(rates) for name, rates in runs.items()},
            "share_of_decode_only": ratios,
        },
        args.json,
    )
    for name, rates in runs.items():
        print(f"{name:20} {summary(rates)['median']:8.1f} windows/s")
    print(f"loader: {ratios['loader']['median']:.1%} of decode only -> {out}")


if __name__ == "__main__":
    main()
