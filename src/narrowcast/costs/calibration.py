"""Calibration: the cost of filtering one message on this machine, measured and fitted (tock2005, 5.2)."""

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

#: Version of the calibration's file format.
FORMAT = 1
#: Unit of alpha and beta. The same number is per cent of a processor at 10,000 messages per second.
UNIT = "us per message"
#: The R2 below which a fitted curve is reported as bad.
MIN_R2 = 0.8


class ReceiverReading(msgspec.Struct, frozen=True):
    """What a receiver measured in one run.

    Parameters
    ----------
    h
        Messages per packet.
    accepted, dropped
        Messages per second of the session that it listens to, and of the other session.
    cpu
        Share of one processor used, from 0 to 1.
    packets, lost
        Packets received, and packets sent but not received.
    """

    h: int
    accepted: float
    dropped: float
    cpu: float
    packets: int = 0
    lost: int = 0


class CalibrationPoint(msgspec.Struct, frozen=True):
    """Alpha and beta in microseconds per message at h messages per packet, and the R2 of equation 9."""

    h: int
    alpha: float
    beta: float
    r2: float
    packets: int = 0
    lost: int = 0


class CostCurve(msgspec.Struct, frozen=True):
    """The cost of a message in microseconds as c0 + c1 / h, and the R2 of the fit."""

    c0: float
    c1: float
    r2: float

    def at(self, h: float) -> float:
        """Return the cost at h messages per packet."""
        return self.c0 + self.c1 / h


def solve_point(readings: Sequence[ReceiverReading]) -> CalibrationPoint:
    """Solve for alpha and beta from readings with the same number of messages per packet (equation 9).

    The share of a processor is (accepted + dropped) x alpha + accepted x beta. Alpha and beta are the
    non-negative least-squares solution.

    Parameters
    ----------
    readings
        At least two; the proportion of accepted to dropped messages must differ between them.

    Examples
    --------
    >>> point = solve_point(
    ...     [
    ...         ReceiverReading(8, 1000, 0, 0.003),
    ...         ReceiverReading(8, 0, 1000, 0.001),
    ...         ReceiverReading(8, 500, 500, 0.002),
    ...     ]
    ... )
    >>> round(point.alpha, 6), round(point.beta, 6), round(point.r2, 6)
    (1.0, 2.0, 1.0)
    """
    sizes = sorted({reading.h for reading in readings})
    if len(sizes) != 1:
        raise ParameterError(parameter="readings", value=sizes, limit="readings with one common value of h")
    load = np.array([[each.accepted + each.dropped, each.accepted] for each in readings])
    if np.linalg.matrix_rank(load) < 2:
        raise ParameterError(
            f"readings: the rates of {len(readings)} readings do not determine alpha and beta; "
            "measure with at least two proportions of the two sessions",
            parameter="readings",
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


def fit_curve(h: Sequence[float], cost: Sequence[float]) -> CostCurve:
    """Fit c0 + c1 / h by non-negative least squares (equations 2 and 4).

    Parameters
    ----------
    h
        Messages per packet: at least two different numbers.
    cost
        The cost of a message at each.

    Examples
    --------
    >>> curve = fit_curve([1, 2, 4], [2.5, 1.5, 1.0])
    >>> round(curve.c0, 9), round(curve.c1, 9)
    (0.5, 2.0)
    """
    if len(set(h)) < 2:
        raise ParameterError(parameter="h", value=sorted(set(h)), limit="at least two different numbers")
    places, costs = np.asarray(h, np.float64), np.asarray(cost, np.float64)
    parts = np.stack([np.ones_like(places), 1 / places], axis=1)
    (c0, c1), _ = nnls(parts, costs)
    return CostCurve(float(c0), float(c1), _r2(costs, parts @ [c0, c1]))


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The measured cost of filtering on a machine.

    Parameters
    ----------
    points
        Alpha and beta measured at each number of messages per packet.
    alpha, beta
        The curves fitted to the points.
    message_bytes, flows, pairs
        Bytes of a message, flows per session, and pairs of session rates as shares of the full rate.
    seconds, seed
        Approximate duration of the measurement, and the seed of its random choices.
    command
        The command line that repeats the measurement.

    Examples
    --------
    >>> points = [CalibrationPoint(1, 5.0, 0.75, 1.0), CalibrationPoint(10, 0.5, 0.3, 1.0)]
    >>> calibration = Calibration.of(points)
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
        """Fit the curves to points; `facts` are the other parameters of the constructor."""
        h = [point.h for point in points]
        return cls(
            points=list(points),
            alpha=fit_curve(h, [point.alpha for point in points]),
            beta=fit_curve(h, [point.beta for point in points]),
            packets=sum(point.packets for point in points),
            lost=sum(point.lost for point in points),
            **facts,
        )

    @property
    def fit_warning(self) -> str:
        """A warning that names the curves with an R2 below `MIN_R2`; empty if both fit.

        >>> points = [CalibrationPoint(1, 5, 0.3, 1), CalibrationPoint(4, 2, 0.1, 1)]
        >>> Calibration.of([*points, CalibrationPoint(9, 1, 0.4, 1)]).fit_warning
        'beta(h) fits badly (R2 0.00): measure longer, on an otherwise idle machine'
        """
        curves = (("alpha", self.alpha), ("beta", self.beta))
        poor = [f"{name}(h) fits badly (R2 {curve.r2:.2f})" for name, curve in curves if curve.r2 < MIN_R2]
        return f"{', '.join(poor)}: measure longer, on an otherwise idle machine" if poor else ""

    def at(self, h: float) -> Filtering:
        """Return the cost model in microseconds for h messages per packet; h is at least 1."""
        alpha, beta = ((curve.c0, curve.c1) for curve in (self.alpha, self.beta))
        return Filtering.at(h, alpha=alpha, beta=beta)


def check_output_path(path: Path) -> None:
    """Refuse a path that is a folder, or whose folder does not exist."""
    if path.is_dir():
        raise InputError(
            f"{path}: is a folder; name a file for the calibration", parameter="path", value=str(path)
        )
    if not path.resolve().parent.is_dir():
        raise InputError(
            f"{path}: its folder does not exist; create the folder, or name another path",
            parameter="path",
            value=str(path),
        )


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write a calibration as JSON, to a temporary file that then replaces the target."""
    path = Path(path)
    check_output_path(path)
    aside = path.with_name(f".{path.name}.part")
    with writing(path):
        try:
            aside.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration file that `narrowcast calibrate` wrote.

    Raises
    ------
    InputError
        When the file is missing, is not a calibration, has another format, or has negative costs.
    """
    again = "make a new one with narrowcast calibrate"
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=Calibration)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read as a calibration: {error.strerror}; {again}", value=str(path)
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: is not a valid calibration: {first_line(error)}; {again}", value=str(path)
        ) from error
    if (found.format, found.unit) != (FORMAT, UNIT):
        raise InputError(
            f"{path}: format {found.format} with unit {found.unit!r} is not supported, "
            f"only format {FORMAT} with unit {UNIT!r}; {again}",
            value=str(path),
        )
    for name, curve in (("alpha", found.alpha), ("beta", found.beta)):
        if min(curve.c0, curve.c1) < 0:
            raise InputError(
                f"{path}: {name} is {curve.c0:g} + {curve.c1:g} / h: costs must be at least 0; {again}",
                parameter=name,
                limit="at least 0",
            )
    return found


def _r2(values: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    """Return the coefficient of determination; 1 where all values are equal and found exactly."""
    off, differ = float(((values - found) ** 2).sum()), float(((values - values.mean()) ** 2).sum())
    rounding = 1e-18 * float((values**2).sum())
    return 1 - off / differ if differ > rounding else float(off <= rounding)
