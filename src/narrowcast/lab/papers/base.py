"""The interface of a paper's experiments, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.sweep import Sweep, Swept, Tell
from narrowcast.registry import Registry
from narrowcast.validation import check_seed

Scale: TypeAlias = Literal["small", "paper"]
#: Runs a sweep, and reports progress.
Runner: TypeAlias = Callable[[Sweep, Tell], Swept]


class ResultRow(msgspec.Struct, frozen=True):
    """A measured number, with the paper's.

    Parameters
    ----------
    series
        The curve or table row: the method, followed by further settings after slashes.
    x
        The position along the horizontal axis; None for numbers without one.
    metric
        The name of the measured quantity, with its unit.
    paper
        The number that the paper prints; None if it prints none.
    measured, spread
        Mean and standard deviation over the seeds.
    """

    series: str
    x: float | None
    metric: str
    paper: float | None
    measured: float
    spread: float

    @classmethod
    def of(
        cls, series: str, x: float | None, metric: str, values: Sequence[float], *, paper: float | None = None
    ) -> ResultRow:
        """Return the row for values of all seeds, one each.

        Examples
        --------
        >>> ResultRow.of("pairwise/9/11", 0.15, "improvement_pct", [56.0, 58.0]).measured
        57.0
        """
        return cls(series, x, metric, paper, float(np.mean(values)), float(np.std(values)))


def _run_locally(sweep: Sweep, tell: Tell) -> Swept:
    """Run a sweep in this process."""
    return sweep.run(tell=tell)


@dataclass(frozen=True, slots=True)
class Study:
    """The input of an experiment.

    Parameters
    ----------
    seeds, params
        Seeds to run the experiment with, and its parameters.
    tell
        Callback for progress.
    runner
        Executor of sweeps (default: in this process). An experiment does not depend on where it runs.
    """

    seeds: tuple[int, ...]
    params: Mapping[str, Any]
    tell: Tell = lambda _, __, ___: None
    runner: Runner = _run_locally

    def run(self, sweep: Sweep) -> Swept:
        """Run a sweep, and raise an error if one of its points failed."""
        return self.runner(sweep, self.tell).whole()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of an experiment.

    Parameters
    ----------
    rows
        The measured numbers.
    charts
        For each chart's name, its records and its subtitle.
    notes
        Sentences that compare the results with the paper, one paragraph each.
    beside
        Further numbers, for `results.json` only, to keep tables short.
    """

    rows: list[ResultRow]
    charts: dict[str, tuple[list[dict[str, Any]], str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    beside: list[ResultRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Experiment:
    """The reproduction of a figure or table of a paper.

    Parameters
    ----------
    about
        What it shows, in one line.
    params
        Parameters with their values at the paper's size.
    small
        The values that differ at the small size.
    run
        Function that runs it.
    """

    about: str
    run: Callable[[Study], Outcome]
    params: Mapping[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, scale: Scale, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters of a run: defaults of its scale, overridden by given values.

        A value is converted to the type of the parameter; values of a list are separated by commas. Given
        names that this experiment does not have are ignored.

        Examples
        --------
        >>> Experiment("", lambda study: Outcome([]), {"groups": [11, 61]}).settings("paper", {"groups": "5"})
        {'groups': [5]}
        """
        if scale not in ("small", "paper"):
            raise ParameterError(parameter="scale", value=scale, limit="one of small, paper")
        found = {**self.params, **(self.small if scale == "small" else {})}
        for name, text in given.items():
            if name in found:
                found[name] = _value(name, text, found[name])
        return found


def _value(name: str, text: str, like: Any) -> Any:
    """Convert a text to the type of the default `like`."""
    kind: Any = type(like)
    parts: Any = text
    if isinstance(like, list):
        kind, parts = list[type(like[0])], text.split(",")  # type: ignore[misc]
    try:
        found = msgspec.convert(parts, kind, strict=False)
    except msgspec.ValidationError:
        raise ParameterError(parameter=name, value=text, limit=f"a value like {like!r}") from None
    for each in found if isinstance(found, list) else [found]:
        if type(each) is int and each < 1:
            raise ParameterError(parameter=name, value=text, limit="an integer of at least 1")
    return found


#: For each paper's name, as on the command line, its experiments by name.
PAPERS: Registry[Mapping[str, Experiment]] = Registry("paper")


def check_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds in a text of integers separated by commas.

    Examples
    --------
    >>> check_seeds("0, 3")
    (0, 3)
    """
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ParameterError(
            parameter="seeds", value=text, limit="integers joined by commas, such as 0,1,2"
        ) from None
    for seed in seeds:
        check_seed(seed)
    if len(set(seeds)) < len(seeds):
        raise ParameterError(parameter="seeds", value=text, limit="different seeds")
    return seeds
