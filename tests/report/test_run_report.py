"""What a run tells of itself: the same numbers in the summary, the tables and the page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import narrowcast as nc
from narrowcast.report.run_report import FILES, PICTURES, rows_of, summary_of, write_report

if TYPE_CHECKING:
    from pathlib import Path

INTEREST = nc.Interest([[1, 1, 0], [0, 1, 1]], subscribers=["ann", "bob"], flows=[10, 20, 30])

REASONS = {"reasons": {"x<y": 3}}


def scored(channels: int | None, wasted: float, unicast: float = 0.0) -> dict[str, Any]:
    terms = {"deliveries": 4.0 + wasted - unicast, "wanted": 4.0, "wasted": wasted, "unicast": unicast}
    return {"channels": channels, "costs": {"waste": {"total": wasted, "terms": terms}}}


def facts(**changes: Any) -> dict[str, dict[str, Any]]:
    return {
        "job": {"source": {"workload": "stocks"}, "seed": 1, "method": "hash"},
        "compile": {"subscriptions": 1234, "boxes": 2000, "subscribers": 2, "rejected": 3, **REASONS},
        "match": {"events": 8, "matches": 20, "unmatched": 2, **changes},
        "interest": {"flows": 3, "wants": 4},
        "plan": {"channels": 1},
        "evaluate": {
            "name": "hash",
            "methods": {"hash": scored(1, 2.0), "unicast": scored(0, 0.0, 4.0), "ideal": scored(None, 0.0)},
        },
    }


def test_the_summary() -> None:
    found = summary_of(facts(), {"read": 0.5, "match": 1.25})
    assert (found["matches_per_event"], found["unmatched_share"]) == (2.5, 0.25)
    assert found["costs"]["hash"] == {
        "channels": 1,
        "deliveries": 6.0,
        "wanted": 4.0,
        "wasted": 2.0,
        "unicast": 0.0,
        "waste": 2.0,
    }
    assert found["stages"] == {"read": {"seconds": 0.5}, "match": {"seconds": 1.25}}
    assert (found["version"], found["plan"], found["seed"]) == (nc.__version__, "hash", 1)


def test_no_events_are_no_division() -> None:
    found = summary_of(facts(events=0, matches=0, unmatched=0), {})
    assert (found["matches_per_event"], found["unmatched_share"]) == (0, 0)


def test_the_tables() -> None:
    tables = rows_of(summary_of(facts(), {"read": 0.5, "match": 1.254}))
    assert tables["What came out"] == [
        ("", "number"),
        ("subscriptions", "1,234"),
        ("subscribers", "2"),
        ("boxes", "2,000"),
        ("rejected", "3"),
        ("  x<y", "3"),
        ("events", "8"),
        ("matches", "20"),
        ("matches per event", "2.5"),
        ("events that match nobody", "2 (25.0 %)"),
    ]
    assert tables["Time"] == [("stage", "seconds"), ("read", "0.50"), ("match", "1.25")]
    assert tables["What it costs"] == [
        ("messages per event sent", "channels", "wanted", "wasted", "sent directly"),
        ("hash", "1", "1.3", "0.7", "0.0"),
        ("unicast", "0", "1.3", "0.0", "1.3"),
        ("ideal", "", "1.3", "0.0", "0.0"),
    ]


def test_the_excess_of_filtering_is_a_column_where_there_is_room() -> None:
    known = facts()
    for name, share in {"hash": 0.25, "unicast": 0.0, "ideal": 0.0}.items():
        each = known["evaluate"]["methods"][name]
        each["costs"]["filtering"] = {"total": 9.0, "terms": {"groups": 5.0, "sessions": 4.0, "direct": 0.0}}
        each["excess_share"] = share
    found = summary_of(known, {})
    assert (found["costs"]["hash"]["filtering"], found["costs"]["hash"]["excess_share"]) == (9.0, 0.25)
    assert "groups" not in found["costs"]["hash"]
    rows = rows_of(found)["What it costs"]
    assert rows[0][-1] == "excess %"
    assert [row[-1] for row in rows[1:]] == ["25.0", "0.0", "0.0"]


def test_a_network_has_columns_of_its_own() -> None:
    known = facts()
    for name, (total, gain) in {"hash": (30.0, 60.0), "unicast": (60.0, 0.0), "ideal": (9.0, 100.0)}.items():
        terms = {"unicast": 60.0, "ideal": 9.0, "broadcast": 70.0, "improvement_pct": gain}
        known["evaluate"]["methods"][name]["costs"]["network"] = {"total": total, "terms": terms}
    found = summary_of(known, {})
    assert found["costs"]["hash"]["unicast"] == 0.0, "that of the waste, in messages"
    assert (found["costs"]["hash"]["network"], found["costs"]["hash"]["improvement_pct"]) == (30.0, 60.0)
    assert rows_of(found)["What it costs"] == [
        (
            "messages per event sent",
            "channels",
            "wanted",
            "wasted",
            "sent directly",
            "network cost",
            "improvement %",
        ),
        ("hash", "1", "1.3", "0.7", "0.0", "10.0", "60.0"),
        ("unicast", "0", "1.3", "0.0", "1.3", "20.0", "0.0"),
        ("ideal", "", "1.3", "0.0", "0.0", "3.0", "100.0"),
    ]


@pytest.mark.parametrize("empty", [False, True])
def test_the_page_and_the_pictures(empty: bool, tmp_path: Path) -> None:
    nothing = nc.Interest(np.zeros((0, 0)), subscribers=[], flows=[])
    interest = nothing if empty else INTEREST
    plan = nc.Broadcast().fit(interest).plan_
    nc.write_plan(plan, tmp_path / "plan", method="broadcast", interest=interest)
    out = tmp_path / "out"
    out.mkdir()
    summary = summary_of(facts(), {"read": 0.5})
    sizes = {} if empty else {0: 2, 3: 5, 5: 1}
    write_report(summary, sizes, interest, plan, out, channels=tmp_path / "plan" / "channels.parquet")
    assert {path.name for path in out.iterdir()} == set(FILES)
    assert len([name for name in FILES if name.endswith(".png")]) == len(PICTURES) == 4
    assert json.loads((out / "summary.json").read_text()) == summary
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "x&lt;y" in page
    assert "x<y" not in page
    assert "8 events against 1,234 subscriptions; 25 % of the events match none" in page
