"""`trajload checkpoints`: what a store of checkpoints holds, whether it is whole, and what may go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trajload.cli.output import EXIT_FAULT, JsonFlag, plural, print_json, say, size, table

if TYPE_CHECKING:
    from trajload.checkpoint.entries import Commit, Fault
    from trajload.checkpoint.store import Store

__all__ = ["COMMANDS", "HELP"]

HELP = """Look into a store of checkpoints: list, verify, compare, pin, clean up, export, copy elsewhere.

Every command reads what the store says of itself and takes --json; COMMIT is a step, a digest, or pin:NAME.

Example: trajload checkpoints ls runs/exp1/checkpoints

Exit codes: 0 fine, 1 damage or a difference was found, 2 wrong usage or an error.
"""

StorePath = Annotated[
    str, typer.Argument(metavar="STORE", help="Folder or URL of a checkpoint store.", show_default=False)
]
At = Annotated[
    str | None,
    typer.Argument(
        metavar="[COMMIT]", help="Step (the closest), digest (its beginning), or pin:NAME; default: the newest."
    ),
]


def ls(store: StorePath, json: JsonFlag = False) -> None:
    """List the checkpoints of a store, oldest first: number, step, age, size, what was written for it, pins.

    What was passed over (torn records, records of another store) is listed below them. Reads records only; for the bytes
    see 'trajload checkpoints verify'.

    Example: trajload checkpoints ls runs/exp1/checkpoints

    Exit codes: 0 listed, 1 something was passed over, 2 there is no store.
    """
    opened = _open(store)
    commits = opened.commits()
    faults = list(opened.faults)
    pins = _pins(opened)
    if json:
        print_json({"store": str(opened.name), "commits": [_told(c, pins) for c in commits], "faults": _rows(faults)})
    else:
        now = time.time()
        table(
            ["seq", "step", "age", "world", "bytes", "written", "digest", "pins", "metrics"],
            [
                [
                    commit.seq,
                    commit.step,
                    _age(now - commit.time),
                    commit.world,
                    size(commit.bytes),
                    size(commit.written_bytes),
                    commit.digest[:19],
                    " ".join(pins.get(commit.digest, ())),
                    " ".join(f"{k}={v:.6g}" for k, v in (commit.info.get("metrics") or {}).items()),
                ]
                for commit in commits
            ],
        )
        _say_faults(faults)
    if faults:
        raise typer.Exit(EXIT_FAULT)


def verify(
    store: StorePath,
    commit: At = None,
    everything: Annotated[bool, typer.Option("--all", help="All checkpoints, not the newest alone.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Presence and sizes only; reads no file.")] = False,
    json: JsonFlag = False,
) -> None:
    """Compare every byte of a checkpoint with its digests, and say what its commit promised when it was made.

    Example: trajload checkpoints verify runs/exp1/checkpoints

    Example: trajload checkpoints verify runs/exp1/checkpoints 12000 --json

    Exit codes: 0 whole, 1 damage was found, 2 there is no such store or checkpoint.
    """
    opened = _open(store)
    chosen = opened.commits() if everything else [_pick(opened, commit)]
    faults = list(opened.faults) if everything else []
    results, there = [], []
    for one in chosen:
        found = opened.verify(one, "sizes" if quick else "full")
        if everything and any(fault.is_removal for fault in found):
            continue  # by whoever writes the store, since it was listed
        faults += found
        there.append(one)
        results.append({**_told(one, {}), "ok": not found, "faults": _rows(found)})
    if json:
        print_json({"store": str(opened.name), "ok": not faults, "commits": results, "faults": _rows(faults)})
    else:
        for one, result in zip(there, results, strict=True):
            word = "whole" if result["ok"] else "DAMAGED"
            say(f"{word}: seq {one.seq}, step {one.step}, {size(one.bytes)}, durability {one.durability!r}")
        _say_faults(faults)
    if faults:
        raise typer.Exit(EXIT_FAULT)


def diff(
    store: StorePath,
    one: Annotated[str, typer.Argument(metavar="COMMIT", help="Step, digest or pin:NAME.", show_default=False)],
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Another one.", show_default=False)],
    json: JsonFlag = False,
) -> None:
    """Say in what two checkpoints differ: tensors by name, with shapes and largest change, and every plain value.

    Example: trajload checkpoints diff runs/exp1/checkpoints 1000 2000

    Exit codes: 0 equal, 1 they differ, 2 there is no such store or checkpoint.
    """
    from trajload.checkpoint.diff import diff_parts

    opened = _open(store)
    left, right = _pick(opened, one), _pick(opened, other)
    found: list[dict[str, Any]] = []
    if left.world != right.world:
        found.append({"rank": None, "what": f"parts: {left.world} against {right.world}"})
    for rank in range(min(left.world, right.world)):
        for line in diff_parts(opened.part(left, rank), opened.part(right, rank)):
            found.append({"rank": rank, "what": str(line), **line.to_json()})
    if json:
        print_json({"one": _told(left, {}), "other": _told(right, {}), "equal": not found, "differences": found})
    else:
        say(f"step {left.step} (seq {left.seq}) against step {right.step} (seq {right.seq}):")
        for row in found:
            say("- " + (f"rank {row['rank']}: " if row["rank"] else "") + row["what"])
        say("equal" if not found else plural(len(found), "difference"))
    if found:
        raise typer.Exit(EXIT_FAULT)


def pin(
    store: StorePath,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the pin.", show_default=False)],
    commit: At = None,
    json: JsonFlag = False,
) -> None:
    """Give a checkpoint a name, so that retention leaves it until it is unpinned.

    Example: trajload checkpoints pin runs/exp1/checkpoints release-3 12000

    Exit codes: 0 pinned, 2 there is no such store or checkpoint, or the name is taken.
    """
    opened = _open(store)
    chosen = _pick(opened, commit)
    opened.pin(name, chosen)
    told = _told(chosen, {chosen.digest: [name]})
    print_json(told) if json else say(f"pinned {name!r}: step {chosen.step}, {chosen.digest}")


def unpin(
    store: StorePath,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the pin.", show_default=False)],
    json: JsonFlag = False,
) -> None:
    """Take a pin away; the checkpoint goes with the next retention if nothing else keeps it.

    Example: trajload checkpoints unpin runs/exp1/checkpoints release-3

    Exit codes: 0 done, 2 there is no such store or pin.
    """
    opened = _open(store)
    opened.unpin(name)
    print_json({"unpinned": name}) if json else say(f"unpinned {name!r}")


def exposed(store: StorePath, commit: At = None, json: JsonFlag = False) -> None:
    """Say what a checkpoint was trained on: of each loader the train_steps, and what they held of each dataset.

    Which episodes those were, tl.checkpoint.episodes_seen says, which needs the dataset.

    Example: trajload checkpoints exposed runs/exp1/checkpoints 12000

    Exit codes: 0 told, 2 there is no such store or checkpoint.
    """
    chosen = _pick(_open(store), commit)
    found = chosen.info.get("exposure") or {}
    if json:
        return print_json({"commit": _told(chosen, {}), "exposure": found})
    say(f"step {chosen.step} (seq {chosen.seq}) was trained on" + ("" if found else " nothing that a loader delivered"))
    columns = ("windows", "epochs", "steps", "licence", "consent_tags")
    rows = [
        [
            name,
            " ".join(f"[{begin}, {stop})" for begin, stop in segment["train_steps"]),
            digest[:12],
            source,
            *(" ".join(value) if isinstance(value := told.get(field), list) else value for field in columns),
        ]
        for name, segments in found.items()
        for segment in segments
        for (_, digest), (source, told) in zip(segment["manifests"], segment["sources"].items(), strict=True)
    ]
    table(["loader", "train_steps", "manifest", "source", *columns], rows)


def gc(
    store: StorePath,
    last: Annotated[int | None, typer.Option("--last", help="Also remove all but the newest so many.", min=1)] = None,
    every: Annotated[
        int, typer.Option("--every", help="With --last: keep one of every so many steps, too.", min=0)
    ] = 0,
    best: Annotated[
        str | None, typer.Option("--best", help="With --last: keep the best, too, such as min:val_loss.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
    json: JsonFlag = False,
) -> None:
    """Remove what saves that did not commit left behind; with --last also old checkpoints, as tl.Keep does.

    Refused while a training writes the store; --dry-run is not, and needs no right to write. Pinned checkpoints stay, and nothing
    goes before the newest ones were verified.

    Example: trajload checkpoints gc runs/exp1/checkpoints --last 3 --every 10000 --dry-run

    Exit codes: 0 done, 2 there is no such store, or it is being written.
    """
    from trajload.checkpoint.cleaning import clean
    from trajload.checkpoint.entries import Keep
    from trajload.errors import ConfigError

    if last is None and (every or best is not None):
        raise ConfigError(
            "--every and --best say what stays beside the newest ones: say with --last how many those are."
        )
    opened = _open(store)
    done = clean(opened, None if last is None else Keep(last=last, every=every, best=best), dry_run=dry_run)
    gone, swept = done.removed, done.swept
    if json:
        told = {"dry_run": dry_run, "removed": [_told(c, {}) for c in gone], "swept": swept}
        print_json({**told, "faults": _rows(done.faults)})
    else:
        would = "would be: " if dry_run else ""
        for commit in gone:
            say(f"{would}removed step {commit.step} (seq {commit.seq}), {size(commit.written_bytes)}")
        for name in swept:
            say(f"{would}swept {name}")
        _say_faults(done.faults)
        say(f"{would}{plural(len(gone), 'checkpoint')} and {plural(len(swept), 'leftover')} removed")


def export(
    store: StorePath,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="To be made.", show_default=False)],
    commit: At = None,
    component: Annotated[str, typer.Option("--component", "-c", help="Which one.")] = "model",
    config: Annotated[str | None, typer.Option(help="JSON file to become config.json.")] = None,
    prefix: Annotated[
        str, typer.Option(help="Only names that begin so, which they lose: 'module.' for an AveragedModel.")
    ] = "",
    extra: Annotated[
        list[str] | None,
        typer.Option("--extra", help="File to copy beside: of a tokenizer, a licence, a model card. Repeatable."),
    ] = None,
    push_to: Annotated[
        str | None, typer.Option("--push-to", metavar="OWNER/NAME", help="Upload it to the Hugging Face Hub, too.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="With --push-to: of a repository that is made.")] = False,
    json: JsonFlag = False,
) -> None:
    """Write a model as a folder of model.safetensors and config.json, which other libraries load.

    Example: trajload checkpoints export runs/exp1/checkpoints exported pin:release-3 --extra tokenizer.json --extra LICENSE

    Exit codes: 0 written, 2 there is no such store, checkpoint or component, or the folder is there already.
    """
    import json as json_module
    from pathlib import Path

    from trajload.checkpoint.exporting import export as write
    from trajload.checkpoint.hub import upload
    from trajload.errors import ConfigError

    opened = _open(store)
    chosen = _pick(opened, commit)
    try:
        settings = None if config is None else json_module.loads(Path(config).read_text(encoding="utf-8"))
    except ValueError as err:
        raise ConfigError(f"config file {config!r} is no JSON: {err}.") from err
    written = write(
        opened.part(chosen, 0), folder, component=component, config=settings, prefix=prefix, extra=extra or ()
    )
    address = None if push_to is None else upload(folder, push_to, private=not public)
    if json:
        told = {"folder": str(folder), "component": component, "commit": _told(chosen, {}), "files": written.files}
        print_json({**told, "uploaded": address})
    else:
        say(f"wrote {component!r} of step {chosen.step} to {folder}: {', '.join(written.files)}, {size(written.bytes)}")
        if address is not None:
            say(f"uploaded: {address}")


def promote(
    store: StorePath,
    to: Annotated[str, typer.Argument(metavar="TO", help="Folder or URL of another store.", show_default=False)],
    commit: At = None,
    json: JsonFlag = False,
) -> None:
    """Copy a checkpoint to another store (a larger disk, an object store), checking every byte on the way.

    Example: trajload checkpoints promote runs/exp1/checkpoints /archive/exp1 12000

    Exit codes: 0 copied, 2 there is no such store or checkpoint, or it is damaged.
    """
    from trajload.checkpoint.opening import open as open_store

    opened = _open(store)
    copied = opened.promote(_pick(opened, commit), open_store(to, create=True, take_over=False))
    print_json(_told(copied, {})) if json else say(
        f"copied step {copied.step} to {to}: seq {copied.seq}, {copied.digest}"
    )


COMMANDS: dict[str, Callable[..., None]] = {
    "ls": ls,
    "verify": verify,
    "diff": diff,
    "pin": pin,
    "unpin": unpin,
    "exposed": exposed,
    "gc": gc,
    "export": export,
    "promote": promote,
}


def _open(store: str) -> Store:
    from trajload.checkpoint.opening import open as open_store

    opened: Store = open_store(store, create=False, take_over=False)
    return opened


def _pick(store: Store, at: str | None) -> Commit:
    """Return the commit that is meant; its record only is checked here."""
    return store.pick(int(at) if at is not None and at.isdigit() else at, verify="record")


def _pins(store: Store) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, commit in store.pins().items():
        found.setdefault(commit.digest, []).append(name)
    return found


def _told(commit: Commit, pins: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "seq": commit.seq,
        "step": commit.step,
        "digest": commit.digest,
        "time": commit.time,
        "world": commit.world,
        "bytes": commit.bytes,
        "written_bytes": commit.written_bytes,
        "durability": commit.durability,
        "parent": commit.parent,
        "pins": pins.get(commit.digest, []),
        "info": commit.info,
    }


def _rows(faults: list[Fault]) -> list[dict[str, Any]]:
    return [asdict(fault) for fault in faults]


def _say_faults(faults: list[Fault]) -> None:
    for fault in faults:
        say(f"- {fault}")


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{max(seconds, 0):.0f} s"
