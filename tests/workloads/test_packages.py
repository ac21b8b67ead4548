"""Updates of software packages as flows."""

from __future__ import annotations

import os
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

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.interest import Interest
from narrowcast.model.relation import relation, relation_of
from narrowcast.planning.replanner import changed
from narrowcast.workloads import Packages, origin_of
from narrowcast.workloads.packages import (
    DEPENDENCIES,
    LIBRARY,
    _most_wanted,
    _preferential_attachment,
    _with_dependencies,
)
from support.command import document, refusal
from support.errors import refused

#: A real index of packages: in the folder that the environment names, or beside the project.
DATA = os.environ.get("NARROWCAST_DATA") or Path(__file__).parents[3] / "shared" / "data"
DEPENDS, SECTIONS = (Path(DATA, f"debian_{name}.parquet") for name in ("depends", "packages"))
real = pytest.mark.skipif(
    not (DEPENDS.is_file() and SECTIONS.is_file()), reason="no tables of a real index of packages"
)
DAY = 86_400


def write(folder: Path, name: str, **columns: Any) -> str:
    pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return str(folder / f"{name}.parquet")


def small(folder: Path) -> dict[str, Any]:
    """A few packages: two with a chain of dependencies, in two sections, and a library."""
    depends = {
        "editor": ["ui", "spell"],
        "ui": ["libc"],
        "spell": ["words"],
        "words": ["libc"],
        "game": ["ui", "sound"],
        "sound": ["libc"],
        "shell": ["libc"],
        "tool": ["libc"],
    }
    pairs = [(package, need) for package, needs in depends.items() for need in needs]
    names = sorted({*depends, "libc"})
    return {
        "depends": write(
            folder,
            "depends",
            package=[*(one for one, _ in pairs), "tool", None, "ghost"],
            depends_on=[*(other for _, other in pairs), "nothing", "libc", "libc"],
        ),
        "sections": write(
            folder,
            "sections",
            package=[*names, None, "odd"],
            section=["games" if name in ("game", "sound") else "main" for name in names] + ["main", None],
        ),
    }


# ----------------------------------------------------------------------------------------------- closure


def literal_closure(wants: set[int], needs: dict[int, list[int]]) -> set[int]:
    """All that is needed for some packages, by going from one to the next."""
    found, ahead = set(wants), list(wants)
    while ahead:
        new = [need for need in needs.get(ahead.pop(), []) if need not in found]
        found |= set(new)
        ahead += new
    return found


@given(
    st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8))), st.lists(st.sets(st.integers(0, 8)), min_size=1)
)
def test_indirect_dependencies_are_wanted(pairs: set[tuple[int, int]], wants: list[set[int]]) -> None:
    needs: dict[int, list[int]] = {}
    depends, wanted = np.zeros((9, 9), bool), np.zeros((len(wants), 9), bool)
    for one, other in pairs:
        needs.setdefault(one, []).append(other)
        depends[one, other] = True
    for row, some in enumerate(wants):
        wanted[row, list(some)] = True
    found = _with_dependencies(relation(wanted), relation(depends)).toarray()
    assert [set(np.flatnonzero(row).tolist()) for row in found] == [
        literal_closure(some, needs) for some in wants
    ]


def test_ties_prefer_fewer_dependencies() -> None:
    # 0 needs 1, 1 needs 2; all three are wanted by the same two, and 3 by one more.
    depends = relation(np.eye(4, 4, 1) * [[1], [1], [0], [0]])
    wants = relation([[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]])
    chosen = [_most_wanted(wants, depends, count).tolist() for count in range(1, 6)]
    assert chosen == [[3], [2, 3], [1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    fewest = _most_wanted(relation([[0, 1], [0, 0]]), relation(np.zeros((2, 2))), 2)
    assert fewest.tolist() == [1]


# --------------------------------------------------------------------------------------- packages made up


def test_generated_dependencies_attach_preferentially() -> None:
    depends = _preferential_attachment(np.random.default_rng(1), 3000)
    rows, columns = depends.nonzero()
    assert (columns < rows).all()  # so that there is no circle
    used = np.bincount(columns, minlength=3000)
    assert 0.8 * DEPENDENCIES < depends.nnz / 3000 <= DEPENDENCIES * 1.05
    assert used.max() > 1000
    assert np.median(used) == 0
    assert np.sort(used)[-30:].sum() > 0.4 * depends.nnz  # a hundredth of the packages
    for count in (0, 1, 2):
        assert _preferential_attachment(np.random.default_rng(1), count).shape == (count, count)


def test_statistics_of_generated_packages() -> None:
    found = []
    for seed in range(5):
        interest = Packages(seed=seed).interest()
        found.append((interest.n_flows, interest.n_wants / 1000, interest.audience().max()))
        assert (interest.audience() > 0).all()
    flows, each, most = np.mean(found, axis=0)
    assert flows == pytest.approx(2560, abs=60)
    assert each == pytest.approx(100, abs=10)
    assert most > 900


def test_rates_are_lognormal() -> None:
    rates = (
        np.concatenate([Packages(seed=seed, n_subscribers=300).interest().rate for seed in range(4)]) * DAY
    )
    assert rates.max() <= 1
    assert np.median(rates) == pytest.approx(1 / 90, rel=0.06)
    assert np.log(rates).std() == pytest.approx(1, abs=0.04)
    few, many = (Packages(n_subscribers=n, seed=1).interest() for n in (20, 900))
    both = [dict(zip(each.flows.to_pylist(), each.rate.tolist(), strict=True)) for each in (few, many)]
    common = both[0].keys() & both[1].keys()
    assert len(common) > 200
    assert all(both[0][flow] == both[1][flow] for flow in common)


@pytest.mark.parametrize("n_flows", [1, 40, 150, 800])
def test_the_most_wanted_are_flows_and_what_they_need_is_with_them(n_flows: int, tmp_path: Path) -> None:
    one, other = _preferential_attachment(np.random.default_rng(3), 800).nonzero()
    given: dict[str, Any] = {
        "depends": write(tmp_path, "d", package=one, depends_on=other),
        "sections": write(tmp_path, "s", package=np.arange(800), section=np.arange(800) % 7),
    }
    whole = Packages(**given, n_subscribers=60, seed=2).interest()
    audience = dict(zip(whole.flows.to_pylist(), whole.audience().tolist(), strict=True))
    interest = Packages(**given, n_subscribers=60, n_flows=n_flows, seed=2).interest()
    chosen = set(interest.flows.to_pylist())
    assert len(chosen) == min(n_flows, len(audience))
    assert (
        sorted((audience[name] for name in chosen), reverse=True)
        == (sorted(audience.values(), reverse=True)[: len(chosen)])
    )
    needs = {(str(a), str(b)) for a, b in zip(one.tolist(), other.tolist(), strict=True) if str(a) in chosen}
    assert {need for _, need in needs} <= chosen
    names, wants = interest.flows.to_pylist(), interest.wants.toarray()
    for package, need in needs:
        assert (wants[:, names.index(package)] <= wants[:, names.index(need)]).all()


def test_subscribers_arrive_one_after_the_other() -> None:
    packages = Packages(n_subscribers=50, n_flows=400, seed=5)
    tables, interest = packages.tables(), packages.interest()
    assert Interest.from_tables(tables["interests"], tables["rates"]) == interest
    changes = tables["changes"]
    who = changes["subscriber"].to_numpy()
    assert np.count_nonzero(np.diff(who)) == 49
    assert changes["time"].type == pa.timestamp("us", "UTC")
    time = changes["time"].cast(pa.int64()).to_numpy()
    np.testing.assert_allclose(time, np.arange(len(time)) * 365 * DAY * 1e6 / len(time), atol=1)
    nothing = sparse.csr_array(interest.wants.shape, dtype=np.bool_)
    assert (
        changed(Interest(nothing, interest.rate, interest.subscribers, interest.flows), changes) == interest
    )


def test_the_same_seed_gives_the_same() -> None:
    one, two = (Packages(n_subscribers=30, n_flows=300, seed=3) for _ in range(2))
    assert one == two
    assert one.tables() == two.tables()
    other = Packages(n_subscribers=30, n_flows=300, seed=4).tables()
    for name, table in one.tables().items():
        assert other[name] != table
    later = Packages(n_subscribers=30, n_flows=300, days=7.0, seed=3).tables()
    assert later["interests"] == one.tables()["interests"]
    assert later["changes"].drop_columns(["time"]) == one.tables()["changes"].drop_columns(["time"])


@pytest.mark.parametrize("params", [{"n_subscribers": 0}, {"n_subscribers": 0, "n_flows": 1}])
def test_no_subscribers(params: dict[str, Any]) -> None:
    tables = Packages(**params).tables()
    assert [table.num_rows for table in tables.values()] == [0, 0, 0]
    assert Packages(n_flows=1, n_subscribers=3).interest().n_wants == 3


# ------------------------------------------------------------------------------------------------ tables


def test_packages_of_tables(tmp_path: Path) -> None:
    given = small(tmp_path)
    packages = Packages(**given, n_subscribers=200, applications=1, seed=1)
    interest = packages.interest()
    assert interest.flows.to_pylist() == [
        "editor",
        "game",
        "libc",
        "shell",
        "sound",
        "spell",
        "tool",
        "ui",
        "words",
    ]
    wants = {
        frozenset(interest.flows.take(pa.array(np.flatnonzero(row))).to_pylist())
        for row in interest.wants.toarray()
    }
    # libc has as many that need it as an application may have, so that it can be picked, too.
    assert wants == {
        frozenset({"editor", "ui", "spell", "words", "libc"}),
        frozenset({"game", "ui", "sound", "libc"}),
        frozenset({"ui", "libc"}),
        frozenset({"spell", "words", "libc"}),
        frozenset({"words", "libc"}),
        frozenset({"sound", "libc"}),
        frozenset({"shell", "libc"}),
        frozenset({"tool", "libc"}),
        frozenset({"libc"}),
    }
    origin = origin_of(packages)["origin"]
    assert origin["sections"]["rows"] == 11
    assert origin["sections"]["left_out"] == {"null": 2}
    assert origin["depends"]["rows"] == 13
    assert origin["depends"]["left_out"] == {"null": 1, "unknown package": 2}
    assert {len(each["sha256"]) for each in origin.values()} == {64}
    assert origin_of(Packages())["origin"] == {}


def test_libraries_are_not_picked(tmp_path: Path) -> None:
    apps = [f"a{i}" for i in range(LIBRARY + 1)]
    given: dict[str, Any] = {
        "depends": write(tmp_path, "d", package=apps * 2, depends_on=["lib"] * len(apps) * 2),
        "sections": write(tmp_path, "s", package=["lib", *apps], section=["x"] * (len(apps) + 1)),
    }
    interest = Packages(**given, n_subscribers=300, applications=1).interest()
    assert (np.diff(interest.wants.indptr) == 2).all()
    assert interest.audience()[interest.flows.to_pylist().index("lib")] == 300


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    given = small(tmp_path)
    packages = Packages(**given, n_subscribers=40, n_flows=5, seed=1)
    assert packages.interest().n_flows == 5
    turned: dict[str, Any] = {}
    for name, path in given.items():
        table = pq.read_table(path)
        pq.write_table(
            table.take(pa.array(range(table.num_rows - 1, -1, -1))), tmp_path / f"{name}-turned.parquet"
        )
        turned[name] = str(tmp_path / f"{name}-turned.parquet")
    assert Packages(**turned, n_subscribers=40, n_flows=5, seed=1).tables() == packages.tables()


def test_applications_are_picked_by_zipf_in_each_section(tmp_path: Path) -> None:
    names = [f"{section}{i}" for section in "abcd" for i in range(10)]
    given: dict[str, Any] = {
        "depends": write(tmp_path, "d", package=["a0"], depends_on=["a0"]),
        "sections": write(tmp_path, "s", package=names, section=[name[0] for name in names]),
    }
    interest = Packages(**given, n_subscribers=20_000, applications=1, seed=2).interest()
    audience = dict(zip(interest.flows.to_pylist(), interest.audience().tolist(), strict=True))
    expected = 1 / np.arange(1, 11) / (1 / np.arange(1, 11)).sum() / 4
    for section in "abcd":
        found = sorted((audience[name] for name in names if name[0] == section), reverse=True)
        np.testing.assert_allclose(np.array(found) / 20_000, expected, atol=4 * 0.35 / 20_000**0.5)


@real
def test_a_real_index() -> None:
    packages = Packages(depends=str(DEPENDS), sections=str(SECTIONS), seed=1)
    interest, origin = packages.interest(), packages.origin()
    assert interest.n_flows == 3000
    assert 240 < interest.n_wants / 1000 < 300
    assert interest.audience()[interest.flows.to_pylist().index("libc6")] > 900
    assert origin["sections"]["rows"] == 63_620
    assert origin["depends"]["rows"] == 244_988
    # A subscriber of a package wants its dependencies. Some packages that depend on each other are no flows.
    table, flows = pq.read_table(DEPENDS), interest.flows
    package, need = (pc.index_in(table[name], flows).fill_null(-1).to_numpy() for name in table.column_names)
    assert np.count_nonzero((package >= 0) & (need < 0)) <= 2
    inside = (package >= 0) & (need >= 0)
    depends = relation_of(package[inside], need[inside], (3000, 3000))
    assert _with_dependencies(interest.wants, depends).nnz == interest.n_wants


@pytest.mark.parametrize(
    ("depends", "sections", "shown"),
    [
        ({"package": ["a"]}, {"package": ["a"], "section": ["s"]}, ["d.parquet", "'depends_on'"]),
        ({"package": ["a"], "depends_on": ["b"]}, {"package": ["a"]}, ["s.parquet", "'section'"]),
        (
            {"package": ["a"], "depends_on": ["b"]},
            {"package": ["a", "a"], "section": ["s", "t"]},
            ["s.parquet", "package 'a'"],
        ),
        (
            {"package": ["a"], "depends_on": ["b"]},
            {"package": ["a"], "section": pa.array([None], pa.string())},
            ["s.parquet", "section"],
        ),
        (
            {"package": [["a"]], "depends_on": ["b"]},
            {"package": ["a"], "section": ["s"]},
            ["d.parquet", "package", "depends_on"],
        ),
        (
            {"package": [*"abcdefg"] * 7, "depends_on": [one for one in "abcdefg" for _ in range(7)]},
            {"package": [*"abcdefg"], "section": ["s"] * 7},
            ["d.parquet", 5],
        ),
    ],
)
def test_unusable_tables(
    depends: dict[str, Any], sections: dict[str, Any], shown: list[Any], tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "depends": write(tmp_path, "d", **depends),
        "sections": write(tmp_path, "s", **sections),
    }
    with refused(TableError, *shown):
        Packages(**given).tables()


# -------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"n_subscribers": -1}, [0]),
        ({"n_flows": 0}, [1]),
        ({"applications": 0}, [1]),
        ({"applications": 2.5}, []),
        ({"days": -1}, ["36,525"]),
        ({"depends": "x.csv"}, ["sections"]),
        ({"sections": "x.csv"}, ["depends"]),
        ({"seed": -1}, [0]),
    ],
)
def test_bad_parameters(params: dict[str, Any], shown: list[Any]) -> None:
    name, value = next(iter(params.items()))
    with refused(ParameterError, repr(value), *shown, parameter=name):
        Packages(**params)


def test_missing_tables() -> None:
    with refused(TableError, "nowhere.parquet"):
        Packages(depends="nowhere.parquet", sections="nowhere.parquet")


def test_on_the_command_line(tmp_path: Path) -> None:
    given = small(tmp_path)
    words = [word for name, path in given.items() for word in ("--set", f"{name}={path}")]
    out = tmp_path / "packages"
    facts, _ = document("generate", "packages", "--out", out, *words, "--set", "n_subscribers=12")
    made = Packages(**given, n_subscribers=12).tables()
    for name, table in made.items():
        assert pq.read_table(out / f"{name}.parquet").equals(table)
        assert facts["rows"][name] == table.num_rows
    assert pa.types.is_string(made["interests"].schema.field("flow").type)
    assert facts["origin"]["depends"]["left_out"] == {"null": 1, "unknown package": 2}
    said = refusal("run", "--workload", "packages", "--out", tmp_path / "out")
    assert "--workload='packages'" in said
    assert set(Packages.makes) == set(made)
