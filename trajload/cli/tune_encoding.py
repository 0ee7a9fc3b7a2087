"""`trajload tune-encoding`: which codec and keyframe distance suit the windows."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trajload.cli.interrupt import EXIT_INTERRUPTED, stopped_by_ctrl_c
from trajload.cli.loading import Dilation, NumSteps, SizeOption, SkipMissing, Streams, parse_size
from trajload.cli.output import DatasetPath, JsonFlag, check_file_can_be_written, print_json, progress_bar, say, table
from trajload.errors import ConfigError

__all__ = ["tune_encoding"]


def tune_encoding(
    dataset: DatasetPath,
    num_steps: NumSteps = 16,
    dilation: Dilation = 1,
    stream: Streams = None,
    size: SizeOption = None,
    codecs: Annotated[str, typer.Option(help="Codecs to try, of h264, hevc, av1, vp9 and ffv1.")] = "h264,hevc,av1,vp9",
    gops: Annotated[str, typer.Option(help="Frames between keyframes to try.")] = "1,4,8,16,32",
    crf: Annotated[
        int | None, typer.Option(help="Quality for all codecs; about the same from each by default.", min=0)
    ] = None,
    episodes: Annotated[int, typer.Option(help="Episodes the sample is taken from.", min=1)] = 3,
    frames: Annotated[int, typer.Option(help="Frames taken of each.", min=8)] = 96,
    min_psnr: Annotated[float, typer.Option(help="Least quality, in dB against the pictures now.", min=1)] = 33.0,
    max_growth: Annotated[float, typer.Option(help="Most bytes, as a multiple of those now.", min=0.01)] = 3.0,
    out: Annotated[
        str | None, typer.Option(help="File for the settings recommended, for 'trajload convert --reencode'.")
    ] = None,
    skip_missing: SkipMissing = False,
    json: JsonFlag = False,
) -> None:
    """Measure on a sample how videos should be encoded for random windows: cost of decoding, bytes and quality.

    Long groups of pictures store well and load badly: a window in the middle decodes all from the last keyframe on. This
    encodes some frames in several ways, decodes windows of each, and names the cheapest way that keeps quality and size within
    bounds. 'trajload convert --reencode' applies it.

    Example: trajload tune-encoding my-dataset --num-steps 16 --size 128x128 --out encoding.json

    Example: trajload tune-encoding my-dataset --codecs h264,av1 --gops 2,8,16 --max-growth 2

    Ctrl-C ends it early, with a recommendation from the settings measured by then.

    Exit codes: 0 measured, 2 wrong usage, or a video that cannot be read, 130 stopped by Ctrl-C.
    """
    from trajload.convert.encodings import save_encodings
    from trajload.convert.tune import tune_encoding as tune
    from trajload.convert.tune import tuned_encodings
    from trajload.sources.open import open as open_dataset
    from trajload.spec import Window

    os.environ.setdefault("SVT_LOG", "1")  # the AV1 encoder tells of every file on stderr
    try:
        distances = [int(text) for text in gops.split(",")]
    except ValueError:
        raise ConfigError(f"--gops {gops!r} is invalid: expected numbers of frames, for instance 4,8,16.") from None
    check_file_can_be_written(out, "--out")
    opened = open_dataset(dataset, missing="skip" if skip_missing else "error")
    with stopped_by_ctrl_c() as stop:
        with progress_bar("encoding and decoding") as progress:
            report = tune(
                opened,
                window=Window(num_steps=num_steps, dilation=dilation),
                streams=stream or None,
                size=parse_size(size),
                codecs=[text.strip() for text in codecs.split(",")],
                gops=distances,
                crf=crf,
                num_episodes=episodes,
                num_frames=frames,
                min_psnr_db=min_psnr,
                max_growth=max_growth,
                progress=progress,
                stop=stop,
            )
        encodings = tuned_encodings(report)
        if out is not None and encodings:
            about = {"dataset_digest": report.digest, "window": report.window, "machine": report.machine}
            save_encodings(out, encodings, about)
        told = {**report.to_json(), "out": out if encodings else None}
        if json:
            print_json(told)
        else:
            _print(told)
    if stop.wanted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _print(report: Mapping[str, Any]) -> None:
    for found in report["streams"]:
        say(
            f"{found['stream']}: windows of {report['window']['num_steps']} steps, "
            f"{found['num_frames_sampled']} frames sampled"
        )
        rows = [("now", found["now"]), *(("", c) for c in found["candidates"])]
        table(
            ["", "codec", "GOP", "CRF", "ms a window", "decoded a frame", "bytes a frame", "PSNR dB", "ms to encode"],
            [
                [
                    "best" if c == found["best"] else mark,
                    c["codec"],
                    c["gop"],
                    c["crf"],
                    f"{c['window_ms']:.2f}",
                    f"{c['decoded_per_frame']:.2f}",
                    f"{c['bytes_per_frame']:.0f}",
                    "" if mark == "now" else "same" if c["psnr_db"] is None else f"{c['psnr_db']:.1f}",
                    "" if c["encode_ms"] is None else f"{c['encode_ms']:.1f}",
                ]
                for mark, c in rows
            ],
        )
        for remark in found["notes"]:
            say(f"note: {remark}")
        best = found["best"]
        if best is None:
            say(f"leave {found['stream']} as it is: {found['why']}")
        else:
            say(
                f"recommended for {found['stream']}: {best['codec']}, GOP {best['gop']}, CRF {best['crf']}: {found['why']}"
            )
    if report["stopped"]:
        say(f"Stopped early: {report['stopped']}.")
    if report["out"]:
        path, out = shlex.quote(report["path"]), shlex.quote(report["out"])
        say(f"wrote {report['out']}; apply it: trajload convert {path} OUT --reencode {out}")
    elif any(found["best"] is not None for found in report["streams"]):
        say(
            "pass --out encoding.json to have this as a file, which 'trajload convert --reencode encoding.json' applies"
        )
