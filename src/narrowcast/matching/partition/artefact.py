"""Partition artefact: `plan.json` and `partitions.parquet`, from which Spark jobs and brokers read parts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from narrowcast.errors import NarrowcastError, PlanError, TableError
from narrowcast.files import read_table
from narrowcast.matching.partition.partitioning import Partitioning
from narrowcast.matching.partition.ranges import RangeTrees
from narrowcast.model.artefact import FORMAT, PlanInfo, info_in, info_text
from narrowcast.model.plan_store import INFO, PlanStore
from narrowcast.model.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa

    from narrowcast.matching.partition.base import Parts

#: The file with a row for each part.
FILE = "partitions.parquet"


def write_partitions(
    parts: Parts,
    folder: str | Path,
    *,
    method: str,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    costs: Mapping[str, float] | None = None,
    inputs: Mapping[str, str] | None = None,
) -> PlanInfo:
    """Write parts as a plan artefact, atomically.

    Range ends are keys, which depend on the attribute types: these are stored in the parameter `schema`.

    Parameters
    ----------
    parts, folder
        The parts, and the folder to write them to.
    method, params, seed, costs, inputs
        How the parts were made, for `plan.json`; see `PlanInfo`. Its `channels` is the number of parts.

    Examples
    --------
    >>> import tempfile
    >>> import narrowcast as nc
    >>> from narrowcast.matching.partition import Partitioner
    >>> schema = nc.Schema.of({"price": "double"})
    >>> made = nc.compile_filters(schema, ["price <= 10", "price > 10"]).subscriptions
    >>> events = nc.EventBatch.from_rows([{"price": p} for p in (4.0, 30.0)], schema)
    >>> parts = Partitioner(parts=2).fit(made, events)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     info = write_partitions(parts, f"{place}/plan", method="kd")
    ...     again, _ = read_partitions(f"{place}/plan")
    >>> info.flow_space, info.channels, again == parts
    ('ranges', 2, True)
    """
    info = PlanInfo(
        format=FORMAT,
        method=method,
        params={**(params or {}), "schema": parts.schema.to_dict()},
        seed=int(seed),
        channels=parts.parts,
        flow_space="ranges",
        costs={name: float(value) for name, value in (costs or {}).items()},
        inputs=dict(inputs or {}),
        created=datetime.now(UTC),
    )
    text = info_text(info)
    with PlanStore(folder).write() as aside:
        pq.write_table(parts.to_arrow(), aside / FILE)
        (aside / INFO).write_bytes(text)
    return info


def read_partitions(folder: str | Path) -> tuple[Parts, PlanInfo]:
    """Read the parts of the matching work that `write_partitions` wrote, and how they were made.

    Raises
    ------
    PlanError
        When the folder has no parts, or its files are inconsistent.
    """
    return PlanStore(folder).load(_read)


def _read(folder: Path) -> tuple[Parts, PlanInfo]:
    """Read the parts from the folder of one version of an artefact."""
    info = info_in(folder)
    if not (folder / FILE).exists():
        raise PlanError(
            f"{folder}: no {FILE}, and flow_space={info.flow_space!r}: must be a plan of matching partitions",
            parameter="flow_space",
            value=info.flow_space,
        )
    try:
        schema = Schema.of(info.params["schema"])
    except (KeyError, TypeError, NarrowcastError) as error:
        raise PlanError(f"{folder / INFO}: no schema of the parts; write the plan again") from error
    try:
        parts = parts_of_table(read_table(folder / FILE), schema)
    except TableError as error:
        raise PlanError(f"{folder / FILE}: {error}") from error
    if parts.parts != info.channels:
        raise PlanError(
            f"{folder / INFO}: channels={info.channels}, but {FILE} has {parts.parts} parts; the folder "
            "mixes two plans, write the plan again"
        )
    return parts, info


def parts_of_table(table: pa.Table, schema: Schema) -> Parts:
    """Return the parts described by a table of any partitioning scheme."""
    kind = RangeTrees if "own_lo" in table.column_names else Partitioning
    return kind.from_arrow(table, schema)
