"""A plan as a folder: Parquet tables and a `plan.json`, the one thing that pipeline and broker share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from narrowcast.errors import ParameterError, PlanError, TableError
from narrowcast.files import first_line, read_table
from narrowcast.model.labels import column_of
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.plan_store import INFO, PlanStore, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from narrowcast.model.interest import Interest
    from narrowcast.model.relation import Positions

#: The only format there is so far.
FORMAT = 1
#: What a plan's flows are.
FlowSpace = Literal["topics", "cells", "events", "ranges"]

TABLES = {
    "carries": ("flow", "channel"),
    "listens": ("subscriber", "channel"),
    "unicast": ("subscriber", "flow"),
    "channels": ("channel", "parent", "rate", "members"),
    "subscriptions": ("subscription_id", "channel"),
}


class PlanInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `plan.json` says: how a plan was made, from what, and what it costs.

    `channels` counts groups, as `--channels` does. `inputs` holds a fingerprint per input, `created` the
    time in UTC.
    """

    format: int
    method: str
    params: dict[str, Any]
    seed: int
    channels: Annotated[int, msgspec.Meta(ge=0)]
    flow_space: FlowSpace
    costs: dict[str, float]
    inputs: dict[str, str]
    created: Annotated[datetime, msgspec.Meta(tz=True)]


class _Format(msgspec.Struct):
    """The one field that is read before any other."""

    format: int


def write_plan(
    plan: ChannelPlan,
    folder: str | Path,
    *,
    method: str,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    flow_space: FlowSpace = "topics",
    costs: Mapping[str, float] | None = None,
    inputs: Mapping[str, str] | None = None,
    interest: Interest | None = None,
    cells: pa.Table | None = None,
    beside: Mapping[str, pa.Table | bytes] | None = None,
    replace: bool = False,
) -> PlanInfo:
    """Write a plan artefact; readers see all of it or nothing.

    Labels keep their type. A subscriber or flow without any row is not written: the plan serves it no
    more than one it does not know, so that every check and cost stays the same.

    Parameters
    ----------
    plan, folder
        What to write, and where.
    method, params, seed, flow_space, costs, inputs
        What `plan.json` says of the plan's making; see `PlanInfo`.
    interest
        Where the rate of each channel is taken from; without it the column `rate` is null.
    cells
        For flows that are cells: `flow`, `lo` and `hi`, the ends of each.
    beside
        Further files by name, tables for Parquet: reading the plan does not look at them.
    replace
        Whether a folder that exists is replaced: see `PlanStore`.
    """
    if flow_space not in get_args(FlowSpace):
        raise ParameterError(f"flow_space is {flow_space!r}; use one of {', '.join(get_args(FlowSpace))}")
    for name, value in (costs or {}).items():
        if not np.isfinite(value):
            raise ParameterError(f"cost {name!r} is {value}; only finite costs can be written")
    info = PlanInfo(
        format=FORMAT,
        method=method,
        params=dict(params or {}),
        seed=int(seed),
        channels=plan.n_groups,
        flow_space=flow_space,
        costs={name: float(value) for name, value in (costs or {}).items()},
        inputs=dict(inputs or {}),
        created=datetime.now(UTC),
    )
    text = info_text(info)
    tables = plan.to_tables()
    rate = pa.nulls(plan.n_channels, pa.float64()) if interest is None else pa.array(plan.rates(interest))
    tables["channels"] = (
        tables["channels"].append_column("rate", rate).append_column("members", pa.array(plan.members()))
    )
    with PlanStore(folder).write(replace=replace) as aside:
        for name, table in tables.items():
            if name != "unicast" or table.num_rows:
                pq.write_table(table, aside / f"{name}.parquet")
        if cells is not None:
            pq.write_table(cells, aside / "cells.parquet")
        for name, content in (beside or {}).items():
            if isinstance(content, bytes):
                (aside / name).write_bytes(content)
            else:
                pq.write_table(content, aside / name)
        (aside / INFO).write_bytes(text)
    return info


def info_text(info: PlanInfo) -> bytes:
    """Return what `plan.json` holds."""
    try:
        return msgspec.json.format(msgspec.json.encode(info, enc_hook=_plain), indent=2) + b"\n"
    except TypeError as error:
        raise ParameterError(f"params cannot be written as JSON: {first_line(error)}") from error


def _plain(value: object) -> object:
    """Return a numpy number as Python's own."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is neither a number, a string, a list nor a dict")


def read_plan(folder: str | Path) -> tuple[ChannelPlan, PlanInfo]:
    """Read a plan artefact: one version of it, also while another is written.

    Raises
    ------
    PlanError
        When the folder, a table or `plan.json` is missing, unreadable or does not fit the rest. Whether
        the plan serves an interest is another question: see `ChannelPlan.validate`.
    """
    return PlanStore(folder).load(plan_in)


def read_named_plan(folder: str | Path) -> tuple[str, ChannelPlan, PlanInfo]:
    """Read a plan artefact with its name, which tells it from other plans: see `read_plan`."""
    plan, info, name = PlanStore(folder).load(lambda version: (*plan_in(version), name_of(version)))
    assert name is not None
    return name, plan, info


def read_info(folder: str | Path) -> PlanInfo:
    """Read the `plan.json` of a plan artefact."""
    return PlanStore(folder).load(info_in)


def plan_in(folder: Path) -> tuple[ChannelPlan, PlanInfo]:
    """Read a plan from the folder of one version."""
    info = info_in(folder)
    if (folder / "partitions.parquet").exists():
        raise PlanError(
            f"{folder} has the parts of a partitioner, and no channels; give it to match --partitions, or "
            "name a plan of channels here"
        )
    parent = _parents(_read(folder, "channels"), folder / "channels.parquet")
    carries, listens = _read(folder, "carries"), _read(folder, "listens")
    unicast, placed = (
        _read(folder, name) if (folder / f"{name}.parquet").exists() else None
        for name in ("unicast", "subscriptions")
    )
    try:
        plan = ChannelPlan.from_tables(
            carries, listens, unicast, n_channels=len(parent), parent=parent, subscriptions=placed
        )
    except (TableError, PlanError) as error:
        raise PlanError(f"the tables in {folder} make no plan: {error}") from error
    if plan.n_groups != info.channels:
        raise PlanError(
            f"{folder / INFO} says {info.channels} channels and channels.parquet holds "
            f"{plan.n_groups} without a parent; the folder mixes two plans, write it again"
        )
    return plan, info


def info_in(folder: Path) -> PlanInfo:
    """Read the `plan.json` in the folder of one version, its format first."""
    if not folder.is_dir():
        raise PlanError(f"{folder} is not a folder; give the one that a plan was written to")
    path = folder / INFO
    if not path.exists() and (folder / "plan" / INFO).exists():
        raise PlanError(f"{folder} holds a plan but is none; give {folder / 'plan'}")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}; write the plan again") from error
    try:
        found = msgspec.json.decode(text, type=_Format).format
        if found != FORMAT:
            raise PlanError(
                f"{path} is of format {found}; this version reads format {FORMAT}: "
                "write the plan again, or use the version that wrote it"
            )
        return msgspec.json.decode(text, type=PlanInfo)
    except msgspec.DecodeError as error:
        raise PlanError(f"{path} is not a plan's JSON: {first_line(error)}; write the plan again") from error


def _read(folder: Path, name: str) -> pa.Table:
    """Read one of the tables."""
    path = folder / f"{name}.parquet"
    if not path.exists():
        raise PlanError(f"{path} is missing; the plan is incomplete, write it again")
    try:
        return read_table(path, TABLES[name])
    except TableError as error:
        raise PlanError(f"{error}; write the plan again") from error


def _parents(channels: pa.Table, path: Path) -> Positions:
    """Return the parent of each channel, -1 for none, in the order of channels."""
    for name in ("channel", "parent", "members"):
        kind = column_of(channels, name, str(path)).type
        if not (pa.types.is_integer(kind) or (name == "parent" and pa.types.is_null(kind))):
            raise PlanError(f"{path}: column {name!r} is of type {kind}; use integers")
    if nulls := channels.column("channel").null_count:
        raise PlanError(f"{path}: column 'channel' has {nulls} nulls; remove those rows")
    channel = channels.column("channel").to_numpy()
    order = np.argsort(channel, kind="stable")
    if not np.array_equal(channel[order], np.arange(len(channel))):
        odd = channel[order][np.flatnonzero(channel[order] != np.arange(len(channel)))[0]]
        raise PlanError(
            f"{path}: channel {odd} is out of place; each of 0 to {len(channel) - 1} must be there once"
        )
    parent = channels.column("parent").cast(pa.int64())
    return np.asarray(pc.fill_null(parent, -1), np.int64)[order]
