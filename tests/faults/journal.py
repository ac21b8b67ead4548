"""Journals of clients: one file for each life, that is each run of a process, which a kill does not shorten.

A publisher writes a line once a flush has returned. A subscriber writes the events it received before it asks
for more, which acknowledges them. Each line is written by one call, and survives the process. Only the last
line may be torn, and then its events are not acknowledged.
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
    """An event that a subscriber received: when, and when it was published."""

    publisher: str
    number: int
    subject: str
    at: float
    sent: float


@dataclass(frozen=True, eq=False)
class Life:
    """Events that a subscriber received in one life, in columns: there may be millions.

    Parameters
    ----------
    publishers, subjects
        Their names.
    publisher, subject
        Position among the names, for each event.
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
        """Return events in columns."""
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
        """Return which events a publisher published."""
        if publisher not in self.publishers:
            return np.zeros(len(self), np.bool_)
        return np.asarray(self.publisher == self.publishers.index(publisher))


def _coded(column: pa.ChunkedArray) -> tuple[tuple[str, ...], NDArray[np.unsignedinteger[Any]]]:
    """Return the distinct names in a column, and the position of each row's name, in the smallest type."""
    whole = column.unify_dictionaries().combine_chunks()
    names = tuple(whole.dictionary.to_pylist())
    return names, whole.indices.to_numpy().astype(np.min_scalar_type(len(names)))


class Flushed(NamedTuple):
    """Events of a publisher whose flush has returned: number of the first, their count, and the time."""

    publisher: str
    first: int
    many: int
    at: float


class Refusal(NamedTuple):
    """Events of a publisher that may not be stored, with time and reason."""

    publisher: str
    first: int
    many: int
    at: float
    why: str


class Journal:
    """A file to which lines are appended at once.

    Parameters
    ----------
    path
        Path of the file, which must not exist.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def add(self, *lines: str) -> None:
        """Append lines; they are written when this returns."""
        left = "".join(f"{line}\n" for line in lines).encode()
        while left:
            left = left[os.write(self._file, left) :]

    def handed(self, some: list[Handed]) -> None:
        """Record received events."""
        self.add(*(f"{e.publisher} {e.number} {e.subject} {e.at:.6f} {e.sent:.6f}" for e in some))

    def flushed(self, first: int, many: int, at: float) -> None:
        """Record acknowledged events."""
        self.add(f"ok {first} {many} {at:.6f}")

    def refused(self, first: int, many: int, at: float, why: str) -> None:
        """Record refused events."""
        self.add(f"no {first} {many} {at:.6f} {' '.join(why.split())}")


def path_of(folder: Path, kind: str, name: str, life: int) -> Path:
    """Return the journal of a client in one of its lives."""
    return folder / f"{kind}-{name}-{life:04d}.log"


def name_of(path: Path) -> str:
    """Return the client that wrote a file."""
    return path.stem.split("-")[1]


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file without a torn last one."""
    return path.read_bytes().decode().split("\n")[:-1]


class Tail:
    """New lines of all subscribers' journals in a folder, each returned once.

    Parameters
    ----------
    folder
        Folder of the journals.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    @property
    def size(self) -> int:
        """Bytes written so far, read or not."""
        return sum(path.stat().st_size for path in self._folder.glob("receive-*.log"))

    def new(self) -> Iterator[tuple[str, Life]]:
        """Yield events received since the last call, file by file, the lives of each subscriber in order."""
        for path in sorted(self._folder.glob("receive-*.log")):
            life, self._read[path] = _read_life(path, self._read.get(path, 0))
            yield name_of(path), life


def read_handed(folder: Path) -> dict[str, list[Life]]:
    """Return the events that each subscriber received, life by life."""
    found: dict[str, list[Life]] = defaultdict(list)
    for who, life in Tail(folder).new():
        found[who].append(life)
    return dict(found)


def _read_life(path: Path, begin: int) -> tuple[Life, int]:
    """Return the events of a file from an offset, without a torn last line, and the next offset."""
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
    """Return the acknowledged and the refused events."""
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
