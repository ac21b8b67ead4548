"""K-means on audiences: the clusters against scipy's and literal distances, and what the plan saves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array

from narrowcast import Interest, KMeans, Overall, PerFlow
from narrowcast.errors import ParameterError
from narrowcast.planning.baselines.kmeans import distances, initial_clusters, lloyd
from narrowcast.workloads.feeds import Feeds
from support.errors import refused


@given(st.data())
def test_distances_and_the_end_of_lloyd(data: st.DataObject) -> None:
    n_sets, n_users, k = (
        data.draw(st.integers(1, 8)),
        data.draw(st.integers(1, 6)),
        data.draw(st.integers(1, 4)),
    )
    dense = data.draw(arrays(np.int64, (n_sets, n_users), elements=st.integers(0, 1)))
    sets = csr_array(dense)
    number = data.draw(arrays(np.int64, n_sets, elements=st.integers(0, k - 1)))
    away = distances(sets, number)
    for c in np.unique(number):
        centre = dense[number == c].mean(axis=0)
        assert away[:, c] == pytest.approx(((dense - centre) ** 2).sum(axis=1))

    found = lloyd(sets, number)
    before = away[np.arange(n_sets), number].sum()
    away = distances(sets, found)
    own = away[np.arange(n_sets), found]
    assert own.sum() <= before + 1e-9
    for c in np.unique(found):
        assert (own <= away[:, c] + 1e-9).all()
    # No cluster is empty while some set is away from its centre.
    if own.max() > 1e-9:
        assert len(np.unique(found)) == number.max() + 1


@given(st.integers(0, 99))
def test_starts_differ_as_long_as_sets_do(seed: int) -> None:
    sets = csr_array(np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]))
    number = initial_clusters(sets, 4, np.random.default_rng(seed))
    assert len(np.unique(number)) == 3
    assert number[0] == number[1] != number[2]
    assert number[3] == number[4]


def test_planted_groups_are_found() -> None:
    rng = np.random.default_rng(1)
    group = rng.permutation(np.arange(40) % 4)
    home = rng.integers(0, 4, 500)
    wants = (home[:, None] == group) & (rng.random((500, 40)) < 0.8)
    kmeans = KMeans(clusters=4, interval=0.01).fit(Interest(wants))
    clusters = {tuple(np.flatnonzero(c)) for c in kmeans.plan_.carries.toarray().T if c.sum() > 1}
    assert clusters == {tuple(np.flatnonzero(group == g)) for g in range(4)}
    centres = np.stack([wants.T[group == g].mean(axis=0) for g in range(4)])
    assert kmeans.spread_ == pytest.approx(((wants.T - centres[group]) ** 2).sum())


@pytest.mark.parametrize(("model", "wanted"), [("average", 66.6), ("frequent", 52.7), ("infrequent", 76.4)])
def test_the_numbers_of_the_paper(model: str, wanted: float) -> None:
    found = []
    for seed in range(2):
        interest = Feeds(model=model, seed=seed).interest()  # type: ignore[arg-type]
        kmeans = KMeans(restarts=3).fit(interest)
        base = Overall().score(interest, PerFlow().fit(interest).plan_).total
        found.append(100 * (1 - kmeans.cost_ / base))
    assert np.mean(found) == pytest.approx(wanted, abs=1)  # notes of the paper, 5 seeds


def test_channels_are_kept() -> None:
    interest = Feeds(n_subscribers=300).interest()
    for channels in (1, 4, 10, 11, 60):
        plan = KMeans(channels=channels, restarts=1).fit(interest).plan_
        plan.validate(interest)
        assert plan.n_channels == channels


def test_the_seed_decides() -> None:
    interest = Feeds(n_subscribers=200, interests="uniform").interest()
    plans = [KMeans(seed=seed, restarts=1).fit(interest).plan_ for seed in (0, 0, 1)]
    assert plans[0] == plans[1] != plans[2]


def test_many_flows_of_many_subscribers() -> None:
    # Audiences as rows of numbers would take 2 GB.
    rng = np.random.default_rng(0)
    n_users, n_flows = 50_000, 5_000
    row = np.repeat(np.arange(n_users), 6)
    flow = (rng.integers(0, 10, n_users)[row] * 500 + rng.integers(0, 500, len(row))) % n_flows
    wants = csr_array((np.ones(len(row), np.bool_), (row, flow)), shape=(n_users, n_flows))
    plan = KMeans(clusters=3, restarts=1).fit(Interest(wants, rate=np.full(n_flows, 1e-6))).plan_
    assert np.count_nonzero(plan.carries.toarray().sum(axis=0) > 1) <= 3


@pytest.mark.parametrize("name", ["clusters", "restarts"])
def test_parameters(name: str) -> None:
    with refused(ParameterError, parameter=name, value=0):
        KMeans(**{name: 0}).fit(Interest([[1]]))
