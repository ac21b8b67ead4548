"""What clients write down as it happens: a file for each of their lives, which a kill does not shorten.

A publisher writes a line once a flush has returned; a subscriber writes what it was handed out before it asks
for more, which acknowledges it. A line goes to the file in one call; what is in a file outlives its process;
only the last line may be torn, and then nobody has acknowledged what it says.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple


class Handed(NamedTuple):
    """An event that a subscriber was handed out: when, and when it was published."""

    publisher: str
    number: int
    subject: str
    at: float
    sent: float


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


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file, without one that is torn."""
    return path.read_bytes().decode().split("\n")[:-1]


def read_handed(folder: Path) -> dict[str, list[list[Handed]]]:
    """Return what each subscriber was handed out, one life after another."""
    found: dict[str, list[list[Handed]]] = defaultdict(list)
    for path in sorted(folder.glob("receive-*.log")):
        rows = (line.split(" ") for line in whole_lines(path))
        found[_name(path)].append(
            [Handed(p, int(n), s, float(at), float(sent)) for p, n, s, at, sent in rows]
        )
    return dict(found)


def read_published(folder: Path) -> tuple[list[Flushed], list[Refusal]]:
    """Return which events are acknowledged, and which are not."""
    flushed, refused = list[Flushed](), list[Refusal]()
    for path in sorted(folder.glob("publish-*.log")):
        for line in whole_lines(path):
            kind, first, many, at, *why = line.split(" ", 4)
            if kind == "ok":
                flushed.append(Flushed(_name(path), int(first), int(many), float(at)))
            else:
                refused.append(Refusal(_name(path), int(first), int(many), float(at), "".join(why)))
    return flushed, refused


def _name(path: Path) -> str:
    return path.stem.split("-")[1]
