"""From bytes to rows: video, images, arrays and text, each addressed by a track of `trajload.refs`.

    ranges = plan_reads(track, rows)                    # pure: which bytes
    blobs = [store.read(r) for r in ranges]             # whoever reads, reads them in order
    decode_rows(track, rows, blobs, out, spec=..., request=..., store=store, context=context)

`row_shape` says how one row of `out` looks. A `DecodeContext` keeps what is dear to make (open decoders, resize
weights, scratch memory) and belongs to one thread. `read_text` is the same path for language and JSON.
"""

from __future__ import annotations

from trajload.decode.context import DecodeContext
from trajload.decode.plan import plan_reads
from trajload.decode.rows import decode_rows, read_text, row_shape

__all__ = ["DecodeContext", "decode_rows", "plan_reads", "read_text", "row_shape"]
