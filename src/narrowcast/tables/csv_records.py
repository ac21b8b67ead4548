"""CSV as RFC 4180 has it: records of a file as columns of text, and what is wrong with the others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import TableError
from narrowcast.tables.json_lines import NO_UTF8
from narrowcast.tables.raw import Raw, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    #: Gives the reason against a record with so many fields where others are expected.
    WidthReason = Callable[[int, int], str]

QUOTE = "has a quote that is not closed, or text behind one that is; mend or drop it"
#: Records of a file, however bad they are: a quote that is never closed reaches to the end of the file.
_SPLIT = re.compile(r'(?:"(?:[^"]++|"")*+(?:"[^,\n]*+|\Z)|[^,\n]++|,)++')
#: A field of a good record: quotes are doubled inside of quotes, and plain in a field that begins without.
_FIELD = re.compile(r'(?:"((?:[^"]++|"")*+)"[ \t]*+|(?!")([^,]*+))(,|\Z)')
_HEADER = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*([^\r\n]+)(?:\r\n|\r|\n|\Z)")
_END = re.compile(r"[\r\n]+\Z")
_BLOCK, _READ = 1 << 20, 1 << 23


def width_reason(_: int, width: int) -> str:
    """Return the reason against a record with another number of fields than the header has."""
    return f"has too few or too many fields: there are {width} columns; mend or drop it"


def read_blocks(
    file: BinaryIO, names: Sequence[str], size: int = _READ, say: WidthReason = width_reason
) -> Iterator[Raw]:
    """Yield the records of a file behind its header, some at a time.

    Parameters
    ----------
    file
        Bytes from where the first record begins.
    names
        Its columns.
    size
        The bytes that are read at once.
    say
        Gives the reason against a record with another number of fields.
    """
    rest = b""
    while block := file.read(size):
        rest += block
        end = _last_end(rest)
        if not end or not _is_plain(rest[:end]):
            rest += file.read()  # where quotes are odd, only the whole tells where lines end
            break
        yield read_content(rest[:end], names, say=say)
        rest = rest[end:]
    yield read_content(rest, names, say=say)


def _last_end(content: bytes) -> int:
    """Return where the last line ends behind an even number of quotes, 0 where none does."""
    codes = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))
    fine = ends[np.searchsorted(np.flatnonzero(codes == ord('"')), ends) % 2 == 0]
    return int(fine[-1]) + 1 if len(fine) else 0


def open_header(file: BinaryIO) -> list[str]:
    """Read the names in the first line of a file, which then stands where the next one begins."""
    line = _HEADER.match(file.read(_BLOCK))
    if line is None:
        return []
    file.seek(line.end())
    text = line[1].decode("utf-8", "replace")
    return [name or "" for name in _fields(text) or text.split(",")]


def check_header(names: Sequence[str], where: str) -> list[str]:
    """Return the names of columns, and refuse a header without them."""
    if not names:
        raise TableError(f"{where} is empty: it has not even a header; write the names of its columns first")
    if "" in names:
        raise TableError(f"column {1 + list(names).index('')} of {where} has no name; give it one")
    return list(names)


def read_content(content: bytes, names: Sequence[str], *, say: WidthReason = width_reason) -> Raw:
    r"""Return the records of a file as columns of text. An empty field is null unless it is quoted.

    Parameters
    ----------
    content
        The bytes of the file.
    names
        Its columns.
    say
        Gives the reason against a record with another number of fields.

    Examples
    --------
    >>> raw = read_content(b'1,"a,""b"" "\n2\n3,\n', ["x", "y"])
    >>> raw.columns[1].to_pylist(), raw.line.to_pylist()
    (['a,"b" ', None, None], [None, None, '2'])
    """
    if _is_plain(content):
        # Without the end of a line Arrow takes an empty last field for a quoted one.
        return _together(content if content.endswith(b"\n") else content + b"\n", names, say)
    text = content.decode("latin-1").replace("\r\n", "\n")
    if "\n" not in text:
        text = text.replace("\r", "\n")
    return read_records(pa.array(_SPLIT.findall(text), pa.string()), len(names), say)


def _is_plain(content: bytes) -> bool:
    """Return whether all quotes stand where they begin and end fields, and bytes are UTF-8."""
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
    # A quote in front of one that opens has to be the end of the same field: it stands for one quote.
    return bool(before.all() and after.all())


def _together(content: bytes, names: Sequence[str], say: WidthReason) -> Raw:
    """Return the records of well-formed content."""
    import pyarrow.csv as pv

    columns = [f"c{i}" for i in range(len(names))]
    broken: list[tuple[str, str]] = []

    def keep(row: Any) -> str:
        broken.append((say(row.actual_columns, row.expected_columns), row.text or ""))
        return "skip"

    convert = pv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    table = pa.table({name: pa.array([], pa.string()) for name in columns})
    blocks = (_BLOCK, len(content) + 1) if content.strip(b"\r\n") else ()
    for block in blocks:  # a record may be longer than the first
        broken.clear()
        try:
            table = pv.read_csv(
                pa.BufferReader(content),
                pv.ReadOptions(use_threads=False, column_names=columns, block_size=max(block, 2)),
                pv.ParseOptions(newlines_in_values=b'"' in content, invalid_row_handler=keep),
                convert,
            )
            break
        except pa.ArrowInvalid:
            if block > len(content):
                raise
    found = [_one(table[name]) for name in columns]
    if b"\r" in content:
        found = [pc.replace_substring(column, "\r\n", "\n") for column in found]
    if not broken:
        return Raw(found)
    n, more = table.num_rows, len(broken)
    reasons, texts = (pa.array(part, pa.string()) for part in zip(*broken, strict=True))
    return Raw(
        [pa.concat_arrays([column, pa.nulls(more, pa.string())]) for column in found],
        pa.concat_arrays([pa.nulls(n, pa.string()), reasons]),
        pa.concat_arrays([pa.nulls(n, pa.string()), texts]),
    )


def _one(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


def read_records(lines: pa.Array, width: int, say: WidthReason = width_reason) -> Raw:
    """Return records, each of whose bytes is a letter of a text, as columns of text."""
    content = joined(lines)
    if not content.isascii():
        content = content.decode().encode("latin-1")
    if _is_plain(content):
        raw = _together(content + b"\n", ["x"] * width, say)
        if raw.broken is None and len(raw.columns[0]) == len(lines):  # or they would not be in order
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
            said = QUOTE if fields is None else None
            if fields is not None and len(fields) != width:
                said = say(len(fields), width)
        except UnicodeDecodeError:
            fields, said = None, NO_UTF8
        broken.append(said)
        shown.append(None if said is None else text)
        for i, column in enumerate(columns):
            column.append(fields[i] if fields is not None and said is None else None)
    text_columns = [pa.array(column, pa.string()) for column in columns]
    return Raw(text_columns, pa.array(broken, pa.string()), pa.array(shown, pa.string()))


def _fields(record: str) -> list[str | None] | None:
    """Return the fields of a record, None where a quote is not closed or text stands behind one."""
    found: list[str | None] = []
    at = 0
    while field := _FIELD.match(record, at):
        quoted, bare, end = field.groups()
        found.append(bare or None if quoted is None else quoted.replace('""', '"'))
        at = field.end()
        if not end:
            return found
    return None
