"""`trajload inspect`: what a dataset holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trajload.cli.output import DatasetPath, JsonFlag, plural, print_json, say, size, table

__all__ = ["inspect"]


def inspect(dataset: DatasetPath, json: JsonFlag = False) -> None:
    """Show what a dataset holds: episodes, hours, streams, codecs, sizes, statistics.

    Opens native datasets and LeRobot folders (v2.0, v2.1, v3.0) in place. Reads indices only, so it is quick on large
    datasets. What the metadata promise and the files lack is listed under "notes"; 'trajload doctor' looks deeper.

    Example: trajload inspect my-dataset

    Example: trajload inspect my-dataset --json | jq .streams

    Exit codes: 0 fine, 2 the dataset cannot be opened.
    """
    from trajload.sources.open import open as open_dataset
    from trajload.view.summary import summarize

    summary = summarize(open_dataset(dataset, missing="skip"))
    if json:
        print_json(summary)
        return
    _print(summary)


def _print(summary: Mapping[str, Any]) -> None:
    say(f"{summary['name']}  ({summary['kind']}, {summary['path']})")
    parts = [plural(summary["num_episodes"], "episode"), plural(summary["num_steps"], "step")]
    if summary["hours"] is not None:
        hours = summary["hours"]
        parts.append(f"{hours:.2f} hours" if hours >= 1 else f"{hours * 60:.1f} minutes")
        parts.append(f"{summary['step_rate_hz']:g} Hz")
    if summary["num_bytes"] is not None:
        parts.append(size(summary["num_bytes"]))
    say(", ".join(parts))
    if summary["episode_steps"]:
        steps = summary["episode_steps"]
        say(f"steps per episode: {steps['min']} to {steps['max']}, median {steps['median']:g}")
    say(f"digest: {summary['digest']}")
    say()
    table(
        ["stream", "modality", "shape", "dtype", "clock", "rate", "stored as", "present"],
        [_row(name, stream) for name, stream in summary["streams"].items()],
    )
    for name, stream in summary["streams"].items():
        if "problem" in stream:
            say(f"problem in {name}: {stream['problem']}")
    for key, value in summary["provenance"].items():
        say(f"{key}: {value}")
    if summary["notes"]:
        say("notes:")
        for remark in summary["notes"]:
            say(f"  - {remark['message']}")


def _row(name: str, stream: Mapping[str, Any]) -> list[object]:
    stored = stream["encoding"]
    if "video" in stream:
        stored += f" {stream['video']['codec']} {stream['video']['pixel_format']}, GOP {stream['video']['max_gop']}"
    rate = f"{stream['rate_hz']:g} Hz" if stream.get("rate_hz") else ""
    shape = "x".join(str(n) for n in stream["shape"]) or "scalar"
    present = stream["present_in"]
    return [
        name,
        stream["modality"],
        "" if stream["dtype"] in ("str", "json") else shape,
        f"{stream['dtype']} {stream['units']}" if stream.get("units") else stream["dtype"],
        stream["clock"],
        rate,
        stored,
        "all" if present["episodes"] == present["of"] else f"{present['episodes']} of {present['of']} looked at",
    ]
