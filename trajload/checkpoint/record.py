"""The form of every small file of a store: canonical JSON that carries its own digest.

A record is `<json>\\n<digest of the json>\\n`, whatever its kind and version, so that a torn, cut or flipped one is told
from one that a newer version wrote. Keys are sorted, no spaces, ASCII only; numbers that JSON lacks are objects
`{"~float": "nan"}`, since a metric that went to infinity must not keep a checkpoint from being written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from trajload.checkpoint.digests import digest_bytes
from trajload.errors import CheckpointCorruptError, CheckpointMismatchError, ConfigError

__all__ = ["MAX_RECORD_BYTES", "VERSION", "decode_record", "encode_record", "plain"]

VERSION = 1
"""Major version of the format. A reader refuses a greater one."""

MAX_RECORD_BYTES = 64 << 20
"""A larger file is no record; it is not read."""

_FLOAT = "~float"
_ALGORITHM = "sha256"
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def plain(value: Any, where: str = "info") -> Any:
    """Return `value` as JSON values, of which `decode_record` gives equal ones back (tuples become lists).

    Raises:
        ConfigError: Something in it is no JSON value; the message says where.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: str(float(value))}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _FLOAT:
                raise ConfigError(f"key {key!r} of {where} cannot be recorded: expected text other than {_FLOAT!r}.")
        return {str(key): plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise ConfigError(
        f"{where} is a {type(value).__name__}, which cannot be recorded: expected None, bool, int, float, text, list or dict."
    )


def encode_record(kind: str, body: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the bytes of a record and the digest of its JSON. The same body gives the same bytes.

    Raises:
        ConfigError: The body holds what is no JSON value, or is too large.
    """
    try:
        ready = plain({**body, "v": VERSION, "kind": kind}, kind)
        text = json.dumps(ready, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except RecursionError:
        raise ConfigError(f"the {kind} is nested too deeply to be recorded, or holds itself.") from None
    except ValueError as err:
        if isinstance(err, ConfigError):
            raise
        raise ConfigError(f"the {kind} cannot be recorded: {err}.") from err
    digest = digest_bytes(text, _ALGORITHM)
    data = b"%b\n%b\n" % (text, digest.encode("ascii"))
    if len(data) > MAX_RECORD_BYTES:
        raise ConfigError(
            f"the {kind} takes {len(data)} bytes, expected at most {MAX_RECORD_BYTES}. Put large state into files of a part."
        )
    return data, digest


def decode_record(data: bytes, kind: str) -> tuple[dict[str, Any], str]:
    """Return body and digest of a record.

    Raises:
        CheckpointCorruptError: It is torn, altered, of another kind, or no record at all.
        CheckpointMismatchError: It is whole, and of a newer major version.
    """
    text, newline, rest = data.rpartition(b"\n")[0].partition(b"\n")
    if not newline or not data.endswith(b"\n"):
        raise CheckpointCorruptError(f"the {kind} is torn: got {len(data)} bytes without a digest at their end.")
    digest = digest_bytes(text, _ALGORITHM)
    if rest != digest.encode("ascii"):
        raise CheckpointCorruptError(f"the {kind} is damaged: its digest is {digest}, and it says {rest[:80]!r}.")
    try:
        body = _restored(json.loads(text))
    except (ValueError, RecursionError) as err:
        raise CheckpointCorruptError(f"the {kind} is no JSON: {type(err).__name__}.") from err
    version = body.get("v") if isinstance(body, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CheckpointCorruptError(f"the {kind} has version {version!r}: expected an integer of at least 1.")
    if version > VERSION:
        raise CheckpointMismatchError(
            f"the {kind} has format version {version}, and this trajload reads up to {VERSION}. Upgrade trajload."
        )
    if body.get("kind") != kind:
        raise CheckpointCorruptError(
            f"the record is a {body.get('kind')!r}: expected a {kind!r}. It was moved or renamed."
        )
    return body, digest


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and _FLOAT in value:
            return _FLOATS.get(str(value[_FLOAT]), value)
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return value
