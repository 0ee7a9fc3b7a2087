"""`tl.open`: one way to open every dataset layout, told apart by what the folder holds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Literal

from trajload.arguments import explains_calls
from trajload.checks import check_choice
from trajload.errors import ConfigError, SourceError
from trajload.sources.base import Dataset
from trajload.types import PathLikeStr

__all__ = ["open"]

_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")


@explains_calls
def open(
    path_or_url: PathLikeStr,
    *,
    name: str | None = None,
    cache_dir: PathLikeStr | None = None,
    missing: Literal["error", "skip"] = "error",
) -> Dataset:
    """Return the dataset at `path_or_url`, opened for reading where it is.

    A folder with `manifest.json` is a native dataset; one with `meta/info.json` a LeRobot dataset (v2.0, v2.1, v3.0).

    Args:
        path_or_url: Folder of the dataset; `~` and relative paths are resolved now.
        name: Name in batches, errors and mixtures; by default what the dataset calls itself.
        cache_dir: Where packet tables of foreign videos are kept between runs; a folder of the user's cache by default.
        missing: LeRobot only. "error": a dataset whose metadata list files that are absent is refused. "skip": episodes
            without a data file are left out, cameras without a video file are missing in that episode; both are noted in
            `dataset.notes`.

    Raises:
        ConfigError: No such folder, or a layout that is not known; the message lists what was looked for and found.
        SourceError, ManifestError, ShardNotFoundError: The dataset is recognised but damaged.
        MissingDependencyError: The layout needs an extra that is not installed.

    Example:
        >>> dataset = open("~/data/pusht")                                       # doctest: +SKIP
        >>> dataset.num_episodes, list(dataset.streams)                          # doctest: +SKIP
    """
    try:
        text = os.fspath(path_or_url)
    except TypeError:
        several = isinstance(path_or_url, Iterable)
        hint = " Several datasets are a tl.Mixture({name: (dataset, weight)})." if several else ""
        raise ConfigError(f"path {path_or_url!r} is unusable: expected the path of a dataset folder.{hint}") from None
    check_choice("missing", missing, ("error", "skip"))
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigError(f"name={name!r} is unusable: expected text, or None for what the dataset calls itself.")
    if cache_dir is not None and not (isinstance(cache_dir, (str, os.PathLike)) and os.fspath(cache_dir)):
        raise ConfigError(
            f"cache_dir={cache_dir!r} is unusable: expected a folder, or None for one of the user's cache."
        )
    if isinstance(text, bytes) or not text:
        raise ConfigError(f"path {path_or_url!r} is unusable: expected the path of a dataset folder.")
    url = _URL.match(text)
    if url and url.group(1).lower() != "file":
        raise ConfigError(
            f"{text!r} is a {url.group(1)}:// address: expected a local folder. Download the dataset first."
        )
    try:
        path = Path(text[7:] if url else text).expanduser().absolute()
        is_there = path.exists()
    except RuntimeError as err:
        raise ConfigError(f"path {text!r} is unusable: {err} Write the folder out in place of '~'.") from None
    except OSError as err:
        raise ConfigError(f"dataset folder {text!r} cannot be looked at: {err.strerror}.") from None
    if not is_there:
        raise ConfigError(f"dataset folder {str(path)!r} does not exist{_near(path)}.{_hub_hint(text)}")
    if not path.is_dir():
        raise ConfigError(f"{str(path)!r} is a file, expected a dataset folder.{_file_hint(path)}")
    from trajload.sources.native import is_native, open_native

    if is_native(path):
        dataset = open_native(path)
        if name is not None:
            dataset.name = name
        return dataset
    if (path / "meta" / "info.json").is_file():
        from trajload.sources.lerobot import LeRobotSource

        return LeRobotSource(path, name=name, cache_dir=cache_dir, missing=missing)
    raise _unknown(path)


def _unknown(path: Path) -> ConfigError | SourceError:
    """Return the error for a folder of no known layout, saying what is there instead."""
    looked = "looked for manifest.json (native) and meta/info.json (LeRobot v2.0, v2.1, v3.0)"
    try:
        found = sorted(p.name + ("/" if p.is_dir() else "") for p in path.iterdir())
    except OSError as err:
        return ConfigError(f"dataset folder {str(path)!r} cannot be listed: {err.strerror}.")
    if not found:
        return ConfigError(f"dataset folder {str(path)!r} is empty: {looked}. Was the download finished?")
    if "meta_data/" in found or ("meta/" not in found and "train/" in found and "videos/" in found):
        return SourceError(
            f"{str(path)!r} looks like a LeRobot v1 dataset, which is not supported in place yet: {looked}. "
            "Convert it to v2.1 or v3.0 with LeRobot's scripts."
        )
    hint = " That manifest.json is not trajload's." if "manifest.json" in found else ""
    inner = [n for n in found if n.endswith("/") and _is_dataset(path / n)]
    if inner:
        hint += f" Did you mean {str(path / inner[0])!r}?"
    elif path.name in ("meta", "data", "videos") and _is_dataset(path.parent):
        hint = f" Did you mean {str(path.parent)!r}?"
    elif foreign := _foreign(path):
        hint += (
            f" {foreign} are not read in place: write their episodes once with tl.Writer ('Bring your data' shows how)."
        )
    more = f", and {len(found) - 8} more" if len(found) > 8 else ""
    return ConfigError(
        f"{str(path)!r} is no dataset of a known layout: {looked}; found {', '.join(found[:8])}{more}.{hint}"
    )


_FOREIGN = {
    ".tar": "Tar files without a manifest",
    ".tgz": "Tar files without a manifest",
    ".hdf5": "HDF5 files",
    ".h5": "HDF5 files",
    ".tfrecord": "TFRecord files (RLDS)",
    ".zarr": "Zarr stores",
    ".mcap": "MCAP files",
    ".mds": "MDS shards",
    ".npz": "npz files",
}
"""What people keep trajectories in besides, by the ending; of TFRecords `.tfrecord-00000-of-00128`, too."""
_MOST_LOOKED_AT = 1000


def _foreign(path: Path) -> str:
    """Return which other layout a folder holds, three levels deep; '' if none of those known."""
    levels = (p for depth in range(1, 4) for p in path.glob("/".join("*" * depth)))
    for entry in islice(levels, _MOST_LOOKED_AT):
        for ending in entry.suffixes:
            if found := _FOREIGN.get(ending.split("-")[0]):
                return found
    return ""


def _hub_hint(text: str) -> str:
    """Return what to do with 'owner/name', which elsewhere names a dataset of a hub."""
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", text) is None:
        return ""
    return (
        " If this is a name on the Hugging Face Hub: nothing is downloaded here. Run 'hf download --repo-type dataset "
        f"{text} --local-dir FOLDER' first, and open FOLDER."
    )


def _is_dataset(path: Path) -> bool:
    return (path / "manifest.json").is_file() or (path / "meta" / "info.json").is_file()


def _file_hint(path: Path) -> str:
    if path.suffix in (".tar", ".tgz") or path.name.endswith(".tar.gz"):
        return " A single tar is no dataset by itself: open the folder with the manifest.json that lists it."
    if path.name == "manifest.json" or (path.name == "info.json" and path.parent.name == "meta"):
        folder = path.parent if path.name == "manifest.json" else path.parent.parent
        return f" Did you mean {str(folder)!r}?"
    return ""


def _near(path: Path) -> str:
    """Return where a path stops existing, which finds most typing errors."""
    for parent in path.parents:
        if parent.is_dir():
            return f": {str(parent)!r} exists and does not hold {path.relative_to(parent).parts[0]!r}"
    return ""
