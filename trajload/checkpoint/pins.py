"""Commits with a name: retention leaves them, and people find them again."""

from __future__ import annotations

import contextlib
import re
import time

from trajload.checkpoint.catalog import Scan
from trajload.checkpoint.entries import Commit, Fault
from trajload.checkpoint.failures import reason
from trajload.checkpoint.medium import Medium
from trajload.checkpoint.record import decode_record, encode_record
from trajload.errors import CheckpointError, ConfigError

__all__ = ["PIN_LOCK", "check_name", "publish_pin", "read_pin_digests", "read_pins"]

PIN_LOCK = "pins/.lock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str) -> str:
    """Return a pin's name, or raise ConfigError."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None or name.endswith(".json"):
        raise ConfigError(
            f"pin name {name!r} is not usable: expected 1 to 100 letters, digits, '.', '_' or '-', not ending in '.json'."
        )
    return name


def read_pins(medium: Medium, found: Scan) -> tuple[dict[str, Commit], list[Fault]]:
    """Return pinned commits by name, and pins that cannot be read or whose commit is not there."""
    by_digest = {commit.digest: commit for commit in found.commits}
    pins: dict[str, Commit] = {}
    faults = []
    for file in medium.names("pins"):
        name = file[:-5]
        if not file.endswith(".json") or _NAME.fullmatch(name) is None:
            continue
        path = f"pins/{file}"
        try:
            body, _ = decode_record(medium.read(path), "pin")
            if body.get("name") != name:
                raise CheckpointError(f"the pin says it is {body.get('name')!r}: it was renamed.")
        except FileNotFoundError:
            continue  # unpinned since the folder was listed
        except OSError as err:
            faults.append(Fault(None, path, f"it cannot be read: {reason(err)}.", "unreadable"))
        except CheckpointError as err:
            faults.append(Fault(None, path, err.message, "unreadable"))
        else:
            commit = by_digest.get(body.get("digest"))  # type: ignore[arg-type]
            if commit is None:
                faults.append(Fault(body.get("seq"), path, f"commit {body.get('digest')!r} is not there.", "missing"))
            else:
                pins[name] = commit
    return pins, faults


def read_pin_digests(medium: Medium) -> set[object]:
    """Return the digests of all commits that are pinned, there or not."""
    found = set()
    for file in medium.names("pins"):
        with contextlib.suppress(OSError, CheckpointError):
            found.add(decode_record(medium.read(f"pins/{file}"), "pin")[0].get("digest"))
    return found


def publish_pin(medium: Medium, name: str, commit: Commit, nonce: str) -> None:
    """Give a commit a name, durably. Giving it the same name again is no error.

    Raises:
        ConfigError: The name is taken by another commit.
    """
    body = {
        "name": check_name(name),
        "seq": commit.seq,
        "step": commit.step,
        "digest": commit.digest,
        "time": time.time(),
    }
    data, _ = encode_record("pin", body)
    path = f"pins/{name}.json"
    if medium.publish(path, data, nonce):
        return
    try:
        held, _ = decode_record(medium.read(path), "pin")
    except CheckpointError as err:
        raise ConfigError(f"pin {name!r} exists and is damaged ({err.message}) Unpin it first.") from err
    if held.get("digest") != commit.digest:
        raise ConfigError(
            f"pin {name!r} is taken by step {held.get('step')!r} ({held.get('digest')!r}). Unpin it first, or take another name."
        )
