"""What a reproduction tells as tables of text: the columns, and which series are beside each other."""

from __future__ import annotations

from narrowcast.lab.papers.base import Outcome, ResultRow
from narrowcast.lab.study import tables_of


def rows(series: str, places: list[float] | list[None], metric: str = "HScore") -> list[ResultRow]:
    return [ResultRow.of(series, x, metric, [float(n)]) for n, x in enumerate(places)]


def test_series_along_different_axes_have_tables_of_their_own() -> None:
    groups, levels = [4.0, 8.0, 16.0, 32.0], [1.0, 2.0, 3.0]
    outcome = Outcome(
        [
            *rows("rassoc/m1/groups", groups),
            *rows("rassoc/m1/levels", levels),
            *rows("ncut/m1/groups", groups),
            *rows("ncut/m1/levels", levels),
            *rows("own/m1", [None]),
        ],
        notes=["So it is."],
    )
    assert tables_of("figure-3", outcome) == {
        "figure-3: HScore, groups": [
            ("", "4", "8", "16", "32", "all"),
            ("rassoc, m1, groups", "0", "1", "2", "3", ""),
            ("ncut, m1, groups", "0", "1", "2", "3", ""),
            ("own, m1", "", "", "", "", "0"),
        ],
        "figure-3: HScore, levels": [
            ("", "1", "2", "3"),
            ("rassoc, m1, levels", "0", "1", "2"),
            ("ncut, m1, levels", "0", "1", "2"),
        ],
        "figure-3: what it says": [("",), ("So it is.",)],
    }


def test_no_row_is_blank_and_it_is_said_what_is_left_out() -> None:
    """Of many places some are shown, of few all; those of one series need not be among those of another."""
    many = [float(n) for n in range(11)]
    outcome = Outcome([*rows("a/load", many), *rows("b/load", many), *rows("c/peak", [1.0, 2.0])], notes=[])
    long, short, _ = tables_of("figure-5", outcome).items()
    assert long == (
        "figure-5: HScore, load, 3 of 11 places, all are in results.json",
        [("", "0", "3", "10"), ("a, load", "0", "3", "10"), ("b, load", "0", "3", "10")],
    )
    assert short == ("figure-5: HScore, c, peak", [("", "1", "2"), ("c, peak", "0", "1")])
    # With few places in all, what some lack is left blank.
    few = Outcome([*rows("a", [1.0, 2.0, 3.0]), *rows("b", [2.0]), *rows("c", [3.0, 4.0])], notes=[])
    (table, _) = tables_of("table-1", few).values()
    assert table == [
        ("", "1", "2", "3", "4"),
        ("a", "0", "1", "2", ""),
        ("b", "", "0", "", ""),
        ("c", "", "", "0", "1"),
    ]
