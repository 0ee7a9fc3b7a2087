"""The pieces of work that `BlockUnits` hands out: read a block, decode a block, copy rows of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajload.decode import DecodeContext
from trajload.pipeline.block_plan import BlockPiece
from trajload.pipeline.block_pool import Block
from trajload.pipeline.job import Job

if TYPE_CHECKING:
    from trajload.pipeline.block_units import BlockUnits

__all__ = ["CopyingUnit", "DecodingUnit", "ReadingUnit"]


class ReadingUnit:
    """Plan a block and fetch its bytes, by whichever thread comes first."""

    jobs, row, num_parts, has_reads = (), 0, 0, True

    def __init__(self, planner: BlockUnits, block: Block) -> None:
        self._planner, self._block = planner, block

    def read(self) -> None:
        self._planner.read_block(self._block)

    def run(self, context: DecodeContext) -> None:
        self._planner.read_block(self._block)


class DecodingUnit:
    """Decode pieces of a block."""

    jobs, row, num_parts, has_reads = (), 0, 0, True

    def __init__(self, planner: BlockUnits, block: Block, pieces: list[BlockPiece]) -> None:
        self._planner, self._block, self.pieces = planner, block, pieces

    def read(self) -> None:
        raise NotImplementedError("blocks are read by units of their own")

    def run(self, context: DecodeContext) -> None:
        self._planner.decode_block(self._block, self.pieces, context)


class CopyingUnit:
    """Write some rows of a batch."""

    has_reads = False

    def __init__(
        self, planner: BlockUnits, job: Job, rows: list[int], blocks: list[Block | None], is_gathered: bool
    ) -> None:
        self.jobs = (job,)
        self._is_gathered = is_gathered
        self.row = rows[0]
        self.num_parts = len(rows)
        self._planner, self._rows, self._blocks = planner, rows, blocks

    def read(self) -> None:
        raise NotImplementedError("rows are read where they are written")

    def run(self, context: DecodeContext) -> None:
        errors = self._planner.write_rows(self.jobs[0], self._rows, self._blocks, self._is_gathered, context)
        if errors:
            self.row, err = min(errors, key=lambda pair: pair[0])
            raise err
