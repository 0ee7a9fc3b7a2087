"""Random 16-step windows of 240x320 H.264: trajload against a hand-written torchcodec loader.

    python benchmarks/random_windows.py            # needs torchcodec; writes benchmarks/results/random_windows.json

Both deliver the same windows in the same order as (B, T, C, H, W) uint8 with 2 workers. The rival is what people
write by hand and is given its best settings: approximate seek mode, one decoder per file kept open, one FFmpeg
thread per worker, a torch DataLoader with 2 persistent workers, batches of whole windows. Each measurement runs in
its own process, the two alternate, and their batches are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from _common import run_case, summary, tree_memory_bytes, write_result
from _data import make_video_dataset, read_barcode

BATCH, STEPS, WORKERS, SEED = 16, 16, 2, 7


def trajload_batches(data: Path, order: str = "shuffled") -> Iterator[np.ndarray]:
    import trajload as tl

    loader = tl.Loader(
        data / "native",
        window=tl.Window(num_steps=STEPS),
        global_batch_size=BATCH,
        seed=SEED,
        order=order,
        streams=["cam"],
        num_workers=WORKERS,
    )
    for batch in loader:
        yield batch["cam"].numpy()


def window_list(data: Path, num_batches: int) -> list[tuple[int, int]]:
    """Return (episode, start) of the first batches, so that the rival reads the very same windows."""
    import trajload as tl
    from trajload.sampling.sampler import Sampler
    from trajload.sampling.windows import WindowTable

    table = WindowTable(tl.open(data / "native").num_steps_E, tl.Window(num_steps=STEPS))
    sampler = Sampler(table, order="shuffled", seed=SEED, global_batch_size=BATCH)
    batches = [sampler.refs(step) for step in range(num_batches)]
    return [pair for refs in batches for pair in zip(refs.episode_B.tolist(), refs.start_B.tolist(), strict=True)]


class TorchcodecWindows:
    """Map-style dataset: one cached decoder per file, as hand-written loaders have it."""

    def __init__(self, data: Path, windows: list[tuple[int, int]]) -> None:
        self.data, self.windows = data, windows
        self.decoders: dict = {}

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, i: int):
        from torchcodec.decoders import VideoDecoder

        episode, start = self.windows[i]
        decoder = self.decoders.get(episode)
        if decoder is None:
            decoder = self.decoders[episode] = VideoDecoder(
                str(self.data / "files" / f"{episode:05d}.mp4"), seek_mode="approximate", num_ffmpeg_threads=1
            )
        return decoder.get_frames_in_range(start, start + STEPS).data


def torchcodec_batches(data: Path, num_batches: int) -> Iterator[np.ndarray]:
    import torch

    loader = torch.utils.data.DataLoader(
        TorchcodecWindows(data, window_list(data, num_batches)),
        batch_size=BATCH,
        num_workers=WORKERS,
        prefetch_factor=2,
        multiprocessing_context="fork",
    )
    for batch in loader:
        yield batch.numpy()


def case(name: str, data: Path, seconds: float) -> dict:
    begin = time.perf_counter()
    batches = trajload_batches(data) if name == "trajload" else torchcodec_batches(data, 4000)
    first_s, gaps, count, last = 0.0, [], 0, 0.0
    warm_up = 8
    for i, batch in enumerate(batches):
        now = time.perf_counter()
        if i == 0:
            first_s = now - begin
        if i == warm_up:
            start = now
        elif i > warm_up:
            gaps.append(now - last)
            count += len(batch)
            if now - start >= seconds:
                break
        last = now
    return {
        "windows_per_s": count / (now - start),
        "first_batch_s": first_s,
        "longest_gap_s": max(gaps),
        "pss_bytes": tree_memory_bytes(),
    }


def check_equal(data: Path, num_batches: int = 6) -> dict:
    """Compare both loaders' first batches: the same frames (barcode), and colours within the conversion's tolerance."""
    ours, theirs = trajload_batches(data), torchcodec_batches(data, num_batches)
    wanted = window_list(data, num_batches)
    worst_mean, worst_psnr, frames = 0.0, np.inf, 0
    for k in range(num_batches):
        a, b = next(ours), next(theirs)
        for row in range(BATCH):
            episode, start = wanted[k * BATCH + row]
            for t in (0, STEPS // 2, STEPS - 1):
                for picture in (a[row, t], b[row, t]):
                    got = read_barcode(picture)
                    if got != (episode, start + t):
                        raise SystemExit(f"wrong frame: got {got}, expected {(episode, start + t)}")
        diff = a.astype(np.int16) - b.astype(np.int16)
        worst_mean = max(worst_mean, float(np.abs(diff).mean()))
        worst_psnr = min(worst_psnr, 10 * np.log10(255.0**2 / max(float((diff.astype(np.float64) ** 2).mean()), 1e-12)))
        frames += BATCH * STEPS
    if worst_mean > 1.0 or worst_psnr < 42.0:
        raise SystemExit(f"outputs differ: mean absolute difference {worst_mean:.3f}, PSNR {worst_psnr:.1f} dB")
    return {"frames_compared": frames, "mean_abs_diff": worst_mean, "psnr_db": worst_psnr}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("/tmp/trajload-bench/h264_240x320"))
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.case == "check":
        print(json.dumps(check_equal(args.data)))
        return
    if args.case:
        print(json.dumps(case(args.case, args.data, args.seconds)))
        sys.stdout.flush()
        # The rival's DataLoader workers are still busy with batches nobody wants.
        import os

        os._exit(0)
    make_video_dataset(args.data)
    common = ["--data", str(args.data), "--seconds", str(args.seconds)]
    equal = run_case(__file__, "--case", "check", *common)
    runs: dict[str, list[dict]] = {"trajload": [], "torchcodec": []}
    for _ in range(args.repeats):
        for name, results in runs.items():
            results.append(run_case(__file__, "--case", name, *common))
    cases = {name: {key: summary([r[key] for r in results]) for key in results[0]} for name, results in runs.items()}
    ratio = cases["trajload"]["windows_per_s"]["median"] / cases["torchcodec"]["windows_per_s"]["median"]
    out = write_result(
        "random_windows",
        {
            "setting": f"{BATCH} windows of {STEPS} steps, 240x320 H.264 crf 23 GOP 10, 40 episodes x 300 frames, random, {WORKERS} workers",
            "outputs_equal": equal,
            "cases": cases,
            "windows_per_s_ratio": ratio,
        },
        args.json,
    )
    print(
        f"trajload {cases['trajload']['windows_per_s']['median']:.1f} windows/s, torchcodec {cases['torchcodec']['windows_per_s']['median']:.1f}: ratio {ratio:.2f} -> {out}"
    )


if __name__ == "__main__":
    main()
