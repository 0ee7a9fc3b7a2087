"""Damage done to files of a dataset or a store: a flipped bit, and a manifest that vouches for what was changed."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import xxhash

from trajload.manifest import canonical_json, sha256_hex

__all__ = ["flip", "flip_in_member", "seal", "seal_index"]


def flip(path: Path, at: int) -> None:
    """Flip the lowest bit of the byte at `at`; below 0 it counts from the end of the file."""
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def flip_in_member(folder: Path, prefix: str, *, last: bool = False) -> None:
    """Flip a bit in the middle of a member of a dataset's first shard, or in its last byte.

    Args:
        folder: Of a native dataset.
        prefix: The member's name begins with it.
        last: Of an array the last byte is data; the middle of a video is packets, its ends are the container's tables.
    """
    shard = folder / "shards" / "000000.tar"
    with tarfile.open(shard) as tar:
        member = next(m for m in tar if Path(m.name).name.startswith(prefix))
    flip(shard, member.offset_data + (member.size - 1 if last else member.size // 2))


def seal(folder: Path, manifest: dict[str, Any]) -> None:
    """Write `manifest` with the digest that fits its content, as a hostile or faulty writer could."""
    body = {key: value for key, value in manifest.items() if key != "digest"}
    (folder / "manifest.json").write_text(json.dumps({**body, "digest": sha256_hex(canonical_json(body))}))


def seal_index(folder: Path, data: bytes) -> None:
    """Put `data` in place of the first index, and make the manifest vouch for it."""
    (folder / "shards" / "000000.idx").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][0]["index"] |= {
        "num_bytes": len(data),
        "sha256": sha256_hex(data),
        "header_xxh3_64": f"{xxhash.xxh3_64_intdigest(data[: 8 + int.from_bytes(data[:8], 'little')]):016x}",
    }
    seal(folder, manifest)
