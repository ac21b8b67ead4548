"""Changelog: reading of changes of interests from files, with a reason for each rejected row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.planning.replanner import ACTIONS
from narrowcast.spark.stages.compile import json_of
from narrowcast.spark.streaming.subscription_update import REJECTED
from narrowcast.spark.streaming.timed_rows import (
    INSTANT,
    RowShape,
    future_reasons,
    latest_allowed,
    parse_integers,
    read_timed_rows,
    rejecting_unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from narrowcast.spark.streaming.timed_rows import TimedRows

_SHAPE = RowShape("changes", ("subscriber", "flow"), ("action",))
COLUMNS = _SHAPE.columns


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """A batch of changes.

    Parameters
    ----------
    rows
        `time`, `subscriber`, `flow` and `action`, in the order of the files.
    rejected
        Rejected rows: `table`, `reason`, `row`.
    """

    rows: pa.Table
    rejected: pa.Table


def read_changes(
    files: Iterable[tuple[str, str]], kinds: Mapping[str, pa.DataType | None], *, size: int
) -> Iterator[ChangeBatch]:
    r"""Read the changes in files, one file after the other, in batches.

    Names of columns ignore case. A time is a timestamp, its text, or a number of seconds since 1970; a time
    without a zone is in UTC. A file that is not a table is rejected as one row with its name.

    Parameters
    ----------
    files
        Name of each file in messages, and its local path. The ending gives the format: Parquet, CSV or JSON
        lines.
    kinds
        Type of the known labels of `subscriber` and of `flow`, or None if there are none. New labels then
        become integers if all labels of the first batch are integers in canonical form, else text.
    size
        Maximum rows of a batch.

    Raises
    ------
    TableError
        If a file does not exist or cannot be opened.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "1.csv")
    ...     _ = file.write_text("time,subscriber,flow,action\n9,ann,7,subscribe\n,bob,7,subscribe\n")
    ...     [piece] = read_changes([("1.csv", str(file))], {"subscriber": None, "flow": None}, size=100)
    >>> piece.rows["flow"].to_pylist(), piece.rejected["reason"].to_pylist()
    ([7], ['time is null'])
    """
    known, pending = dict(kinds), _PendingChanges()
    for name, path in files:
        with rejecting_unreadable(name, _SHAPE.name, pending.rejected):
            for some in read_timed_rows(path, _SHAPE, size):
                part = _PendingChanges.of(some)
                if pending.count and pending.count + part.count > size:
                    yield pending.typed(known)
                    pending.clear()
                pending.append(part)
    if pending.count or pending.rejected:
        yield pending.typed(known)


@dataclass(slots=True)
class _PendingChanges:
    """Parsed changes whose labels are still text."""

    columns: dict[str, list[pa.Array]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    whole: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(_SHAPE.labels, True))
    rejected: list[tuple[str, str]] = field(default_factory=list)
    count: int = 0

    def clear(self) -> None:
        """Remove all rows; the list of rejected rows stays the same object."""
        self.columns, self.count = {name: [] for name in COLUMNS}, 0
        self.rejected.clear()  # `rejecting_unreadable` appends to this list

    def append(self, other: _PendingChanges) -> None:
        """Append the rows of another batch."""
        for name in COLUMNS:
            self.columns[name] += other.columns[name]
        for name in _SHAPE.labels:
            self.whole[name] &= other.whole[name] or not other.count
        self.rejected += other.rejected
        self.count += other.count

    @classmethod
    def of(cls, some: TimedRows) -> _PendingChanges:
        """Separate valid rows from rejected ones."""
        action = some.columns["action"]
        wrong = pc.binary_join_element_wise(
            "action '", pc.utf8_slice_codeunits(action, 0, 60), f"' is neither {' nor '.join(ACTIONS)}", ""
        )
        odd = pc.invert(pc.is_in(action, value_set=pa.array(ACTIONS)))
        some = some.with_reasons(pc.if_else(odd, wrong, pa.scalar(None, pa.string())))
        some = some.with_reasons(future_reasons(some, latest_allowed()))
        fine = pc.is_null(some.bad)
        columns = {name: [some.columns[name].filter(fine)] for name in COLUMNS}
        return cls(columns, some.whole, list(some.rejected()), pc.sum(fine).as_py() or 0)

    def typed(self, known: dict[str, pa.DataType | None]) -> ChangeBatch:
        """Convert labels to their known types; set the types in `known` if there are none yet."""
        kinds = {"time": INSTANT}
        columns = {
            name: pa.chunked_array(self.columns[name], kinds.get(name, pa.string())).combine_chunks()
            for name in COLUMNS
        }
        fine = pa.array(np.ones(self.count, np.bool_))
        rejected = list(self.rejected)
        for name in _SHAPE.labels:
            if known[name] is None and self.count:
                known[name] = pa.int64() if self.whole[name] else pa.string()
            if known[name] is None or not pa.types.is_integer(known[name]):
                continue
            number = parse_integers(columns[name])
            for i in np.flatnonzero(np.asarray(pc.and_(fine, pc.is_null(number)))).tolist():
                reason = (
                    f"{name} '{columns[name][i].as_py()[:60]}' is not a 64-bit integer like the other labels"
                )
                rejected.append((reason, json_of({each: columns[each][i].as_py() for each in COLUMNS})))
            fine = pc.and_(fine, pc.is_valid(number))
            columns[name] = number
        texts = [["changes"] * len(rejected), *([pair[i] for pair in rejected] for i in range(2))]
        return ChangeBatch(pa.table(columns).filter(fine), pa.table(texts, schema=REJECTED))
