"""Methods beside each other: the numbers of each by itself, and one that fails does not end the others."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import narrowcast as nc
from narrowcast.costs.false_positives import FalsePositives
from narrowcast.costs.filtering import Filtering
from narrowcast.errors import ParameterError
from narrowcast.planning.base import planners
from narrowcast.spark.stages.compare import ComparedMethod, Comparison, compare
from narrowcast.spark.stages.interest import InterestFrames
from narrowcast.spark.stages.network import NetworkTables
from narrowcast.spark.stages.planner_trial import trials
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from pyspark.sql import SparkSession

RNG = np.random.default_rng(7)
INTEREST = nc.Interest(
    RNG.random((6, 30)) < 0.3, RNG.uniform(0, 4, 30), subscribers=list("abcdef"), flows=range(30)
)
#: A line of six nodes, each with a subscriber.
LINE = nc.Topology(range(5), range(1, 6), [1.0, 2.0, 3.0, 4.0, 5.0], nodes=list("abcdef"))
#: Methods that are compared where none is named.
TRIED = planners(boxes=False, chooses=False)
BASELINES = ["unicast", "broadcast", "per-flow", "hash"]

METHODS = """
import os, signal
import numpy as np
from narrowcast.planning import Broadcast

class Killed(Broadcast):
    def fit(self, interest):
        if interest.n_flows > 3:
            os.kill(os.getpid(), signal.SIGKILL)

class Broken(Broadcast):
    def fit(self, interest):
        raise ZeroDivisionError("no\\nway")

class Greedy(Broadcast):
    def fit(self, interest):
        raise MemoryError

class Large(Broadcast):
    def fit(self, interest):
        if interest.n_flows > 3:
            np.ones(10_000_000)
        return super().fit(interest)

class Unfair(Broadcast):
    def _plan(self, interest):
        from narrowcast.model.plan import ChannelPlan
        none = np.zeros((interest.n_flows, 0)), np.zeros((interest.n_subscribers, 0))
        return ChannelPlan(*none, subscribers=interest.subscribers, flows=interest.flows)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Methods in a module that another process finds too."""
    (tmp_path / "own_methods.py").write_text(METHODS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return importlib.import_module("own_methods")


def rows(found: Comparison) -> dict[tuple[str, int | None], ComparedMethod]:
    return {(row.method, row.asked): row for row in found.rows}


@pytest.mark.slow
def test_the_costs_are_those_of_each_method() -> None:
    found = compare(INTEREST, channels=[3, 5], network=NetworkTables(LINE))
    assert found.costs == ("network", "waste", "false-positives", "filtering", "forwarding", "overall")
    by_name = rows(found)
    several = [name for name in TRIED if name not in ("unicast", "broadcast")]
    asked = {(name, count) for name in several for count in (3, 5)}
    assert set(by_name) == asked | {("unicast", None), ("broadcast", None), ("ideal", None)}
    models: dict[str, nc.CostModel] = {
        "network": nc.Network(LINE),
        "waste": nc.Waste(),
        "false-positives": FalsePositives(),
        "filtering": Filtering(),
        "forwarding": nc.Forwarding(),
        "overall": nc.Overall(),
    }
    for (name, count), row in by_name.items():
        assert row.problem == ""
        if name == "ideal":
            assert row.costs == {cost: model.ideal(INTEREST) for cost, model in models.items()}
            assert row.channels is row.seconds is row.peak_mb is row.direct_share is None
            continue
        extra = {"topology": LINE} if name == "partial" else {}
        plan = nc.PLANNERS[name](channels=count or 3, **extra).fit(INTEREST).plan_
        assert row.costs == {cost: model.score(INTEREST, plan) for cost, model in models.items()}
        assert row.channels == plan.n_used
        assert row.seconds is not None
        assert row.peak_mb is not None
        assert row.seconds > 0
        assert 0 <= row.peak_mb < 500
    totals = [row.costs["network"].total for row in found.rows]
    assert totals == sorted(totals)
    assert found.rows[0].method == "ideal"
    unicast = by_name["unicast", None]
    assert unicast.direct_share == pytest.approx(1)
    assert (unicast.improvement_pct, unicast.excess_share, unicast.channels) == (0, 0, 0)
    assert by_name["ideal", None].excess_share == 0
    # Flooding is of what somebody wants, to who wants something; broadcast brings more, to more.
    assert 1 < by_name["hash", 5].excess_share < by_name["broadcast", None].excess_share  # type: ignore[operator]
    assert by_name["hash", 3].direct_share == 0
    assert 0 < by_name["per-flow", 5].direct_share < by_name["per-flow", 3].direct_share < 1  # type: ignore[operator]


@pytest.mark.slow
def test_methods_by_boxes_get_them() -> None:
    lo = np.random.default_rng(1).random((6, 2))
    boxes = lo, lo + 0.1
    found = rows(compare(INTEREST, channels=3, methods=["r-tree", "centroid", "mst"], boxes=boxes))
    for name in ("r-tree", "centroid"):
        plan = nc.PLANNERS[name](channels=3, boxes=boxes).fit(INTEREST).plan_
        assert found[name, 3].costs["waste"].total == nc.Waste().score(INTEREST, plan).total
    without = rows(compare(INTEREST, channels=3, methods=["r-tree", "mst"]))
    assert "r-tree needs the boxes" in without["r-tree", 3].problem
    assert without["mst", 3].problem == ""


def test_the_table_has_a_row_for_each() -> None:
    found = compare(INTEREST, channels=2, methods=["mst", "ideal", "mst"], params={"top": 0})
    table = found.to_table()
    assert table.column_names == [
        *("method", "asked", "channels", "waste", "false-positives", "filtering", "forwarding", "overall"),
        *("improvement_pct", "excess_share", "direct_share", "balance", "seconds", "peak_mb", "problem"),
    ]
    assert sorted(table["method"].to_pylist()) == sorted([*BASELINES, "mst", "ideal"])
    assert table.schema.field("asked").type == pa.int64()
    said = table.to_pylist()[-1]
    assert said["method"] == "mst"
    assert "top=0" in said["problem"]
    assert said["waste"] is said["seconds"] is said["channels"] is None
    assert found.to_dict()["rows"][0]["problem"] is None
    assert table["improvement_pct"].null_count == table.num_rows, "there is no network"


def test_parameters_go_to_the_methods_that_have_them() -> None:
    one = rows(compare(INTEREST, channels=2, methods=["mst"], params={"top": 4}))["mst", 2]
    plan = nc.PLANNERS["mst"](channels=2, top=4).fit(INTEREST).plan_
    assert one.costs["waste"] == nc.Waste().score(INTEREST, plan)
    assert 0 < one.direct_share < 1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"channels": 0}, ("channels", 0)),
        ({"channels": []}, ("channels", [])),
        ({"channels": [2, 2]}, ("channels", [2, 2])),
        ({"methods": ["msst"]}, ("msst", "mst")),
        ({"params": {"topp": 1}}, ("topp", "distance, ")),
        ({"params": {"topology": 1}}, ("topology",)),
        ({"costs": ["network"]}, ("network", "topology")),
        ({"costs": []}, ("costs",)),
        ({"network": NetworkTables(nc.Topology([0], [1], [1.0], nodes=["a", "b"]))}, ("'c'",)),
        (
            {"network": NetworkTables(nc.Topology([0, 2, 4], [1, 3, 5], [1.0] * 3, nodes=list("abcdef")))},
            ("link",),
        ),
    ],
)
def test_an_error_that_affects_all_methods_is_raised(
    given: dict[str, object], shown: tuple[object, ...]
) -> None:
    with refused(ParameterError, *shown):
        compare(INTEREST, **{"channels": 2, **given})  # type: ignore[arg-type]


def test_channels_that_carry_nothing_are_not_counted() -> None:
    interest = nc.Interest(np.ones((2, 3)))
    found = rows(compare(interest, channels=40, methods=["hash"]))
    assert found["hash", 40].channels == 3


def test_nobody_wants_anything() -> None:
    found = compare(nc.Interest(np.zeros((2, 3))), channels=2)
    assert {row.problem for row in found.rows} == {""}
    wasted = {row.method: row.costs["waste"].total for row in found.rows}
    assert wasted.pop("broadcast") == 6, "each of both gets all three"
    assert set(wasted.values()) == {0}
    balance = {row.method: row.balance for row in found.rows}
    assert (balance["direct"], balance["ncut"], balance["broadcast"]) == (1.0, 1.0, 1.0)
    assert len(found.rows) == len(TRIED) + 1, "and the ideal"


def test_who_wants_nothing_is_placed_and_counted() -> None:
    """Clusters have everybody in them, and a broadcast reaches them; others have those who want something."""
    wants = np.zeros((9, 4), np.bool_)
    wants[[0, 2], :2], wants[[4, 6], 2:] = True, True
    interest = nc.Interest(wants, subscribers=list("abcdefghi"))
    ends = np.arange(9.0)[:, None]
    found = rows(
        compare(interest, channels=2, methods=["direct", "ncut", "centroid"], boxes=(ends, ends + 1))
    )
    some = nc.Interest(wants[[0, 2, 4, 6]], subscribers=["a", "c", "e", "g"])
    for name in ("direct", "ncut"):
        plan = nc.PLANNERS[name](channels=2).fit(interest).plan_
        assert found[name, 2].costs["false-positives"] == FalsePositives().score(interest, plan)
        assert found[name, 2].balance == plan.members().max() / 4.5
        # Those who wanted nothing get what the others want; without them nobody would get it for nothing.
        assert found[name, 2].costs["false-positives"].total == 2 * 5
        assert FalsePositives().score(some, nc.PLANNERS[name](channels=2).fit(some).plan_).total == 0
    assert found["centroid", 2].costs["false-positives"].total > 0
    flooding = nc.Broadcast().fit(interest).plan_
    assert found["broadcast", None].costs["waste"] == nc.Waste().score(interest, flooding)
    assert found["broadcast", None].costs["false-positives"].total == 9 * 4 - 8
    assert found["broadcast", None].excess_share == pytest.approx(1)
    # Those five get half of what flooding brings them, and nobody else gets anything for nothing.
    assert found["direct", 2].excess_share == pytest.approx(5 * 2 / (9 * 4 - 8))
    assert found["hash", 2].costs["waste"] == nc.Waste().score(some, nc.Hash(channels=2).fit(some).plan_)
    assert found["broadcast", None].balance == 1
    assert found["unicast", None].balance is None


def test_who_wants_nothing_may_be_nowhere() -> None:
    """On a network nothing can be sent to who is on no node, so that a cluster cannot have them."""
    interest = nc.Interest(np.eye(7)[:, :5], subscribers=[*"abcdefz"])
    ends = np.arange(7.0)[:, None]
    given = {"channels": 2, "methods": ["direct", "centroid"], "network": NetworkTables(LINE)}
    found = rows(compare(interest, boxes=(ends, ends + 1), **given))  # type: ignore[arg-type]
    assert {row.problem for row in found.values()} == {""}
    there = nc.Interest(np.eye(7)[:6, :5], subscribers=[*"abcdef"])  # f wants nothing either, and is a node
    plan = nc.Direct(channels=2).fit(there).plan_
    assert found["direct", 2].costs["network"] == nc.Network(LINE).score(there, plan)
    plan = nc.PLANNERS["centroid"](channels=2, boxes=(ends[:6], ends[:6] + 1)).fit(there).plan_
    assert found["centroid", 2].costs["network"] == nc.Network(LINE).score(there, plan)


def test_what_fails_does_not_end_the_rest(own: ModuleType) -> None:
    planners = [own.Killed(), own.Broken(), own.Greedy(), own.Unfair(), own.Large(), nc.Broadcast()]
    killed, broken, greedy, unfair, large, plain = trials(INTEREST, planners)
    assert "signal 9" in killed.problem
    assert broken.problem == "ZeroDivisionError: no"
    assert "memory" in greedy.problem
    assert f"{INTEREST.n_wants} of {INTEREST.n_wants}" in unfair.problem
    assert large.megabytes is not None
    assert plain.megabytes is not None
    assert 79 < large.megabytes - plain.megabytes < 90, "what numpy takes is seen, in 10**6 bytes"
    assert large.plan == plain.plan == nc.Broadcast().fit(INTEREST).plan_


def test_nobody_waits_for_the_rest(own: ModuleType) -> None:
    found = trials(INTEREST, [nc.Broadcast(), own.Large()])
    assert next(found).problem == ""
    found.close()
    assert list(found) == []


# ------------------------------------------------------------------------------------------------ network


def test_fingerprints_tell_tables_apart() -> None:
    table = LINE.to_table()
    one = NetworkTables(nc.Topology.from_table(table))
    other = NetworkTables(nc.Topology.from_table(table.take([4, 2, 3, 1, 0])))
    assert one.fingerprints == other.fingerprints
    assert one.fingerprints != NetworkTables(nc.Topology.from_table(table.slice(1))).fingerprints
    both = NetworkTables(LINE, nc.Locations(["x"], [1]))
    assert set(both.fingerprints) == {"topology", "locations"}
    assert both.fingerprints != NetworkTables(LINE, nc.Locations(["x"], [2])).fingerprints
    assert NetworkTables().fingerprints == {}


@pytest.mark.spark
def test_digits_that_are_text(spark: SparkSession) -> None:
    """Filters name subscribers by text; a node of digits is a number in CSV, and the same name."""
    line = nc.Topology([0], [1], [4.0], nodes=[10, 20])
    with_places = NetworkTables(line, nc.Locations([7, 8], [1, 0]))
    rates = spark.createDataFrame([("x", 1.0)], "flow string, rate double")
    for kind, text in (("string", True), ("bigint", False)):
        pairs = spark.createDataFrame([("7" if text else 7, "x")], f"subscriber {kind}, flow string")
        frames = InterestFrames(pairs, rates, "topics")
        found = NetworkTables(line).fitting(text=frames.text)
        assert found.topology is not None
        assert found.topology.nodes.to_pylist() == (["10", "20"] if text else [10, 20])
        assert found.topology.cost.tolist() == [4.0]
        found = with_places.fitting(text=frames.text)
        assert found.locations is not None
        assert found.locations.of(pa.array(["7"] if text else [7])).tolist() == [1]
        assert NetworkTables().fitting(text=frames.text) == NetworkTables()
