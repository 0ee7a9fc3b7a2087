"""Names inside a dataset folder and inside a shard, and the codes the index uses for them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from trajload.errors import ConfigError
from trajload.spec import IMAGE_ENCODINGS, StreamSpec

__all__ = [
    "ENCODINGS",
    "INFO_EXTENSION",
    "ROLE_DATA",
    "ROLE_INFO",
    "ROLE_STEP_TIMES",
    "ROLE_TIMESTAMPS",
    "SHARD_FOLDER",
    "STEP_TIMES_EXTENSION",
    "check_episode_key",
    "check_streams",
    "data_member_name",
    "index_name",
    "shard_name",
    "shard_number",
    "timestamps_member_name",
]

SHARD_FOLDER = "shards"
INFO_EXTENSION = "trajload.json"
STEP_TIMES_EXTENSION = "trajload.step_times_ns.npy"
_TIMESTAMPS = "timestamps_ns"

ENCODINGS = ("npy", "npy.zst", "jpg", "png", "mp4", "mkv", "json", "txt")
"""What a shard may hold; the position is the code in the index. New ones go to the end."""

ROLE_INFO, ROLE_STEP_TIMES, ROLE_DATA, ROLE_TIMESTAMPS = range(4)
"""What a member of a shard is for, as the index codes it."""

_SHARD_NAME = re.compile(r"(\d{6,})\.(?:tar|idx)(?:\.tmp)?")
_BAD_KEY_CHARACTERS = re.compile(r"[./\\\x00-\x1f\x7f]")


def shard_name(number: int) -> str:
    """Return the name of shard `number`, relative to the dataset folder."""
    return f"{SHARD_FOLDER}/{number:06d}.tar"


def index_name(shard: str) -> str:
    """Return the name of the index of `shard`."""
    return shard.removesuffix(".tar") + ".idx"


def shard_number(file: str) -> int | None:
    """Return the number in the name of a shard, an index or an unfinished one, or None for other files."""
    match = _SHARD_NAME.fullmatch(file.rsplit("/", 1)[-1])
    return None if match is None else int(match[1])


def check_episode_key(key: str) -> str:
    """Return `key` if it can name an episode's members, else raise ConfigError.

    A dot would end the key for WebDataset readers, and they skip names that begin with two underscores.
    """
    if (
        not isinstance(key, str)
        or not key
        or key != key.strip()
        or key.startswith("__")
        or _BAD_KEY_CHARACTERS.search(key)
        or len(key.encode("utf-8", "replace")) > 200
        or not key.isprintable()
    ):
        raise ConfigError(
            f"key={key!r} cannot name an episode: expected 1 to 200 bytes of printable text without '.', '/', '\\', "
            "outer spaces or a leading '__'."
        )
    return key


def check_streams(streams: Sequence[StreamSpec]) -> tuple[StreamSpec, ...]:
    """Return `streams` if their names can stand side by side in a shard and their values be stored.

    Raises:
        ConfigError: No stream; two names equal but for case (WebDataset folds it); a name the format keeps for
            itself; an encoding that no shard holds, or that does not go with the dtype.
    """
    if isinstance(streams, StreamSpec) or not np.iterable(streams):
        raise ConfigError(f"streams={streams!r} is unusable: expected a list of StreamSpec values.")
    specs = tuple(streams)
    if not specs:
        raise ConfigError("streams=[] is empty: expected at least one StreamSpec.")
    seen: dict[str, str] = {}
    for spec in specs:
        if not isinstance(spec, StreamSpec):
            raise ConfigError(f"streams holds {spec!r}: expected StreamSpec values.")
        folded = spec.name.lower()
        if folded in seen:
            raise ConfigError(
                f"streams {seen[folded]!r} and {spec.name!r} are equal but for case: WebDataset readers fold case. "
                "Rename one."
            )
        seen[folded] = spec.name
        if folded == "trajload" or folded.startswith("trajload.") or folded.endswith("." + _TIMESTAMPS):
            raise ConfigError(f"stream name {spec.name!r} is kept for the format itself. Choose another name.")
        if spec.name.startswith(".") or spec.name.endswith(".") or ".." in spec.name or not spec.name.isprintable():
            raise ConfigError(
                f"stream name {spec.name!r} cannot name a member: expected printable text, dots only between words."
            )
        _check_storable(spec)
    return specs


def _check_storable(spec: StreamSpec) -> None:
    if spec.encoding not in ENCODINGS:
        raise ConfigError(
            f"encoding={spec.encoding!r} of stream {spec.name!r} cannot be stored in a shard: expected one of "
            f"{', '.join(map(repr, ENCODINGS))}."
        )
    is_text = spec.encoding in ("json", "txt")
    if is_text != spec.is_text:
        raise ConfigError(
            f"stream {spec.name!r} has dtype={spec.dtype!r} and encoding={spec.encoding!r}: expected dtype 'str' or "
            "'json' with encodings 'txt' and 'json', and a NumPy dtype with all others."
        )
    if is_text:
        return
    dtype = np.dtype(spec.dtype)
    if dtype.name != spec.dtype:
        raise ConfigError(
            f"stream {spec.name!r} has dtype={spec.dtype!r}: expected the plain name {dtype.name!r}; bytes are "
            "little-endian in every shard."
        )
    if spec.is_picture:
        allowed = {
            "jpg": ("uint8",),
            "png": ("uint8", "uint16"),
            "mp4": ("uint8", "uint16"),
            "mkv": ("uint8", "uint16"),
        }
        if dtype.name not in allowed[spec.encoding]:
            raise ConfigError(
                f"stream {spec.name!r} has dtype={spec.dtype!r}: expected one of {', '.join(allowed[spec.encoding])} "
                f"with encoding {spec.encoding!r}."
            )
        if spec.shape[2] not in (1, 3) or (dtype.name == "uint16" and spec.shape[2] != 1):
            raise ConfigError(
                f"stream {spec.name!r} has shape {spec.shape}: expected (H, W, 3), or (H, W, 1), which uint16 needs."
            )
    elif dtype.kind not in "biuf":
        raise ConfigError(f"stream {spec.name!r} has dtype={spec.dtype!r}: expected a bool, integer or float dtype.")
    if any(n < 1 for n in spec.shape):
        raise ConfigError(f"stream {spec.name!r} has shape {spec.shape}: expected sizes of at least 1.")


def data_member_name(key: str, stream: str, encoding: str, row: int | None = None) -> str:
    """Return the name of the member that holds `stream` of episode `key`; pictures have one for each row."""
    if encoding in IMAGE_ENCODINGS:
        return f"{key}.{stream}.{row:06d}.{encoding}"
    return f"{key}.{stream}.{encoding}"


def timestamps_member_name(key: str, stream: str) -> str:
    """Return the name of the member that holds the timestamps of a clocked stream."""
    return f"{key}.{stream}.{_TIMESTAMPS}.npy"
