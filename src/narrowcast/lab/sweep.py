"""Sweeps: one trial at every point of a grid and for every seed, and what came of each."""

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

#: What grids are made of and trials return: plain values, which come back from other machines as they were.
Value: TypeAlias = bool | int | float | str | None
Record: TypeAlias = dict[str, Value]
#: Told what is done next, how much is done, and how much there is.
Tell: TypeAlias = Callable[[str, int, int], None]

#: The name under which trials are given the seed.
SEED = "seed"
#: Whole numbers beyond these cannot be written to all files.
_LEAST, _MOST = -(2**63), 2**63 - 1


class SweepPoint(msgspec.Struct, frozen=True):
    """A point of a sweep, and what came of it.

    Parameters
    ----------
    at
        Where it is: a value for each name of the grid, and the seed.
    rows
        What the trial returned.
    problem
        Why it returned nothing, in one line.
    """

    at: Record
    rows: list[Record] = []
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Swept:
    """All points of a sweep with what came of them, in the order of the sweep.

    Parameters
    ----------
    points
        The points; at least one has no problem.
    """

    points: list[SweepPoint]

    @property
    def rows(self) -> list[Record]:
        """All rows, each with the point that it comes from."""
        return [{**point.at, **row} for point in self.points for row in point.rows]

    @property
    def problems(self) -> list[SweepPoint]:
        """The points that failed."""
        return [point for point in self.points if point.problem]

    def to_table(self) -> pa.Table:
        """Return the rows as a table; what a row does not have is null."""
        rows = self.rows
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: [row.get(name) for row in rows] for name in names})

    def whole(self) -> Swept:
        """Return this when every point came out, and fail with the first reason otherwise."""
        if self.problems:
            raise ParameterError(_said(self.problems, len(self.points)))
        return self


@dataclass(frozen=True, slots=True)
class Sweep:
    """A trial at every point of a grid, for every seed.

    `run` does all of it in this process; `narrowcast.lab.spark.sweep.run_sweep` does the same as tasks of
    Spark's, with the same result.

    Points come in the order of the grid, its first name changing last; only that the seed, and before it the
    names in `by`, come first, so that points that share something follow each other.

    Parameters
    ----------
    trial
        A function at the top of a module. It is given the seed, the point's values and those of `fixed`, all
        by name, and returns a row, or rows, of numbers and texts by name. An error of Narrowcast's is the
        point's alone; any other ends the sweep.
    grid
        By name the values that are tried.
    seeds
        What random choices come from, one after the other.
    fixed
        What all points are given alike; for Spark it must be possible to pickle it.
    setup
        Makes what is too dear to be made for each point, such as a workload. It is given the seed, the values
        of the names in `by`, and those of `fixed`; what it returns is the trial's first argument, and must
        not be changed there.
    by
        The names of the grid that the setup takes.

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
            raise ParameterError(f"by names {unknown[0]!r}, which the grid has not; it has {', '.join(grid)}")
        object.__setattr__(self, "by", tuple(name for name in grid if name in self.by))
        for name, values in [*grid.items(), (SEED, self.seeds)]:
            if not values:
                raise ParameterError(f"there is no value of {name!r} to try; give at least one")
            if len({(type(value), value) for value in values}) < len(values):
                raise ParameterError(f"{name} is tried at {list(values)}; name each value once")
        for seed in self.seeds:
            check_seed(seed)
        if twice := sorted(({SEED} & (grid.keys() | self.fixed.keys())) | (grid.keys() & self.fixed.keys())):
            raise ParameterError(f"{twice[0]!r} is given twice; the grid, the fixed values and {SEED} differ")

    def points(self) -> list[Record]:
        """Return where trials are made, in order."""
        rest = [name for name in self.grid if name not in self.by]
        names = [*self.by, SEED, *rest]
        first, then = ([self.grid[name] for name in some] for some in (self.by, rest))
        return [dict(zip(names, values, strict=True)) for values in product(*first, self.seeds, *then)]

    def run(self, *, done: str | Path | None = None, tell: Tell | None = None) -> Swept:
        """Try every point, one after the other.

        Parameters
        ----------
        done
            A folder in which points are kept as they are finished; those that are there already are not done
            again. Without, nothing is kept.
        tell
            Told before each point which it is, how many are done and how many there are.

        Raises
        ------
        ParameterError
            When every point fails, or a value is of no use.
        """
        points = self.points()
        kept = None if done is None else KeptTrials(done, self)
        made, found = FinishedTrials(1), []
        for number, at in enumerate(points):
            if tell is not None:
                tell(words_of(at), number, len(points))
            point = None if kept is None else kept.get(at)
            if point is None:
                point = self.tried(at, made)
                if kept is not None:
                    kept.put(point)
            found.append(point)
        return swept(found)

    def shared(self, at: Record) -> Hashable:
        """Return what tells apart the points that have a setup in common from all others."""
        return tuple(at[name] for name in (*self.by, SEED))

    def tried(self, at: Record, made: FinishedTrials) -> SweepPoint:
        """Make the trial of one point.

        Parameters
        ----------
        at
            Where, as `points` has it.
        made
            Where setups are kept for the points that come next.
        """
        try:
            if self.setup is None:
                rows = self.trial(**at, **self.fixed)
            else:
                rows = self.trial(made.get(self.shared(at), lambda: self._set_up(at)), **at, **self.fixed)
            return SweepPoint(
                at, [_record(row, at) for row in ([rows] if isinstance(rows, Mapping) else rows)]
            )
        except NarrowcastError as error:
            return SweepPoint(at, problem=" ".join(str(error).split()))

    def _set_up(self, at: Record) -> Any:
        assert self.setup is not None
        return self.setup(**{name: at[name] for name in (*self.by, SEED)}, **self.fixed)

    def digest(self) -> str:
        """Return a text that differs where functions, fixed values or the version of Narrowcast do."""
        from narrowcast import __version__

        functions = [None if each is None else _function(each) for each in (self.trial, self.setup)]
        plain = [__version__, functions, _plain(dict(self.fixed))]
        return hashlib.sha256(repr(plain).encode()).hexdigest()


class FinishedTrials:
    """The last few things that were made, each once, also when making it failed.

    Parameters
    ----------
    limit
        How many are kept.

    Examples
    --------
    >>> made = FinishedTrials(1)
    >>> made.get("a", lambda: 1), made.get("a", lambda: 2), made.get("b", lambda: 3)
    (1, 1, 3)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: dict[Hashable, tuple[Any, NarrowcastError | None]] = {}

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what has a key, made now if need be."""
        if key not in self._kept:
            while len(self._kept) >= self.limit:  # before the new one is made: each may be large
                del self._kept[next(iter(self._kept))]
            try:
                self._kept[key] = make(), None
            except NarrowcastError as error:
                self._kept[key] = None, error
        value, problem = self._kept[key]
        if problem is not None:
            raise problem
        return value


class KeptTrials:
    """Finished points of a sweep in a folder, a file for each.

    A file is named after the point, the functions, the fixed values and the version of Narrowcast, so that
    nothing is found for a sweep that differs in any. What those functions call is not looked at.

    Parameters
    ----------
    folder
        Where files are; it is made with the first.
    sweep
        Whose points.
    """

    def __init__(self, folder: str | Path, sweep: Sweep) -> None:
        self.folder, self._digest = Path(folder), sweep.digest()

    def get(self, at: Record) -> SweepPoint | None:
        """Return a point that is finished, or None."""
        try:
            found = msgspec.msgpack.decode(self._file(at).read_bytes(), type=SweepPoint)
        except (OSError, msgspec.DecodeError):  # none, or damaged: it is made again
            return None
        return found if found.at == at else None

    def put(self, point: SweepPoint) -> None:
        """Keep a point; one that failed is not finished."""
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
    """Return what came of all points, and fail when none came out."""
    if points and all(point.problem for point in points):
        raise ParameterError(_said(points, len(points)))
    return Swept(points)


def words_of(at: Record) -> str:
    """Return a point in words.

    Examples
    --------
    >>> words_of({"modes": 9, "seed": 0})
    'modes 9, seed 0'
    """
    return ", ".join(f"{name} {value}" for name, value in at.items())


def _said(failed: list[SweepPoint], n_points: int) -> str:
    """Return why points failed, in one line."""
    reasons = dict.fromkeys(point.problem for point in failed)
    first = failed[0].problem
    if len(failed) == n_points and len(reasons) == 1:
        return first
    return f"{len(failed)} of {n_points} points failed; the first, {words_of(failed[0].at)}: {first}"


def _value(name: object, value: Any) -> Value:
    """Return a value as Python's own, or say why it cannot be one of a grid or a row."""
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, bool | int | float | str | None):
        raise ParameterError(f"{name} is a {type(value).__name__}; a sweep takes and gives numbers and texts")
    if type(value) is int and not _LEAST <= value <= _MOST:
        raise ParameterError(f"{name} is {value}; give a whole number of at most 64 bits")
    return value


def _record(row: Mapping[str, Any], at: Record) -> Record:
    """Return a row of plain values."""
    if not isinstance(row, Mapping):
        raise ParameterError(
            f"a trial returned a {type(row).__name__}; return values by name, or several such"
        )
    if taken := sorted(at.keys() & row.keys()):
        raise ParameterError(f"a row has {taken[0]!r}, which is the point's own; give it another name")
    return {str(name): _value(name, value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """Return a value as something whose text is the same for equal values, in any process."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | float | str | bytes):
        # Not a number is not equal to itself, yet the same parameter.
        return "nan" if isinstance(value, float) and math.isnan(value) else value
    if isinstance(value, Mapping):
        return {"map": sorted((str(name), repr(_plain(each))) for name, each in value.items())}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    try:
        kept = pickle.dumps(value, 5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ParameterError(
            f"a fixed value is a {type(value).__name__}, which cannot be pickled: {error}"
        ) from error
    return {type(value).__qualname__: hashlib.sha256(kept).hexdigest()}


def _function(function: Any) -> Any:
    """Return what tells a function from others: its name and its code."""
    code = getattr(function, "__code__", None)
    if code is None or function.__closure__:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise ParameterError(
            f"{name} cannot be told from others of its name; to keep points in a folder, "
            "use a function at the top of a module and give it what it needs as fixed values"
        )
    defaults = _plain([function.__defaults__, function.__kwdefaults__])
    return [function.__module__, function.__qualname__, defaults, _code(code)]


def _code(code: CodeType) -> Any:
    """Return what a function does as something whose text is the same in any process."""
    constants = []
    for each in code.co_consts:
        if isinstance(each, CodeType):
            constants.append(_code(each))
        else:
            constants.append(sorted(map(repr, each)) if isinstance(each, frozenset) else repr(each))
    return [code.co_code.hex(), code.co_names, constants]
