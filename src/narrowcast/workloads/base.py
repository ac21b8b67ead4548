"""The seam that every workload fits, and how its parameters are given as text."""

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

#: The most rows of one kind: positions are 32-bit numbers.
MOST = 2**31 - 1

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class Workload(Protocol):
    """Tables made from a seed.

    Parameters are keyword-only and checked when the workload is made; `seed` is one of them. The same
    parameters and seed give the same tables.
    """

    @property
    def seed(self) -> int:
        """What all random choices come from."""
        ...

    #: The tables that a plan can be made from: `subscriptions` and `events`, or `interests` and others.
    makes: ClassVar[tuple[str, ...]]

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables by name: `subscriptions`, `events`, `interests`, ... those it has."""
        ...

    def origin(self) -> dict[str, Any] | None:
        """Return facts about the tables that it reads; None for a workload that reads none."""
        ...


class BaseWorkload:
    """What workloads derive from: by default they make subscriptions and events, and read no table."""

    __slots__ = ()
    makes: ClassVar[tuple[str, ...]] = ("subscriptions", "events")

    def origin(self) -> dict[str, Any] | None:
        """Return None: nothing is read."""
        return None


#: Workloads by the name that `narrowcast generate` takes; each entry makes one from keyword parameters.
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
    """Return the types of a workload's parameters by name, the seed left out.

    Examples
    --------
    >>> from narrowcast.workloads.stocks import Stocks
    >>> list(parameters_of(Stocks))
    ['n_subscriptions', 'n_events', 'modes', 'edges', 'drift', 'nodes']
    """
    known = inspect.signature(workload, eval_str=True).parameters
    return {name: parameter.annotation for name, parameter in known.items() if name != "seed"}


def values_of(workload: Workload) -> dict[str, Any]:
    """Return the values of a workload's parameters by name, the seed left out."""
    return {name: getattr(workload, name) for name in parameters_of(type(workload))}


def origin_of(workload: Workload) -> dict[str, Any]:
    """Return, under `origin`, what a workload says of the tables it reads; nothing where it reads none."""
    origin = workload.origin()
    return {} if origin is None else {"origin": origin}


def make_workload(name: str, settings: Iterable[str] = (), *, seed: int = 0) -> Workload:
    """Return the workload of a name, with parameters written as `key=value`.

    Examples
    --------
    >>> make_workload("stocks", ["n_events=50", "modes=4"])
    Stocks(n_subscriptions=1000, n_events=50, modes=4, edges='levels', drift=0.0, nodes=600, seed=0)
    >>> make_workload("stocks", ["n_event=50"])
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: stocks has no parameter 'n_event'; did you mean 'n_events'? known: ...
    """
    workload = WORKLOADS[name]
    kinds = parameters_of(workload)
    known = ", ".join(kinds)
    values: dict[str, Any] = {}
    for text in settings:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ParameterError(f"{text!r} sets nothing; write key=value with one of {known}")
        if key == "seed":
            raise ParameterError(f"{text!r}: the seed is not set with --set; write --seed {value}")
        if key not in kinds:
            close = difflib.get_close_matches(key, kinds, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ParameterError(f"{name} has no parameter {key!r}; {hint}known: {known}")
        if key in values:
            raise ParameterError(f"{key} is set twice, to {values[key]!r} and {value!r}; keep one")
        values[key] = _read(key, value, kinds[key])
    return workload(**values, seed=seed)


def _read(key: str, value: str, kind: Any) -> Any:
    """Return the value that a text stands for, by the parameter's type."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        raise ParameterError(f"{key} is {value!r}; give {_takes(kind)}") from None


def _takes(kind: Any) -> str:
    """Say in words which values a type has."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    return _KINDS.get(kind, str(kind))


def check_count(name: str, value: int, least: int = 0) -> None:
    """Refuse a number of rows that is not a whole number within the limits."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= MOST:
        raise ParameterError(f"{name} is {value!r}; give a whole number from {least} to {MOST}")


def random_streams(seed: int, count: int) -> list[np.random.Generator]:
    """Return generators that do not hang on one another: drawing more from one leaves the rest as it was."""
    check_seed(seed)
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]


def zipf(count: int, exponent: float = 1.0) -> NDArray[np.float64]:
    """Return the probabilities of ranks 1 to `count` in proportion to 1 / rank, or to a power of it."""
    weight = 1 / np.arange(1, count + 1) ** exponent
    return np.asarray(weight / weight.sum(), np.float64)


def box_filters(names: Sequence[str], lo: NDArray[np.float64], hi: NDArray[np.float64]) -> pa.Array:
    """Return each box (lo, hi] as a filter; an infinite side is left out.

    Numbers are written in as few digits as it takes to read the same double back.

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
    # Arrow would leave out a row of nothing but nulls altogether.
    everything = ~(np.isfinite(lo) | np.isfinite(hi)).any(axis=1)
    parts[0] = pc.if_else(pa.array(everything), "TRUE", parts[0])
    return pc.binary_join_element_wise(*parts, " AND ", null_handling="skip")
