"""Reads and writes `manifest.json`."""

from __future__ import annotations

import json
from pathlib import Path

from trajload.errors import ManifestError, at
from trajload.manifest.model import Manifest
from trajload.storage.atomic import write_atomic
from trajload.storage.lfs import LFS_ADVICE, is_lfs_pointer
from trajload.storage.regular import open_regular
from trajload.types import PathLikeStr

__all__ = ["MANIFEST_NAME", "read_manifest", "write_manifest"]

MANIFEST_NAME = "manifest.json"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def read_manifest(folder: PathLikeStr) -> Manifest:
    """Return the manifest of the dataset in `folder`, checked.

    Raises:
        ManifestError: The file is absent, a Git LFS pointer, not JSON, or does not describe a dataset.
    """
    path = Path(folder, MANIFEST_NAME)
    with at(dataset=str(folder)):
        try:
            with open_regular(path) as handle:
                data = handle.read()
        except OSError as err:
            raise ManifestError(
                f"file {str(path)!r} cannot be read: {err.strerror}. A dataset without it was never finished; "
                "write it again, or restore the file."
            ) from err
        if is_lfs_pointer(data):
            raise ManifestError(f"file {str(path)!r} {LFS_ADVICE}.")
        try:
            obj = json.loads(data, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as err:
            raise ManifestError(f"file {str(path)!r} is not JSON: {err}. Restore it from its source.") from err
        return Manifest.from_json(obj)


def write_manifest(folder: PathLikeStr, manifest: Manifest) -> None:
    """Write `manifest.json` of `folder` in one step: a kill leaves the old manifest or the new one."""
    text = json.dumps(manifest.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(Path(folder, MANIFEST_NAME), text.encode("utf-8") + b"\n")
