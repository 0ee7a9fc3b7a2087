"""`trajload convert`: a dataset of another layout into the native format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trajload.cli.interrupt import told_if_interrupted
from trajload.cli.loading import SkipMissing
from trajload.cli.output import JsonFlag, plural, print_json, progress_bar, say, size
from trajload.errors import ConfigError

__all__ = ["convert", "parse_episodes"]

_MIB = 1 << 20


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A LeRobot folder, or a native dataset to encode anew.", show_default=False
        ),
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder to write; made if need be.", show_default=False)],
    gop: Annotated[
        int | None, typer.Option(help="Encode all videos anew, with a keyframe every so many frames.", min=1)
    ] = None,
    codec: Annotated[str, typer.Option(help="With --gop: h264, hevc, av1, vp9 or ffv1.")] = "h264",
    crf: Annotated[int, typer.Option(help="With --gop: quality, 0 is best.", min=0)] = 23,
    lossless: Annotated[bool, typer.Option("--lossless", help="With --gop: keep every bit of the pictures.")] = False,
    reencode: Annotated[
        str | None, typer.Option(help="Encode streams anew as this file says, from 'trajload tune-encoding --out'.")
    ] = None,
    episodes: Annotated[
        str | None, typer.Option(help="Which ones, for instance 0:10 or 3,7,20:30; all by default.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new dataset.")] = None,
    shard_mb: Annotated[int, typer.Option(help="Size of a shard in MiB.", min=1)] = 256,
    licence: Annotated[str | None, typer.Option(help="Licence, kept in the manifest.")] = None,
    skip_missing: SkipMissing = False,
    json: JsonFlag = False,
) -> None:
    """Write a dataset in the native format: one shard file for many episodes, indexed and checksummed.

    Videos keep their bits: an episode's file is stored as it is, a stretch of a longer file is cut out with its packets
    unchanged. With --gop or --reencode they are encoded anew instead, which makes random windows cheap where keyframes are far
    apart ('trajload doctor' says so, 'trajload tune-encoding' measures what it takes); a native dataset can be encoded anew, too. Nothing is visible in OUT before everything is written; a killed run leaves no dataset.

    Example: trajload convert data/pusht pusht-native

    Example: trajload convert data/pusht pusht-gop10 --gop 10 --crf 20 --episodes 0:50

    Example: trajload convert my-dataset my-dataset-fast --reencode encoding.json

    Exit codes: 0 written, 2 wrong usage, or a source that does not hold what it declares, 130 stopped by Ctrl-C.
    """
    from trajload.convert import convert as write
    from trajload.convert.encodings import Reencode, load_encodings
    from trajload.shards.video_encode import VideoEncode
    from trajload.sources.open import open as open_dataset

    os.environ.setdefault("SVT_LOG", "1")  # the AV1 encoder tells of every file on stderr
    if gop is None and (lossless or codec != "h264" or crf != 23):
        raise ConfigError("--codec, --crf and --lossless describe a new encoding: pass --gop N as well.")
    if gop is not None and reencode is not None:
        raise ConfigError("--gop and --reencode both say how videos are encoded: pass one of them.")
    # Options are checked before the source is opened: a typing mistake should not cost a scan.
    encodings: Reencode = None if reencode is None else load_encodings(reencode)
    if gop is not None:
        encodings = VideoEncode(codec=codec, gop=gop, crf=crf, lossless=lossless)  # type: ignore[arg-type]
    dataset = open_dataset(source, missing="skip" if skip_missing else "error")
    wanted = None if episodes is None else parse_episodes(episodes, dataset.num_episodes)
    goes_on = dataset.kind == "native"
    left = "the same command goes on with the shards that are finished" if goes_on else f"{out} holds no dataset"
    with told_if_interrupted(f"stopped: {left}"), progress_bar("converting episodes") as progress:
        report = write(
            dataset,
            out,
            reencode=encodings,
            episodes=wanted,
            shard_bytes=shard_mb * _MIB,
            name=name,
            provenance={"licence": licence} if licence else None,
            progress=progress,
        ).to_json()
    if json:
        print_json(report)
    else:
        _print(report)


def parse_episodes(text: str, num_episodes: int) -> list[int]:
    """Return the episodes of '3,7,20:30': numbers and half-open ranges, of which either end may be left out."""
    chosen: list[int] = []
    for part in text.split(","):
        first, colon, last = (piece.strip() for piece in part.partition(":"))
        try:
            if colon:
                bounds = slice(int(first) if first else None, int(last) if last else None)
                chosen += range(num_episodes)[bounds]
            else:
                chosen.append(int(first))
        except ValueError:
            raise ConfigError(
                f"--episodes {text!r} is invalid at {part!r}: expected numbers and ranges like 3,7,20:30."
            ) from None
    if not chosen:
        raise ConfigError(f"--episodes {text!r} names none of {num_episodes} episodes.")
    return chosen


def _print(report: Mapping[str, Any]) -> None:
    say(
        f"wrote {report['out']}: {plural(report['num_episodes'], 'episode')}, {plural(report['num_steps'], 'step')}, "
        f"{plural(report['num_shards'], 'shard')}, {size(report['num_bytes'])} in {report['seconds']:.1f} s"
    )
    for key, what in (
        ("num_videos_copied", "stored as they were"),
        ("num_videos_cut", "cut out of longer files, packets unchanged"),
        ("num_videos_remuxed", "put into another container, packets unchanged"),
        ("num_videos_encoded", "encoded anew"),
    ):
        if report[key]:
            say(f"videos {what}: {report[key]}")
    for reason in report["skipped"]:
        say(f"left out: {reason}")
    for remark in report["notes"]:
        say(f"note: {remark['message']}")
    say(f"digest: {report['digest']}")
