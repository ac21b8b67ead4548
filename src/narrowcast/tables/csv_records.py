"""CSV records (RFC 4180): parsing into columns of text, with a reason for each malformed record."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import TableError
from narrowcast.tables.json_lines import NO_UTF8
from narrowcast.tables.raw import RawRows, join_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    #: Returns the reason to reject a record, given its number of fields and the expected number.
    WidthReason = Callable[[int, int], str]

QUOTE = "has an unclosed quote, or text after a closing quote; fix or drop it"
#: Splits a file into records, including malformed ones: an unclosed quote reaches to the end of the file.
_SPLIT = re.compile(r'(?:"(?:[^"]++|"")*+(?:"[^,\n]*+|\Z)|[^,\n]++|,)++')
#: A field of a well-formed record: quotes are doubled within a quoted field, literal in an unquoted one.
_FIELD = re.compile(r'(?:"((?:[^"]++|"")*+)"[ \t]*+|(?!")([^,]*+))(,|\Z)')
_HEADER = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*([^\r\n]+)(?:\r\n|\r|\n|\Z)")
_END = re.compile(r"[\r\n]+\Z")
_BLOCK, _READ = 1 << 20, 1 << 23


def width_reason(_: int, width: int) -> str:
    """Return the reason to reject a record whose number of fields differs from the header's."""
    return f"has too few or too many fields: there are {width} columns; fix or drop it"


def read_blocks(
    file: BinaryIO, names: Sequence[str], size: int = _READ, reason_of: WidthReason = width_reason
) -> Iterator[RawRows]:
    """Yield the records of a file in blocks.

    A file in which quotes are malformed is read completely, because line ends are then ambiguous.

    Parameters
    ----------
    file
        An open file, positioned at its first record.
    names
        Names of the columns.
    size
        Bytes to read at once (default: 8 MiB).
    reason_of
        Returns the reason to reject a record with a wrong number of fields.
    """
    rest = b""
    while block := file.read(size):
        rest += block
        end = _last_end(rest)
        if not end or not _is_plain(rest[:end]):
            rest += file.read()  # with malformed quotes, only the whole file shows where lines end
            break
        yield read_content(rest[:end], names, reason_of=reason_of)
        rest = rest[end:]
    yield read_content(rest, names, reason_of=reason_of)


def _last_end(content: bytes) -> int:
    """Return the end of the last line that is preceded by an even number of quotes, or 0."""
    codes = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))
    fine = ends[np.searchsorted(np.flatnonzero(codes == ord('"')), ends) % 2 == 0]
    return int(fine[-1]) + 1 if len(fine) else 0


def open_header(file: BinaryIO) -> list[str]:
    """Return the column names in the first line of a file and position the file after that line."""
    line = _HEADER.match(file.read(_BLOCK))
    if line is None:
        return []
    file.seek(line.end())
    text = line[1].decode("utf-8", "replace")
    return [name or "" for name in _fields(text) or text.split(",")]


def check_header(names: Sequence[str], where: str) -> list[str]:
    """Return the column names of a header; refuse a missing header and empty names."""
    if not names:
        raise TableError(f"{where} is empty: must have a header; write the column names in the first line")
    if "" in names:
        raise TableError(f"column {1 + list(names).index('')} of {where} has no name; give it one")
    return list(names)


def read_content(content: bytes, names: Sequence[str], *, reason_of: WidthReason = width_reason) -> RawRows:
    r"""Parse the records of a file into columns of text. An empty field is null unless it is quoted.

    Parameters
    ----------
    content
        The file's bytes, without its header.
    names
        Names of the columns.
    reason_of
        Returns the reason to reject a record with a wrong number of fields.

    Examples
    --------
    >>> raw = read_content(b'1,"a,""b"" "\n2\n3,\n', ["x", "y"])
    >>> raw.columns[1].to_pylist(), raw.line.to_pylist()
    (['a,"b" ', None, None], [None, None, '2'])
    """
    if _is_plain(content):
        # Without a final line end, Arrow reads an empty last field as a quoted one.
        return _read_with_arrow(content if content.endswith(b"\n") else content + b"\n", names, reason_of)
    text = content.decode("latin-1").replace("\r\n", "\n")
    if "\n" not in text:
        text = text.replace("\r", "\n")
    return read_records(pa.array(_SPLIT.findall(text), pa.string()), len(names), reason_of)


def _is_plain(content: bytes) -> bool:
    """Return whether the bytes are UTF-8 and quotes occur only at the beginning and end of fields."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    codes = np.frombuffer(content, np.uint8)
    quotes = np.flatnonzero(codes == ord('"'))
    if len(quotes) % 2:
        return False
    opens, closes = quotes[::2], quotes[1::2]
    edges = np.frombuffer(b',\n\r"', np.uint8)
    before = np.isin(codes[opens[opens > 0] - 1], edges)
    after = np.isin(codes[closes[closes < len(codes) - 1] + 1], edges)
    # A quote directly before an opening quote must belong to the same field: an escaped quote.
    return bool(before.all() and after.all())


def _read_with_arrow(content: bytes, names: Sequence[str], reason_of: WidthReason) -> RawRows:
    """Parse well-formed content; records with a wrong number of fields come last."""
    import pyarrow.csv as pv

    columns = [f"c{i}" for i in range(len(names))]
    broken: list[tuple[str, str]] = []

    def reject(row: Any) -> str:
        broken.append((reason_of(row.actual_columns, row.expected_columns), row.text or ""))
        return "skip"

    convert = pv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    table = pa.table({name: pa.array([], pa.string()) for name in columns})
    blocks = (_BLOCK, len(content) + 1) if content.strip(b"\r\n") else ()
    for block in blocks:  # a record may be longer than the first block size
        broken.clear()
        try:
            table = pv.read_csv(
                pa.BufferReader(content),
                pv.ReadOptions(use_threads=False, column_names=columns, block_size=max(block, 2)),
                pv.ParseOptions(newlines_in_values=b'"' in content, invalid_row_handler=reject),
                convert,
            )
            break
        except pa.ArrowInvalid:
            if block > len(content):
                raise
    found = [_combined(table[name]) for name in columns]
    if b"\r" in content:
        found = [pc.replace_substring(column, "\r\n", "\n") for column in found]
    if not broken:
        return RawRows(found)
    n, more = table.num_rows, len(broken)
    reasons, texts = (pa.array(part, pa.string()) for part in zip(*broken, strict=True))
    return RawRows(
        [pa.concat_arrays([column, pa.nulls(more, pa.string())]) for column in found],
        pa.concat_arrays([pa.nulls(n, pa.string()), reasons]),
        pa.concat_arrays([pa.nulls(n, pa.string()), texts]),
    )


def _combined(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


def read_records(lines: pa.Array, width: int, reason_of: WidthReason = width_reason) -> RawRows:
    """Parse records into columns of text.

    Parameters
    ----------
    lines
        The text of each record, decoded as Latin-1 so that each character is one byte.
    width
        Expected number of fields.
    reason_of
        Returns the reason to reject a record with a wrong number of fields.
    """
    content = join_lines(lines)
    if not content.isascii():
        content = content.decode().encode("latin-1")
    if _is_plain(content):
        raw = _read_with_arrow(content + b"\n", ["x"] * width, reason_of)
        # Otherwise rows are not in the order of `lines`.
        if raw.broken is None and len(raw.columns[0]) == len(lines):
            return raw
    columns: list[list[str | None]] = [[] for _ in range(width)]
    broken: list[str | None] = []
    shown: list[str | None] = []
    for line in lines.to_pylist():
        record = _END.sub("", line).replace("\r\n", "\n").encode("latin-1")
        text = record.decode("utf-8", "replace")
        try:
            record.decode()
            fields = _fields(text)
            reason = QUOTE if fields is None else None
            if fields is not None and len(fields) != width:
                reason = reason_of(len(fields), width)
        except UnicodeDecodeError:
            fields, reason = None, NO_UTF8
        broken.append(reason)
        shown.append(None if reason is None else text)
        for i, column in enumerate(columns):
            column.append(fields[i] if fields is not None and reason is None else None)
    text_columns = [pa.array(column, pa.string()) for column in columns]
    return RawRows(text_columns, pa.array(broken, pa.string()), pa.array(shown, pa.string()))


def _fields(record: str) -> list[str | None] | None:
    """Return the fields of a record; None for an unclosed quote or text after a closing one."""
    found: list[str | None] = []
    at = 0
    while field := _FIELD.match(record, at):
        quoted, bare, end = field.groups()
        found.append(bare or None if quoted is None else quoted.replace('""', '"'))
        at = field.end()
        if not end:
            return found
    return None
