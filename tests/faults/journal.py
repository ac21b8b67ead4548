"""What clients write down as it happens: a file for each of their lives, which a kill does not shorten.

A publisher writes a line once a flush has returned; a subscriber writes what it was handed out before it asks
for more, which acknowledges it. A line goes to the file in one call; what is in a file outlives its process;
only the last line may be torn, and then nobody has acknowledged what it says.
"""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

_NAME = pa.dictionary(pa.int32(), pa.string())
#: Columns of what subscribers write, in their order.
_COLUMNS = pa.schema(
    {"publisher": _NAME, "number": pa.int64(), "subject": _NAME, "at": pa.float64(), "sent": pa.float64()}
)


class Handed(NamedTuple):
    """An event that a subscriber was handed out: when, and when it was published."""

    publisher: str
    number: int
    subject: str
    at: float
    sent: float


@dataclass(frozen=True, eq=False)
class Life:
    """What a subscriber was handed out in one of its lives, by columns: there may be millions of events.

    Parameters
    ----------
    publishers, subjects
        Their names.
    publisher, subject
        Of each event, by its place among the names.
    number, at, sent
        As in `Handed`.
    """

    publishers: tuple[str, ...]
    publisher: NDArray[np.unsignedinteger[Any]]
    number: NDArray[np.int64]
    subjects: tuple[str, ...]
    subject: NDArray[np.unsignedinteger[Any]]
    at: NDArray[np.float64]
    sent: NDArray[np.float64]

    @classmethod
    def of(cls, rows: Sequence[Handed]) -> Life:
        """Return some events by columns."""
        return cls.of_table(pa.Table.from_pylist([row._asdict() for row in rows], schema=_COLUMNS))

    @classmethod
    def of_table(cls, table: pa.Table) -> Life:
        """Return the events of an Arrow table."""
        publishers, publisher = _coded(table["publisher"])
        subjects, subject = _coded(table["subject"])
        number, at, sent = (table[name].to_numpy() for name in ("number", "at", "sent"))
        return cls(publishers, publisher, number, subjects, subject, at, sent)

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, i: int) -> Handed:
        names = self.publishers[self.publisher[i]], self.subjects[self.subject[i]]
        return Handed(names[0], int(self.number[i]), names[1], float(self.at[i]), float(self.sent[i]))

    def came_from(self, publisher: str) -> NDArray[np.bool_]:
        """Return which events are of a publisher."""
        if publisher not in self.publishers:
            return np.zeros(len(self), np.bool_)
        return np.asarray(self.publisher == self.publishers.index(publisher))


def _coded(column: pa.ChunkedArray) -> tuple[tuple[str, ...], NDArray[np.unsignedinteger[Any]]]:
    """Return the names in a column, and the place among them of each row, in as few bytes as that takes."""
    whole = column.unify_dictionaries().combine_chunks()
    names = tuple(whole.dictionary.to_pylist())
    return names, whole.indices.to_numpy().astype(np.min_scalar_type(len(names)))


class Flushed(NamedTuple):
    """Events of a publisher, by the number of the first, whose flush has returned, and when it did."""

    publisher: str
    first: int
    many: int
    at: float


class Refusal(NamedTuple):
    """Events of a publisher that may not be stored, when that was said, and why."""

    publisher: str
    first: int
    many: int
    at: float
    why: str


class Journal:
    """A file to which lines are added at once.

    Parameters
    ----------
    path
        Where; it must not be there.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def add(self, *lines: str) -> None:
        """Add lines; they are there when this returns."""
        left = "".join(f"{line}\n" for line in lines).encode()
        while left:
            left = left[os.write(self._file, left) :]

    def handed(self, some: list[Handed]) -> None:
        """Note what a subscriber was handed out."""
        self.add(*(f"{e.publisher} {e.number} {e.subject} {e.at:.6f} {e.sent:.6f}" for e in some))

    def flushed(self, first: int, many: int, at: float) -> None:
        """Note that events are acknowledged."""
        self.add(f"ok {first} {many} {at:.6f}")

    def refused(self, first: int, many: int, at: float, why: str) -> None:
        """Note that events are not."""
        self.add(f"no {first} {many} {at:.6f} {' '.join(why.split())}")


def path_of(folder: Path, kind: str, name: str, life: int) -> Path:
    """Return where somebody writes in one of its lives."""
    return folder / f"{kind}-{name}-{life:04d}.log"


def name_of(path: Path) -> str:
    """Return who wrote a file."""
    return path.stem.split("-")[1]


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file, without one that is torn."""
    return path.read_bytes().decode().split("\n")[:-1]


class Tail:
    """What subscribers write into a folder, each line once: what is new since the last time.

    Parameters
    ----------
    folder
        Where they write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    @property
    def size(self) -> int:
        """The bytes that are there by now, read or not."""
        return sum(path.stat().st_size for path in self._folder.glob("receive-*.log"))

    def new(self) -> Iterator[tuple[str, Life]]:
        """Yield what subscribers were handed out since, a file at a time, each one's lives in their order."""
        for path in sorted(self._folder.glob("receive-*.log")):
            life, self._read[path] = _read_life(path, self._read.get(path, 0))
            yield name_of(path), life


def read_handed(folder: Path) -> dict[str, list[Life]]:
    """Return what each subscriber was handed out, one life after another."""
    found: dict[str, list[Life]] = defaultdict(list)
    for who, life in Tail(folder).new():
        found[who].append(life)
    return dict(found)


def _read_life(path: Path, begin: int) -> tuple[Life, int]:
    """Return what a file has from a byte on, without a line that is torn, and where that would begin."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == begin:  # nothing cannot be mapped
            return Life.of([]), begin
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    end = whole.rfind(b"\n", begin) + 1
    if not end:
        return Life.of([]), begin
    table = csv.read_csv(
        pa.BufferReader(pa.py_buffer(memoryview(whole)[begin:end])),
        csv.ReadOptions(column_names=_COLUMNS.names),
        csv.ParseOptions(delimiter=" ", quote_char=False, ignore_empty_lines=False),
        csv.ConvertOptions(column_types=_COLUMNS, null_values=[]),
    )
    return Life.of_table(table), end


def read_published(folder: Path) -> tuple[list[Flushed], list[Refusal]]:
    """Return which events are acknowledged, and which are not."""
    flushed, refused = list[Flushed](), list[Refusal]()
    for path in sorted(folder.glob("publish-*.log")):
        name = name_of(path)
        for line in whole_lines(path):
            kind, first, many, at, *why = line.split(" ", 4)
            if kind == "ok":
                flushed.append(Flushed(name, int(first), int(many), float(at)))
            else:
                refused.append(Refusal(name, int(first), int(many), float(at), "".join(why)))
    return flushed, refused
