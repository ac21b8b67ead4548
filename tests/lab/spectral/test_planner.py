"""Plans by ratio association and normalised cut; what all planners hold is tested with the others."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.cluster.vq import kmeans2

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral import Ncut, Rassoc
from narrowcast.lab.spectral.groups import even_groups
from narrowcast.lab.spectral.planner import Spectral, assign_rows
from narrowcast.lab.spectral.points import SpectralPoints
from narrowcast.lab.spectral.quality import balance, received
from narrowcast.model.interest import Interest
from narrowcast.planning.base import order_of
from narrowcast.workloads.hotspots import Hotspots
from support.errors import refused

both = pytest.mark.parametrize("method", [Rassoc, Ncut])
#: Ways to get coordinates and clusters besides the default.
WAYS: dict[str, dict[str, Any]] = {
    "jaccard": {"similarity": "jaccard"},
    "simple-matching": {"similarity": "simple-matching"},
    "plain": {"normalise": False},
    "history": {"history": 3},
    "levels": {"levels": 3, "groups": 4, "dimensions": 3},
    "sampled": {"levels": 2, "groups": 3, "dimensions": 3, "clustering": "sampled"},
    "hierarchical": {"levels": 2, "groups": 3, "dimensions": 3, "clustering": "hierarchical"},
    "hp2pc": {"levels": 2, "groups": 3, "dimensions": 3, "clustering": "hp2pc"},
    "linear": {"levels": 2, "groups": 3, "dimensions": 3, "offset": False},
    "table": {"table": True, "groups": 3, "dimensions": 3},
}
ways = pytest.mark.parametrize("way", list(WAYS))


def channels_of(planner: Spectral) -> Any:
    """The channel of each subscriber, who listens to exactly one."""
    listens = planner.plan_.listens
    assert (np.diff(listens.indptr) == 1).all()
    return listens.indices


def blocks(sizes: list[int], events: int = 6, share: float = 0.8, seed: int = 0) -> tuple[Interest, Any]:
    """Subscribers who each want most of the events of one block, nothing else, and which block it is."""
    rng = np.random.default_rng(seed)
    block = np.repeat(np.arange(len(sizes)), sizes)
    wants = (rng.random((len(block), events * len(sizes))) < share) & (
        np.arange(events * len(sizes)) // events == block[:, None]
    )
    wants[np.arange(len(block)), events * block] = True
    return Interest(wants), block


@both
@ways
def test_blocks_that_share_nothing_are_separated(method: Any, way: str) -> None:
    interest, block = blocks([30, 20, 25])
    planner = method(channels=3, **WAYS[way]).fit(interest)
    planner.plan_.validate(interest)
    label = channels_of(planner)
    if way not in ("sampled", "hierarchical", "hp2pc", "linear"):
        assert len(set(zip(label.tolist(), block.tolist(), strict=True))) == 3
    assert planner.size_.tolist() == np.bincount(label, minlength=3).tolist()


@both
@ways
@settings(max_examples=15)
@given(wants=arrays(np.bool_, st.tuples(st.integers(0, 14), st.integers(1, 7))), channels=st.integers(1, 5))
def test_any_interest_is_covered(method: Any, way: str, wants: Any, channels: int) -> None:
    interest = Interest(wants)
    planner = method(channels=channels, **WAYS[way]).fit(interest)
    planner.plan_.validate(interest)
    channels_of(planner)
    placed = planner.place(wants)
    assert ((placed >= 0) & (placed < channels)).all()
    planner.refresh(interest)
    planner.plan_.validate(interest)
    channels_of(planner)


@both
def test_who_matched_nothing_is_spread_over_the_smallest_clusters(method: Any) -> None:
    interest, block = blocks([20, 10, 4])
    more = Interest(np.concatenate([interest.wants.toarray(), np.zeros((23, interest.n_flows), np.bool_)]))
    planner = method(channels=3).fit(more)
    label = channels_of(planner)
    assert len(set(zip(label[:34].tolist(), block.tolist(), strict=True))) == 3
    assert sorted(planner.size_.tolist()) == [18, 19, 20]
    placed = planner.place(np.zeros((4, interest.n_flows)))
    assert sorted((planner.size_ + np.bincount(placed, minlength=3)).tolist()) == [20, 20, 21]


@both
def test_nobody_matched_anything(method: Any) -> None:
    planner = method(channels=3).fit(Interest(np.zeros((8, 4))))
    assert sorted(planner.size_.tolist()) == [2, 3, 3]
    assert planner.embedding_ is None
    assert planner.place([[1, 0, 0, 0]]).shape == (1,)


def test_who_hangs_together_with_few_stays_with_them() -> None:
    """Pairs of rows that share no event with others have no coordinates by few modes, and stay together."""
    interest, _ = blocks([40, 30], share=0.5)
    wants = np.zeros((78, 16), np.bool_)
    wants[:70, :12] = interest.wants.toarray()
    wants[70:, 12:] = np.repeat(np.eye(4), 2, axis=0)
    label = channels_of(Ncut(channels=4, dimensions=3).fit(Interest(wants)))
    assert (label[70::2] == label[71::2]).all()
    new = Ncut(channels=4, dimensions=3).fit(Interest(wants)).place(np.eye(16)[12:])
    assert new.tolist() == label[70::2].tolist()


@both
@pytest.mark.parametrize(
    "wants",
    [np.ones((9, 5)), np.ones((9, 1)), np.eye(9), np.eye(9)[:2]],
    ids=["all histories equal", "one event only", "nothing shared", "more channels than subscribers"],
)
def test_odd_interests(method: Any, wants: Any) -> None:
    interest = Interest(wants)
    planner = method(channels=4).fit(interest)
    planner.plan_.validate(interest)
    assert planner.plan_.n_channels == min(4, len(wants))
    if wants.shape[1] == 9:  # rows that share nothing with others are spread
        assert planner.size_.max() <= np.ceil(len(wants) / planner.plan_.n_channels)
    else:
        assert received(wants.T.astype(bool), channels_of(planner)).false_positives == 0


@both
def test_landmarks_fewer_than_dimensions_are_made_enough(method: Any) -> None:
    interest, _ = blocks([60])
    planner = method(channels=3, levels=2, groups=3, landmarks=0.1, dimensions=7).fit(interest)
    tree = planner.embedding_.tree
    assert [len(group.landmarks) for group in tree.levels[0]] == [8, 8, 8]
    few = method(channels=3, levels=2, groups=20, landmarks=0.1, dimensions=7).fit(interest)
    assert [len(group.landmarks) for group in few.embedding_.tree.levels[0]] == [3] * 20


@both
@pytest.mark.parametrize("way", ["jaccard", "levels", "table"])
def test_members_would_be_placed_where_they_are(method: Any, way: str) -> None:
    hotspots = Matched(seed=5)
    planner = method(channels=10, **WAYS[way] | {"dimensions": 8}).fit(hotspots.interest)
    label = channels_of(planner)
    some = np.flatnonzero(np.diff(hotspots.interest.wants.indptr))
    placed = planner.place(hotspots.interest.wants)
    if way != "levels":  # there another group than its own may place it, by another basis
        assert (placed[some] == label[some]).mean() > 0.95
    before = planner.plan_
    assert planner.refresh(hotspots.interest).plan_ == before


@both
def test_newer_events_of_the_same_kind_leave_most_where_they_are(method: Any) -> None:
    hotspots = Matched(seed=6)
    planner = method(channels=10).fit(hotspots.interest)
    before = channels_of(planner).copy()
    planner.refresh(Interest(hotspots.newer))
    planner.plan_.validate(Interest(hotspots.newer))
    assert (channels_of(planner) == before).mean() > 0.6


@both
def test_new_subscribers_are_better_off_than_anywhere(method: Any) -> None:
    hotspots = Matched(seed=7, n=500)
    wants, newer = hotspots.interest.wants.toarray(), hotspots.newer
    planner = method(channels=20).fit(Interest(wants[:400]))
    label = np.concatenate([channels_of(planner), planner.place(wants[400:])])
    random = np.concatenate([label[:400], np.random.default_rng(0).integers(0, 20, 100)])
    assert received(newer.T, label).false_positives < 0.7 * received(newer.T, random).false_positives


class Matched:
    """What subscribers of the paper's workload matched, and what they match later."""

    def __init__(self, seed: int, n: int = 400, points: Any = "hotspots", events: int = 500) -> None:
        hotspots = Hotspots(n_subscriptions=n, n_events=2 * events, points=points, seed=seed)
        lo, hi = hotspots.ends()
        values = hotspots.values()
        inside = np.ones((n, 2 * events), np.bool_)
        for i in range(values.shape[1]):
            inside &= (values[:, i] > lo[:, i, None]) & (values[:, i] <= hi[:, i, None])
        self.centre = (lo + hi) / 2
        self.interest, self.newer = Interest(inside[:, :events]), inside[:, events:]


@both
@pytest.mark.parametrize("history", [None, 20])
def test_fewer_false_positives_than_by_the_centres_of_boxes(method: Any, history: int | None) -> None:
    """The target: 1,000 subscriptions, 50 clusters, events around hotspots that were not seen before."""
    ours, theirs = [], []
    for seed in (71, 72):
        hotspots = Matched(seed, n=1000, events=1000)
        planner = method(channels=50, history=history).fit(hotspots.interest)
        label = channels_of(planner)
        centred = kmeans2(hotspots.centre, 50, minit="++", rng=seed)[1]
        ours.append(received(hotspots.newer.T, label).false_positives)
        theirs.append(received(hotspots.newer.T, centred).false_positives)
        assert balance(label, 50) < 5
    assert np.mean(ours) < 0.75 * np.mean(theirs)


@pytest.mark.parametrize("way", ["levels", "table"])
def test_the_report_tells_of_every_level(way: str) -> None:
    interest, _ = blocks([40, 40])
    assert Rassoc(channels=2).fit(interest).traffic_.steps == []
    planner = Rassoc(channels=2, **WAYS[way]).fit(interest)
    assert {step.what for step in planner.traffic_.steps} >= {"histories", "landmarks", "local", "centres"}
    sent = planner.traffic_.total(lambda step: step.what == "centres")
    assert sent.messages == 80
    assert sent.rows == 80 * len(planner.centre_)


def test_it_does_not_matter_how_subscribers_are_numbered() -> None:
    hotspots = Matched(seed=8, n=300)
    wants = hotspots.interest.wants.toarray()
    order = np.random.default_rng(0).permutation(300)
    for method in (Rassoc, Ncut):
        one, other = (method(channels=9).fit(Interest(w)) for w in (wants, wants[order]))
        sizes = [
            received(newer.T, channels_of(planner))
            for newer, planner in ((hotspots.newer, one), (hotspots.newer[order], other))
        ]
        assert sorted(one.size_.tolist()) == sorted(other.size_.tolist())
        # Rows that are equal in the history may differ later, and which of them is where is by their number.
        assert sizes[0].false_positives == pytest.approx(sizes[1].false_positives, rel=0.05)


@given(size=st.lists(st.integers(0, 6), min_size=1, max_size=6), count=st.integers(0, 30))
def test_each_goes_to_the_smallest(size: list[int], count: int) -> None:
    heap = [(n, cluster) for cluster, n in enumerate(size)]
    heapq.heapify(heap)
    expected = []
    for _ in range(count):
        n, cluster = heapq.heappop(heap)
        expected.append(cluster)
        heapq.heappush(heap, (n + 1, cluster))
    assert assign_rows(np.array(size), count).tolist() == expected


@both
@pytest.mark.parametrize(
    "given_",
    [
        {"channels": None},
        {"similarity": "overlap"},
        {"dimensions": 0},
        {"history": 0},
        {"levels": 0},
        {"groups": 0},
        {"landmarks": 0.0},
        {"landmarks": "x"},
        {"landmarks": 1.5},
        {"similarity": 1},
        {"normalise": "maybe"},
        {"table": 1},
        {"restarts": 0},
        {"clustering": "best"},
    ],
)
def test_bad_parameters(method: Any, given_: dict[str, Any]) -> None:
    [(name, value)] = given_.items()
    with refused(ParameterError, name, *([] if value is None else [value])):
        method(**{"channels": 2} | given_).fit(Interest([[1, 0], [1, 1]]))


@pytest.mark.parametrize(
    ("given_", "parameter"),
    [
        ({"sigma": 0.0, "kernel": "distance"}, "sigma"),
        ({"sigma": -1.0}, "sigma"),
        ({"sigma": 1e300}, "sigma"),
        ({"sigma": "x"}, "sigma"),
        ({"kernel": "gauss"}, "kernel"),
        ({"levels": 2, "form": "lw"}, "form"),
    ],
)
def test_bad_parameters_of_cuts(given_: dict[str, Any], parameter: str) -> None:
    with refused(ParameterError, parameter=parameter, value=given_[parameter]):
        Ncut(channels=2, **given_).fit(Interest(np.ones((4, 2))))


@both
@pytest.mark.parametrize("way", ["levels", "table", "hp2pc"])
def test_groups_that_are_there_already(method: Any, way: str) -> None:
    """Those that would be drawn, for subscribers in the order that they would be put into."""
    interest = Matched(seed=5, n=150, events=60).interest
    interest = Interest(interest.wants[order_of(interest)])
    some = np.flatnonzero(np.diff(interest.wants.indptr))
    given_ = {**WAYS[way], "groups": 3}
    group = np.zeros(150, np.int64)
    group[some] = even_groups(len(some), 3, np.random.default_rng([0, max(given_.get("levels", 1), 2)]))
    drawn = method(channels=6, **given_).fit(interest)
    found = method(channels=6, **given_).fit_groups(interest, group)
    assert found.plan_ == drawn.plan_
    with refused(ParameterError, 150, parameter="group", value=149):
        found.fit_groups(interest, group[1:])
    with refused(ParameterError, 2, parameter="group", value=3):
        found.fit_groups(interest, group + 1)


@given(
    coordinates=arrays(
        np.float64, st.tuples(st.integers(1, 6), st.integers(0, 3)), elements=st.floats(-9, 9)
    ),
    normalise=st.booleans(),
    columns=st.integers(0, 3),
)
@example(coordinates=np.array([[1e-303]]), normalise=False, columns=0)
def test_points_have_no_number_above_the_most(coordinates: Any, normalise: bool, columns: int) -> None:
    longest = float(np.sqrt((coordinates**2).sum(axis=1).max()))
    points = SpectralPoints(normalise=normalise, longest=longest, columns=columns)
    part = np.arange(len(coordinates)) % 3
    found = points(coordinates, part)
    assert found.shape == (len(coordinates), coordinates.shape[1] + columns)
    # What is so small that its square is 0 has no length.
    assert np.abs(found).max(initial=0.0) <= points.most * (1 + 1e-12) + 1e-150
    for row in range(len(found)):  # each by itself, as workers have them
        assert points(coordinates[row : row + 1], part[row : row + 1]).tolist() == [found[row].tolist()]


def test_rows_of_other_events_are_refused() -> None:
    planner = Rassoc(channels=2).fit(Interest([[1, 0], [1, 1]]))
    with refused(ParameterError, 2, parameter="wants", value=3):
        planner.place([[1, 0, 1]])
    with refused(ParameterError, 2, parameter="interest", value=1):
        planner.refresh(Interest([[1, 0]]))
    with refused(ParameterError, "no channels", parameter="wants"):
        Rassoc(channels=2).fit(Interest(np.zeros((0, 2)))).place([[1, 0]])
