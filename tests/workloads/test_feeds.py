"""News feeds as flows, and readers whose interests change."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.planning.replanner import changed
from narrowcast.workloads import Feeds, make_workload
from narrowcast.workloads.feeds import MODELS, changes_between
from support.command import document, refusal
from support.errors import refused


def dense(interest: Interest) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(interest.wants.toarray())


def empty(like: Interest) -> Interest:
    wants = sparse.csr_array(like.wants.shape, dtype=np.bool_)
    return Interest(wants, like.rate, like.subscribers, like.flows)


def homes(**params: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Who has which flow at home: with chance 1 at home, and nothing besides, just that is wanted."""
    return dense(Feeds(**params | {"p_in": 1.0, "wanted": 0}).interest())


# ------------------------------------------------------------------------------------------- frequencies


@pytest.mark.parametrize(
    ("model", "quotas", "mean"),
    [
        ("average", [18, 6, 30, 54, 12], 0.1556),
        ("frequent", [6, 24, 60, 24, 6], 0.4113),
        ("infrequent", [12, 48, 60], 0.0398),
    ],
)
def test_each_band_has_its_quota_of_flows(model: str, quotas: list[int], mean: float) -> None:
    means = []
    for seed in range(5):
        feeds = make_workload("feeds", [f"model={model}"], seed=seed)
        assert isinstance(feeds, Feeds)
        frequency = feeds.frequencies()
        assert frequency.shape == (120,)
        found = [int(((frequency >= low) & (frequency < high)).sum()) for low, high, _ in MODELS[model]]
        assert found == quotas
        means.append(frequency.mean())
        rates = Feeds(n_subscribers=1, model=feeds.model, interval=90.0, seed=seed).tables()["rates"]
        np.testing.assert_allclose(rates["rate"].to_numpy(), frequency / 90)
    exact = sum((low + high) / 2 * share for low, high, share in MODELS[model])
    assert exact == pytest.approx(mean, abs=5e-5)
    assert np.mean(means) == pytest.approx(exact, rel=0.05)


def test_the_shares_of_each_model_are_whole() -> None:
    for bands in MODELS.values():
        assert sum(share for _, _, share in bands) == pytest.approx(1)
        assert all(low == bands[i + 1][1] for i, (low, _, _) in enumerate(bands[:-1]))


@given(st.integers(1, 300), st.sampled_from(sorted(MODELS)))
def test_quotas_of_any_number_of_flows_are_within_one(n_flows: int, model: Any) -> None:
    feeds = Feeds(n_flows=n_flows, model=model, interests="uniform", wanted=1, n_subscribers=0)
    frequency = feeds.frequencies()
    assert len(frequency) == n_flows
    for low, high, share in MODELS[model]:
        assert abs(((frequency >= low) & (frequency < high)).sum() - share * n_flows) <= 1


def test_frequencies_have_no_order_and_hang_on_nothing_else() -> None:
    frequency = Feeds(seed=2).frequencies()
    assert abs(np.corrcoef(frequency, np.arange(120))[0, 1]) < 0.3
    other = Feeds(seed=2, n_subscribers=7, shift="uniform", rates_shift=True, days=1.0).frequencies()
    assert (other == frequency).all()


# --------------------------------------------------------------------------------------------- interests


def test_statistics_are_those_of_the_paper() -> None:
    found = []
    for seed in range(5):
        feeds = Feeds(seed=seed, shift="clustered")
        each = dense(feeds.interest()).sum(axis=1)
        found.append((each.mean(), each.std(), feeds.tables()["changes"].num_rows / 1000))
    mean, deviation, operations = np.mean(found, axis=0)
    # 25 and a little more where there is more at home; the deviation is then a little less than 2.
    assert mean == pytest.approx(25.08, abs=0.08)
    assert deviation == pytest.approx(1.9, abs=0.05)
    # All that is wanted before and after, without what two draws of 25 out of 120 have in common.
    assert operations == pytest.approx(2 * 3 * (25.08 - 25.08**2 / 120), abs=0.35)


def test_flows_split_into_groups_of_which_two_are_home() -> None:
    home = homes(seed=4)
    kinds = np.unique(home.T, axis=0)
    assert len(kinds) == 10
    assert (home.sum(axis=1) == 24).all()
    assert [int((kind == home.T).all(axis=1).sum()) for kind in kinds] == [12] * 10
    # All pairs of groups are as likely: 3000 x 2 / 10 each.
    assert np.abs(kinds.sum(axis=1) - 600).max() < 4 * (3000 * 0.2 * 0.8) ** 0.5


def test_groups_differ_by_one_flow_at_most() -> None:
    sizes = homes(n_flows=53, groups=5, home=1, n_subscribers=200).sum(axis=1)
    assert set(sizes.tolist()) == {10, 11}


@pytest.mark.parametrize("p_in", [0.0, 0.5, 0.9, 1.0])
def test_home_flows_are_wanted_with_their_chance_and_others_alike(p_in: float) -> None:
    home, wants = homes(seed=7), dense(Feeds(seed=7, p_in=p_in).interest())
    assert wants[home].mean() == pytest.approx(p_in, abs=4 * 0.5 / home.sum() ** 0.5)
    outside = (wants & ~home).sum(axis=0) / (~home).sum(axis=0)
    assert np.ptp(outside) < 8 * (outside.mean() / (~home).sum(axis=0).min()) ** 0.5
    # Others fill up to the total, if there is room; who has more at home has just that.
    target = dense(Feeds(seed=7, p_in=0.0).interest()).sum(axis=1)
    expected = np.maximum(target, (wants & home).sum(axis=1))
    assert (wants.sum(axis=1) == expected).all()


def test_uniform_interests_have_no_groups() -> None:
    wants = dense(Feeds(interests="uniform", seed=1).interest())
    each = wants.sum(axis=1)
    assert each.mean() == pytest.approx(25, abs=4 * 2 / 3000**0.5)
    assert each.std() == pytest.approx((4 + 1 / 12) ** 0.5, abs=0.1)
    share = 25 / 120
    assert np.abs(wants.mean(axis=0) - share).max() < 5 * (share * (1 - share) / 3000) ** 0.5
    together = (wants.T.astype(float) @ wants) / 3000
    off = together[~np.eye(120, dtype=bool)]
    assert np.abs(off - share * 24 / 119).max() < 5.5 * (off.mean() / 3000) ** 0.5


def test_more_subscribers_leave_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for interests in ("clustered", "uniform"):
        params: dict[str, Any] = {"interests": interests, "seed": 8}
        less, more = (dense(Feeds(n_subscribers=n, **params).interest()) for n in (40, 90))
        assert (more[:40] == less).all()
        with monkeypatch.context() as patch:
            patch.setattr("narrowcast.workloads.feeds._BLOCK", 1000)  # nor does how much is done in one go
            assert (dense(Feeds(n_subscribers=90, **params).interest()) == more).all()


def test_all_flows_wanted() -> None:
    wants = dense(Feeds(n_flows=6, groups=2, home=2, p_in=1.0, wanted=0, n_subscribers=3).interest())
    assert wants.all()
    wants = dense(Feeds(n_flows=6, interests="uniform", wanted=6, n_subscribers=50).interest())
    assert 4 < wants.sum(axis=1).mean() < 6  # no subscriber wants more flows than there are


# ----------------------------------------------------------------------------------------------- changes


def test_subscribers_arrive_one_after_the_other() -> None:
    feeds = Feeds(n_subscribers=300, days=2.0, seed=5)
    tables = feeds.tables()
    interests, changes = tables["interests"], tables["changes"]
    assert changes.schema == pa.schema(
        {
            "time": pa.timestamp("us", "UTC"),
            "subscriber": pa.int32(),
            "flow": pa.int32(),
            "action": pa.string(),
        }
    )
    assert interests.schema == pa.schema({"subscriber": pa.int32(), "flow": pa.int32()})
    assert changes["action"].unique().to_pylist() == ["subscribe"]
    assert changes.num_rows == interests.num_rows
    who = changes["subscriber"].to_numpy()
    turns = who[np.append(True, np.diff(who) != 0)]
    assert sorted(turns.tolist()) == list(range(300))
    assert (turns != np.arange(300)).any()
    flow = changes["flow"].to_numpy()
    assert (np.diff(flow)[np.diff(who) == 0] < 0).mean() == pytest.approx(0.5, abs=0.05)
    # Once each, at even steps from the beginning on.
    pairs = ["subscriber", "flow"]
    assert changes.select(pairs).sort_by([(name, "ascending") for name in pairs]) == interests
    time = changes["time"].cast(pa.int64()).to_numpy()
    assert time[0] == 0
    np.testing.assert_allclose(time, np.arange(len(time)) * 2 * 86400e6 / len(time), atol=1)
    assert changed(empty(feeds.interest()), changes) == feeds.later() == feeds.interest()


@pytest.mark.parametrize("shift", ["clustered", "uniform"])
@pytest.mark.parametrize("interests", ["clustered", "uniform"])
def test_a_shift_replaces_all_interests(interests: Any, shift: Any) -> None:
    feeds = Feeds(n_subscribers=400, interests=interests, shift=shift, seed=6)
    tables = feeds.tables()
    assert Interest.from_tables(tables["interests"], tables["rates"]) == feeds.interest()
    assert feeds.interest() == Feeds(n_subscribers=400, interests=interests, seed=6).interest()
    assert changed(feeds.interest(), tables["changes"]) == feeds.later()
    before, after = dense(feeds.interest()), dense(feeds.later())
    assert tables["changes"].num_rows == (before ^ after).sum()
    # As much in common as two interests that know nothing of one another.
    assert (before & after).sum(axis=1).mean() == pytest.approx(25.08**2 / 120, abs=0.6)


def test_a_shift_has_new_groups_or_none() -> None:
    params: dict[str, Any] = {"n_subscribers": 300, "p_in": 1.0, "wanted": 0}
    feeds = Feeds(shift="clustered", **params)
    kinds = [
        np.unique(dense(each), axis=1, return_inverse=True)[1] for each in (feeds.interest(), feeds.later())
    ]
    assert [len(set(each.tolist())) for each in kinds] == [10, 10]
    assert len(set(zip(*(each.tolist() for each in kinds), strict=True))) > 50
    assert dense(Feeds(shift="uniform", **params | {"wanted": 25}).later()).sum(axis=1).mean() > 24


def test_a_shift_goes_pair_by_pair() -> None:
    feeds = Feeds(n_subscribers=60, shift="clustered", seed=3)
    before, after = dense(feeds.interest()), dense(feeds.later())
    changes = feeds.tables()["changes"]
    who, flow = changes["subscriber"].to_numpy(), changes["flow"].to_numpy()
    joins = pc.equal(changes["action"], "subscribe").to_numpy()
    assert np.count_nonzero(np.diff(who)) == 59
    for user in range(60):
        mine = who == user
        gone, come = flow[mine & ~joins], flow[mine & joins]
        assert sorted(gone) == np.flatnonzero(before[user] & ~after[user]).tolist()
        assert sorted(come) == np.flatnonzero(after[user] & ~before[user]).tolist()
        pairs = min(len(gone), len(come))
        expected = [False, True] * pairs + [len(come) > pairs] * (len(gone) + len(come) - 2 * pairs)
        assert joins[mine].tolist() == expected


@given(st.data())
def test_changes_turn_any_interest_into_any_other(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 6)))
    matrix = st.lists(
        st.lists(st.booleans(), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
    )
    before, after = (Interest(np.array(data.draw(matrix)).reshape(shape)) for _ in range(2))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    changes = changes_between(before, after, 1.0, users=rng, flows=rng)
    assert changed(before, changes) == after
    assert changes.num_rows == (dense(before) ^ dense(after)).sum()
    assert changes["time"].to_pylist() == sorted(changes["time"].to_pylist())


def test_rates_are_traded_halfway() -> None:
    feeds = Feeds(n_subscribers=20, rates_shift=True, days=10.0, seed=9)
    rates = feeds.tables()["rates"]
    assert rates.schema == pa.schema(
        {"flow": pa.int32(), "rate": pa.float64(), "time": pa.timestamp("us", "UTC")}
    )
    first, then = rates.slice(0, 120), rates.slice(120)
    utc = dt.UTC
    assert first["time"].unique().to_pylist() == [dt.datetime(1970, 1, 1, tzinfo=utc)]
    assert then["time"].unique().to_pylist() == [dt.datetime(1970, 1, 6, tzinfo=utc)]
    assert first["flow"].to_pylist() == then["flow"].to_pylist() == list(range(120))
    one, two = first["rate"].to_numpy(), then["rate"].to_numpy()
    assert (one != two).any()
    assert sorted(one) == sorted(two)
    assert (feeds.interest().rate == one).all()
    assert (feeds.later().rate == two).all()
    assert (feeds.frequencies() / 360 == one).all()
    still = Feeds(n_subscribers=20, days=10.0, seed=9)
    assert still.tables()["changes"] == feeds.tables()["changes"]
    assert still.tables()["rates"] == first.drop_columns(["time"])


# -------------------------------------------------------------------------------------------------- all


def test_the_same_seed_gives_the_same() -> None:
    params: dict[str, Any] = {"n_subscribers": 50, "shift": "clustered", "rates_shift": True}
    one, two = Feeds(**params, seed=3), Feeds(**params, seed=3)
    assert one == two
    assert one.tables() == two.tables()
    other = Feeds(**params, seed=4).tables()
    for name, table in one.tables().items():
        assert other[name] != table


def test_no_subscribers() -> None:
    tables = Feeds(n_subscribers=0, shift="uniform").tables()
    assert {name: table.num_rows for name, table in tables.items()} == {
        "interests": 0,
        "rates": 120,
        "changes": 0,
    }
    assert tables["changes"].schema.field("flow").type == pa.int32()
    assert tables["changes"].schema.field("action").type == pa.string()


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"n_subscribers": -1}, [0]),
        ({"n_flows": 0}, [1]),
        ({"n_flows": 5.0}, []),
        ({"groups": 0}, [1]),
        ({"groups": 121}, [120]),
        ({"home": 0}, [1]),
        ({"home": 11}, [10]),
        ({"home": 11, "interests": "uniform", "shift": "clustered"}, [10]),
        ({"p_in": 1.01}, [0, 1]),
        ({"p_in": float("nan")}, []),
        ({"p_in": True}, []),
        ({"wanted": 121}, [0, 120]),
        ({"wanted": -1}, []),
        ({"wanted": "25"}, []),
        ({"interval": 0}, [0]),
        ({"interval": float("inf")}, [0]),
        ({"days": 0.0}, ["36,525"]),
        ({"days": 1e6}, ["36,525"]),
        ({"interests": "none"}, ["clustered", "uniform"]),
        ({"model": "rare"}, ["average", "frequent", "infrequent"]),
        ({"shift": "all"}, ["none", "clustered", "uniform"]),
        ({"rates_shift": 1}, ["true", "false"]),
        ({"seed": -1}, [0]),
    ],
)
def test_bad_parameters(params: dict[str, Any], shown: list[Any]) -> None:
    name, value = next(iter(params.items()))
    with refused(ParameterError, repr(value), *shown, parameter=name):
        Feeds(**params)


def test_groups_do_not_matter_where_there_are_none() -> None:
    assert Feeds(n_flows=5, wanted=2, interests="uniform", n_subscribers=2).interest().n_flows == 5


def test_on_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "feeds"
    words = ["--set", "n_subscribers=30", "--set", "shift=uniform", "--set", "rates_shift=true"]
    facts, _ = document("generate", "feeds", "--out", out, "--seed", "3", *words)
    made = Feeds(n_subscribers=30, shift="uniform", rates_shift=True, seed=3).tables()
    assert {file.name for file in out.iterdir()} == {*(f"{name}.parquet" for name in made), "workload.json"}
    for name, table in made.items():
        assert pq.read_table(out / f"{name}.parquet").equals(table)
        assert facts["rows"][name] == table.num_rows
    assert facts["parameters"]["home"] == 2
    assert "origin" not in facts
    assert json.loads((out / "workload.json").read_text()) == facts
    refused_model = refusal("generate", "feeds", "--out", tmp_path / "x", "--set", "model=rare")
    assert "'rare'" in refused_model
    assert "infrequent" in refused_model


def test_a_run_needs_subscriptions(tmp_path: Path) -> None:
    said = refusal("run", "--workload", "feeds", "--out", tmp_path / "out")
    assert "--workload='feeds'" in said
    assert set(Feeds.makes) == set(Feeds(n_subscribers=1).tables())
