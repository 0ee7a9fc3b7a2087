"""The decode limit: codec threads alone, no loader. Measured by `benchmarks/decode_limit.py`, called from here.

That script provides `windows_per_s(workload, data, seconds, workers) -> float`: how many random windows a second the
decoders alone could serve. It delivers no batches, so nothing is checked and nothing else is measured.
"""

from __future__ import annotations

import decode_limit

from rivals.request import Request


def measure(request: Request) -> dict[str, float]:
    """Return the one figure there is."""
    return {
        "windows_per_s": float(
            decode_limit.windows_per_s(request.workload, request.data, request.seconds, request.workers)
        )
    }
