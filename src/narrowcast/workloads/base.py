"""The workload protocol, the registry of workloads, and parsing of workload parameters."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError
from narrowcast.registry import Registry
from narrowcast.validation import check_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

#: Largest number of rows of a table: row numbers are signed 32-bit integers.
MAX_ROWS = 2**31 - 1

_TYPE_LIMITS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


class Workload(Protocol):
    """Tables generated from parameters and a seed.

    Parameters are keyword-only and checked when the workload is constructed; `seed` is one of them. The
    same parameters and seed give the same tables.
    """

    @property
    def seed(self) -> int:
        """Seed of all random choices, an integer of at least 0."""
        ...

    #: Names of the tables that a plan can be computed from: `subscriptions` and `events`, or `interests`
    #: with others such as `rates`.
    makes: ClassVar[tuple[str, ...]]

    def tables(self) -> dict[str, pa.Table]:
        """Return the generated tables by name, such as `subscriptions`, `events` or `interests`."""
        ...

    def origin(self) -> dict[str, Any] | None:
        """Return facts about the input tables (rows, rejected rows, hash); None if there is no input."""
        ...


class BaseWorkload:
    """Base class of workloads; by default a workload generates subscriptions and events from no input."""

    __slots__ = ()
    makes: ClassVar[tuple[str, ...]] = ("subscriptions", "events")

    def origin(self) -> dict[str, Any] | None:
        """Return None: the workload reads no table."""
        return None


#: Workloads by their name in `narrowcast generate`; an entry is called with keyword parameters.
WORKLOADS: Registry[Callable[..., Workload]] = Registry(
    "workload",
    {
        "feeds": "narrowcast.workloads.feeds:Feeds",
        "flows": "narrowcast.workloads.flows:Flows",
        "hotspots": "narrowcast.workloads.hotspots:Hotspots",
        "intervals": "narrowcast.workloads.intervals:Intervals",
        "packages": "narrowcast.workloads.packages:Packages",
        "quotes": "narrowcast.workloads.quotes:Quotes",
        "stocks": "narrowcast.workloads.stocks:Stocks",
    },
    group="narrowcast.workloads",
)


def parameters_of(workload: Callable[..., Workload]) -> dict[str, Any]:
    """Return the types of a workload's parameters by name, without the seed.

    Examples
    --------
    >>> from narrowcast.workloads.stocks import Stocks
    >>> list(parameters_of(Stocks))
    ['n_subscriptions', 'n_events', 'modes', 'edges', 'drift', 'nodes']
    """
    known = inspect.signature(workload, eval_str=True).parameters
    return {name: parameter.annotation for name, parameter in known.items() if name != "seed"}


def values_of(workload: Workload) -> dict[str, Any]:
    """Return the values of a workload's parameters by name, without the seed."""
    return {name: getattr(workload, name) for name in parameters_of(type(workload))}


def origin_of(workload: Workload) -> dict[str, Any]:
    """Return `{"origin": facts}` about the input tables of a workload; an empty dictionary without input."""
    origin = workload.origin()
    return {} if origin is None else {"origin": origin}


def make_workload(name: str, settings: Iterable[str] = (), *, seed: int = 0) -> Workload:
    """Construct a workload by name, with parameters written as `key=value`.

    Parameters
    ----------
    name
        A name in `WORKLOADS`.
    settings
        Parameters of the workload as text, such as `n_events=50`; each at most once, and not the seed.
    seed
        Seed of all random choices, at least 0.

    Raises
    ------
    ParameterError
        When a parameter is unknown, given twice, or has a value of the wrong type or out of range.

    Examples
    --------
    >>> make_workload("stocks", ["n_events=50", "modes=4"])
    Stocks(n_subscriptions=1000, n_events=50, modes=4, edges='levels', drift=0.0, nodes=600, seed=0)
    >>> make_workload("stocks", ["n_event=50"])
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: unknown parameter 'n_event' of stocks; did you mean 'n_events'? ...
    """
    workload = WORKLOADS[name]
    kinds = parameters_of(workload)
    known = ", ".join(kinds)
    values: dict[str, Any] = {}
    for text in settings:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ParameterError(
                parameter="settings", value=text, limit=f"key=value, with a key out of {known}"
            )
        if key == "seed":
            raise ParameterError(
                f"settings={text!r}: must not contain the seed; give seed={value}",
                parameter="settings",
                value=text,
            )
        if key not in kinds:
            close = difflib.get_close_matches(key, kinds, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ParameterError(
                f"unknown parameter {key!r} of {name}; {hint}known: {known}", parameter=key, value=value
            )
        if key in values:
            raise ParameterError(
                f"{key}={value!r}: already set to {values[key]!r}; set {key} once",
                parameter=key,
                value=value,
            )
        values[key] = _parse(key, value, kinds[key])
    return workload(**values, seed=seed)


def _parse(key: str, value: str, kind: Any) -> Any:
    """Convert the text of a parameter to the parameter's type."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        raise ParameterError(parameter=key, value=value, limit=_limit_of(kind)) from None


def _limit_of(kind: Any) -> str:
    """Describe the values of a type in words, for an error message."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    return _TYPE_LIMITS.get(kind, str(kind))


def check_count(name: str, value: int, least: int = 0) -> None:
    """Raise a `ParameterError` unless a count is an integer from `least` to `MAX_ROWS`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= MAX_ROWS:
        raise ParameterError(parameter=name, value=value, limit=f"an integer from {least} to {MAX_ROWS}")


def random_streams(seed: int, count: int) -> list[np.random.Generator]:
    """Return independent random generators: drawing more from one does not change what the others draw."""
    check_seed(seed)
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]


def zipf(count: int, exponent: float = 1.0) -> NDArray[np.float64]:
    """Return the probabilities of ranks 1 to `count`, in proportion to 1 / rank ** exponent."""
    weight = 1 / np.arange(1, count + 1) ** exponent
    return np.asarray(weight / weight.sum(), np.float64)


def box_filters(names: Sequence[str], lo: NDArray[np.float64], hi: NDArray[np.float64]) -> pa.Array:
    """Return the text of a filter for each box (lo, hi]; an infinite side is omitted.

    Numbers are written in the fewest digits that parse to the same double.

    Parameters
    ----------
    names
        The attributes, one per column of `lo` and `hi`.
    lo, hi
        The open lower and closed upper ends, one row per box.

    Examples
    --------
    >>> box_filters(["x", "y"], np.array([[0.1, -np.inf]]), np.array([[2, 1e300]])).to_pylist()
    ['x > 0.1 AND x <= 2 AND y <= 1e+300']
    """
    parts = []
    for i, name in enumerate(names):
        for sign, end in ((">", lo[:, i]), ("<=", hi[:, i])):
            number = pa.array(end, mask=~np.isfinite(end)).cast(pa.string())
            parts.append(pc.binary_join_element_wise(f"{name} {sign} ", number, ""))
    # Arrow would omit a row that has only nulls.
    unbounded = ~(np.isfinite(lo) | np.isfinite(hi)).any(axis=1)
    parts[0] = pc.if_else(pa.array(unbounded), "TRUE", parts[0])
    return pc.binary_join_element_wise(*parts, " AND ", null_handling="skip")
