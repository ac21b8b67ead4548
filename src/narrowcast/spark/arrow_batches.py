"""Arrow batches of a worker, in tables that are large enough to be worth a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Rows of a table at least: what a pass costs, such as finding labels, it costs once per table.
CHUNK = 1 << 20


def chunks(batches: Iterator[pa.RecordBatch], size: int = CHUNK) -> Iterator[pa.Table]:
    """Yield the rows of many batches in tables of at least `size` rows, the last one excepted.

    Examples
    --------
    >>> batches = pa.table({"flow": range(5)}).to_batches(max_chunksize=1)
    >>> [table.num_rows for table in chunks(iter(batches), 2)]
    [2, 2, 1]
    """
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= size:
            yield pa.Table.from_batches(held)
            held, rows = [], 0
    if rows:
        yield pa.Table.from_batches(held)
