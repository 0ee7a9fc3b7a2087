"""The file that says what store this is, and the folders a store consists of."""

from __future__ import annotations

import os
import time
from pathlib import Path

from trajload.checkpoint.catalog import scan
from trajload.checkpoint.disk import Disk, make_folders
from trajload.checkpoint.entries import Fault
from trajload.checkpoint.medium import Medium
from trajload.checkpoint.record import decode_record, encode_record
from trajload.errors import CheckpointCorruptError, CheckpointError, ConfigError

__all__ = [
    "FOLDERS",
    "STORE_FILE",
    "check_folders",
    "identify",
    "make_root",
    "repair_identity",
    "write_identity",
]

STORE_FILE = "STORE.json"
FOLDERS = ("commits", "gen", "pins")


def check_folders(root: Path) -> None:
    """Raise ConfigError where something that is no folder stands in the place of one."""
    for path in (root, *(root / name for name in FOLDERS)):
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{str(path)!r} is no folder: a checkpoint store needs it as one. Choose another path.")


def make_root(root: Path, disk: Disk) -> None:
    """Make the folders of a store as far as they are absent, each durable in the one above it; the probe sees to that, too."""
    for folder in (root, *(root / name for name in FOLDERS)):
        make_folders(folder, disk)


def identify(medium: Medium, *, create: bool) -> tuple[str, list[Fault]]:
    """Return the store's uuid, and what is wrong with the file that tells it.

    A store whose file is damaged is known by its newest record. `create` writes the file where it is absent.

    Raises:
        CheckpointError: There is no store, or it cannot be told which one this is.
        CheckpointMismatchError: It is of a newer format.
        OSError: The system refused.
    """
    try:
        return _read(medium), []
    except FileNotFoundError:
        fault = None
    except CheckpointCorruptError as err:
        fault = Fault(None, STORE_FILE, err.message)
    found = scan(medium, None)
    if found.commits:
        fault = fault or Fault(None, STORE_FILE, "it is missing.", "missing")
        return found.commits[-1].store, [fault]
    lost = [fault for fault in found.faults if fault.kind != "foreign"]
    if lost and create:
        # Under a new identity these records would be another store's for good, though they may be readable tomorrow.
        raise CheckpointError(
            f"{medium.name!r} has lost {STORE_FILE}, and none of its {len(lost)} records can be read to tell which "
            f"store it is: {lost[-1]} Repair the disk, or use another folder."
        )
    if not create:
        raise CheckpointError(
            f"no checkpoint store at {medium.name!r}: {fault.what if fault else 'it has no ' + STORE_FILE + '.'} "
            "Check the path; a store is made by the first run that saves there."
        )
    if fault is not None:  # nothing was ever committed, so a new identity harms nobody
        medium.remove(STORE_FILE)
    write_identity(medium, os.urandom(16).hex())
    return _read(medium), []


def write_identity(medium: Medium, uuid: str) -> None:
    """Write the file that tells the store's uuid; another process may have been first."""
    data, _ = encode_record("store", {"uuid": uuid, "created": time.time()})
    medium.publish(STORE_FILE, data, os.urandom(8).hex())


def repair_identity(medium: Medium, uuid: str, faults: list[Fault]) -> list[Fault]:
    """Write a file that is damaged or missing, as `faults` says, anew, under the writer lock; return what is left of them."""
    if faults:
        medium.remove(STORE_FILE)
        write_identity(medium, uuid)
    return []


def _read(medium: Medium) -> str:
    body, _ = decode_record(medium.read(STORE_FILE), "store")
    uuid = body.get("uuid")
    if not isinstance(uuid, str) or not uuid:
        raise CheckpointCorruptError(f"{STORE_FILE} names no store: uuid is {uuid!r}.")
    return uuid
