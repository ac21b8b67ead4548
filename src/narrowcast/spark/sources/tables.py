"""Raw tables to typed ones: what each table holds, and the rows that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from narrowcast.errors import ParameterError, TableError
from narrowcast.spark.session import use
from narrowcast.spark.sources.columns import (
    Attribute,
    attributes_of,
    fit,
    is_nested,
    schema_of,
    shown,
    spark_type,
    wanted_type,
    whole,
)
from narrowcast.spark.sources.formats import BROKEN, LINE, Source, source_of
from narrowcast.spark.sources.places import reading
from narrowcast.spark.sources.rows import JSON, fingerprint, one_each

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType as SparkType

    from narrowcast.model.schema import Schema

__all__ = ["TABLES", "Ingested", "fingerprint", "ingest", "schema_of", "spark_type"]

Kind = Literal["id", "text", "label", "amount", "time", "action"]

#: What a column of each kind is made of.
_WORDS: dict[Kind, str] = {
    "id": "integers",
    "text": "strings",
    "label": "integers or strings",
    "amount": "numbers",
    "time": "timestamps",
    "action": "strings",
}


@dataclass(frozen=True, slots=True)
class Table:
    """What a table must hold: its columns, those it may have, and which together name one row."""

    columns: dict[str, Kind]
    optional: dict[str, Kind] = field(default_factory=dict)
    unique: tuple[str, ...] = ()
    either: tuple[str, ...] = ()


#: The tables that can be read, by name.
TABLES: dict[str, Table] = {
    "subscriptions": Table(
        {"subscription_id": "id", "subscriber": "text", "filter": "text"}, unique=("subscription_id",)
    ),
    "events": Table({"event_id": "id"}, unique=("event_id",)),
    "interests": Table({"subscriber": "label", "flow": "label"}),
    "rates": Table({"flow": "label", "rate": "amount"}, {"time": "time"}, ("flow", "time")),
    "topology": Table({"a": "label", "b": "label", "cost": "amount"}),
    "locations": Table(
        {"node": "label"},
        {"subscriber": "label", "publisher": "label"},
        ("subscriber", "publisher"),
        ("subscriber", "publisher"),
    ),
    "publishers": Table({"event_id": "id", "node": "label"}, unique=("event_id",)),
    "changes": Table({"time": "time", "subscriber": "label", "flow": "label", "action": "action"}),
}


@dataclass(frozen=True, slots=True)
class Ingested:
    """A table's good rows with their types, and the bad ones: `table`, `reason` and the `row` as text."""

    rows: DataFrame
    rejected: DataFrame


def ingest(
    spark: SparkSession, table: str, source: str | Path | DataFrame, *, schema: Schema | None = None
) -> Ingested:
    """Read a table and set aside the rows that cannot be used.

    The format is named by the ending of the path, or of the files in the folder. Names of the table's own
    columns ignore case and come out in lower case; all other columns are kept as they are.

    CSV has a header and follows RFC 4180; an empty field is null. Without `schema` a column gets the
    narrowest type that holds all of its values: boolean, int, bigint, decimal(38,0), double, date, timestamp
    or string; labels are integers only when none has a leading zero or a plus sign. JSON has one object a
    line; numbers and booleans have their own types, nested objects are structs, and texts stay texts, except
    that the `time` of events is a timestamp. A column that mixes types is text. With `schema` values of any
    format are cast to its types, and a row with a value that does not fit is set aside.

    Where several rows have one id, or one flow and time in `rates`, the first of them in the order of their
    JSON stays, wherever it was read from. Looking for them runs a job; all else runs when it is asked for.

    Parameters
    ----------
    spark
        A session in UTC.
    table
        One of `TABLES`.
    source
        A file, a folder, a URI that Spark reads, or a table of Spark's. A path that exists is read as that
        very path, whatever letters it has; any other is left to Spark, which also knows patterns.
    schema
        The types of the attributes of events. One that JSON never names is null; elsewhere it is missing.

    Raises
    ------
    TableError
        When the table cannot be found or read, or lacks a column.

    Examples
    --------
    >>> from narrowcast.spark import session
    >>> with session("local[2,4]") as spark:
    ...     events = spark.createDataFrame([("1", 7.5), ("x7", 8.0)], "event_id string, price double")
    ...     done = ingest(spark, "events", events)
    ...     print(done.rows.collect(), done.rejected.first()["reason"])
    [Row(event_id=1, price=7.5)] event_id 'x7' is no whole number of 64 bits
    """
    from pyspark.sql import functions as sf

    if table not in TABLES:
        raise ParameterError(f"unknown table {table!r}; there are: {', '.join(TABLES)}")
    use(spark)
    shape = TABLES[table]
    found = source_of(spark, source, table)
    plan = _plan(table, shape, found, schema)
    frame = found.load([(name, kind) for name, kind, _ in plan])
    checked = _checked(table, shape, found, frame, plan)
    names = [name for name, _, _ in plan]
    out = [sf.col(f"v{i}").alias(name) for i, name in enumerate(names)]
    good, bad = checked.where("reason IS NULL"), checked.where("reason IS NOT NULL")
    rejected = [bad]
    if keys := [f"v{names.index(name)}" for name in shape.unique if name in names]:
        with reading(found.where, found.kind):
            good, again = one_each(good, keys, [names[int(key[1:])] for key in keys])
        rejected += [] if again is None else [again]
    aside = [part.select(sf.lit(table).alias("table"), "reason", "row") for part in rejected]
    return Ingested(good.select(*out), aside[0] if len(aside) == 1 else aside[0].unionAll(aside[1]))


#: A column to be: its name, its type, and what the table wants of it, or that its values have been seen.
_Planned = tuple[str, "SparkType", "Kind | Literal['seen'] | None"]


def _plan(table: str, shape: Table, found: Source, schema: Schema | None) -> list[_Planned]:
    """Return the columns that a table will have, those of the source first."""
    from pyspark.sql import types as st

    kinds: dict[str, Kind] = {**shape.columns, **shape.optional}
    names = [name.lower() if name.lower() in kinds else name for name in found.names]
    _check_names(table, shape, found, names)
    attributes = attributes_of(schema, names) if table == "events" else {}
    attributes.pop("event_id", None)
    loose = [
        i
        for i, name in enumerate(names)
        if kinds.get(name, "label") == "label" and _settling(attributes.get(name.lower())) is None
    ]
    held = found.held(loose, [i for i in loose if kinds.get(names[i]) == "label"])
    plan: list[_Planned] = []
    for name, kind in zip(names, held, strict=True):
        if name in kinds:
            plan.append((name, _key_type(name, kinds[name], kind, found), kinds[name]))
        elif (known := attributes.get(name.lower())) is not None:
            plan.append((name, wanted_type(kind, known, absent=found.kind == "json"), None))
        elif table == "events" and name.lower() == "time" and _is_text(kind, found):
            plan.append((name, st.TimestampType(), None))
        else:
            plan.append((name, kind, "seen" if found.kind == "csv" else None))
    there = {name.lower() for name in names}
    absent = [attribute for name, attribute in attributes.items() if name not in there]
    if absent and found.kind != "json":
        raise TableError(
            _missing(found, [attribute.name for attribute in absent]) + ", but the schema has it"
        )
    if not names:  # a JSON file without a line
        plan += [
            (name, _key_type(name, kind, st.StringType(), found), kind)
            for name, kind in shape.columns.items()
        ]
    plan += [(attribute.name, attribute.as_struct() or st.StringType(), None) for attribute in absent]
    return _same_nodes(plan, found) if table == "topology" else plan


def _settling(attribute: Attribute | None) -> SparkType | None:
    """Return the type that a schema gives a column, None when it leaves that to the values."""
    return None if attribute is None else attribute.as_struct()


def _is_text(kind: SparkType, found: Source) -> bool:
    """Return whether a column of a format without times may hold some."""
    from pyspark.sql import types as st

    texts = st.StringType | st.DateType
    return found.kind in ("csv", "json") and isinstance(kind, texts)


def _check_names(table: str, shape: Table, found: Source, names: list[str]) -> None:
    """Refuse a source in which columns collide or are missing."""
    first: dict[str, str] = {}
    for name in found.names:
        other = first.setdefault(name.lower(), name)
        if other is not name:
            raise TableError(
                f"columns {other!r} and {name!r} of {found.where} collide: names ignore case; rename one"
            )
    if not names and found.kind == "json":
        return
    missing = [name for name in shape.columns if name not in names]
    if shape.either and not set(shape.either) & set(names):
        missing.append(shape.either[0])
    if missing:
        raise TableError(f"{_missing(found, missing)}; {table} need them")


def _missing(found: Source, names: Sequence[str]) -> str:
    """Say which columns a source lacks, and which it has."""
    there = ", ".join(repr(name[:40]) for name in found.names[:12]) + (
        ", ..." if len(found.names) > 12 else ""
    )
    return f"{found.where} has no column {', '.join(map(repr, names))}: it has {there or 'no columns'}"


def _key_type(name: str, kind: Kind, held: SparkType, found: Source) -> SparkType:
    """Return the type of a column that the table defines, or say that the one it has will not do."""
    from pyspark.sql import types as st

    text = isinstance(held, st.StringType | st.CharType | st.VarcharType | st.NullType)
    wrong = f"column {name!r} of {found.where} is of type {held.simpleString()}; use "
    if kind == "label":
        if found.kind == "csv" and not isinstance(held, st.IntegerType | st.LongType):
            return st.StringType()
        if isinstance(held, st.IntegralType) or (isinstance(held, st.DecimalType) and held.scale == 0):
            return st.LongType()
        if text:
            return st.StringType()
        raise TableError(wrong + _WORDS[kind])
    if is_nested(held) or isinstance(held, st.BinaryType):
        raise TableError(
            wrong + {"id": "integers", "amount": "numbers", "time": "timestamps"}.get(kind, "strings")
        )
    if kind == "amount" and not (text or isinstance(held, st.NumericType)) and found.kind != "csv":
        raise TableError(f"{wrong}numbers")
    if kind == "time" and not (
        text or isinstance(held, st.DateType | st.TimestampType | st.TimestampNTZType)
    ):
        raise TableError(f"{wrong}timestamps")
    wanted: dict[Kind, SparkType] = {
        "id": st.LongType(),
        "amount": st.DoubleType(),
        "time": st.TimestampType(),
    }
    return wanted.get(kind, st.StringType())


def _same_nodes(plan: list[_Planned], found: Source) -> list[_Planned]:
    """Give both ends of links one type: CSV does not tell a name of digits from a number."""
    from pyspark.sql import types as st

    ends = {name: kind for name, kind, _ in plan if name in ("a", "b")}
    if len({kind.simpleString() for kind in ends.values()}) == 1:
        return plan
    if found.kind != "csv":
        said = " and ".join(f"{name!r} {kind.simpleString()}" for name, kind in ends.items())
        raise TableError(f"columns of {found.where} name nodes in two types, {said}; use one")
    return [(name, st.StringType() if name in ends else kind, what) for name, kind, what in plan]


def _checked(table: str, shape: Table, found: Source, frame: DataFrame, plan: list[_Planned]) -> DataFrame:
    """Return typed columns `v0`, `v1`, ..., the `row` as text and a `reason`, null for good rows.

    Columns whose types were found by looking at all their values are not looked at again.
    """
    from pyspark.sql import functions as sf

    raw = {part.name: part.dataType for part in frame.schema.fields}
    values: dict[str, Column] = {}
    unfit: dict[str, Column] = {}
    wrong: list[Column] = []
    for i, (name, wanted, kind) in enumerate(plan):
        value, was = sf.col(f"c{i}"), raw[f"c{i}"]
        reason: Column | None = None
        if kind in ("id", "label") and wanted.typeName() == "long":
            values[name], reason = whole(value, was, name)
        elif kind == "seen":  # a reason for each of hundreds of columns would take minutes to compile
            values[name] = value.try_cast(wanted)
        else:
            values[name], reason = fit(value, was, wanted, name)
        unfit |= {} if reason is None else {name: reason}
        if name in shape.columns:
            unfit[name] = sf.coalesce(
                sf.when(value.isNull(), sf.lit(f"{name} is null")), unfit.get(name, _none())
            )
        if kind in ("amount", "action"):
            wrong.append(_beyond(kind, values[name], name))
    first = [name for name in (*shape.columns, *shape.optional) if name in unfit]
    reasons = [unfit[name] for name in (*first, *(name for name in unfit if name not in first))]
    wrong += _across(table, shape, values, {name: kind for name, kind, _ in plan})
    if found.kind in ("csv", "json"):
        reasons.insert(0, sf.col(BROKEN))
    row = sf.col(LINE) if found.kind == "json" else _as_json(plan, values, reasons)
    row = sf.coalesce(LINE, row) if found.kind == "csv" else row
    out = [value.alias(f"v{i}") for i, value in enumerate(values.values())]
    return frame.select(*out, row.alias("row"), sf.coalesce(*reasons, *wrong, _none()).alias("reason"))


def _as_json(plan: list[_Planned], values: dict[str, Column], reasons: list[Column]) -> Column:
    """Return a row with its types, or as it was read where it does not fit them."""
    from pyspark.sql import functions as sf

    typed = sf.to_json(sf.struct(*(value.alias(name) for name, value in values.items())), JSON)
    plain = sf.to_json(sf.struct(*(sf.col(f"c{i}").alias(name) for i, (name, _, _) in enumerate(plan))), JSON)
    return sf.when(sf.coalesce(*reasons, _none()).isNotNull(), plain).otherwise(typed)


def _none() -> Column:
    """Return no reason."""
    from pyspark.sql import functions as sf

    return sf.lit(None).cast("string")


def _beyond(kind: str, value: Column, name: str) -> Column:
    """Return the reason against a value of the right type that the table cannot use."""
    from pyspark.sql import functions as sf

    if kind == "action":
        fine = value.isin("subscribe", "unsubscribe")
        said = sf.concat(
            sf.lit(f"{name} '"), sf.left(value, sf.lit(60)), sf.lit("' is neither subscribe nor unsubscribe")
        )
    else:
        fine = (value >= 0) & (value < float("inf"))  # NaN is above infinity
        said = sf.concat(
            sf.lit(f"{name} "), value.cast("string"), sf.lit(" is no finite number of 0 or more")
        )
    return sf.when(~fine, said)


def _across(table: str, shape: Table, values: dict[str, Column], kinds: dict[str, SparkType]) -> list[Column]:
    """Return the reasons against a row that lie in several columns together."""
    from pyspark.sql import functions as sf

    if table == "topology":
        same = sf.concat(
            sf.lit("a and b are both "), shown(values["a"], kinds["a"]), sf.lit("; a link joins two nodes")
        )
        return [sf.when(values["a"] == values["b"], same)]
    if not shape.either:
        return []
    there = [name for name in shape.either if name in values]
    count = sum((values[name].isNotNull().cast("int") for name in there), sf.lit(0))
    none = sf.lit(" and ".join(there) + (" are null" if len(there) > 1 else " is null"))
    both = sf.lit(f"{' and '.join(there)} are both given; write two rows")
    return [sf.when(count == 0, none), sf.when(count > 1, both)]
