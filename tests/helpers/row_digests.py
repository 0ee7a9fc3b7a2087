"""One digest per row of a batch, by which tests compare what ranks and lives were given."""

from __future__ import annotations

import json

import xxhash

import trajload as tl

__all__ = ["row_digests"]


def row_digests(batch: tl.Batch) -> list[str]:
    """Return one digest per row over every key, so that the rows of several ranks can be laid side by side."""
    out = []
    for b in range(len(batch["window_id"])):
        hasher = xxhash.xxh3_64()
        for key in sorted(batch):
            value = batch[key]
            text = json.dumps(value[b]).encode() if isinstance(value, list) else value[b].contiguous().numpy().tobytes()
            hasher.update(key.encode() + text)
        out.append(hasher.hexdigest())
    return out
