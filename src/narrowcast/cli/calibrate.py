"""`narrowcast calibrate`: what filtering a message costs on this machine, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from narrowcast.cli import options
from narrowcast.costs import multicast_loopback
from narrowcast.costs.calibration import Calibration, check_place, write_calibration
from narrowcast.errors import ParameterError


def calibrate(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the result goes, as JSON.")],
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", help="How long to measure; longer is more exact.")
    ] = multicast_loopback.SECONDS,
    aggregation: Annotated[
        str, typer.Option("--h", metavar="N,N", help="Messages to a packet that are measured.")
    ] = ",".join(map(str, multicast_loopback.AGGREGATION)),
    size: Annotated[
        int, typer.Option("--size", metavar="BYTES", help="How long a message is.")
    ] = multicast_loopback.MESSAGE,
    seed: options.Seed = 0,
    group: Annotated[
        str, typer.Option("--group", metavar="ADDRESS", help="The multicast group that packets are sent to.")
    ] = multicast_loopback.GROUP,
    interface: Annotated[
        str, typer.Option("--interface", metavar="ADDRESS", help="The interface, by its address.")
    ] = multicast_loopback.INTERFACE,
    as_json: options.Json = False,
) -> None:
    """Measure what filtering costs a receiver on this machine: alpha(h) and beta(h) of the cost filtering.

    Sends real UDP multicast within this machine, two sessions of several flows in one group, to a process
    that listens to one of them, at several pairs of rates and with 1 to 40 messages to a packet. Alpha and
    beta are fitted to the time of the processor that it takes, and a0 + a1 / h and b0 + b1 / h to these.

    Examples:

        narrowcast calibrate --out machine.json

        narrowcast calibrate --seconds 60 --h 1,4,16,64 --size 100 --out machine.json
    """
    try:
        numbers = [int(part) for part in aggregation.split(",")]
    except ValueError:
        raise ParameterError(
            f"--h is {aggregation!r}; write whole numbers joined by commas: 1,8,40"
        ) from None
    check_place(out)  # before it takes any time
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
            tell=tell,
        )
    write_calibration(found, out)
    options.show(msgspec.to_builtins(found), _tables(found), as_json=as_json)
    if found.lost and not as_json:
        share = 100 * found.lost / (found.packets + found.lost)
        typer.echo(
            f"{found.lost:,} packets were lost ({share:.2g} %): costs are of those that came", err=True
        )
    if found.doubts:
        typer.echo(found.doubts, err=True)
    if not as_json:
        typer.echo(f"{out}: for --cost filtering, give --set calibration={out} --set h=8")


def _tables(found: Calibration) -> dict[str, list[tuple[str, ...]]]:
    """Return the points and the curves as rows of text."""
    head = ("messages to a packet", "alpha", "fit", "beta", "fit", "R2 of eq. 9", "packets", "lost")
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
        "microseconds of a processor for a message": [head, *rows],
        "fitted": [("", "microseconds", "R2"), *curves],
    }
