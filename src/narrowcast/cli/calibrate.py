"""`narrowcast calibrate`: the measured cost of filtering a message on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from narrowcast.cli import choices, options
from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from narrowcast.costs.calibration import Calibration


def calibrate(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON file of the result.")],
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="S", help="Duration of the measurement; longer is more exact."),
    ] = choices.CALIBRATION_SECONDS,
    aggregation: Annotated[
        str, typer.Option("--h", metavar="N,N", help="Numbers of messages per packet to measure.")
    ] = choices.CALIBRATION_AGGREGATION,
    size: Annotated[
        int, typer.Option("--size", metavar="BYTES", help="Bytes of a message.")
    ] = choices.CALIBRATION_SIZE,
    seed: options.Seed = 0,
    group: Annotated[
        str, typer.Option("--group", metavar="ADDRESS", help="Multicast group that packets are sent to.")
    ] = choices.CALIBRATION_GROUP,
    interface: Annotated[
        str, typer.Option("--interface", metavar="ADDRESS", help="Address of the network interface.")
    ] = choices.CALIBRATION_INTERFACE,
    as_json: options.Json = False,
) -> None:
    """Measure what filtering costs a receiver on this machine: alpha(h) and beta(h) of cost filtering.

    Sends UDP multicast within this machine, two sessions of several flows in one group, to a process that
    listens to one of them, at several pairs of rates and with 1 to 40 messages per packet. Alpha and beta are
    fitted to the measured processor time, and a0 + a1 / h and b0 + b1 / h to these.

    Examples:

        narrowcast calibrate --out machine.json

        narrowcast calibrate --seconds 60 --h 1,4,16,64 --size 100 --out machine.json
    """
    from narrowcast.costs import multicast_loopback
    from narrowcast.costs.calibration import check_output_path, write_calibration

    try:
        numbers = [int(part) for part in aggregation.split(",")]
    except ValueError:
        raise ParameterError(
            parameter="aggregation", value=aggregation, limit="integers joined by commas, such as 1,8,40"
        ) from None
    check_output_path(out)  # refuse it before the measurement
    with options.bars() as progress:
        task = progress.add_task("start", total=None)

        def tell(what: str, done: int, of: int) -> None:
            progress.update(task, description=what, completed=done, total=of)

        found = multicast_loopback.calibrate(
            aggregation=numbers,
            seconds=seconds,
            seed=seed,
            size=size,
            group=group,
            interface=interface,
            progress=tell,
        )
    write_calibration(found, out)
    options.show(msgspec.to_builtins(found), _tables(found), as_json=as_json)
    if found.lost and not as_json:
        share = 100 * found.lost / (found.packets + found.lost)
        typer.echo(
            f"{found.lost:,} packets were lost ({share:.2g} %); the costs are of those received", err=True
        )
    if found.fit_warning:
        typer.echo(found.fit_warning, err=True)
    if not as_json:
        typer.echo(f"{out}: use it as --cost filtering --set calibration={out} --set h=8")


def _tables(found: Calibration) -> dict[str, list[tuple[str, ...]]]:
    head = ("messages per packet", "alpha", "fit", "beta", "fit", "R2 of eq. 9", "packets", "lost")
    rows = [
        (
            f"{point.h}",
            f"{point.alpha:.3f}",
            f"{found.alpha.at(point.h):.3f}",
            f"{point.beta:.3f}",
            f"{found.beta.at(point.h):.3f}",
            f"{point.r2:.3f}",
            f"{point.packets:,}",
            f"{point.lost:,}",
        )
        for point in found.points
    ]
    curves = [
        (f"{name}(h)", f"{curve.c0:.4f} + {curve.c1:.4f} / h", f"{curve.r2:.3f}")
        for name, curve in (("alpha", found.alpha), ("beta", found.beta))
    ]
    return {
        "Processor time per message, microseconds": [head, *rows],
        "Fitted curves": [("", "microseconds", "R2"), *curves],
    }
