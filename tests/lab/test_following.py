"""Replays of changes to planners: records of each window, and changes of rates that planners must notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from narrowcast.costs.overall import Overall
from narrowcast.errors import ParameterError
from narrowcast.lab.following import Following
from narrowcast.lab.overlay import OverlayRing, channel_keys, links
from narrowcast.model.interest import Interest
from narrowcast.model.relation import same
from narrowcast.planning.baselines.simple import PerFlow
from narrowcast.planning.replanner import Replanner
from narrowcast.planning.topics.tamara import Tamara, TamaraTidy
from narrowcast.workloads.feeds import Feeds
from support.errors import refused


def no_interest(feeds: Feeds) -> Interest:
    """The interest before the first subscription."""
    last = feeds.interest()
    return Interest(np.zeros(last.wants.shape), last.rate, last.subscribers, last.flows)


def test_windows_add_up() -> None:
    feeds = Feeds(n_subscribers=80, n_flows=40, wanted=10.0, days=10.0, seed=2)
    first, changes = no_interest(feeds), feeds.tables()["changes"]
    following = Following(interest=first, changes=changes, windows=7, seconds=864_000)
    planner = TamaraTidy(period=following.window).fit(first)
    rows = following.lead(planner)
    assert [row["window"] for row in rows] == list(range(1, 8))
    assert rows[-1]["seconds"] == pytest.approx(864_000)
    for kind, count in planner.messages_.items():
        assert sum(row[kind] for row in rows) == count
    last = feeds.later()
    assert rows[-1]["cost"] == pytest.approx(Overall().score(last, planner.plan_).total)
    assert rows[-1]["per_flow"] == pytest.approx(Overall().score(last, PerFlow().fit(last).plan_).total)
    assert rows[-1]["cost"] == pytest.approx(planner.cost_)
    messages = sum(rows[3][kind] for kind in ("notify", "survey", "cluster", "resub"))
    assert rows[3]["adapting"] == pytest.approx(messages / (following.window / 360))


def test_batches_are_all_changes_in_order() -> None:
    feeds = Feeds(n_subscribers=30, n_flows=20, wanted=6.0, shift="uniform", groups=5, days=3.0)
    changes = feeds.tables()["changes"]
    shuffled = changes.take(pa.array(np.random.default_rng(0).permutation(changes.num_rows)))
    following = Following(interest=feeds.interest(), changes=shuffled, windows=4)
    states = list(following.states())
    assert pa.concat_tables([batch for batch, _ in states])["flow"].to_pylist() == changes["flow"].to_pylist()
    assert same(states[-1][1].wants, feeds.later().wants)


def test_any_planner_that_follows_is_led() -> None:
    feeds = Feeds(n_subscribers=30, n_flows=20, wanted=6.0, groups=5, days=3.0)
    following = Following(interest=no_interest(feeds), changes=feeds.tables()["changes"], windows=3)
    rows = following.lead(Replanner(PerFlow()).fit(no_interest(feeds)))
    assert all(row["cost"] == pytest.approx(row["per_flow"]) for row in rows)
    assert "adapting" not in rows[0]


def test_rates_that_change_on_the_way_are_noticed() -> None:
    """A planner that counts events does better than one that believes the first rates to the end."""
    feeds = Feeds(n_subscribers=300, model="frequent", seed=4, rates_shift=True)
    tables, first = feeds.tables(), no_interest(feeds)
    costs = []
    for observed in (False, True):
        following = Following(
            interest=first, changes=tables["changes"], rates=tables["rates"], observed=observed, windows=50
        )
        costs.append(following.lead(Tamara(seed=4, period=following.window).fit(first))[-1]["cost"])
    last = feeds.later()
    scratch = Overall().score(last, Tamara(seed=4).fit(last).plan_).total
    unaware, aware = costs
    assert unaware > 1.1 * scratch
    assert unaware - aware > 0.5 * (unaware - scratch)


def test_time_passes_without_changes() -> None:
    """Clusters are updated periodically, whether subscriptions change or not."""
    wants = np.ones((20, 4))
    first = Interest(wants, np.full(4, 1e-5))
    changes = {"time": [1000.0], "subscriber": [0], "flow": [0], "action": ["unsubscribe"]}
    following = Following(interest=first, changes=pa.table(changes), windows=5, seconds=5000.0)
    rows = following.lead(Tamara(rounds=0, period=1000.0, surely=1e-9).fit(first))
    assert rows[0]["clusters"] == 0
    assert rows[-1]["clusters"] > 0
    assert rows[-1]["cost"] < 0.5 * rows[-1]["per_flow"]


def test_trees_over_time() -> None:
    """Without churn the ring stays, and what is left at the end is what all windows have brought."""
    feeds = Feeds(n_subscribers=150, n_flows=40, wanted=10.0, days=10.0, seed=2)
    first, changes = no_interest(feeds), feeds.tables()["changes"]
    overlay = OverlayRing(nodes=200, seed=4)
    following = Following(interest=first, changes=changes, windows=7, overlay=overlay)
    planner = Tamara(period=following.window).fit(first)
    rows = following.lead(planner)
    plan, last = planner.plan_, feeds.later()
    found = links(overlay.ring(150), channel_keys(plan.n_channels, seed=4), plan.listens)
    assert sum(row["tree_join"] - row["tree_leave"] for row in rows) == found.sum()
    ties = sum(flows for flows in np.bincount(plan.carries.indices).tolist() if flows >= 2)
    assert rows[-1]["tree_maintenance"] == found.sum() + ties
    assert rows[-1]["helpers"] > 0
    alone = links(overlay.ring(150), channel_keys(40, seed=4), last.wants)
    assert rows[-1]["tree_per_flow_maintenance"] == alone.sum()
    assert rows[-1]["tree_per_flow_dissemination"] == pytest.approx(last.rate * 360 @ (1 + alone))
    assert rows[-1]["tree_cost"] < 0.8 * rows[-1]["tree_per_flow"]
    assert all(row["churn_repair"] == row["churn_rejoin"] == 0 for row in rows)
    # The rest is as without an overlay.
    plain = Following(interest=first, changes=changes, windows=7)
    for row, other in zip(rows, plain.lead(Tamara(period=plain.window).fit(first)), strict=True):
        assert other.items() <= row.items()


def test_churn_over_time() -> None:
    feeds = Feeds(n_subscribers=150, n_flows=40, wanted=10.0, shift="clustered", days=10.0, seed=2)
    first, changes = feeds.interest(), feeds.tables()["changes"]
    costs, messages = [], []
    for churn in (0, 5, 50):
        following = Following(interest=first, changes=changes, windows=5, overlay=OverlayRing(churn=churn))
        rows = following.lead(Tamara(period=following.window).fit(first))
        costs.append(np.mean([row["tree_cost"] for row in rows]))
        messages.append(sum(row["tree_messages"] for row in rows))
        # Trees of which nodes fail are as good as new, but it takes messages.
        assert all((row["churn_rejoin"] > 0) == (churn > 0) for row in rows)
    assert costs == pytest.approx([costs[0]] * 3, rel=0.05)
    assert messages[0] < messages[1] < messages[2]


def test_new_subscribers_find_a_node() -> None:
    first = Interest([[1, 1], [1, 1]], subscribers=["b", "d"], flows=["x", "y"])
    changes = pa.table(
        {
            "time": [0.0, 50.0, 90.0, 100.0],
            "subscriber": ["a", "c", "c", "e"],
            "flow": ["x", "y", "x", "new"],
            "action": ["subscribe"] * 4,
        }
    )
    for nodes, grows in ((None, [True, True]), (9, [False, False])):
        following = Following(interest=first, changes=changes, windows=2, overlay=OverlayRing(nodes=nodes))
        rows = following.lead(Tamara(period=following.window).fit(first))
        assert [row["churn_join"] > 0 for row in rows] == grows
        # All know all: each of 8 pairs is a link, but for those of a root that has subscribed itself.
        assert 8 - 3 <= rows[-1]["tree_per_flow_maintenance"] <= 8


def test_bad_parameters() -> None:
    feeds = Feeds(n_subscribers=5, n_flows=20, wanted=6.0, groups=5)
    given: dict[str, Any] = {"interest": no_interest(feeds), "changes": feeds.tables()["changes"]}
    for seconds in (-50, 0, float("nan"), float("inf")):
        with refused(ParameterError, seconds, parameter="seconds"):
            Following(**given, seconds=seconds)
    with refused(ParameterError, parameter="seconds", value=10.0):
        Following(**given, seconds=10.0)
    with refused(ParameterError, parameter="windows", value=0):
        Following(**given, windows=0)
    with refused(ParameterError, parameter="seconds", value=None):
        Following(interest=given["interest"], changes=given["changes"].slice(0, 1))
    with refused(ParameterError, 4, 5):
        Following(**given, overlay=OverlayRing(nodes=4))
    with refused(ParameterError, 9, 5):
        Following(**given, overlay=OverlayRing(churn=9))
    with refused(ParameterError, parameter="overlay", value=5):
        Following(**given, overlay=5)  # type: ignore[arg-type]
