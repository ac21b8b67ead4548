"""Parameter sweeps: a trial at every point of a grid and for every seed, with results saved in a folder."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from narrowcast.errors import NarrowcastError, ParameterError
from narrowcast.files import writing
from narrowcast.validation import check_seed

if TYPE_CHECKING:
    from collections.abc import Hashable

#: Values of grids and of result rows: plain ones, which other machines return unchanged.
Value: TypeAlias = bool | int | float | str | None
Record: TypeAlias = dict[str, Value]
#: Callback for progress: the next point in words, the number of points done, and the number of all points.
Tell: TypeAlias = Callable[[str, int, int], None]

#: Name of the argument that passes the seed to a trial.
SEED = "seed"
#: Range of 64-bit integers; Arrow and MessagePack hold no others.
_LEAST, _MOST = -(2**63), 2**63 - 1


class SweepPoint(msgspec.Struct, frozen=True):
    """A point of a sweep, with its result.

    Parameters
    ----------
    at
        Coordinates of the point: a value for each name of the grid, and the seed.
    rows
        Rows that the trial returned.
    problem
        Error message of a trial that failed, in one line; empty otherwise.
    """

    at: Record
    rows: list[Record] = []
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Swept:
    """Results of all points of a sweep, in the order of the sweep.

    Parameters
    ----------
    points
        The points; at least one succeeded.
    """

    points: list[SweepPoint]

    @property
    def rows(self) -> list[Record]:
        """All rows, each with the coordinates of its point."""
        return [{**point.at, **row} for point in self.points for row in point.rows]

    @property
    def problems(self) -> list[SweepPoint]:
        """The points that failed."""
        return [point for point in self.points if point.problem]

    def to_table(self) -> pa.Table:
        """Return the rows as a table; values that a row lacks are null."""
        rows = self.rows
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: [row.get(name) for row in rows] for name in names})

    def whole(self) -> Swept:
        """Return this object; raise `ParameterError` with the first reason if any point failed."""
        if self.problems:
            raise ParameterError(_failure(self.problems, len(self.points)))
        return self


@dataclass(frozen=True, slots=True)
class Sweep:
    """A trial at every point of a grid, for every seed.

    `run` runs the trials in this process; `narrowcast.lab.spark.sweep.run_sweep` runs them as Spark tasks,
    with the same result.

    Points are ordered by the names in `by`, then the seed, then the other names of the grid, the last of
    which changes fastest, so that points that share a setup are adjacent.

    Parameters
    ----------
    trial
        A function at the top level of a module. It is called with the seed, the coordinates of the point and
        the values of `fixed`, all by name, and returns one or several rows: numbers and strings by name. A
        `NarrowcastError` fails that point only; any other exception ends the sweep.
    grid
        Values to try, by name.
    seeds
        Seeds; every combination runs once for each.
    fixed
        Arguments that are the same for all points; on Spark they must be picklable.
    setup
        Function that prepares what is too expensive to make for each point, such as a workload. It is called
        with the seed, the coordinates named in `by` and the values of `fixed`; its result is the first
        argument of the trial, which must not change it.
    by
        Names of the grid that the setup depends on.

    Examples
    --------
    >>> def saved(*, channels, seed, method):
    ...     from narrowcast import PLANNERS, Interest, Waste
    ...     wants = np.random.default_rng(seed).random((40, 30)) < 0.2
    ...     interest = Interest(wants)
    ...     plan = PLANNERS[method](channels=channels).fit(interest).plan_
    ...     return {"wasted": Waste().score(interest, plan).total}
    >>> sweep = Sweep(saved, {"method": ["hash", "pairwise"], "channels": [4, 30]}, seeds=[0, 1])
    >>> sweep.points()[:2]
    [{'seed': 0, 'method': 'hash', 'channels': 4}, {'seed': 0, 'method': 'hash', 'channels': 30}]
    >>> found = sweep.run()
    >>> found.rows[-1]
    {'seed': 1, 'method': 'pairwise', 'channels': 30, 'wasted': 0.0}
    >>> found.to_table().num_rows
    8
    """

    trial: Callable[..., Record | Mapping[str, Any] | Iterable[Mapping[str, Any]]]
    grid: Mapping[str, Sequence[Any]]
    seeds: Sequence[int] = (0,)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    setup: Callable[..., Any] | None = None
    by: Sequence[str] = ()

    def __post_init__(self) -> None:
        grid = {name: [_value(name, value) for value in values] for name, values in self.grid.items()}
        object.__setattr__(self, "grid", grid)
        object.__setattr__(self, "seeds", tuple(self.seeds))
        if unknown := sorted(set(self.by) - grid.keys()):
            raise ParameterError(
                parameter="by", value=unknown[0], limit=f"a name of the grid: {', '.join(grid)}"
            )
        object.__setattr__(self, "by", tuple(name for name in grid if name in self.by))
        for name, values in [*grid.items(), (SEED, self.seeds)]:
            if not values:
                raise ParameterError(parameter=str(name), value=list(values), limit="at least one value")
            if len({(type(value), value) for value in values}) < len(values):
                raise ParameterError(parameter=str(name), value=list(values), limit="distinct values")
        for seed in self.seeds:
            check_seed(seed)
        if twice := sorted(({SEED} & (grid.keys() | self.fixed.keys())) | (grid.keys() & self.fixed.keys())):
            raise ParameterError(
                f"{twice[0]!r} is given twice: names of the grid, of fixed values and {SEED!r} must differ",
                parameter=twice[0],
            )

    def points(self) -> list[Record]:
        """Return the coordinates of all points, in order."""
        rest = [name for name in self.grid if name not in self.by]
        names = [*self.by, SEED, *rest]
        first, then = ([self.grid[name] for name in some] for some in (self.by, rest))
        return [dict(zip(names, values, strict=True)) for values in product(*first, self.seeds, *then)]

    def run(self, *, done: str | Path | None = None, tell: Tell | None = None) -> Swept:
        """Run the trial at every point, one after the other.

        Parameters
        ----------
        done
            A folder in which finished points are saved; points that it holds already are not run again. None:
            save nothing.
        tell
            Called before each point with its coordinates in words, the number of points done and of all
            points.

        Raises
        ------
        ParameterError
            If every point fails, or a trial returns an invalid value.
        """
        points = self.points()
        saved = None if done is None else SavedPoints(done, self)
        setups, found = SetupCache(1), []
        for number, at in enumerate(points):
            if tell is not None:
                tell(describe_point(at), number, len(points))
            point = None if saved is None else saved.get(at)
            if point is None:
                point = self.run_point(at, setups)
                if saved is not None:
                    saved.put(point)
            found.append(point)
        return swept(found)

    def setup_key(self, at: Record) -> Hashable:
        """Return the key of a point's setup: points with the same key share one."""
        return tuple(at[name] for name in (*self.by, SEED))

    def run_point(self, at: Record, made: SetupCache) -> SweepPoint:
        """Run the trial of one point.

        Parameters
        ----------
        at
            Coordinates of the point, as returned by `points`.
        made
            Cache of setups, shared by consecutive points.
        """
        try:
            if self.setup is None:
                rows = self.trial(**at, **self.fixed)
            else:
                rows = self.trial(made.get(self.setup_key(at), lambda: self._set_up(at)), **at, **self.fixed)
            return SweepPoint(
                at, [_record(row, at) for row in ([rows] if isinstance(rows, Mapping) else rows)]
            )
        except NarrowcastError as error:
            return SweepPoint(at, problem=" ".join(str(error).split()))

    def _set_up(self, at: Record) -> Any:
        assert self.setup is not None
        return self.setup(**{name: at[name] for name in (*self.by, SEED)}, **self.fixed)

    def digest(self) -> str:
        """Return a digest of the functions, the fixed values and the version of Narrowcast."""
        from narrowcast import __version__

        functions = [None if each is None else _function(each) for each in (self.trial, self.setup)]
        plain = [__version__, functions, _plain(dict(self.fixed))]
        return hashlib.sha256(repr(plain).encode()).hexdigest()


class SetupCache:
    """A cache of the most recently made objects; a failure to make one is cached too, and raised again.

    Parameters
    ----------
    limit
        Largest number of cached objects.

    Examples
    --------
    >>> made = SetupCache(1)
    >>> made.get("a", lambda: 1), made.get("a", lambda: 2), made.get("b", lambda: 3)
    (1, 1, 3)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._cached: dict[Hashable, tuple[Any, NarrowcastError | None]] = {}

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the object of a key; make it if it is not cached."""
        if key not in self._cached:
            while len(self._cached) >= self.limit:  # before the new one is made: each may be large
                del self._cached[next(iter(self._cached))]
            try:
                self._cached[key] = make(), None
            except NarrowcastError as error:
                self._cached[key] = None, error
        value, problem = self._cached[key]
        if problem is not None:
            raise problem
        return value


class SavedPoints:
    """Finished points of a sweep in a folder, one file each.

    The name of a file is a digest of the point, the functions, the fixed values and the version of
    Narrowcast, so a sweep that differs in any of them finds no files. Changes to functions that those
    functions call are not noticed.

    Parameters
    ----------
    folder
        The folder; created with the first file.
    sweep
        The sweep whose points are saved.
    """

    def __init__(self, folder: str | Path, sweep: Sweep) -> None:
        self.folder, self._digest = Path(folder), sweep.digest()

    def get(self, at: Record) -> SweepPoint | None:
        """Return a finished point, or None if it has no readable file."""
        try:
            found = msgspec.msgpack.decode(self._file(at).read_bytes(), type=SweepPoint)
        except (OSError, msgspec.DecodeError):  # missing or damaged: the point is run again
            return None
        return found if found.at == at else None

    def put(self, point: SweepPoint) -> None:
        """Save a point, unless it failed."""
        if point.problem:
            return
        file = self._file(point.at)
        with writing(file):
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, aside = tempfile.mkstemp(prefix=".", dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(msgspec.msgpack.encode(point))
                Path(aside).replace(file)
            except BaseException:
                Path(aside).unlink(missing_ok=True)
                raise

    def _file(self, at: Record) -> Path:
        text = repr((self._digest, sorted(at.items())))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.point"


def swept(points: list[SweepPoint]) -> Swept:
    """Return the results of all points; raise `ParameterError` if every point failed."""
    if points and all(point.problem for point in points):
        raise ParameterError(_failure(points, len(points)))
    return Swept(points)


def describe_point(at: Record) -> str:
    """Return the coordinates of a point in words.

    Examples
    --------
    >>> describe_point({"modes": 9, "seed": 0})
    'modes 9, seed 0'
    """
    return ", ".join(f"{name} {value}" for name, value in at.items())


def _failure(failed: list[SweepPoint], n_points: int) -> str:
    """Return one line with the number of failed points and the first reason."""
    reasons = dict.fromkeys(point.problem for point in failed)
    first = failed[0].problem
    if len(failed) == n_points and len(reasons) == 1:
        return first
    return f"{len(failed)} of {n_points} points failed; the first, {describe_point(failed[0].at)}: {first}"


def _value(name: object, value: Any) -> Value:
    """Return a value as a plain Python value; refuse other types and integers of more than 64 bits."""
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, bool | int | float | str | None):
        raise ParameterError(
            f"{name} is a {type(value).__name__}: must be a number, a string, a boolean or None",
            parameter=str(name),
            value=value,
            limit="a number, a string, a boolean or None",
        )
    if type(value) is int and not _LEAST <= value <= _MOST:
        raise ParameterError(parameter=str(name), value=value, limit="an integer of at most 64 bits")
    return value


def _record(row: Mapping[str, Any], at: Record) -> Record:
    """Return a row of a trial with plain values; refuse names that the point has already."""
    if not isinstance(row, Mapping):
        raise ParameterError(
            f"a trial returned a {type(row).__name__}: must be a mapping of names to values, or several",
            parameter="trial",
            value=row,
        )
    if taken := sorted(at.keys() & row.keys()):
        raise ParameterError(
            f"a trial returned a value for {taken[0]!r}, a coordinate of its point: use another name",
            parameter=taken[0],
            value=row[taken[0]],
        )
    return {str(name): _value(name, value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """Return a value whose `repr` is the same for equal values in any process."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | float | str | bytes):
        # Not a number is not equal to itself, yet the same parameter.
        return "nan" if isinstance(value, float) and math.isnan(value) else value
    if isinstance(value, Mapping):
        return {"map": sorted((str(name), repr(_plain(each))) for name, each in value.items())}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    try:
        pickled = pickle.dumps(value, 5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ParameterError(
            f"a fixed value is a {type(value).__name__}, which cannot be pickled: {error}",
            parameter="fixed",
            value=value,
        ) from error
    return {type(value).__qualname__: hashlib.sha256(pickled).hexdigest()}


def _function(function: Any) -> Any:
    """Return values that identify a function: its module, name, defaults and code."""
    code = getattr(function, "__code__", None)
    if code is None or function.__closure__:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise ParameterError(
            f"{name}: only a function at the top level of a module can be identified, which saving points "
            "needs; pass what it depends on as fixed values",
            parameter="trial",
            value=function,
        )
    defaults = _plain([function.__defaults__, function.__kwdefaults__])
    return [function.__module__, function.__qualname__, defaults, _code(code)]


def _code(code: CodeType) -> Any:
    """Return the code of a function as values whose `repr` is the same in any process."""
    constants = []
    for each in code.co_consts:
        if isinstance(each, CodeType):
            constants.append(_code(each))
        else:
            constants.append(sorted(map(repr, each)) if isinstance(each, frozenset) else repr(each))
    return [code.co_code.hex(), code.co_names, constants]
