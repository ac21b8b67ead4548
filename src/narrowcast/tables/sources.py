"""Tables in local files: discovery of their columns and reading of their raw rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from narrowcast.errors import TableError
from narrowcast.files import files_of, first_line
from narrowcast.tables import csv_records, inference
from narrowcast.tables.json_lines import drop_blank, final_type, merge_all, read_lines, types_of
from narrowcast.tables.raw import RawRows, Source, collision
from narrowcast.tables.values import cast, normal_type, normalize, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from narrowcast.tables.rules import Column

#: Maximum rows of a batch.
ROWS = 1 << 16
#: Name of the folder for null values in Hive-style partitioning.
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class LocalSource(Source):
    """A table in local files.

    Parameters
    ----------
    batches
        Yields the raw rows for the columns of a typed table.
    """

    batches: Callable[[Sequence[Column]], Iterator[RawRows]]


def source_of(given: str | Path) -> LocalSource:
    """Find the files of a table and determine its format and columns."""
    path = Path(given).expanduser().absolute()
    try:
        kind, files = files_of(path)
    except TableError as error:  # show the path as the caller gave it
        raise TableError(str(error).replace(str(path), str(given), 1)) from None
    where = str(given)
    keys = partitions(where, path, files)
    try:
        return {"parquet": _parquet, "csv": _csv, "json": _json}[kind](where, files, keys)
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"cannot read {where} as {kind}: {first_line(error)}") from error


@dataclass(frozen=True, slots=True)
class Partitions:
    """Columns whose values come from folder names such as `day=3`.

    Parameters
    ----------
    names
        Names of the columns.
    types
        Narrowest types of their values.
    values
        Value of each column for each file, as text.
    """

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    values: dict[Path, tuple[str | None, ...]]

    def columns(self, file: Path, n: int) -> list[pa.Array]:
        """Return the partition columns for the `n` rows of a file."""
        pairs = zip(self.types, self.values[file], strict=True)
        return [
            cast(pa.array([value], pa.string()), kind).take(pa.array([0] * n, pa.int64()))
            for kind, value in pairs
        ]


def partitions(where: str, path: Path, files: Sequence[Path]) -> Partitions:
    """Return the partition columns of a table's files; refuse files with different ones."""
    named = {
        file: tuple(part for part in file.relative_to(path).parts[:-1] if "=" in part)
        if path.is_dir()
        else ()
        for file in files
    }
    below = {tuple(part.partition("=")[0] for part in parts): file for file, parts in named.items()}
    refuse_mixed(where, below)
    values = {
        file: tuple(None if (value := unquote(part.partition("=")[2])) == _NULL else value for part in parts)
        for file, parts in named.items()
    }
    columns = zip(*values.values(), strict=True)
    kinds = tuple(_partition_type(pa.array(column, pa.string())) for column in columns)
    return Partitions(next(iter(below), ()), kinds, values)


def _partition_type(texts: pa.Array) -> pa.DataType:
    """Return the type of a partition column: the narrowest, except that booleans remain text as in Spark."""
    kind = inference.narrowest(inference.codes_of(texts))
    return pa.string() if pa.types.is_boolean(kind) else kind


def refuse_mixed(where: str, below: Mapping[tuple[str, ...], object]) -> None:
    """Refuse files below folders with different partition columns."""
    if len(below) > 1:
        examples = [
            f"{file} below {'/'.join(f'{key}=' for key in keys) or 'none'}"
            for keys, file in sorted(below.items())[:2]
        ]
        raise TableError(
            f"{where} mixes partitioned folders: {' and '.join(examples)}; "
            "put every file below the same keys, or none"
        )


def refuse_duplicate(where: str, inner: Iterable[str], keys: Iterable[str]) -> None:
    """Refuse a column that is both in the files and in folder names."""
    present = {name.lower() for name in inner}
    if duplicates := [key for key in keys if key.lower() in present]:
        raise TableError(
            f"{where} has column {duplicates[0]!r} twice: in its files and in a folder's name; rename one"
        )


def _parquet(where: str, files: Sequence[Path], keys: Partitions) -> LocalSource:
    """Return a table of Parquet files; the types of a column may differ between files if one is wider."""
    import pyarrow.parquet as pq

    for file in files:
        if not file.stat().st_size:
            if str(file).endswith(where):
                raise TableError(f"{where} contains no readable parquet file; put one there")
            raise TableError(
                f"{file} in {where} has 0 bytes and is not a Parquet file; write it again, or remove it"
            )
    parts = common_columns(where, {file: pq.read_schema(file) for file in files})
    refuse_duplicate(where, [part.name for part in parts], keys.names)
    types = [*(part.type for part in parts), *keys.types]

    def batches(_: Sequence[Column]) -> Iterator[RawRows]:
        for file in files:
            with pq.ParquetFile(file) as opened:
                spelled = {name.lower(): name for name in opened.schema_arrow.names}
                for batch in opened.iter_batches(ROWS):
                    found = [
                        normalize(batch.column(spelled[part.name.lower()])).cast(part.type)
                        if part.name.lower() in spelled
                        else pa.nulls(batch.num_rows, part.type)
                        for part in parts
                    ]
                    yield RawRows([*found, *keys.columns(file, batch.num_rows)])

    return LocalSource(
        where, "parquet", (*(part.name for part in parts), *keys.names), lambda *_: types, batches
    )


def common_columns(where: str, schemas: Mapping[Path, pa.Schema]) -> list[pa.Field]:
    """Return the columns of all Parquet files of a table, each with the widest of its types."""
    fields: dict[str, tuple[pa.Field, str, str]] = {}
    for file, schema in schemas.items():
        if both := collision(schema.names):
            raise TableError(f"{where} has column {both[0].lower()!r} twice: names ignore case; rename one")
        for part in schema:
            low = part.name.lower()
            nano = is_nanoseconds(where, file.name, part.name, str(part.type))
            kind = normal_type(part.type)
            kind_name = str(part.type) if nano else type_name(kind)
            old, place, before = fields.get(low, (part.with_type(kind), file.name, kind_name))
            wide = _wider(old.type, kind)
            if wide is None or (kind_name != before and (nano or "[ns" in before)):
                raise TableError(
                    f"column {part.name!r} of {where} is of type {before} in {place} and {kind_name} in "
                    f"{file.name}; write it as one type in all files"
                )
            fields[low] = (pa.field(old.name, wide), place, before)
    return [part for part, _, _ in fields.values()]


def is_nanoseconds(where: str, file: str, name: str, written: str) -> bool:
    """Return whether a column has timestamps in nanoseconds; refuse types of time that cannot be read."""
    problem = f"column {name!r} in {file} of {where} is of type {written}; write"
    if "time32[" in written or "time64[" in written:
        raise TableError(f"{problem} times of day as text or as numbers")
    if "timestamp[ns" in written and not written.startswith("timestamp"):
        raise TableError(f"{problem} nested timestamps in microseconds")
    return written.startswith("timestamp[ns")


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type in which columns of both types can be read without loss, or None."""
    if one.equals(other):
        return one
    order = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    if one in order and other in order:
        return max(one, other, key=order.index)
    exact = [*order[:3], pa.float32(), pa.float64()]
    return pa.float64() if one in exact and other in exact else None


def _csv(where: str, files: Sequence[Path], keys: Partitions) -> LocalSource:
    """Return a table of CSV files with headers."""
    names: list[str] = []
    raws: list[tuple[Path, RawRows]] = []
    for file in files:
        with file.open("rb") as opened:
            header = csv_records.check_header(csv_records.open_header(opened), where)
            names = names or header
            refuse_other_header(where, file, header, names)
            raws += [(file, raw) for raw in csv_records.read_blocks(opened, names)]
    refuse_duplicate(where, names, keys.names)

    def column_types(needed: Collection[int], labels: Collection[int]) -> list[pa.DataType]:
        kinds: list[pa.DataType] = [pa.string()] * len(names)
        for i in needed:
            if i < len(names):
                codes = 0
                for _, raw in raws:
                    codes = inference.add_codes(codes, raw.columns[i])
                kinds[i] = inference.narrowest(codes, label=i in labels)
        return [*kinds, *keys.types]

    def batches(_: Sequence[Column]) -> Iterator[RawRows]:
        for file, raw in raws:
            for start in range(0, len(raw.columns[0]), ROWS):
                some = raw.part(start, ROWS)
                yield RawRows(
                    [*some.columns, *keys.columns(file, len(some.columns[0]))], some.broken, some.line
                )

    return LocalSource(where, "csv", (*names, *keys.names), column_types, batches)


def refuse_other_header(where: str, file: Path, header: list[str], names: list[str]) -> None:
    """Refuse a file whose header differs from that of the first file."""
    problem = f"cannot read {where} as csv: the header of file://{file}"
    if len(header) != len(names):
        raise TableError(
            f"{problem} has {len(header)} columns, where {len(names)} are expected; "
            f"give all files the same columns: {', '.join(map(repr, names[:40]))}"
        )
    if [name.lower() for name in header] != [name.lower() for name in names]:
        raise TableError(
            f"{problem} is {', '.join(header)}, where {', '.join(names)} is expected; "
            "give all files the same columns in the same order"
        )


def _json(where: str, files: Sequence[Path], keys: Partitions) -> LocalSource:
    """Return a table of JSON files with one object per line."""
    content: list[tuple[Path, pa.Array]] = []
    for file in files:
        lines = drop_blank(pa.array(file.read_bytes().splitlines(), pa.binary()))
        content += [(file, lines.slice(start, ROWS)) for start in range(0, len(lines), ROWS)]
    fields = found_fields(where, [types_of(lines) for _, lines in content])
    refuse_duplicate(where, [part.name for part in fields], keys.names)
    types = [*(part.type for part in fields), *keys.types]
    inner = len(fields)

    def batches(columns: Sequence[Column]) -> Iterator[RawRows]:
        between = len(keys.names)
        own = object_fields([part.name for part in fields], between, columns)
        for file, lines in content:
            raw = read_lines(lines, own)
            more = keys.columns(file, len(lines))
            yield RawRows([*raw.columns[:inner], *more, *raw.columns[inner:]], raw.broken, raw.line)

    return LocalSource(
        where, "json", (*(part.name for part in fields), *keys.names), lambda *_: types, batches
    )


def object_fields(
    names: Sequence[str], between: int, columns: Sequence[Column]
) -> list[tuple[str, pa.DataType, pa.DataType]]:
    """Return the fields to read from JSON objects: name, type in the data and target type of each.

    Parameters
    ----------
    names
        Fields found in the objects, in their spelling.
    between
        Number of columns after these whose values come from folder names.
    columns
        All columns of the typed table.
    """
    more = columns[len(names) + between :]
    spelled = [*names, *(column.name for column in more)]
    own = [*columns[: len(names)], *more]
    return [(name, column.source_type, column.target) for name, column in zip(spelled, own, strict=True)]


def found_fields(where: str, kinds: Sequence[pa.DataType]) -> list[pa.Field]:
    """Return the columns of objects, given the types found in batches of lines.

    Names must differ in more than case.
    """
    found = merge_all(kinds)
    kind = None if found is None else final_type(found)
    if kind is None and found is not None:
        raise TableError(f"no line of {where} is a JSON object; write one object in each line")
    fields = [] if kind is None else list(kind)
    for part in fields:
        _refuse_spellings(where, part.name, part.type)
    return fields


def _refuse_spellings(where: str, name: str, kind: pa.DataType) -> None:
    """Refuse nested objects in which two names differ only in case."""
    if pa.types.is_list(kind):
        _refuse_spellings(where, name, kind.value_type)
    elif pa.types.is_struct(kind):
        if both := collision([part.name for part in kind]):
            raise TableError(
                f"columns '{name}.{both[0]}' and '{name}.{both[1]}' of {where} collide: "
                "names ignore case; rename one"
            )
        for part in kind:
            _refuse_spellings(where, f"{name}.{part.name}", part.type)
