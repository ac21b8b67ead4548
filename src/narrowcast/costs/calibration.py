"""What filtering a message costs on a machine: fitted to measurements, kept in a file (tock2005, 5.2)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from scipy.optimize import nnls

from narrowcast.costs.filtering import Filtering
from narrowcast.errors import InputError, ParameterError
from narrowcast.files import first_line, writing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: What the file of a calibration says it is.
FORMAT = 1
#: What alpha and beta are measured in. It is per cent of a processor for 10,000 messages a second, too.
UNIT = "us per message"
#: The R2 below which a curve is said to fit badly.
FITS = 0.8


class ReceiverReading(msgspec.Struct, frozen=True):
    """What a receiver did while packets came.

    Parameters
    ----------
    h
        Messages of each packet.
    heard, passed
        Messages a second of the session that it listens to, and of the one that it does not.
    cpu
        The share of a processor that it took.
    packets, lost
        Packets that came, and that were sent and did not.
    """

    h: int
    heard: float
    passed: float
    cpu: float
    packets: int = 0
    lost: int = 0


class CalibrationPoint(msgspec.Struct, frozen=True):
    """What a message costs with so many to a packet: in microseconds; and how well equation 9 holds."""

    h: int
    alpha: float
    beta: float
    r2: float
    packets: int = 0
    lost: int = 0


class CostCurve(msgspec.Struct, frozen=True):
    """A cost of c0 + c1 / h microseconds for a message, and how well that fits."""

    c0: float
    c1: float
    r2: float

    def at(self, h: float) -> float:
        """Return the cost with h messages to a packet."""
        return self.c0 + self.c1 / h


def solved(readings: Sequence[ReceiverReading]) -> CalibrationPoint:
    """Return alpha and beta of readings that have the same messages to a packet (equation 9).

    The share of a processor is (heard + passed) x alpha + heard x beta; of all alpha and beta that are at
    least 0, these have the least squares.

    Parameters
    ----------
    readings
        At least two, of which the rates are not all in one proportion.

    Examples
    --------
    >>> point = solved([ReceiverReading(8, 1000, 0, 0.003), ReceiverReading(8, 0, 1000, 0.001), ReceiverReading(8, 500, 500, 0.002)])
    >>> round(point.alpha, 6), round(point.beta, 6), round(point.r2, 6)
    (1.0, 2.0, 1.0)
    """
    if len({reading.h for reading in readings}) != 1:
        raise ParameterError("readings differ in h, or there are none; solve those of one h at a time")
    load = np.array([[each.heard + each.passed, each.heard] for each in readings])
    if np.linalg.matrix_rank(load) < 2:
        raise ParameterError(
            f"the rates of {len(readings)} readings tell alpha and beta not apart; "
            "measure with at least two proportions of the two sessions"
        )
    cpu = np.array([each.cpu for each in readings])
    (alpha, beta), _ = nnls(load * 1e-6, cpu)
    return CalibrationPoint(
        h=readings[0].h,
        alpha=float(alpha),
        beta=float(beta),
        r2=_r2(cpu, 1e-6 * load @ [alpha, beta]),
        packets=sum(each.packets for each in readings),
        lost=sum(each.lost for each in readings),
    )


def fitted(h: Sequence[float], cost: Sequence[float]) -> CostCurve:
    """Return the curve c0 + c1 / h of least squares, of those with c0 and c1 at least 0 (equations 2 and 4).

    Parameters
    ----------
    h
        Messages to a packet: at least two numbers that differ.
    cost
        What a message costs with each.

    Examples
    --------
    >>> curve = fitted([1, 2, 4], [2.5, 1.5, 1.0])
    >>> round(curve.c0, 9), round(curve.c1, 9)
    (0.5, 2.0)
    """
    if len(set(h)) < 2:
        raise ParameterError(
            f"a curve over h = {sorted(set(h))} has no slope; measure at two of them at least"
        )
    places, costs = np.asarray(h, np.float64), np.asarray(cost, np.float64)
    parts = np.stack([np.ones_like(places), 1 / places], axis=1)
    (c0, c1), _ = nnls(parts, costs)
    return CostCurve(float(c0), float(c1), _r2(costs, parts @ [c0, c1]))


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What filtering costs on a machine, measured.

    Parameters
    ----------
    points
        What was measured, by messages to a packet.
    alpha, beta
        The curves fitted to them.
    message_bytes, flows, pairs
        Bytes of a message, flows of each session, and the pairs of rates, as shares of a full one.
    seconds, seed
        How long it took, about, and what random choices came from.
    command
        What measures it again.

    Examples
    --------
    >>> calibration = Calibration.of([CalibrationPoint(1, 5.0, 0.75, 1.0), CalibrationPoint(10, 0.5, 0.3, 1.0)])
    >>> filtering = calibration.at(5)
    >>> round(filtering.alpha, 6), round(filtering.beta, 6)
    (1.0, 0.35)
    """

    format: int = FORMAT
    unit: str = UNIT
    points: list[CalibrationPoint]
    alpha: CostCurve
    beta: CostCurve
    packets: int = 0
    lost: int = 0
    message_bytes: int = 200
    flows: int = 0
    pairs: list[tuple[float, float]] = []
    seconds: float = 0.0
    seed: int = 0
    command: str = ""

    @classmethod
    def of(cls, points: Sequence[CalibrationPoint], **facts: Any) -> Calibration:
        """Fit the curves of some points; `facts` are the other parameters."""
        h = [point.h for point in points]
        return cls(
            points=list(points),
            alpha=fitted(h, [point.alpha for point in points]),
            beta=fitted(h, [point.beta for point in points]),
            packets=sum(point.packets for point in points),
            lost=sum(point.lost for point in points),
            **facts,
        )

    @property
    def doubts(self) -> str:
        """What speaks against using it: curves that fit what was measured badly; nothing where they fit.

        >>> Calibration.of([CalibrationPoint(1, 5, 0.3, 1), CalibrationPoint(4, 2, 0.1, 1), CalibrationPoint(9, 1, 0.4, 1)]).doubts
        'beta(h) fits badly (R2 0.00): measure longer, on a machine that does nothing else'
        """
        curves = (("alpha", self.alpha), ("beta", self.beta))
        poor = [f"{name}(h) fits badly (R2 {curve.r2:.2f})" for name, curve in curves if curve.r2 < FITS]
        return f"{', '.join(poor)}: measure longer, on a machine that does nothing else" if poor else ""

    def at(self, h: float) -> Filtering:
        """Return the cost model for h messages to a packet, in microseconds; h is at least 1."""
        alpha, beta = ((curve.c0, curve.c1) for curve in (self.alpha, self.beta))
        return Filtering.at(h, alpha=alpha, beta=beta)


def check_place(path: Path) -> None:
    """Refuse a place where no file can be."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file for the calibration")
    if not path.resolve().parent.is_dir():
        raise InputError(f"{path} is in a folder that does not exist; make it first, or name another place")


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write a calibration as JSON, aside and then in place."""
    path = Path(path)
    check_place(path)
    aside = path.with_name(f".{path.name}.part")
    with writing(path):
        try:
            aside.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


def read_calibration(path: str | Path) -> Calibration:
    """Read what `narrowcast calibrate` wrote.

    Raises
    ------
    InputError
        When the file is not there, is none of these, or has costs that are none.
    """
    again = "make it with: narrowcast calibrate --out FILE"
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=Calibration)
    except OSError as error:
        raise InputError(f"cannot read the calibration {path}: {error.strerror}; {again}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no calibration: {first_line(error)}; {again}") from error
    if (found.format, found.unit) != (FORMAT, UNIT):
        raise InputError(
            f"{path} is of format {found.format} in {found.unit!r}, and {FORMAT} in {UNIT!r} is read; {again}"
        )
    for name, curve in (("alpha", found.alpha), ("beta", found.beta)):
        if min(curve.c0, curve.c1) < 0:
            raise InputError(
                f"{path}: {name} is {curve.c0:g} + {curve.c1:g} / h; costs are at least 0; {again}"
            )
    return found


def _r2(values: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    """Return which part of what values differ by is explained; 1 where they do not differ."""
    off, differ = float(((values - found) ** 2).sum()), float(((values - values.mean()) ** 2).sum())
    rounding = 1e-18 * float((values**2).sum())
    return 1 - off / differ if differ > rounding else float(off <= rounding)
