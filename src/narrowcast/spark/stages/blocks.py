"""Blocks of flows, whose costs workers compute one block at a time, and listeners of the baseline `hash`.

A hash channel is a channel of the baseline `hash`. If its flows are in several blocks, a subscriber of a flow
in one block also listens when flows of other blocks are sent.
"""

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
    """The assignment of flows to blocks, by a hash of the flow.

    The flows of a hash channel (a channel of the baseline `hash`) share one block, so that the block has all
    of the channel's listeners. A channel larger than a block gets several blocks of its own.

    Parameters
    ----------
    channels
        Number of hash channels.
    first, count
        The first block and the number of blocks of each group of hash channels.
    """

    channels: int
    first: Positions
    count: Positions

    @classmethod
    def of_sizes(cls, sizes: Positions, channels: int, block_size: int) -> FlowBlocks:
        """Assign blocks to groups of hash channels with `sizes` flows and pairs: small ones share a block.

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
        # The part of the hash that does not select the channel spreads a large channel over its blocks.
        spread = (hashed // np.uint64(self.channels) % self.count[group].astype(np.uint64)).astype(np.int64)
        label = coded.indices.to_numpy()
        return (self.first[group] + spread)[label], channel[label]


def add_block(batches: Iterator[pa.RecordBatch], blocks: FlowBlocks) -> Iterator[pa.RecordBatch]:
    """Add a first column `block`: the number of the block of each row's flow."""
    for batch in batches:
        block, _ = blocks.place(batch.column("flow"))
        columns, names = [pa.array(block), *batch.columns], ["block", *batch.schema.names]
        yield pa.RecordBatch.from_arrays(columns, names=names)


def split_channel_listeners(
    batches: Iterator[pa.RecordBatch], blocks: FlowBlocks
) -> Iterator[pa.RecordBatch]:
    """Yield `subscriber` and `channel`: the listeners of hash channels that have several blocks."""
    for batch in batches:
        _, channel = blocks.place(batch.column("flow"))
        split = np.flatnonzero(blocks.count[channel % len(blocks.count)] > 1)
        columns = [batch.column("subscriber").take(split), pa.array(channel[split])]
        yield pa.RecordBatch.from_arrays(columns, names=["subscriber", "channel"])


def copy_to_blocks(batches: Iterator[pa.RecordBatch], blocks: FlowBlocks) -> Iterator[pa.RecordBatch]:
    """Yield each listener of a hash channel once for each block of that channel."""
    for batch in batches:
        channel = batch.column("channel").to_numpy()
        group = channel % len(blocks.count)
        for copy in range(int(blocks.count[group].max(initial=0))):
            some = np.flatnonzero(blocks.count[group] > copy)
            block = pa.array(blocks.first[group[some]] + copy)
            columns = [block, batch.column("subscriber").take(some), pa.array(channel[some])]
            yield pa.RecordBatch.from_arrays(columns, names=["block", "subscriber", "channel"])
