"""The seam that a paper's experiments fit, and what comes of them."""

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
#: Runs a sweep, and tells how far it is.
Runner: TypeAlias = Callable[[Sweep, Tell], Swept]


class ResultRow(msgspec.Struct, frozen=True):
    """A number that came out.

    Parameters
    ----------
    series, x
        What it is of: the method, with what else tells it apart behind slashes, and a place along an axis.
    metric
        What was measured, with its unit.
    paper
        What the paper says; None where it prints no number.
    measured, spread
        The mean over the seeds, and the standard deviation.
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
        """Return the row of a value for each seed.

        Examples
        --------
        >>> ResultRow.of("pairwise/9/11", 0.15, "improvement_pct", [56.0, 58.0]).measured
        57.0
        """
        return cls(series, x, metric, paper, float(np.mean(values)), float(np.std(values)))


def _here(sweep: Sweep, tell: Tell) -> Swept:
    """Run a sweep in this process."""
    return sweep.run(tell=tell)


@dataclass(frozen=True, slots=True)
class Study:
    """What an experiment is run with.

    Parameters
    ----------
    seeds, params
        A run for each seed, with these parameters.
    tell
        Told how far it is.
    runner
        Runs its sweeps: in this process unless given. An experiment does not know where it runs.
    """

    seeds: tuple[int, ...]
    params: Mapping[str, Any]
    tell: Tell = lambda _, __, ___: None
    runner: Runner = _here

    def run(self, sweep: Sweep) -> Swept:
        """Run a sweep, all points of which must come out."""
        return self.runner(sweep, self.tell).whole()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an experiment.

    Parameters
    ----------
    rows
        The numbers.
    charts
        By the chart's name, what it is filled with and the line below its title.
    notes
        Where it agrees with the paper and where not, a paragraph each.
    beside
        More numbers, for `results.json` alone: tables of them would hide the others.
    """

    rows: list[ResultRow]
    charts: dict[str, tuple[list[dict[str, Any]], str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    beside: list[ResultRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Something that a paper shows.

    Parameters
    ----------
    about
        What it shows, in a line.
    params
        Its parameters with their values at the paper's size.
    small
        Those that differ at a small size.
    run
        Runs it.
    """

    about: str
    run: Callable[[Study], Outcome]
    params: Mapping[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, scale: Scale, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters of a run: those of its size, and over them those that are its own of others.

        A value is of the type that the parameter has; of a list, its values joined by commas.

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
    """Return the value that a text stands for, of the type of another."""
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


#: Papers by the name that `narrowcast reproduce` takes: their experiments by name.
PAPERS: Registry[Mapping[str, Experiment]] = Registry("paper")


def check_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that a text names.

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
