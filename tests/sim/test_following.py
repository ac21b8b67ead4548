"""Planners led through changes: what is told of each window, and that they notice what nobody says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from narrowcast.costs.overall import Overall
from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.model.relation import same
from narrowcast.planning.baselines import PerFlow
from narrowcast.planning.replan import Replanner
from narrowcast.planning.tamara import Tamara, TamaraTidy
from narrowcast.sim.following import Following
from narrowcast.workloads.feeds import Feeds


def nobody(feeds: Feeds) -> Interest:
    """The interest before anybody has come."""
    last = feeds.interest()
    return Interest(np.zeros(last.wants.shape), last.rate, last.subscribers, last.flows)


def test_windows_add_up() -> None:
    feeds = Feeds(n_subscribers=80, n_flows=40, wanted=10.0, days=10.0, seed=2)
    first, changes = nobody(feeds), feeds.tables()["changes"]
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
    following = Following(interest=nobody(feeds), changes=feeds.tables()["changes"], windows=3)
    rows = following.lead(Replanner(PerFlow()).fit(nobody(feeds)))
    assert all(row["cost"] == pytest.approx(row["per_flow"]) for row in rows)
    assert "adapting" not in rows[0]


def test_rates_that_change_on_the_way_are_noticed() -> None:
    """A planner that counts events does better than one that believes the first rates to the end."""
    feeds = Feeds(n_subscribers=300, model="frequent", seed=4, rates_shift=True)
    tables, first = feeds.tables(), nobody(feeds)
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


def test_bad_parameters() -> None:
    feeds = Feeds(n_subscribers=5, n_flows=20, wanted=6.0, groups=5)
    given: dict[str, Any] = {"interest": nobody(feeds), "changes": feeds.tables()["changes"]}
    for seconds in (-50, 0, float("nan"), float("inf")):
        with pytest.raises(ParameterError, match=f"seconds is {seconds}"):
            Following(**given, seconds=seconds)
    with pytest.raises(ParameterError, match="windows is 0"):
        Following(**given, windows=0)
    with pytest.raises(ParameterError, match="take no time"):
        Following(interest=given["interest"], changes=given["changes"].slice(0, 1))
