"""Blocks of pictures, decoded once and kept until their last window is delivered, in bounded memory.

The pool knows where each block is used next, as far ahead as the planner looked. What does not fit is evicted by
farthest next use, the best there is when the future is known, and decoded again later.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from typing import TypeAlias

from trajload.errors import TrajloadError
from trajload.pipeline.arena import Arena, aligned
from trajload.pipeline.block_plan import BlockPiece, BlockPlan
from trajload.pipeline.stats import StageStats

__all__ = ["Block", "BlockKey", "BlockPool", "State"]

BlockKey: TypeAlias = tuple[int, int, int, int]
"""(source, epoch, lane, block): one use of a block."""


class State(Enum):
    """Of a block; READING belongs to one thread, DECODING to those that have its pieces."""

    NEW = 0
    READING = 1
    READ = 2
    """Planned; its bytes are fetched, or will be by whoever decodes it."""
    DECODING = 3
    READY = 4
    FAILED = 5
    """Could not be planned, read or decoded: its rows are made the plain way, each by itself."""


@dataclass(slots=True, eq=False)
class Block:
    """One block of one lane, from the first sight of it to its last window."""

    key: BlockKey
    episode: int
    first_window_id: int
    num_windows: int
    uses: deque[int] = field(default_factory=deque)
    """Positions of rows that are planned and not yet written, rising."""
    is_last: bool = False
    """Whether the last of `uses` ends it."""
    last_use: int = -1
    """Last position ever planned."""
    state: State = State.NEW
    plan: BlockPlan | None = None
    offset: int = 0
    """Of its memory in the arena, where it has any."""
    pins: int = 0
    """Threads that copy from it right now."""
    num_decodes: int = 0
    to_decode: deque[BlockPiece] = field(default_factory=deque)
    """Pieces that no thread has yet. While DECODING."""
    num_decoding: int = 0
    """Pieces that threads have."""
    has_failed: bool = False
    """Whether a piece could not be decoded."""
    error: TrajloadError | None = None
    """What its rows raise, where that is not for them to find out."""

    @property
    def next_use(self) -> float:
        return self.uses[0] if self.uses else math.inf

    @property
    def part_left(self) -> float:
        """How much of it is not handed out for decoding: 1 for all."""
        if self.state in (State.READY, State.FAILED):
            return 0.0
        if self.state is not State.DECODING or self.plan is None:
            return 1.0
        return len(self.to_decode) / max(len(self.plan.pieces), 1)


class BlockPool:
    """All blocks in use or to come. Not thread-safe: the planner that owns it holds its lock.

    Args:
        num_bytes: Bound of the decoded pictures.
        stats: Counters.
        patience: Positions after which a block that was not heard of counts as given up.
        evicted: Told of each block that loses its memory while rows still want it.
    """

    def __init__(self, num_bytes: int, stats: StageStats, patience: int, evicted: Callable[[Block], None]) -> None:
        self.arena = Arena(num_bytes)
        self._evicted = evicted
        self.stats = stats
        self.patience = patience
        self.blocks: dict[BlockKey, Block] = {}
        self.coming: dict[BlockKey, Block] = {}
        """Blocks of which no row is written yet, decoded or not."""
        self.wanted: dict[BlockKey, Block] = {}
        """Blocks that are NEW or READ and have uses."""
        self._queues: dict[State, list[tuple[int, int, Block]]] = {State.NEW: [], State.READ: []}
        """Heaps of (next use, tie-breaker, block) of wanted blocks, and of some that no longer are."""
        self._num_queued = 0
        self.begun: deque[Block] = deque()
        """Blocks that are DECODING and have pieces left."""
        self.num_read = 0
        """Blocks whose bytes are held, waiting to be decoded."""

    def use(
        self, key: BlockKey, episode: int, first_window_id: int, num_windows: int, position: int, *, is_last: bool
    ) -> Block:
        """Note that the row at `position` takes a window of a block, and return the block. Positions rise."""
        block = self.blocks.get(key)
        if block is None:
            block = self.blocks[key] = self.coming[key] = Block(key, episode, first_window_id, num_windows)
        block.uses.append(position)
        if block.state in self._queues and key not in self.wanted:
            self._want(block)
        block.is_last, block.last_use = is_last, position
        return block

    def _want(self, block: Block) -> None:
        # As long as a block is wanted no row of it is written, so its next use stays what it is.
        self.wanted[block.key] = block
        self._num_queued += 1
        heappush(self._queues[block.state], (block.uses[0], self._num_queued, block))

    def first_wanted(self, state: State) -> Block | None:
        """Return the wanted block in that state that is used first."""
        queue = self._queues[state]
        while queue:
            use, _, block = queue[0]
            if block.state is state and block.next_use == use and self.wanted.get(block.key) is block:
                return block
            heappop(queue)
        return None

    def used(self, block: Block, position: int) -> None:
        """Note that a row is written. A block that ended is forgotten with its last row."""
        block.uses.remove(position)
        self.coming.pop(block.key, None)
        if not block.uses and block.is_last:
            self._release(block)
            del self.blocks[block.key]

    # ---- memory ----

    def make_room(self, block: Block, position: int, *, is_urgent: bool) -> bool:
        """Find memory for a block to be decoded; return whether there is.

        An urgent one evicts what is used later than itself. Work ahead of time evicts only what was given up: whatever is in
        use comes within a few train_steps, and would have to be decoded again.
        """
        assert block.plan is not None
        offset = self.arena.take(block.plan.num_bytes)
        while offset is None:
            victim = self._farthest(block.next_use, position, is_urgent)
            if victim is None:
                return False
            self._evict(victim, position)
            offset = self.arena.take(block.plan.num_bytes)
        block.offset = offset
        self.stats.level("pool", self.arena.used_bytes)
        return True

    def _farthest(self, next_use: float, position: int, is_urgent: bool) -> Block | None:
        best: Block | None = None
        for block in self.blocks.values():
            if block.state is not State.READY or block.pins or block.next_use <= next_use:
                continue
            if not is_urgent and (block.uses or not self._is_given_up(block, position)):
                continue
            if best is None or block.next_use > best.next_use:
                best = block
        return best

    def _is_given_up(self, block: Block, position: int) -> bool:
        # A change of a mixture's weights cuts uses off without an end.
        return position - block.last_use > self.patience

    def _evict(self, block: Block, position: int) -> None:
        self._release(block)
        block.state = State.READ
        self.stats.count(blocks_evicted=1)
        if block.uses:
            self._want(block)
            self._evicted(block)
        elif self._is_given_up(block, position):
            del self.blocks[block.key]
            self.coming.pop(block.key, None)

    def _release(self, block: Block) -> None:
        if block.state in (State.READY, State.DECODING):
            assert block.plan is not None
            self.arena.give(block.offset, block.plan.num_bytes)
            self.stats.level("pool", self.arena.used_bytes)

    # ---- what becomes of a block ----

    def begin(self, block: Block, state: State) -> None:
        """Hand a wanted block to a thread: READING, or DECODING once there is room."""
        if block.state is State.READ and self._holds_bytes(block):
            self.num_read -= 1
        block.state = state
        self.wanted.pop(block.key, None)
        if state is State.DECODING and block.plan is not None:
            block.to_decode.extend(block.plan.pieces)
            block.has_failed = False
            self.begun.append(block)

    def take_pieces(self, block: Block) -> list[BlockPiece]:
        """Hand out the next piece of a block that is DECODING; all that are left where its bytes are still to be read.

        Bytes that were dropped are read again by the thread that needs them, which must then be one.
        """
        num = 1 if self._holds_bytes(block) else len(block.to_decode)
        pieces = [block.to_decode.popleft() for _ in range(min(num, len(block.to_decode)))]
        block.num_decoding += 1
        if not block.to_decode:
            self.begun.remove(block)
        return pieces

    def pieces_done(self, block: Block, *, has_failed: bool) -> State | None:
        """Take pieces back from a thread; return what becomes of the block, None while others are at work on it."""
        block.num_decoding -= 1
        block.has_failed |= has_failed
        if block.has_failed and block.to_decode:
            block.to_decode.clear()
            self.begun.remove(block)
        if block.num_decoding or block.to_decode:
            return None
        return State.FAILED if block.has_failed else State.READY

    def end(self, block: Block, state: State) -> None:
        """Take a block back from a thread: READ, READY or FAILED."""
        if state is State.FAILED:
            self._release(block)
        block.state = state
        if state is State.READ:
            self._want(block)
            self.num_read += self._holds_bytes(block)
        elif block.plan is not None:
            block.plan.drop_bytes()
        if state is State.READY:
            block.num_decodes += 1
            self.stats.count(blocks_decoded=1, blocks_decoded_again=int(block.num_decodes > 1))

    def too_large(self, block: Block) -> int:
        """Return how many bytes a planned block needs, if that is more than the whole pool, else 0."""
        assert block.plan is not None
        needed = aligned(block.plan.num_bytes)
        return needed if needed > self.arena.num_bytes else 0

    def close(self) -> None:
        """Give all memory back."""
        self.blocks.clear()
        self.wanted.clear()
        self.coming.clear()
        self.begun.clear()
        self._queues = {State.NEW: [], State.READ: []}
        self.arena = Arena(0)
        self.stats.level("pool", 0)

    @staticmethod
    def _holds_bytes(block: Block) -> bool:
        return block.plan is not None and any(stream.blobs is not None for stream in block.plan.streams)
