"""Arrow batches of a worker, merged into tables large enough to process efficiently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Minimum rows of a merged table: fixed costs, such as finding labels, occur once per table.
CHUNK = 1 << 20


def chunks(batches: Iterator[pa.RecordBatch], size: int = CHUNK) -> Iterator[pa.Table]:
    """Merge batches into tables of at least `size` rows; only the last table may be smaller.

    Examples
    --------
    >>> batches = pa.table({"flow": range(5)}).to_batches(max_chunksize=1)
    >>> [table.num_rows for table in chunks(iter(batches), 2)]
    [2, 2, 1]
    """
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        if rows >= size:
            yield pa.Table.from_batches(pending)
            pending, rows = [], 0
    if rows:
        yield pa.Table.from_batches(pending)
