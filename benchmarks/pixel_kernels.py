"""Pixels: our kernels against a kept swscale converter, from a decoded frame to planar RGB in the batch's memory.

    python benchmarks/pixel_kernels.py                 # writes benchmarks/results/pixel_kernels.json
    python benchmarks/pixel_kernels.py --json out.json --repeats 9

Both sides end with the same thing: (3, H, W) uint8 in an array that exists already. For swscale that is one conversion to
packed RGB and one pass that separates the channels. Outputs are compared before anything is timed; one thread; CPU time of
the thread, so that other work on the machine counts less; warm cache (the same frame again and again).
"""

from __future__ import annotations

import argparse
from typing import Any

import av
import numpy as np
from _common import cpu_microseconds, write_result
from av.video.reformatter import VideoReformatter

from trajload.decode import DecodeContext, kernels
from trajload.decode.pixels import kernel_of, swscale_coefficients, yuv_coefficients
from trajload.decode.resize import resize_planes

SIZES = [(64, 64), (96, 96), (240, 320), (480, 640), (1080, 1920)]
FORMATS = ["yuv420p", "yuvj420p", "yuv444p"]
RESIZES = [((240, 320), (128, 128)), ((480, 640), (224, 224)), ((480, 640), (128, 128)), ((96, 96), (224, 224))]
MAX_ERROR = {"yuv420p": 0, "yuvj420p": 0, "yuv444p": 1}
"""Grey levels allowed between the two sides: 4:2:0 is the same arithmetic, 4:4:4 is rounded better here."""


def picture(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    noise = np.random.default_rng(0).normal(0, 4, (height, width, 3))
    base = np.stack([np.sin(5 * x + 2 * y), np.cos(4 * y - x), np.sin(3 * (x + y))], axis=-1) * 100 + 128
    return np.clip(base + noise, 0, 255).astype(np.uint8)


def convert_case(pix_fmt: str, height: int, width: int, repeats: int) -> dict[str, Any]:
    frame = av.VideoFrame.from_ndarray(picture(height, width), format="rgb24").reformat(format=pix_fmt)
    frame.colorspace, frame.color_range = 1, 2 if pix_fmt.startswith("yuvj") else 1
    kernel = kernel_of(pix_fmt, "bt709", height)
    make = swscale_coefficients if kernel == "420" else yuv_coefficients
    coefficients = make(pix_fmt, "bt709", "full" if pix_fmt.startswith("yuvj") else "limited")
    ours, theirs = np.zeros((3, height, width), np.uint8), np.zeros((3, height, width), np.uint8)
    reformatter = VideoReformatter()

    def run_kernel() -> None:
        y, u, v = frame.planes
        planes = [np.frombuffer(p, np.uint8) for p in (y, u, v)]
        if kernel == "420":
            kernels.yuv420_to_rgb(*planes, y.line_size, u.line_size, coefficients, ours)
        else:
            kernels.yuv444_to_rgb(*planes, y.line_size, u.line_size, coefficients, ours)

    def run_swscale() -> None:
        packed = reformatter.reformat(frame, format="rgb24", threads=1).planes[0]
        kernels.deinterleave_rgb(np.frombuffer(packed, np.uint8), packed.line_size, theirs)

    run_kernel()
    run_swscale()
    error = int(np.abs(ours.astype(int) - theirs).max())
    if error > MAX_ERROR[pix_fmt]:
        raise SystemExit(
            f"{pix_fmt} {height}x{width}: outputs differ by {error} levels, expected at most {MAX_ERROR[pix_fmt]}"
        )
    return {
        "pix_fmt": pix_fmt,
        "size": [height, width],
        "max_error_levels": error,
        "kernel_us": cpu_microseconds(run_kernel, repeats),
        "swscale_us": cpu_microseconds(run_swscale, repeats),
    }


def resize_case(size: tuple[int, int], wanted: tuple[int, int], repeats: int) -> dict[str, Any]:
    """Planar RGB to planar RGB: our area/bilinear filter against swscale's SWS_AREA on packed RGB."""
    rgb = picture(*size)
    planar = np.ascontiguousarray(rgb.transpose(2, 0, 1))
    ours, theirs = np.zeros((3, *wanted), np.uint8), np.zeros((3, *wanted), np.uint8)
    frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
    context, reformatter = DecodeContext(), VideoReformatter()

    def run_kernel() -> None:
        resize_planes(planar, ours, context)

    def run_swscale() -> None:
        small = reformatter.reformat(frame, width=wanted[1], height=wanted[0], interpolation="AREA", threads=1).planes[
            0
        ]
        kernels.deinterleave_rgb(np.frombuffer(small, np.uint8), small.line_size, theirs)

    run_kernel()
    run_swscale()
    error = float(np.abs(ours.astype(int) - theirs).mean())
    if error > 4:
        raise SystemExit(f"resize {size} to {wanted}: outputs differ by {error:.2f} levels on average")
    return {
        "size": list(size),
        "wanted": list(wanted),
        "mean_error_levels": round(error, 3),
        "kernel_us": cpu_microseconds(run_kernel, repeats),
        "swscale_us": cpu_microseconds(run_swscale, repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="result file; default benchmarks/results/pixel_kernels.json")
    parser.add_argument("--repeats", type=int, default=7, help="timed rounds of each case (default 7)")
    args = parser.parse_args()
    result = {
        "repeats": args.repeats,
        "convert": [convert_case(f, *size, args.repeats) for f in FORMATS for size in SIZES],
        "resize": [resize_case(*case, args.repeats) for case in RESIZES],
    }
    path = write_result("pixel_kernels", result, args.json)
    for case in result["convert"]:
        print(
            f"{case['pix_fmt']:9} {case['size'][0]:4}x{case['size'][1]:<4}  kernel {case['kernel_us']['median']:8.1f} us  "
            f"swscale {case['swscale_us']['median']:8.1f} us"
        )
    for case in result["resize"]:
        print(
            f"resize {case['size']} -> {case['wanted']}  kernel {case['kernel_us']['median']:8.1f} us  "
            f"swscale {case['swscale_us']['median']:8.1f} us  mean error {case['mean_error_levels']}"
        )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
