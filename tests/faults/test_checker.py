"""The checker finds what is wrong with made-up deliveries."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.checker import Verdict, check, recoveries
from faults.journal import Flushed, Handed, Journal, Refusal, path_of, read_handed, read_published


def handed(*numbers: int, subject: str = "to", publisher: str = "p") -> list[Handed]:
    return [Handed(publisher, n, subject, 10.0 + n, float(n)) for n in numbers]


def verdict(*lives: list[Handed], many: int = 6, window: int = 2) -> Verdict:
    """Check what one subscriber got, who wants all events but the fourth."""
    return check([Flushed("p", 0, many, 0.0)], {"s": list(lives)}, lambda who, n: n != 3, ["s"], window)


def test_all_is_well() -> None:
    found = verdict(handed(0, 1, 2), handed(1, 2, 4, 5))
    assert found.good
    assert (found.events, found.deliveries, found.repeated, found.most_repeated) == (6, 7, 2, 2)
    # Over another subject the order is another, and what was not acknowledged may come.
    assert verdict([*handed(0, 1, 4), *handed(2, subject="channel"), *handed(5, 6)]).good


@pytest.mark.parametrize(
    ("lives", "wrong"),
    [
        ([handed(0, 1, 2, 4)], {"lost": 1}),
        ([], {"lost": 5}),
        ([handed(0, 1, 1, 2, 4, 5)], {"duplicated": 1}),
        ([handed(0, 1, 4, 2, 5)], {"reordered": 1}),
        ([handed(0, 2, 4), handed(1, 5)], {"reordered": 1}),
        ([handed(0, 1, 2, 3, 4, 5)], {"wrong": 1}),
        ([[*handed(0, 1, 2, 4, 5), *handed(5, publisher="q")]], {"wrong": 1}),
        ([handed(0, 1, 2, 4), handed(1, 5)], {"outside": 1, "repeated": 1, "most_repeated": 1}),
        ([handed(0, 1, 2, 4), handed(1, 2, 4, 5)], {"outside": 1, "repeated": 3, "most_repeated": 3}),
    ],
)
def test_each_fault_is_found(lives: list[list[Handed]], wrong: dict[str, int]) -> None:
    found = verdict(*lives)
    assert not found.good
    assert found.examples
    named = ("lost", "duplicated", "repeated", "most_repeated", "outside", "reordered", "wrong")
    assert {name: many for name in named if (many := getattr(found, name))} == wrong


def test_a_life_that_acknowledged_nothing_allows_what_the_one_before_did() -> None:
    assert verdict(handed(0, 1, 2, 4), handed(2), handed(2, 4, 5)).good


def test_how_long_until_all_have_something_new() -> None:
    lives = {"a": [handed(0, 1), handed(2, 5)], "b": [handed(0, 4)]}
    assert recoveries([1.5, 4.5], lives) == [14.0 - 1.5, None]


def test_journals_are_read_back_but_for_a_torn_line(tmp_path: Path) -> None:
    for life, numbers in enumerate([[0, 1], [1, 2]]):
        Journal(path_of(tmp_path, "receive", "s", life)).handed(handed(*numbers))
    torn = path_of(tmp_path, "receive", "s", 1)
    torn.write_bytes(torn.read_bytes()[:-3])
    assert read_handed(tmp_path) == {"s": [handed(0, 1), handed(1)]}
    journal = Journal(path_of(tmp_path, "publish", "p", 0))
    journal.flushed(7, 3, 1.5)
    journal.refused(10, 2, 2.5, "no\nroom left")
    assert read_published(tmp_path) == ([Flushed("p", 7, 3, 1.5)], [Refusal("p", 10, 2, 2.5, "no room left")])
    with pytest.raises(FileExistsError):
        Journal(path_of(tmp_path, "publish", "p", 0))
