"""Updates of software packages as flows, and those who have them: a workload of tamara2007."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from narrowcast.errors import ParameterError, TableError
from narrowcast.files import files_of, first_line, read_table
from narrowcast.model.interest import Interest
from narrowcast.model.relation import relation, relation_of
from narrowcast.validation import check_seed
from narrowcast.workloads.base import BaseWorkload, check_count, random_streams
from narrowcast.workloads.feeds import LONGEST, changes_between, check_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.relation import Relation

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: What the tables have: what a package depends on, and where it belongs.
COLUMNS = {"depends": ("package", "depends_on"), "sections": ("package", "section")}
#: Why a row is left out; the first that holds counts. Only dependencies can be unknown.
REASONS = ("null", "unknown package")

#: A package that more others depend on is a library: nobody picks it, it comes with what is picked.
LIBRARY = 5
#: Sections that a subscriber picks applications from.
INTERESTS = 3
#: Updates a day: the median and the most, and the standard deviation of their logarithm.
MEDIAN, MOST_UPDATES, SIGMA = 1 / 90, 1.0, 1.0
#: Of a made-up graph: sections, dependencies of a package on average, and the share of them that are copied.
SECTIONS, DEPENDENCIES, COPIED = 20, 4.0, 0.8

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class _Graph:
    """Packages by name: what each depends on, its section, and what was read."""

    depends: Relation
    section: Ints
    labels: pa.Array
    origin: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages(BaseWorkload):
    """Interest in packages and all that they depend on (tamara2007, section 5.3).

    A subscriber has three sections, the larger ones more often, picks applications from them, by Zipf's law
    in an order of popularity that is random in each section, and wants these and all packages that they
    depend on, directly or not. A package that more than five others depend on is never picked itself.

    Flows are the packages that most subscribers want; of equals those that need fewer others come first.
    Updates per day are lognormal, with median 1 / 90 and standard deviation 1 of the logarithm, but at most
    one. Subscribers arrive one after the other, in random order, each with its packages in random order.

    Without tables the packages are made up: each depends on about four of those before it, and four of five
    dependencies are on what another one, chosen at random, is on: what is needed often is needed more.

    Parameters
    ----------
    n_subscribers
        How many subscribers there are.
    n_flows
        The most flows there are; fewer where fewer packages are wanted. So many packages are made up.
    depends
        A Parquet, CSV or JSON-lines table with `package` and `depends_on`.
    sections
        A table with `package` and `section`: all packages that there are.
    applications
        How many applications a subscriber picks; one that is picked twice counts once.
    days
        How long the arrivals take; they are spread evenly, from 1970-01-01 on.
    seed
        What all random choices come from.

    Examples
    --------
    >>> packages = Packages(n_subscribers=20, n_flows=500, seed=1)
    >>> packages.interest()
    Interest(20 subscribers, 257 flows, 1004 wants)
    >>> {name: table.num_rows for name, table in packages.tables().items()}
    {'interests': 1004, 'rates': 257, 'changes': 1004}
    """

    #: The tables that there are: other workloads make subscriptions and events.
    makes: ClassVar[tuple[str, ...]] = ("interests", "rates", "changes")

    n_subscribers: int = 1000
    n_flows: int = 3000
    depends: str = ""
    sections: str = ""
    applications: int = 10
    days: float = 365.0
    seed: int = 0
    _read: list[_Graph] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("n_subscribers", "n_flows", "applications"):
            check_count(name, getattr(self, name))
        for name in ("n_flows", "applications"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} is {getattr(self, name)}; give at least 1")
        check_number("days", self.days, 0, LONGEST, above=True)
        check_seed(self.seed)
        if bool(self.depends) != bool(self.sections):
            given, lacks = ("depends", "sections") if self.depends else ("sections", "depends")
            raise ParameterError(
                f"{given} is {getattr(self, given)!r} and {lacks} is not given; "
                "give both, or neither for packages that are made up"
            )
        for path in filter(None, (self.depends, self.sections)):
            files_of(Path(path))

    def tables(self) -> dict[str, pa.Table]:
        """Return `interests` (subscriber, flow), `rates` (flow, rate) and `changes`, in the order of time.

        `changes` (time, subscriber, flow, action) is how the interests arise out of nothing. With tables a
        flow is a package's name, otherwise its number.
        """
        after = self.interest()
        nothing = sparse.csr_array(after.wants.shape, dtype=np.bool_)
        before = Interest(nothing, after.rate, after.subscribers, after.flows)
        users, flows = self._streams()[-2:]
        interests, rates = after.to_tables()
        changes = changes_between(before, after, self.days, users=users, flows=flows)
        return {"interests": interests, "rates": rates, "changes": changes}

    def interest(self) -> Interest:
        """Return what the tables say in the end, and those who want nothing besides, if there are any."""
        graph = self._graph()
        wants = _closed(self._picks(graph), graph.depends)
        flow = _most_wanted(wants, graph.depends, self.n_flows)
        update = self._streams()[2].lognormal(np.log(MEDIAN), SIGMA, len(graph.section))
        rate = np.minimum(update, MOST_UPDATES)[flow] / _DAY
        who = np.arange(self.n_subscribers, dtype=np.int32)
        return Interest(wants[:, flow], rate, who, graph.labels.take(pa.array(flow)))

    def origin(self) -> dict[str, Any]:
        """Return what was read of each table, if there are any: rows, those left out, and a hash."""
        return self._graph().origin

    def _graph(self) -> _Graph:
        """Return the packages; tables are read once."""
        if not self.depends:
            edges, section = self._streams()[:2]
            labels = pa.array(np.arange(self.n_flows, dtype=np.int32))
            belongs = section.integers(SECTIONS, size=self.n_flows)
            return _Graph(_attached(edges, self.n_flows), belongs, labels, {})
        if not self._read:
            self._read.append(_read_graph(self.depends, self.sections))
        return self._read[0]

    def _picks(self, graph: _Graph) -> Relation:
        """Draw the applications that each subscriber picks."""
        popular, homes, which, rank = self._streams()[3:7]
        used = np.bincount(graph.depends.indices, minlength=len(graph.section))
        some = popular.permutation(np.flatnonzero(used <= LIBRARY))
        if len(some) == 0:
            raise TableError(
                f"{self.depends} has more than {LIBRARY} packages that depend on each; "
                "give a table with applications, which fewer others need"
            )
        _, code = np.unique(graph.section[some], return_inverse=True)
        by_section = np.argsort(code, kind="stable")
        some, code = some[by_section], code[by_section]
        size = np.bincount(code)
        start = np.cumsum(size) - size
        chance = 1 / (np.arange(len(some)) - start[code] + 1)
        # The r-th most popular application of section s takes what is from ends[r - 1] to ends[r] above s.
        total = np.cumsum(chance)
        ends = code + (total - (total - chance)[start][code]) / np.bincount(code, chance)[code]
        clocks = homes.standard_exponential((self.n_subscribers, len(size))) / size
        own = np.argsort(clocks, axis=1)[:, :INTERESTS]
        shape = (self.n_subscribers, self.applications)
        section = np.take_along_axis(own, which.integers(own.shape[1], size=shape), axis=1)
        place = np.searchsorted(ends, section + rank.random(shape), side="right")
        picked = some[np.clip(place, start[section], (start + size - 1)[section])]
        rows = np.repeat(np.arange(self.n_subscribers), self.applications)
        return relation_of(rows, picked.ravel(), (self.n_subscribers, len(graph.section)))

    def _streams(self) -> list[np.random.Generator]:
        """Return a source of chance each for all that is drawn.

        Dependencies, sections and rates of packages; the popularity of applications; the sections of
        subscribers, which of them in turn, and which application; the order of arrivals, and of packages.
        """
        return random_streams(self.seed, 9)


def _closed(wants: Relation, depends: Relation) -> Relation:
    """Return wants with all that is needed for them, however far.

    >>> chain = relation([[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    >>> _closed(relation([[0, 1, 0], [1, 0, 0]]), chain).toarray().astype(int).tolist()
    [[0, 1, 1], [1, 1, 1]]
    """
    found = new = wants
    while new.nnz:
        new = (new @ depends) > found
        found = found + new
    return relation(found)


def _most_wanted(wants: Relation, depends: Relation, count: int) -> Ints:
    """Return the packages that most want, in order; of equals those first that need fewer others.

    What a package needs is wanted by as many at least, so that it is among them, too, except where packages
    need one another.
    """
    audience = np.bincount(wants.indices, minlength=wants.shape[1])
    some = np.flatnonzero(audience)
    if len(some) <= count:
        return some
    last = np.sort(audience)[-count]
    sure, equal = np.flatnonzero(audience > last), np.flatnonzero(audience == last)
    alone = relation_of(np.arange(len(equal)), equal, (len(equal), wants.shape[1]))
    needs = np.diff(_closed(alone, depends).indptr)
    first = equal[np.argsort(needs, kind="stable")][: count - len(sure)]
    return np.sort(np.append(sure, first))


def _attached(rng: np.random.Generator, count: int) -> Relation:
    """Return dependencies by preferential attachment, each on a package before.

    One of them is on any package, or copies what one of the dependencies before is on, which is in
    proportion to how often a package is needed by then.
    """
    each = np.minimum(rng.poisson(DEPENDENCIES, count), np.arange(count))
    who = np.repeat(np.arange(count), each)
    before = (np.cumsum(each) - each)[who]
    any_of, like = (rng.random((2, len(who))) * (who, before)).astype(np.int64)
    copies = (rng.random(len(who)) < COPIED) & (before > 0)
    source = np.where(copies, like, np.arange(len(who)))
    # A copy of a copy: each round doubles how far it is followed.
    while (source[source] != source).any():
        source = source[source]
    return relation_of(who, any_of[source], (count, count))


def _read_graph(depends: str, sections: str) -> _Graph:
    """Return the packages of two tables, sorted by name so that the order of rows does not matter."""
    tables: dict[str, list[pa.Array]] = {}
    origin: dict[str, dict[str, Any]] = {}
    for name, path in (("sections", sections), ("depends", depends)):
        columns = _texts(path, COLUMNS[name])
        missing = pc.or_(*(column.is_null() for column in columns))
        tables[name] = [column.filter(pc.invert(missing)) for column in columns]
        left_out = {REASONS[0]: int(pc.sum(missing).as_py() or 0)}
        origin[name] = {"rows": len(missing), "left_out": left_out, "sha256": _digest(path)}
    package, section = tables["sections"]
    if len(package) == 0:
        raise TableError(f"{sections} has no package with a section; give a row for each package")
    counts = package.value_counts()
    if len(counts) < len(package):
        twice = counts.field("values")[int(np.argmax(counts.field("counts").to_numpy()))].as_py()
        raise TableError(f"{sections} has package {twice!r} more than once; keep one row for each package")
    order = pc.sort_indices(package)
    package, section = package.take(order), section.take(order)
    ends = [pc.index_in(column, package).fill_null(-1).to_numpy() for column in tables["depends"]]
    known = (ends[0] >= 0) & (ends[1] >= 0)
    origin["depends"]["left_out"][REASONS[1]] = int(np.count_nonzero(~known))
    needs = relation_of(ends[0][known], ends[1][known], (len(package), len(package)))
    names = section.unique().sort()
    return _Graph(needs, pc.index_in(section, names).to_numpy().astype(np.int64), package, origin)


def _texts(path: str, names: tuple[str, ...]) -> list[pa.Array]:
    """Return the columns of a table as text."""
    table = read_table(path, names)
    try:
        return [table[name].cast(pa.string()).combine_chunks() for name in names]
    except pa.ArrowException as error:
        raise TableError(
            f"{path}: a column has a type of its own: {first_line(error)}; "
            f"give text for {' and '.join(names)}"
        ) from error


def _digest(path: str) -> str:
    """Return a hash of a table's files."""
    digest = hashlib.sha256()
    for file in files_of(Path(path))[1]:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
