"""`trajload verify`: are the bytes those that were written?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trajload.cli.output import EXIT_FAULT, DatasetPath, JsonFlag, plural, print_json, progress_bar, say, size
from trajload.errors import ConfigError

__all__ = ["verify"]


def verify(
    dataset: DatasetPath,
    quick: Annotated[
        bool, typer.Option("--quick", help="Presence, sizes, indexes and digest only; reads no shard.")
    ] = False,
    rebuild_index: Annotated[
        bool, typer.Option("--rebuild-index", help="First make lost or damaged indexes anew from their shards.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Compare every byte of a native dataset with its checksums, and list all damage.

    Reads all shards: SHA-256 of every file, checksums of every member, chunk and group of pictures, tar headers against
    the index. A killed writer leaves either the old dataset or the new one; this says which, and what lies beside it.
    For whether the data make sense, see 'trajload doctor'.

    Example: trajload verify my-dataset

    Example: trajload verify my-dataset --quick --json

    Exit codes: 0 as written, 1 damage was found, 2 there is no native dataset.
    """
    root = Path(dataset)
    if not root.is_dir():
        raise ConfigError(f"dataset folder {dataset!r} does not exist: expected a folder with a manifest.json.")
    if not (root / "manifest.json").exists():
        hint = " It looks like a LeRobot dataset: those carry no checksums; run 'trajload doctor'."
        lerobot = hint if (root / "meta" / "info.json").exists() else ""
        raise ConfigError(f"{dataset!r} holds no manifest.json: expected a native dataset.{lerobot}")
    from trajload.shards.verify import rebuild_index as rebuild
    from trajload.shards.verify import verify as check

    rebuilt = rebuild(root) if rebuild_index else []
    with progress_bar("reading bytes") as progress:
        report = check(root, deep=not quick, progress=progress)
    if json:
        print_json({**report.to_json(), "rebuilt": rebuilt})
    else:
        for name in rebuilt:
            say(f"rebuilt {name}")
        for problem in report.problems:
            say(f"- {problem}")
        say(
            f"{'whole' if report.ok else 'DAMAGED'}: {plural(report.num_shards, 'shard')}, {plural(report.num_episodes, 'episode')}, "
            f"{plural(report.num_members, 'member')} and {plural(report.num_gops, 'group')} of pictures compared, {size(report.num_bytes)} read"
        )
    if not report.ok:
        raise typer.Exit(EXIT_FAULT)
