"""Tables fit a terminal of 80 columns, and no number in them is broken or cut."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import narrowcast as nc
from narrowcast.cli import compare, evaluate, match, options
from narrowcast.cli.diff import _print
from narrowcast.spark.stages.compare import ComparedMethod, Comparison
from narrowcast.spark.stages.delivery_results import DeliveryTotals, ReplayResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH = 80
COSTS = ("network", "waste", "filtering", "forwarding", "false-positives", "overall")
#: Numbers as large as a plan for 100,000 subscribers has them.
LARGE = 1_234_567_890.25


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")


def check(printed: str, rows: Iterable[Sequence[str]]) -> None:
    """Check that lines fit, and that each number of each row is in one piece."""
    assert max(map(len, printed.splitlines())) <= WIDTH, printed
    words = set(re.split(r"[\s│┃]+", printed))
    for row in rows:
        for cell in row[1:]:
            assert set(cell.split()) <= words, (cell, printed)


@pytest.mark.parametrize("large", [9.5, LARGE])
@pytest.mark.parametrize("names", [COSTS, COSTS[1:], COSTS[:2], ("filtering",), ("overall",), ("waste",)])
def test_evaluate(names: tuple[str, ...], large: float, capsys: pytest.CaptureFixture[str]) -> None:
    terms = {
        "network": ("improvement_pct", "unicast", "ideal", "broadcast"),
        "waste": ("deliveries", "unicast", "wasted"),
        "filtering": ("in_group", "session", "excess", "ideal", "everything"),
        "overall": ("association", "direct", "clustered", "unicast"),
    }
    cost = {
        name: {"total": large, "terms": dict.fromkeys(terms.get(name, ("wanted",)), large)} for name in names
    }
    each = {"costs": cost, "channels": 10_000, "excess_share": 0.123}
    rows = evaluate._rows({"methods": {"hierarchical-rra": each, "broadcast": each}}, "messages a second")
    options.show({}, {"Costs": rows}, as_json=False)
    check(capsys.readouterr().out, rows[1:])


@pytest.mark.parametrize("large", [9.5, LARGE])
@pytest.mark.parametrize("unit", ["links", "messages", ""])
@pytest.mark.parametrize("names", [COSTS, COSTS[1:], COSTS[:2], ("waste",)])
@pytest.mark.parametrize("method", ["hierarchical-rra", "direct"])
def test_compare(
    names: tuple[str, ...], unit: Any, large: float, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = DeliveryTotals(large, 61.9 if unit == "links" else None, 3, 9, 2, 29_304, router="threshold")
    costs = {name: nc.Cost(large, {"improvement_pct": 96.17}) for name in names}
    row = ComparedMethod(method, 11, 10_000, costs, 0.15, 0.21, 3599.99, 1234.5, balance=1.956)
    if unit:
        row = ComparedMethod(
            method, 11, 10_000, costs, 0.15, 0.21, 3599.99, 1234.5, balance=1.9, replayed=sent
        )
    replayed = ReplayResult(unit, 322, 10960, {}, {}) if unit else None
    rows = compare._rows(Comparison(names, (row,), replayed))
    options.show({}, {"Compared": rows}, as_json=False)
    check(capsys.readouterr().out, rows[1:])


def test_match(capsys: pytest.CaptureFixture[str]) -> None:
    counts = dict.fromkeys(("subscriptions", "events", "rejected", "matches", "unmatched"), 1_234_567_890)
    long = "subscriptions: compares price (bigint) with a string literal; the types must be alike, or so"
    facts = {**counts, "reasons": {long: 1_234_567}, "histories": 10**9, "empty": 10**6, "seconds": 12345.6}
    rows = match._rows(facts)
    options.show({}, {"Result": rows}, as_json=False)
    check(capsys.readouterr().out, rows[1:])


def test_diff(capsys: pytest.CaptureFixture[str]) -> None:
    wide = nc.Interest([[1, 1], [0, 1]])
    one, two = (planner().fit(wide).plan_ for planner in (nc.Unicast, nc.PerFlow))
    costs = dict.fromkeys(COSTS, 1234567890.0)
    found = nc.diff_plans(one, two, costs_before=costs, costs_after=dict.fromkeys(COSTS, 2000000000000.0))
    _print(found, "hierarchical-rra to hierarchical-rra")
    check(capsys.readouterr().out, [("", "1,234,567,890"), ("", "2,000,000,000,000"), ("", "+161900.0 %")])


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        ("", "number"),
        ("members of the largest channel / mean", "1,234.56"),
        ("cost: false-positives", options.number(LARGE)),
        ("planned on", "the driver"),
    ]
    options.show({}, {"The plan in a/folder": rows}, as_json=False)
    check(capsys.readouterr().out, rows[1:])
