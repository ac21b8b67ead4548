"""The checker finds the faults in made-up deliveries."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from faults import reference
from faults.awaited import Awaited
from faults.checker import SHOWN, Verdict, check, identities, lost, recoveries, reordered, repeats
from faults.journal import (
    Flushed,
    Handed,
    Journal,
    Life,
    Refusal,
    Tail,
    path_of,
    read_handed,
    read_published,
)
from faults.load import POOL, Load
from faults.soak import late
from support.broker import wanted

#: About where numbers begin: they are the nanoseconds at which a publisher did. A float cannot hold them.
BEGUN = 1_794_957_061_887_764_435
PEOPLE = ["s", "t", "u"]


def handed(*numbers: int, subject: str = "to", publisher: str = "p") -> list[Handed]:
    return [Handed(publisher, n, subject, 10.0 + n, float(n)) for n in numbers]


def by_columns(lives: dict[str, list[list[Handed]]]) -> dict[str, list[Life]]:
    return {who: [Life.of(life) for life in own] for who, own in lives.items()}


def rows_of(life: Life) -> list[Handed]:
    return [life[i] for i in range(len(life))]


def by_rows(lives: dict[str, list[Life]]) -> dict[str, list[list[Handed]]]:
    return {who: [rows_of(life) for life in own] for who, own in lives.items()}


def verdict(*lives: list[Handed], many: int = 6, window: int = 2) -> Verdict:
    """Check the events received by one subscriber, which wants all events but the fourth."""
    columns = {"s": [Life.of(life) for life in lives]}
    return check([Flushed("p", 0, many, 0.0)], columns, lambda who, n: n != 3, ["s"], window)


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
        ([handed(-1, 0, 1, 2, 4, 5)], {"wrong": 1}),
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
    assert recoveries([1.5, 4.5], by_columns(lives)) == [14.0 - 1.5, None]


def test_journals_are_read_back_but_for_a_torn_line(tmp_path: Path) -> None:
    for life, numbers in enumerate([[0, 1], [1, 2]]):
        Journal(path_of(tmp_path, "receive", "s", life)).handed(handed(*numbers))
    torn = path_of(tmp_path, "receive", "s", 1)
    torn.write_bytes(torn.read_bytes()[:-3])
    assert by_rows(read_handed(tmp_path)) == {"s": [handed(0, 1), handed(1)]}
    journal = Journal(path_of(tmp_path, "publish", "p", 0))
    journal.flushed(7, 3, 1.5)
    journal.refused(10, 2, 2.5, "no\nroom left")
    assert read_published(tmp_path) == ([Flushed("p", 7, 3, 1.5)], [Refusal("p", 10, 2, 2.5, "no room left")])
    with pytest.raises(FileExistsError):
        Journal(path_of(tmp_path, "publish", "p", 0))


def test_a_torn_line_alone_and_an_empty_file_are_lives_without_events(tmp_path: Path) -> None:
    for life, data in enumerate([b"", b"p 1 to 1.0", b"p 1 to 1.0 2.0\n"]):
        path_of(tmp_path, "receive", "s", life).write_bytes(data)
    assert by_rows(read_handed(tmp_path)) == {"s": [[], [], [Handed("p", 1, "to", 1.0, 2.0)]]}
    assert read_handed(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("line", ["p 1 to 1.0", "p 1 to 1.0 2.0 3.0", "p x to 1.0 2.0", "p 1 to  2.0", ""])
def test_a_line_that_says_something_else_is_refused(tmp_path: Path, line: str) -> None:
    path_of(tmp_path, "receive", "s", 0).write_text(f"p 1 to 1.0 2.0\n{line}\n")
    with pytest.raises(ValueError, match=r"."):
        read_handed(tmp_path)


def some_lives() -> st.SearchStrategy[dict[str, list[list[Handed]]]]:
    """Draw lives with many kinds of faults; numbers are small so that they collide."""
    event = st.builds(
        Handed,
        st.sampled_from(["p", "q", "stranger"]),
        st.integers(0, 15).map(lambda n: BEGUN + n) | st.just(-1),
        st.sampled_from(["to", "channel.1", '"channel.2']),
        st.integers(0, 40).map(float),
        st.integers(0, 40).map(float),
    )
    in_order = st.lists(event, max_size=25).map(lambda life: sorted(life, key=lambda one: one.number))
    own = st.lists(st.lists(event, max_size=25) | in_order, max_size=4)
    return st.dictionaries(st.sampled_from(PEOPLE), own)


def some_flushed() -> st.SearchStrategy[list[Flushed]]:
    first = st.integers(0, 12).map(lambda n: BEGUN + n)
    one = st.builds(Flushed, st.sampled_from(["p", "q"]), first, st.integers(0, 6), st.just(0.0))
    return st.lists(one, max_size=5)


def is_wanted(who: str, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.asarray(numbers % (2 + PEOPLE.index(who)) != 1)


def one_is_wanted(who: str, number: int) -> bool:
    return number % (2 + PEOPLE.index(who)) != 1


@given(some_flushed(), some_lives(), st.integers(0, 8))
def test_the_slow_checker_says_the_same(
    flushed: list[Flushed], lives: dict[str, list[list[Handed]]], window: int
) -> None:
    columns = by_columns(lives)
    expected = reference.check(flushed, lives, one_is_wanted, PEOPLE, window)
    assert check(flushed, columns, is_wanted, PEOPLE, window) == expected
    assert all(sum(e.startswith(kind) for e in expected.examples) <= SHOWN for kind in ("lost", "wrong"))
    missing = lost(flushed, columns, is_wanted, PEOPLE)
    assert [
        (who, publisher, int(number)) for who, publisher, some in missing for number in some
    ] == reference.lost(flushed, lives, one_is_wanted, PEOPLE)
    for who, own in lives.items():
        ids = identities(columns[who])
        assert repeats(ids, window) == reference.repeats(own, window)
        behind = zip(columns[who], reordered(columns[who], ids), strict=True)
        assert [life[i] for life, places in behind for i in places] == reference.reordered(own)


@given(some_lives(), st.lists(st.integers(0, 40).map(lambda n: n - 0.5), max_size=4))
def test_the_slow_checker_has_the_same_recoveries(
    lives: dict[str, list[list[Handed]]], kills: list[float]
) -> None:
    assert recoveries(kills, by_columns(lives)) == reference.recoveries(kills, lives)


@given(some_flushed(), some_lives(), st.lists(st.integers(0, 2000), max_size=4).map(sorted))
def test_what_is_written_meanwhile_is_read_once(
    flushed: list[Flushed], lives: dict[str, list[list[Handed]]], cuts: list[int]
) -> None:
    """A file read repeatedly while it grows by arbitrary pieces gives the same as one read at the end."""
    with tempfile.TemporaryDirectory() as made:
        whole, folder = Path(made) / "whole", Path(made) / "growing"
        whole.mkdir()
        folder.mkdir()
        for who, own in lives.items():
            for i, life in enumerate(own):
                Journal(path_of(whole, "receive", who, i)).handed(life)
        lives = {who: own for who, own in lives.items() if own}
        assert by_rows(read_handed(whole)) == reference.read_handed(whole) == lives
        tail, awaited, found = Tail(folder), Awaited(flushed, is_wanted, PEOPLE), dict[str, list[Handed]]()
        for cut in [*cuts, None]:
            for path in whole.iterdir():
                (folder / path.name).write_bytes(path.read_bytes()[:cut])
            assert by_rows(read_handed(folder)) == reference.read_handed(folder)
            for who, more in tail.new():
                awaited.take(who, more)
                found.setdefault(who, []).extend(rows_of(more))
        assert all(not len(life) for _, life in tail.new())
        assert tail.size == sum(path.stat().st_size for path in whole.iterdir())
    assert {who: sorted(rows) for who, rows in found.items()} == {
        who: sorted(row for life in own for row in life) for who, own in lives.items()
    }
    assert awaited.some == bool(reference.lost(flushed, lives, one_is_wanted, PEOPLE))


def test_how_late_events_are_by_fifths_of_the_time(tmp_path: Path) -> None:
    rows = [
        Handed("p", n, "to", 100.0 + n + delay, 100.0 + n) for n, delay in [(-1, 9.0), (0, 1.0), (1, 3.0)]
    ]
    Journal(path_of(tmp_path, "receive", "s", 0)).handed(rows)
    Journal(path_of(tmp_path, "receive", "t", 0)).handed([Handed("p", 9, "to", 109.5, 109.0)])
    assert late(tmp_path, 100.0, 10.0) == pytest.approx([2.98, *[float("nan")] * 3, 0.5], nan_ok=True)


def test_who_wants_what_is_looked_up() -> None:
    load = Load(people=3)
    numbers = BEGUN + np.arange(2 * POOL)
    for who, rows in wanted(load.filters, load.events).items():
        assert load.wants(who, numbers).tolist() == [int(n) % POOL in rows for n in numbers]
