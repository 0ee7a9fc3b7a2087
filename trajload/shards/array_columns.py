"""Raw arrays of a whole shard out of its index, without making anything per episode."""

# Shapes: R episodes of the shard, K tracks, N tracks of one stream

from __future__ import annotations

import math

import numpy as np

from trajload.shards.index import ShardIndex
from trajload.shards.layout import ENCODINGS
from trajload.spec import StreamSpec
from trajload.types import BoolArray, Int64Array, UInt64Array

__all__ = ["raw_arrays", "uniform_clocks"]


def raw_arrays(index: ShardIndex, spec: StreamSpec) -> tuple[BoolArray, BoolArray, Int64Array, UInt64Array]:
    """Return (is_raw_R, is_absent_R, offset_R, checksum_R) of a stepwise stream.

    An episode that is neither has something that only its track can tell: another encoding, or damage.
    """
    num_steps_R = index.num_steps_E
    num_episodes = len(num_steps_R)
    is_raw_R = np.zeros(num_episodes, dtype=np.bool_)
    offset_R = np.zeros(num_episodes, dtype=np.int64)
    checksum_R = np.zeros(num_episodes, dtype=np.uint64)
    ends_R1, stream_K = index.column("episode.track_offset"), index.column("track.stream")
    if (np.diff(ends_R1) < 0).any() or ends_R1[0] != 0 or ends_R1[-1] != len(stream_K):
        return is_raw_R, np.zeros_like(is_raw_R), offset_R, checksum_R
    code = index.streams.get(spec.name, -1)
    # Backwards, so that of two tracks of one stream the first counts, as for one episode alone.
    track_N = np.flatnonzero(stream_K == code)[::-1]
    episode_N = np.searchsorted(ends_R1, track_N, side="right") - 1
    is_absent_R = np.ones(num_episodes, dtype=np.bool_)
    is_absent_R[episode_N] = False
    detail_N = index.column("track.detail")[track_N]
    num_rows_N = index.column("track.num_rows")[track_N]
    data_offset, checksum = index.column("npy.data_offset"), index.column("npy.checksum")
    is_good_N = (
        (index.column("track.encoding")[track_N] == ENCODINGS.index("npy"))
        & (num_rows_N == num_steps_R[episode_N])
        & (detail_N >= 0)
        & (detail_N < len(data_offset))
    )
    detail_N = np.where(is_good_N, detail_N, 0)
    if len(data_offset):
        # float64 is exact enough to find a range that leaves the shard, and cannot overflow
        row_bytes = float(np.dtype(spec.dtype).itemsize * math.prod(spec.shape))
        offset_N = data_offset[detail_N]
        is_good_N &= (offset_N >= 0) & (offset_N + num_rows_N * row_bytes <= float(index.shard_num_bytes))
        offset_R[episode_N], checksum_R[episode_N] = offset_N, checksum[detail_N]
    else:
        is_good_N[:] = False
    is_raw_R[episode_N] = is_good_N
    return is_raw_R, is_absent_R, offset_R, checksum_R


def uniform_clocks(index: ShardIndex) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return (num_R, den_R, start_ns_R) of the step clocks; num 0 where an episode's clock is not uniform."""
    num_R, den_R = index.column("episode.rate_num"), index.column("episode.rate_den")
    is_uniform_R = (num_R > 0) & (den_R > 0)
    # in lowest terms, as a Fraction has them
    factor_R = np.where(is_uniform_R, np.gcd(num_R, den_R), 1)
    return np.where(is_uniform_R, num_R // factor_R, 0), den_R // factor_R, np.array(index.column("episode.start_ns"))
