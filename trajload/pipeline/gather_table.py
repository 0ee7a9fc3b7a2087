"""Where in memory the rows of low-dimensional streams stand: one table a source, filled as episodes are asked for.

Streams that fit a budget are read, decoded and checked once an episode, and kept; raw arrays beyond it are mapped from
their shards. Each array is checked against its checksum when its address is first looked up. What cannot be had, for
whatever reason, is left to the plain path, which knows how to say what is wrong.
"""

# Shapes: G rows to write, B rows of the batch, S streams, E episodes, N rows of an episode

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from trajload.decode import DecodeContext, decode_rows, plan_reads
from trajload.errors import ShardCorruptError
from trajload.machine import total_memory
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.gather_kernel import BAD, MISSING, UNKNOWN
from trajload.refs import ArrayTrack, ByteRange
from trajload.sources.base import Dataset
from trajload.sources.columns import LACKS, RAW, ArrayColumns
from trajload.storage.local import LocalStore, check_inside
from trajload.storage.locks import ForkLock
from trajload.storage.mapped import MappedFile
from trajload.types import Int64Array, NDArray

__all__ = ["GatherTable", "Gathered", "Memory", "ResidentBudget", "choose_gathered", "row_bytes"]

_MAX_RESIDENT_BYTES = 1 << 30
_MAX_COPIED_BYTES = 1 << 28
_MAX_INT = 2**62


@dataclass(frozen=True, slots=True)
class ResidentBudget:
    """Bytes of rows that may be kept in memory."""

    num_bytes: int
    """Of all streams."""
    copied_bytes: int
    """Of those among them that could be mapped instead, and then be shared by processes."""

    @classmethod
    def of_machine(cls, num_parts: int = 1) -> ResidentBudget:
        """Return what one of `num_parts` processes may keep: 1 GiB, a sixteenth of the memory that it may take at most,
        and a quarter of it for streams that could be mapped."""
        total = total_memory()
        num_bytes = _MAX_RESIDENT_BYTES if total is None else min(_MAX_RESIDENT_BYTES, total // 16)
        return cls(num_bytes // num_parts, min(_MAX_COPIED_BYTES, num_bytes // 4) // num_parts)

    def without(self, gathered: Gathered) -> ResidentBudget:
        """Return what a source leaves for the next one."""
        return ResidentBudget(self.num_bytes - gathered.resident_bytes, self.copied_bytes - gathered.copied_bytes)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Which streams of a source are gathered."""

    choices: tuple[StreamChoice, ...]
    resident: frozenset[str]
    """Keys of those that are kept in memory; the others are mapped."""
    resident_bytes: int
    """Of those, once every episode was met."""
    copied_bytes: int
    """Of them those that could be mapped."""


def choose_gathered(dataset: Dataset, choices: Sequence[StreamChoice], budget: ResidentBudget) -> Gathered:
    """Return the streams that can be gathered: stepwise signals only.

    The smallest are kept first, for as long as all their rows fit the budget; those that cannot be mapped before those
    that can, which are raw in local files.
    """
    low = [c for c in choices if not (c.spec.is_text or c.spec.is_picture) and c.spec.clock == "stepwise"]
    low = [c for c in low if not c.request.age and np.dtype(c.spec.dtype).isnative]
    raw = {c.key for c in low if _is_raw(dataset, c)}
    kept: set[str] = set()
    num_bytes = num_copied = 0
    for choice in sorted(low, key=lambda c: (c.key in raw, row_bytes(c))):
        size = row_bytes(choice) * dataset.num_steps
        copied = size if choice.key in raw else 0
        if num_bytes + size <= budget.num_bytes and num_copied + copied <= budget.copied_bytes:
            num_bytes, num_copied = num_bytes + size, num_copied + copied
            kept.add(choice.key)
    taken = tuple(c for c in low if c.key in kept or c.key in raw)
    return Gathered(taken, frozenset(kept), num_bytes, num_copied)


def row_bytes(choice: StreamChoice) -> int:
    """Return the bytes of one row of a signal."""
    return np.dtype(choice.spec.dtype).itemsize * math.prod(choice.spec.shape)


def _is_raw(dataset: Dataset, choice: StreamChoice) -> bool:
    return choice.spec.encoding == "npy" and isinstance(dataset.store, LocalStore)


class Memory:
    """Addresses, and what keeps them valid. Whoever copies from an address holds this object."""

    def __init__(self, num_streams: int, num_episodes: int) -> None:
        self.address_SE: Int64Array = np.zeros((num_streams, num_episodes), dtype=np.int64)
        """Of row 0, or UNKNOWN, MISSING, BAD."""
        self.clock_E3: Int64Array = np.zeros((num_episodes, 3), dtype=np.int64)
        """num, den and start_ns of uniform clocks; num 0 = not uniform, -1 = not looked at."""
        self.clock_E3[:, 0] = -1
        self.files: list[MappedFile] = []
        self.number_of: dict[str, int] = {}
        """Of each file in `files`."""
        self.file_E: NDArray = np.full(num_episodes, -1, dtype=np.int32)
        """Of the file in `files` that holds the mapped arrays of an episode; -1 where none is mapped."""
        self.kept: dict[int, NDArray] = {}
        """Stream → rows of all steps of all episodes, of resident streams; each is written when its episode is met."""
        self.columns: dict[tuple[int, int], ArrayColumns] = {}
        """By stream and first episode."""
        self.columns_SE: NDArray = np.zeros((num_streams, num_episodes), dtype=np.int32)
        """1 + first episode of the `columns` that hold an episode, 0 where they were not asked for."""


class GatherTable:
    """Addresses of one dataset's streams. Thread-safe; fit for a forked child.

    Args:
        dataset: Where episodes stand.
        gathered: What `choose_gathered` took.
        num_absent: Further streams, behind those, that no episode has.
        dilation: Of the window.
        read: Returns bytes of the dataset's files that will be kept, and counts them.
    """

    def __init__(
        self,
        dataset: Dataset,
        gathered: Gathered,
        num_absent: int,
        dilation: int,
        read: Callable[[ByteRange], bytes],
    ) -> None:
        self.dataset = dataset
        self._read = read
        self.choices = gathered.choices
        # Copies: the kernels are compiled for arrays that may be written.
        self.num_steps_E: Int64Array = np.array(dataset.num_steps_E, dtype=np.int64)
        self.terminated_E = np.array(dataset.terminated_E, dtype=np.int8)
        self._first_row_E = np.cumsum(self.num_steps_E) - self.num_steps_E
        self.resident_bytes = 0
        """Bytes of rows held now."""
        self._num_absent = num_absent
        self._longest = int(self.num_steps_E.max(initial=0)) + dilation
        self._is_raw = [_is_raw(dataset, choice) for choice in self.choices]
        self._is_kept = [choice.key in gathered.resident for choice in self.choices]
        self._lock = ForkLock()
        self._memory: Memory | None = None
        self._context = DecodeContext()

    @property
    def memory(self) -> Memory:
        """Return what is known so far; made anew after `clear`."""
        found = self._memory
        if found is None:
            with self._lock:
                found = self._memory
                if found is None:
                    found = Memory(len(self.choices) + self._num_absent, len(self.num_steps_E))
                    found.address_SE[len(self.choices) :] = MISSING
                    self._memory = found
        return found

    def is_mapped(self, choice: StreamChoice) -> bool:
        """Return whether a stream is taken from mapped files."""
        return not self._is_kept[self.choices.index(choice)]

    def clear(self) -> None:
        """Let go of mappings and decoded rows. What is still copying keeps its own."""
        with self._lock:
            self._memory = None
            self.resident_bytes = 0
            self._context.close()

    def fill(self, memory: Memory, episode_G: Int64Array) -> None:
        """Look up everything about these episodes that is not known yet."""
        with self._lock:
            for episode in np.unique(episode_G).tolist():
                if memory.clock_E3[episode, 0] < 0:
                    self._look_up_clock(memory, episode)
                for s in np.flatnonzero(memory.address_SE[:, episode] == UNKNOWN).tolist():
                    try:
                        address = self._look_up(memory, s, episode)
                    except Exception:
                        address = BAD  # the plain path meets it too, and says what and where
                    memory.address_SE[s, episode] = address

    def is_unchanged(self, memory: Memory, episode_G: Int64Array) -> bool:
        """Return whether the mapped files of these episodes are as they were when their arrays were checked."""
        if not memory.files:
            return True
        if len(memory.files) == 1:
            return memory.files[0].is_unchanged
        return all(memory.files[i].is_unchanged for i in np.unique(memory.file_E[episode_G]).tolist() if i >= 0)

    # ---- step clocks ----

    def _look_up_clock(self, memory: Memory, episode: int) -> None:
        try:
            found = self.dataset.clock_columns(episode)
        except Exception:
            found = None
        if found is None:
            memory.clock_E3[episode] = 0
            return
        part_R3 = memory.clock_E3[found.first_episode : found.first_episode + len(found.num_R)]
        # The compiled loop counts in int64; rates made from floats, with terms of 48 bits, are left to Python ints.
        is_small_R = (found.num_R < 2**32) & (found.den_R < _MAX_INT // self._longest)
        part_R3[:, 1], part_R3[:, 2] = found.den_R, found.start_ns_R
        part_R3[:, 0] = np.where(is_small_R, found.num_R, 0)

    # ---- addresses ----

    def _look_up(self, memory: Memory, s: int, episode: int) -> int:
        if self._is_raw[s]:
            columns = self._columns(memory, s, episode)
            if columns is not None:
                i = episode - columns.first_episode
                if columns.kind_R[i] == LACKS or (columns.kind_R[i] == RAW and columns.num_rows_R[i] == 0):
                    return MISSING
                if columns.kind_R[i] == RAW:
                    place = (columns.file, int(columns.offset_R[i]), int(columns.num_rows_R[i]))
                    return self._raw(memory, s, episode, *place, int(columns.checksum_R[i]))
        choice = self.choices[s]
        track = self.dataset.track(episode, choice.name)
        if track is None or track.num_rows == 0:
            return MISSING
        if track.num_rows < self.num_steps_E[episode]:
            return BAD
        if self._is_raw[s]:
            if not isinstance(track, ArrayTrack) or track.dtype != np.dtype(choice.spec.dtype):
                return BAD
            return self._raw(memory, s, episode, track.file, track.offset, track.num_rows, track.checksum)
        # Only rows that stand at steps can be asked for.
        rows_N = np.arange(int(self.num_steps_E[episode]), dtype=np.int64)
        out = self._room(memory, s, episode)
        store = self.dataset.store
        blobs = [self._read(where) for where in plan_reads(track, rows_N)]
        decode_rows(
            track, rows_N, blobs, out, spec=choice.spec, request=choice.request, store=store, context=self._context
        )
        self.resident_bytes += out.nbytes
        return int(out.ctypes.data)

    def _room(self, memory: Memory, s: int, episode: int) -> NDArray:
        """Return where a resident stream keeps the rows of an episode."""
        rows = memory.kept.get(s)
        if rows is None:
            # One piece for the whole stream: pages come as they are written, and neighbours share them.
            spec = self.choices[s].spec
            rows = memory.kept[s] = np.empty((int(self.num_steps_E.sum()), *spec.shape), dtype=spec.dtype)
        first = int(self._first_row_E[episode])
        return rows[first : first + int(self.num_steps_E[episode])]

    def _columns(self, memory: Memory, s: int, episode: int) -> ArrayColumns | None:
        first = int(memory.columns_SE[s, episode]) - 1
        if first >= 0:
            return memory.columns[s, first]
        found = self.dataset.array_columns(episode, self.choices[s].name)
        if found is not None:
            first = found.first_episode
            memory.columns[s, first] = found
            memory.columns_SE[s, first : first + len(found.kind_R)] = first + 1
        return found

    def _raw(
        self, memory: Memory, s: int, episode: int, file: str, offset: int, num_rows: int, checksum: int | None
    ) -> int:
        """Return the address of a raw array in its mapped file or in memory, once its bytes are known to be right."""
        where = ByteRange(file, offset, num_rows * row_bytes(self.choices[s]))
        # Before it is read: what is changed after this is noticed, since the file is no more what was mapped.
        mapped = None if self._is_kept[s] else self._mapped(memory, episode, where)
        # Read, not taken from the mapping: a file that was cut meanwhile is an error here, and a signal there.
        data = self._read(where) if mapped is None else self.dataset.store.read(where)
        if checksum is not None and xxhash.xxh3_64_intdigest(data) != checksum:
            raise ShardCorruptError(f"array at byte {offset} of {file!r} is damaged.")
        if mapped is not None:
            return mapped.address + offset
        out = self._room(memory, s, episode)
        out.reshape(-1)[:] = np.frombuffer(data, out.dtype, out.size)
        self.resident_bytes += out.nbytes
        return int(out.ctypes.data)

    def _mapped(self, memory: Memory, episode: int, where: ByteRange) -> MappedFile:
        """Return the mapping of the file that holds an array."""
        store, file = self.dataset.store, where.file
        assert isinstance(store, LocalStore)
        number = memory.number_of.get(file, -1)
        if number < 0:
            memory.files.append(MappedFile(Path(store.root, check_inside(file))))
            number = memory.number_of[file] = len(memory.files) - 1
        mapped = memory.files[number]
        if memory.file_E[episode] not in (-1, number):
            raise ShardCorruptError(f"arrays of one episode stand in {file!r} and another file.")
        memory.file_E[episode] = number
        if where.offset + where.size > mapped.num_bytes:
            raise ShardCorruptError(f"file {file!r} ends before the array at byte {where.offset} does.")
        return mapped
