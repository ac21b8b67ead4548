"""Coordinates by groups, level by level, or by one table; new rows and newer histories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cdist

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral.fidelity import apart, neighbourhood
from narrowcast.lab.spectral.hierarchy import embedded, tabled
from narrowcast.lab.spectral.similarity import similarity
from narrowcast.lab.spectral.space import Association, EmbeddingSpace, SpaceCut, normalised
from narrowcast.lab.spectral.traffic import HierarchyReport, WorkStep
from narrowcast.lab.spectral.tree import GroupTree
from narrowcast.model.relation import Relation, recent, relation
from narrowcast.workloads.hotspots import Hotspots
from support.errors import refused

SPACES: dict[str, EmbeddingSpace] = {"rassoc": Association(dimensions=4), "ncut": SpaceCut(dimensions=4)}
spaces = pytest.mark.parametrize("space", list(SPACES.values()), ids=list(SPACES))


def rows_of(n: int = 120, events: int = 50, seed: int = 0) -> Relation:
    """Histories around places on a line, none of them empty."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, events, n)
    wants = np.abs(np.arange(events) - place[:, None]) <= rng.integers(2, 9, n)[:, None]
    return relation(wants)


def _of(report: HierarchyReport, what: str) -> WorkStep:
    return report.total(lambda step: step.what == what)


def matched(points: Any, seed: int, n: int = 1000, events: int = 1500) -> Relation:
    """Histories of the last 20 events of the paper's workload."""
    hotspots = Hotspots(n_subscriptions=n, n_events=events, points=points, seed=seed)
    lo, hi = hotspots.ends()
    values = hotspots.values()
    inside = np.ones((n, events), np.bool_)
    for i in range(values.shape[1]):
        inside &= (values[:, i] > lo[:, i, None]) & (values[:, i] <= hi[:, i, None])
    return recent(relation(inside), 20)


@spaces
def test_one_group_with_all_landmarks_equals_the_centralised_result(space: EmbeddingSpace) -> None:
    rows = rows_of()
    central = space.frame(rows).own
    for levels in (1, 2, 3):
        tree = GroupTree.of(rows, levels=levels, groups=1, landmarks=1.0)
        for found in (embedded(space, rows, tree), tabled(space, rows, tree)):
            assert cdist(found.coordinates, found.coordinates) == pytest.approx(
                cdist(central, central), abs=1e-6
            )


def test_all_members_as_landmarks_of_several_groups_change_little() -> None:
    rows = rows_of()
    for space in SPACES.values():
        tree = GroupTree.of(rows, levels=2, groups=3, landmarks=1.0)
        found = tabled(space, rows, tree).coordinates
        central = space.frame(rows).own
        assert cdist(found, found) == pytest.approx(cdist(central, central), abs=1e-6)


@spaces
def test_members_are_where_they_would_be_placed(space: EmbeddingSpace) -> None:
    rows = rows_of()
    tree = GroupTree.of(rows, levels=3, groups=4, landmarks=0.5, least=5)
    found = embedded(space, rows, tree)
    again = found.place(rows, tree.base.group)
    away = np.sqrt(((again - found.coordinates) ** 2).sum(axis=1))
    spread = np.sqrt(((found.coordinates - found.coordinates.mean(axis=0)) ** 2).sum(axis=1).mean())
    # By normalised cut a member has no weight with itself, but it has one with its like.
    assert away.max() < (1e-9 if isinstance(space, Association) else 0.3) * spread
    table = tabled(space, rows, tree)
    away = np.sqrt(((table.place(rows) - table.coordinates) ** 2).sum(axis=1))
    assert away.max() < (1e-9 if isinstance(space, Association) else 0.3) * spread


@spaces
def test_newer_histories_that_are_the_old_ones_change_nothing(space: EmbeddingSpace) -> None:
    rows = rows_of()
    tree = GroupTree.of(rows, levels=2, groups=4, landmarks=0.5, least=5)
    found, table = embedded(space, rows, tree), tabled(space, rows, tree)
    assert found.refreshed(rows) == pytest.approx(found.coordinates)
    assert table.refreshed(rows) == pytest.approx(table.coordinates)
    # Events that have got other numbers change nothing either: members are compared by newer histories alone.
    order = np.random.default_rng(1).permutation(rows.shape[1])
    renamed = relation(rows.toarray()[:, order])
    assert found.refreshed(renamed) == pytest.approx(found.refreshed(rows))
    assert table.refreshed(renamed) == pytest.approx(table.refreshed(rows))
    with refused(ParameterError, 120, parameter="rows", value=3):
        found.refreshed(rows[:3])


def test_landmarks_have_in_their_group_the_coordinates_of_the_group_above() -> None:
    """The basis change is exact where landmarks are one more than dimensions at most."""
    rows = rows_of()
    space = Association(dimensions=6)
    tree = GroupTree.of(rows, levels=2, groups=6, landmarks=0.3)
    found = embedded(space, rows, tree)
    at = dict(zip(tree.root.members.tolist(), found.levels[1][0], strict=True))
    for group, points in zip(tree.levels[0], found.levels[0], strict=True):
        kept = found.lowest[group.number]
        own = kept.projection(kept.frame.own)
        assert own == pytest.approx(points[group.landmarks])
        above = np.array([at[row] for row in group.members[group.landmarks].tolist()])
        assert len(group.landmarks) <= 7
        assert own == pytest.approx(above, abs=1e-6)


@pytest.mark.parametrize("form", ["sym", "group", "printed"])
def test_other_forms_give_coordinates(form: Any) -> None:
    rows = rows_of()
    found = embedded(
        SpaceCut(dimensions=4, form=form), rows, GroupTree.of(rows, levels=2, groups=3, landmarks=0.5)
    )
    assert found.coordinates.shape == (120, 4)
    assert np.isfinite(found.coordinates).all()
    assert np.linalg.matrix_rank(found.coordinates) == 4
    assert not np.allclose(found.coordinates, embedded(SpaceCut(dimensions=4), rows, found.tree).coordinates)


@pytest.mark.parametrize(
    ("points", "kind", "least", "least_table"),
    [
        ("uniform", Association, 0.78, 0.90),
        ("uniform", SpaceCut, 0.88, 0.90),
        ("hotspots", Association, 0.70, 0.78),
        ("hotspots", SpaceCut, 0.78, 0.80),
    ],
)
def test_neighbours_are_kept(points: str, kind: Any, least: float, least_table: float) -> None:
    """The targets for 1,000 uniform boxes, 2 levels, 30 % landmarks and 8 groups in 20 dimensions."""
    rows = matched(points, 41)
    rows = rows[np.flatnonzero(np.diff(rows.indptr))]
    original, space = apart(similarity(rows).toarray()), kind(dimensions=20)
    tree = GroupTree.of(rows, levels=2, groups=8, landmarks=0.3, least=21, seed=1)
    score = neighbourhood(original, embedded(space, rows, tree).coordinates, 50).hscore
    table = neighbourhood(original, tabled(space, rows, tree).coordinates, 50).hscore
    assert score >= least
    assert table >= max(least_table, score)


@settings(max_examples=30)
@given(
    wants=arrays(np.bool_, st.tuples(st.integers(1, 14), st.integers(1, 6))),
    levels=st.integers(1, 3),
    groups=st.integers(1, 4),
    least=st.integers(1, 6),
)
def test_any_rows_have_finite_coordinates(wants: Any, levels: int, groups: int, least: int) -> None:
    wants[~wants.any(axis=1), 0] = True
    rows = relation(wants)
    tree = GroupTree.of(rows, levels=levels, groups=groups, least=least)
    for space in SPACES.values():
        for found in (embedded(space, rows, tree), tabled(space, rows, tree)):
            assert found.coordinates.shape[0] == len(wants)
            assert np.isfinite(found.coordinates).all()
            assert np.isfinite(found.place(relation(~wants))).all()


@spaces
def test_what_is_sent(space: EmbeddingSpace) -> None:
    rows = rows_of(90)
    tree = GroupTree.of(rows, levels=2, groups=3, landmarks=0.2)
    report = embedded(space, rows, tree).report
    sent = {what: _of(report, what) for what in ("histories", "landmarks")}
    assert sent["histories"].messages == sent["histories"].rows == 87
    # The number of a row takes 8 bytes, that of an event 4, a coordinate 8.
    # The root coordinates the first group as well, and sends itself nothing.
    landmarks, first = rows[tree.root.members], len(tree.levels[0][0].landmarks)
    assert landmarks.shape[0] == 18
    assert sent["landmarks"].messages == 2
    assert sent["landmarks"].rows == 18 - first
    assert sent["landmarks"].bytes == (18 - first) * 8 + 4 * landmarks[first:].nnz
    parent = report.total(lambda step: step.what == "parent")
    if isinstance(space, SpaceCut):  # all 18 members of the root, with their histories, for each group
        assert parent.rows == 2 * 18
        assert parent.bytes == 2 * (18 * (8 + 4 * 8) + 18 * 8 + 4 * landmarks.nnz)
    else:
        assert parent.rows == 18 - first
        assert parent.bytes == (18 - first) * (8 + 4 * 8)
    coordinates = report.total(lambda step: step.what == "coordinates")
    assert (coordinates.messages, coordinates.bytes) == (87, 87 * 40)
    assert report.total(lambda step: step.what in ("local", "projection")).bytes == 0
    work = [(step.what, step.level, step.group) for step in report.steps if step.seconds > 0]
    assert sorted(work) == sorted(
        [("local", 0, g) for g in range(3)] + [("local", 1, 0)] + [("projection", 0, g) for g in range(3)]
    )
    everything = report.of_root().bytes + sum(each.bytes for each in report.of_coordinators())
    assert everything == report.total().bytes
    assert report.of_root().seconds > 0


def test_a_table_is_heard_by_every_coordinator() -> None:
    rows = rows_of(90)
    tree = GroupTree.of(rows, levels=3, groups=8, landmarks=0.4)
    report = tabled(SPACES["rassoc"], rows, tree).report
    heard = [step for step in report.steps if step.what == "table"]
    assert sorted((step.level, step.group) for step in heard if step.level == 1) == [(1, 1), (1, 2)]
    # The first group below each of the three has the same coordinator.
    firsts = [tree.below(group)[0].number for group in tree.levels[1]]
    assert [step.group for step in heard if step.level == 0] == sorted(set(range(8)) - set(firsts))
    n = len(tree.root.members)
    assert {step.bytes for step in heard} == {n * 8 + 4 * rows[tree.root.members].nnz + (n + 1) * 40}


def test_every_member_receives_the_centres() -> None:
    report = HierarchyReport()
    report.centres(5, 3, [10, 20])
    assert report.steps == [
        WorkStep(0, 0, "centres", 10, 50, 10 * 160),
        WorkStep(0, 1, "centres", 20, 100, 20 * 160),
    ]


def test_normalised_rows() -> None:
    found = normalised(np.array([[2.0, 0.0], [0.0, -0.5], [0.0, 0.0], [1e-12, 0.0]]))
    assert found.tolist() == [[1, 0], [0, -1], [0, 0], [0, 0]]
    assert normalised(np.zeros((0, 2))).shape == (0, 2)
    assert normalised(np.zeros((2, 0))).shape == (2, 0)


@pytest.mark.parametrize(
    ("make", "parameter", "value"),
    [
        (lambda: Association(dimensions=0), "dimensions", 0),
        (lambda: SpaceCut(similarity="tanimoto"), "similarity", "tanimoto"),
    ],
)
def test_bad_input(make: Any, parameter: str, value: object) -> None:
    with refused(ParameterError, parameter, value):
        make()
