"""Files of changes as they arrive: who wants what from when on, and the rows that do not say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.planning.replanner import ACTIONS
from narrowcast.spark.stages.compile import json_of
from narrowcast.spark.streaming.entries import (
    MOMENT,
    Shape,
    last_of,
    opened,
    read_entries,
    to_come,
    whole_numbers,
)
from narrowcast.spark.streaming.subscription_update import REJECTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from narrowcast.spark.streaming.entries import Entries

_SHAPE = Shape("changes", ("subscriber", "flow"), ("action",))
COLUMNS = _SHAPE.columns


@dataclass(frozen=True, slots=True)
class Piece:
    """Some changes that arrived.

    Parameters
    ----------
    rows
        `time`, `subscriber`, `flow` and `action`, in the order in which they arrived.
    rejected
        Rows that cannot be used: `table`, `reason`, `row`.
    """

    rows: pa.Table
    rejected: pa.Table


def pieces(
    files: Iterable[tuple[str, str]], kinds: Mapping[str, pa.DataType | None], *, size: int
) -> Iterator[Piece]:
    r"""Yield the changes in files, one after the other, so many rows at once.

    Names of columns ignore case. A time is a timestamp, its text, or a number of seconds from 1970; one
    without a zone is in UTC. What cannot be read as a table at all is set aside as one row, with its name.

    Parameters
    ----------
    files
        What to call each, and where it is on this machine: Parquet, CSV or JSON lines, as its ending says.
    kinds
        The type of each kind of label, `subscriber` and `flow`, as the others are that are known; None where
        none is. Then they are integers if all of the first piece are written so, and else text.
    size
        The most rows of a piece.

    Raises
    ------
    TableError
        When a file is gone or cannot be opened.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "1.csv")
    ...     _ = file.write_text("time,subscriber,flow,action\n9,ann,7,subscribe\n,bob,7,subscribe\n")
    ...     [piece] = pieces([("1.csv", str(file))], {"subscriber": None, "flow": None}, size=100)
    >>> piece.rows["flow"].to_pylist(), piece.rejected["reason"].to_pylist()
    ([7], ['time is null'])
    """
    known, held = dict(kinds), _Held()
    for shown, path in files:
        with opened(shown, _SHAPE.what, held.rejected):
            for some in read_entries(path, _SHAPE, size):
                part = _Held.of(some)
                if held.count and held.count + part.count > size:
                    yield held.typed(known)
                    held.clear()
                held.take(part)
    if held.count or held.rejected:
        yield held.typed(known)


@dataclass(slots=True)
class _Held:
    """Rows that were taken apart, whose labels are still text."""

    columns: dict[str, list[pa.Array]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    whole: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(_SHAPE.labels, True))
    rejected: list[tuple[str, str]] = field(default_factory=list)
    count: int = 0

    def clear(self) -> None:
        """Begin anew."""
        self.columns, self.count = {name: [] for name in COLUMNS}, 0
        self.rejected.clear()  # a file that is open writes to it

    def take(self, other: _Held) -> None:
        """Put the rows of another behind these."""
        for name in COLUMNS:
            self.columns[name] += other.columns[name]
        for name in _SHAPE.labels:
            self.whole[name] &= other.whole[name] or not other.count
        self.rejected += other.rejected
        self.count += other.count

    @classmethod
    def of(cls, some: Entries) -> _Held:
        """Return the rows that can be used, and the others."""
        action = some.columns["action"]
        wrong = pc.binary_join_element_wise(
            "action '", pc.utf8_slice_codeunits(action, 0, 60), f"' is neither {' nor '.join(ACTIONS)}", ""
        )
        odd = pc.invert(pc.is_in(action, value_set=pa.array(ACTIONS)))
        some = some.without(pc.if_else(odd, wrong, pa.scalar(None, pa.string())))
        some = some.without(to_come(some, last_of()))
        fine = pc.is_null(some.bad)
        columns = {name: [some.columns[name].filter(fine)] for name in COLUMNS}
        return cls(columns, some.whole, list(some.rejected()), pc.sum(fine).as_py() or 0)

    def typed(self, known: dict[str, pa.DataType | None]) -> Piece:
        """Return the rows with labels of the types that are known, or from now on are."""
        kinds = {"time": MOMENT}
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
            number = whole_numbers(columns[name])
            for i in np.flatnonzero(np.asarray(pc.and_(fine, pc.is_null(number)))).tolist():
                said = (
                    f"{name} '{columns[name][i].as_py()[:60]}' is no whole number of 64 bits, as others are"
                )
                rejected.append((said, json_of({each: columns[each][i].as_py() for each in COLUMNS})))
            fine = pc.and_(fine, pc.is_valid(number))
            columns[name] = number
        texts = [["changes"] * len(rejected), *([pair[i] for pair in rejected] for i in range(2))]
        return Piece(pa.table(columns).filter(fine), pa.table(texts, schema=REJECTED))
