from __future__ import annotations

import json
import math
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.sparse import csr_array

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral import quality as module
from narrowcast.lab.spectral.quality import Reception, accuracy, balance, entropy, received
from narrowcast.model.matches import Matches
from support.errors import refused

FOLDER = Path(__file__).parents[2] / "golden"
GOLDEN = json.loads((FOLDER / "tariq2012_metrics.json").read_text())
BOXES = json.loads((FOLDER / "tariq2012_histories_sims.json").read_text())

Bools = NDArray[np.bool_]


def unseen() -> Bools:
    """Events x subscriptions of the golden test events, in closed boxes."""
    event, lo, hi = (np.array(BOXES[name]) for name in ("test", "lo", "hi"))
    return np.asarray(((event[:, None] >= lo) & (event[:, None] <= hi)).all(axis=2))


def test_golden_clusters() -> None:
    label, ideal = GOLDEN["labels"], GOLDEN["ideal"]
    assert balance(label, GOLDEN["k"]) == pytest.approx(GOLDEN["balance"], abs=1e-12)
    assert entropy(label, ideal) == pytest.approx(GOLDEN["entropy"], abs=1e-12)
    assert accuracy(label, ideal) == pytest.approx(GOLDEN["accuracy"], abs=1e-12)


def test_golden_receptions() -> None:
    found = received(unseen(), GOLDEN["labels"])
    assert found == Reception(GOLDEN["matches"], GOLDEN["receptions"], GOLDEN["receptions"])
    assert found.false_positives == GOLDEN["fp"]
    assert found.rate == pytest.approx(GOLDEN["fp_rate"], abs=1e-12)
    assert found.notification_cost() == pytest.approx(GOLDEN["notification_cost"], abs=1e-12)
    assert found.notification_cost(79) == pytest.approx(GOLDEN["notification_cost"] + 0.5, abs=1e-12)
    best = received(unseen(), GOLDEN["local_min_labels"])
    assert best.receptions == GOLDEN["local_min_objective"]
    assert best.false_positives == GOLDEN["local_min_fp"]


labels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12)


@given(labels)
def test_accuracy_is_that_of_the_best_matching(pairs: list[tuple[int, int]]) -> None:
    best = max(sum(order[a] == b for a, b in pairs) for order in permutations(range(4)))
    assert accuracy(*zip(*pairs, strict=True)) == pytest.approx(best / len(pairs))


@given(labels)
def test_entropy_is_that_of_the_ideal_labels_in_each_cluster(pairs: list[tuple[int, int]]) -> None:
    total = 0.0
    for a, b in pairs:
        inside = [ideal for label, ideal in pairs if label == a]
        total -= math.log(inside.count(b) / len(inside)) / len(pairs)
    kinds = len({b for _, b in pairs})
    want = total / math.log(kinds) if kinds > 1 else 0.0
    assert entropy(*zip(*pairs, strict=True)) == pytest.approx(want, abs=1e-12)


def test_nobody_is_even_and_right() -> None:
    assert (balance([]), entropy([], []), accuracy([], [])) == (1.0, 0.0, 1.0)
    assert received(np.zeros((3, 0)), np.zeros(0, int)) == Reception(0, 0, 0)
    assert received(np.zeros((0, 2)), [0, 1], peers=[0, 0]) == Reception(0, 0, 0)


def test_the_share_of_false_positives_and_the_cost_where_nothing_is_wanted() -> None:
    assert Reception(0, 0, 0).rate == 0
    assert Reception(0, 0, 0).notification_cost() == 0
    assert Reception(0, 0, 0).notification_cost(1) == math.inf
    assert Reception(2, 6, 5).rate == 3 / 5
    assert Reception(2, 6, 5).notification_cost(4) == 5


def literal(matches: Bools, clusters: Bools, owner: list[int]) -> Reception:
    """Send every event to every cluster with a subscription that wants it, and ask every member."""
    wanted = receptions = reached = 0
    for row in matches:
        hit = [c for c in range(clusters.shape[1]) if (row & clusters[:, c]).any()]
        for peer in set(owner):
            own = [s for s in range(len(owner)) if owner[s] == peer]
            copies = sum(bool(clusters[own, c].any()) for c in hit)
            receptions += copies
            reached += copies > 0
            wanted += bool(row[own].any())
    return Reception(wanted, receptions, reached)


@given(st.data(), st.integers(0, 6), st.integers(1, 6), st.integers(1, 4))
def test_receptions_equal_their_literal_loops(
    data: st.DataObject, n_events: int, n_subscriptions: int, n_clusters: int
) -> None:
    matches = data.draw(arrays(np.bool_, (n_events, n_subscriptions)))
    clusters = data.draw(arrays(np.bool_, (n_subscriptions, n_clusters)))
    label = data.draw(arrays(np.int64, n_subscriptions, elements=st.integers(0, n_clusters - 1)))
    peers = data.draw(arrays(np.int64, n_subscriptions, elements=st.integers(0, 3)))
    alone = list(range(n_subscriptions))
    one = label[:, None] == np.arange(n_clusters)
    assert received(matches, label) == literal(matches, one, alone)
    assert received(matches, label, peers=peers) == literal(matches, one, peers.tolist())
    clusters |= one
    assert received(matches, clusters) == literal(matches, clusters, alone)
    found = received(csr_array(matches), csr_array(clusters), peers=peers)
    assert found == literal(matches, clusters, peers.tolist())
    event, subscription = np.nonzero(matches)
    pairs = Matches.from_pairs(event, subscription, n_events)
    assert received(pairs, clusters, peers=peers) == found


def test_blocks_of_events_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    matches, clusters = rng.random((50, 20)) < 0.2, rng.random((20, 6)) < 0.4
    clusters[:, 0] = True
    monkeypatch.setattr(module, "_BLOCK", 60)
    assert received(matches, clusters) == literal(matches, clusters, list(range(20)))


def test_a_peer_that_wants_it_by_one_subscription_has_no_false_positive() -> None:
    matches = [[1, 0, 0]]
    assert received(matches, [0, 0, 0]).false_positives == 2
    assert received(matches, [0, 0, 0], peers=[0, 0, 1]).false_positives == 1
    assert received(matches, [0, 0, 0], peers=[0, 0, 0]).false_positives == 0


def test_a_member_of_two_clusters_gets_two_copies_and_is_reached_once() -> None:
    found = received([[1, 1, 0]], [[1, 0], [0, 1], [1, 1]])
    assert found == Reception(2, 4, 3)
    assert found.false_positives == 1


@pytest.mark.parametrize(
    ("call", "shown", "parameter"),
    [
        (lambda: balance([0, -1]), ["member 1", -1], "label"),
        (lambda: balance([0.5]), ["(1,)", "float64"], "label"),
        (lambda: balance([0, 3], 2), [3], "label"),
        (lambda: entropy([0], [0, 1]), [1, 2], "ideal"),
        (lambda: accuracy([[0]], [0]), ["(1, 1)"], "label"),
        (lambda: received([[1, 1]], [0]), [2, 1], "matches"),
        (lambda: received(Matches.from_pairs([0], [4], 1), [0]), ["subscription 4", 1], "matches"),
        (lambda: received([[1, 1]], [[1], [0]]), ["subscription 1"], "clusters"),
        (lambda: received([[1, 1]], [0, 0], peers=[1]), [1, 2], "peers"),
    ],
)
def test_bad_input(call: Any, shown: list[Any], parameter: str) -> None:
    with refused(ParameterError, *shown, parameter=parameter):
        call()
