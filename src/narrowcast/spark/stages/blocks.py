"""Blocks of flows: what a worker scores in one go, with all that it must know of other blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from narrowcast.planning.baselines.simple import stable_hash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narrowcast.model.labels import Labels
    from narrowcast.model.relation import Positions


@dataclass(frozen=True, slots=True)
class FlowBlocks:
    """Which block each flow is in.

    Flows of one hash channel are in one block, so that a block knows who listens there, unless a channel
    is larger than a block: then it has several to itself.

    Parameters
    ----------
    channels
        How many hash channels there are.
    first, count
        For each group of hash channels the first of its blocks, and how many it has.
    """

    channels: int
    first: Positions
    count: Positions

    @classmethod
    def of_sizes(cls, sizes: Positions, channels: int, block_size: int) -> FlowBlocks:
        """Return blocks for groups of the given sizes: small groups share one, large ones have several.

        Examples
        --------
        >>> blocks = FlowBlocks.of_sizes(np.array([3, 12, 4, 5]), 4, 10)
        >>> blocks.first.tolist(), blocks.count.tolist()
        ([0, 1, 0, 3], [1, 2, 1, 1])
        """
        first, count = np.zeros_like(sizes), np.maximum(1, -(-sizes // block_size))
        n_blocks = shared = room = 0
        for group, size in enumerate(sizes.tolist()):
            if count[group] == 1 and size <= room:
                first[group] = shared
                room -= size
                continue
            first[group] = n_blocks
            n_blocks += int(count[group])
            if count[group] == 1:
                shared, room = int(first[group]), block_size - size
        return cls(channels, first, count)

    def place(self, flows: Labels) -> tuple[Positions, Positions]:
        """Return the block and the hash channel of each flow."""
        coded = flows.dictionary_encode()
        hashed = stable_hash(coded.dictionary)
        channel = (hashed % np.uint64(self.channels)).astype(np.int64)
        group = channel % len(self.first)
        # What is left of the hash when the channel is known spreads a large channel over its blocks.
        spread = (hashed // np.uint64(self.channels) % self.count[group].astype(np.uint64)).astype(np.int64)
        at = coded.indices.to_numpy()
        return (self.first[group] + spread)[at], channel[at]


def placed(batches: Iterator[pa.RecordBatch], blocks: FlowBlocks) -> Iterator[pa.RecordBatch]:
    """Yield rows with the block of their flow before them."""
    for batch in batches:
        block, _ = blocks.place(batch.column("flow"))
        columns, names = [pa.array(block), *batch.columns], ["block", *batch.schema.names]
        yield pa.RecordBatch.from_arrays(columns, names=names)


def members(batches: Iterator[pa.RecordBatch], blocks: FlowBlocks) -> Iterator[pa.RecordBatch]:
    """Yield who listens to which hash channel, of those channels that have several blocks."""
    for batch in batches:
        _, channel = blocks.place(batch.column("flow"))
        cut = np.flatnonzero(blocks.count[channel % len(blocks.count)] > 1)
        columns = [batch.column("subscriber").take(cut), pa.array(channel[cut])]
        yield pa.RecordBatch.from_arrays(columns, names=["subscriber", "channel"])


def copies(batches: Iterator[pa.RecordBatch], blocks: FlowBlocks) -> Iterator[pa.RecordBatch]:
    """Yield the listeners of hash channels once for each block of their channel."""
    for batch in batches:
        channel = batch.column("channel").to_numpy()
        group = channel % len(blocks.count)
        for copy in range(int(blocks.count[group].max(initial=0))):
            some = np.flatnonzero(blocks.count[group] > copy)
            block = pa.array(blocks.first[group[some]] + copy)
            columns = [block, batch.column("subscriber").take(some), pa.array(channel[some])]
            yield pa.RecordBatch.from_arrays(columns, names=["block", "subscriber", "channel"])
