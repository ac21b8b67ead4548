"""Real quotes as events, and made-up people who follow them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError, TableError
from narrowcast.files import files_of, first_line, read_table
from narrowcast.model.schema import EVENT_ID
from narrowcast.validation import check_seed
from narrowcast.workloads.base import BaseWorkload, check_count, random_streams, zipf

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: What a table of quotes has: a row for each symbol and day, or any other time.
COLUMNS = ("symbol", "open", "high", "low", "close", "volume", "date")
PRICES = ("open", "high", "low", "close")
#: Why a row is left out; the first that holds counts.
REASONS = ("null", "price not above 0", "volume below 0")

#: What people ask for, and how often: a symbol, a list of them, a symbol within a band of prices, above or
#: below a price, in large volume, a list with large volume and a rise, or any symbol by price and volume.
KINDS = {"symbol": 0.25, "list": 0.15, "band": 0.25, "alert": 0.1, "volume": 0.1, "rise": 0.1, "screen": 0.05}
#: The most symbols of a list.
LONGEST = 5
#: Subscriptions of each subscriber on average; who has how many is by Zipf's law.
EACH = 3


def read_quotes(path: str | Path) -> tuple[pa.Table, dict[str, int]]:
    """Return quotes in the order of time, and by reason how many rows were left out.

    Columns are symbol, open, high, low, close (double), volume (bigint) and time (an instant, in UTC).

    Parameters
    ----------
    path
        A Parquet, CSV or JSON-lines table with `symbol`, `open`, `high`, `low`, `close`, `volume`, `date`.

    Raises
    ------
    TableError
        When there is no such table, a column is missing or of a wrong type, or no row can be used.
    """
    table = read_table(path, COLUMNS).select(list(COLUMNS))
    if table.num_rows == 0:
        raise TableError(f"{path} has no rows; give a table with a row for each symbol and day")
    columns = {name: _cast(path, table, name, pa.float64()) for name in (*PRICES, "volume")}
    columns["symbol"] = _cast(path, table, "symbol", pa.string())
    columns["time"] = _times(path, table)
    bad = np.full(table.num_rows, -1)
    missing = pc.is_null(columns["volume"], nan_is_null=True)
    for name in ("symbol", "time", *PRICES):
        missing = pc.or_(missing, columns[name].is_null())
    price = np.stack([columns[name].to_numpy(zero_copy_only=False) for name in PRICES])
    with np.errstate(invalid="ignore"):
        volume = columns["volume"].to_numpy(zero_copy_only=False)
        wrong = (~(np.isfinite(price) & (price > 0)).all(axis=0), volume < 0)
    for reason, rows in reversed(list(enumerate((missing.to_numpy(zero_copy_only=False), *wrong)))):
        bad[rows] = reason
    left_out = {name: int((bad == i).sum()) for i, name in enumerate(REASONS)}
    if (bad >= 0).all():
        said = ", ".join(f"{reason} in {count:,}" for reason, count in left_out.items() if count)
        raise TableError(f"{path} has no row that can be used ({said}); give quotes with all columns filled")
    names = ("symbol", *PRICES, "volume", "time")
    kept = pa.table({name: columns[name] for name in names}).filter(pa.array(bad < 0))
    kept = kept.set_column(5, "volume", _cast(path, kept, "volume", pa.int64()))
    return kept.sort_by([("time", "ascending"), ("symbol", "ascending")]), left_out


def _cast(path: str | Path, table: pa.Table, name: str, to: pa.DataType) -> pa.Array:
    """Return a column in another type."""
    try:
        return table[name].cast(to).combine_chunks()
    except pa.ArrowException as error:
        raise TableError(
            f"{path}: column {name!r} of type {table[name].type} does not become {to}: {first_line(error)}; "
            "mend these values or leave them empty"
        ) from error


def _times(path: str | Path, table: pa.Table) -> pa.Array:
    """Return dates as instants; a clock without a zone is in UTC."""
    kind = table["date"].type
    if pa.types.is_timestamp(kind) and kind.tz:
        return _cast(path, table, "date", pa.timestamp("us", "UTC"))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        raise TableError(f"{path}: column 'date' is {kind}; write dates such as 1999-09-24")
    return pc.assume_timezone(_cast(path, table, "date", pa.timestamp("us")), "UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotes(BaseWorkload):
    r"""Quotes out of a table as events, with subscriptions that a market-data user would write.

    A subscription is about symbols, the more traded ones more often (by Zipf's law over what was traded of
    each), and about prices and volumes that these symbols really have: `symbol = 'MSFT' AND close BETWEEN
    26.10 AND 27.45`. Subscribers have Zipf's law, too.

    Rows with a null, a price that is not above 0 or a volume below 0 are left out and counted.

    Parameters
    ----------
    path
        A Parquet, CSV or JSON-lines table with `symbol`, `open`, `high`, `low`, `close`, `volume`, `date`.
    n_subscriptions
        How many subscriptions there are.
    n_events
        How many of the quotes are events: the last by date. There are fewer where the table has fewer.
    seed
        What all random choices come from.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp(), "quotes.csv")
    >>> rows = "symbol,open,high,low,close,volume,date\nIBM,9,10,8,9.5,700,1999-09-24\n"
    >>> n_bytes = file.write_text(rows + "SAP,5,6,4,,100,1999-09-24\n")
    >>> quotes = Quotes(path=str(file), n_subscriptions=2)
    >>> quotes.tables()["events"].drop_columns(["time"]).to_pylist()
    [{'event_id': 0, 'symbol': 'IBM', 'open': 9.0, 'high': 10.0, 'low': 8.0, 'close': 9.5, 'volume': 700}]
    >>> quotes.origin()["left_out"]["null"]
    1
    """

    path: str = ""
    n_subscriptions: int = 1000
    n_events: int = 10_000
    seed: int = 0
    _read: list[tuple[pa.Table, dict[str, int]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not self.path:
            raise ParameterError(
                "quotes has no path; name a table of quotes, on the command line --set path=quotes.parquet"
            )
        files_of(Path(self.path))
        check_count("n_subscriptions", self.n_subscriptions)
        check_count("n_events", self.n_events)
        if self.n_events < 1:
            raise ParameterError(f"n_events is {self.n_events}; give at least 1")
        check_seed(self.seed)

    def tables(self) -> dict[str, pa.Table]:
        """Return `subscriptions` (subscription_id, subscriber, filter) and `events`.

        An event has event_id, time, symbol, open, high, low, close and volume; its id is its place in time
        among all quotes of the table.
        """
        rows = self._rows()
        first = max(0, rows.num_rows - self.n_events)
        rows = rows.slice(first)
        ids = pa.array(np.arange(first, first + rows.num_rows))
        events = rows.select(["time", "symbol", *PRICES, "volume"]).add_column(0, EVENT_ID, ids)
        return {"subscriptions": self._subscriptions(rows), "events": events}

    def origin(self) -> dict[str, Any]:
        """Return what was read: how many rows, how many were left out and why, and a hash of the files."""
        rows = self._rows().num_rows
        left_out = self._read[0][1]
        digest = hashlib.sha256()
        for file in files_of(Path(self.path))[1]:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return {"rows": rows + sum(left_out.values()), "left_out": left_out, "sha256": digest.hexdigest()}

    def _rows(self) -> pa.Table:
        """Return all quotes; the table is read once."""
        if not self._read:
            self._read.append(read_quotes(self.path))
        return self._read[0][0]

    def _subscriptions(self, rows: pa.Table) -> pa.Table:
        """Draw who asks for what."""
        n = self.n_subscriptions
        who, what, which, where = random_streams(self.seed, 4)
        kinds = np.array(list(KINDS))[what.choice(len(KINDS), n, p=list(KINDS.values()))]
        market = _Market(rows)
        filters = market.filters(kinds, which, where)
        people = max(1, n // EACH)
        names = np.array([f"u{i + 1:0{len(str(people))}}" for i in range(people)])
        return pa.table(
            {
                "subscription_id": np.arange(n),
                "subscriber": pa.array(names[who.choice(people, n, p=zipf(people))], pa.string()),
                "filter": pa.array(filters, pa.string()),
            }
        )


class _Market:
    """What symbols there are, the most traded first, and the prices and volumes of each."""

    def __init__(self, rows: pa.Table) -> None:
        coded = rows["symbol"].combine_chunks().dictionary_encode()
        code = coded.indices.to_numpy()
        traded = np.bincount(code, rows["close"].to_numpy() * rows["volume"].to_numpy())
        names = coded.dictionary.to_pylist()
        # Of equals the first by name, so that the order of rows does not matter.
        order = sorted(range(len(names)), key=lambda i: (-traded[i], names[i]))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self.literals = ["'" + names[i].replace("\\", "\\\\").replace("'", "\\'") + "'" for i in order]
        symbol = rank[code]
        self._count = np.bincount(symbol)
        self._start = np.cumsum(self._count) - self._count
        self._own, self._all = {}, {}
        for name in (*PRICES, "volume"):
            value = rows[name].to_numpy()
            self._own[name] = value[np.lexsort((value, symbol))]
            self._all[name] = np.sort(value)

    def filters(self, kinds: NDArray[np.str_], which: Any, where: Any) -> list[str]:
        """Return a filter of each kind in turn; `which` chooses symbols, `where` prices and volumes."""
        n, many = len(kinds), len(self.literals)
        popular = zipf(many)
        symbol = which.choice(many, n, p=popular)
        width = where.uniform(0.1, 0.5, n)
        low = where.uniform(0, 1, n) * (1 - width)
        rare = where.uniform(0.8, 0.99, n)
        up = where.random(n) < 0.5
        bands = [self._at(symbol, "close", share) for share in (low, low + width)]
        screens = [self._quantile("close", share) for share in (low, low + width)]
        high, small = self._at(symbol, "high", rare), self._at(symbol, "low", 1 - rare)
        volume, heavy = self._at(symbol, "volume", rare), self._quantile("volume", rare)
        found: list[str] = []
        for i, kind in enumerate(kinds.tolist()):
            one = f"symbol = {self.literals[symbol[i]]}"
            if kind in ("list", "rise") and many > 1:
                size = min(many, int(which.integers(2, LONGEST + 1)))
                others = which.choice(many, size, False, popular).tolist()
                some = list(dict.fromkeys([int(symbol[i]), *others]))[:size]
                one = f"symbol IN ({', '.join(self.literals[s] for s in some)})"
            if kind == "band":
                one += f" AND close BETWEEN {_price(bands[0][i])} AND {_price(bands[1][i])}"
            elif kind == "alert":
                one += f" AND high >= {_price(high[i])}" if up[i] else f" AND low <= {_price(small[i])}"
            elif kind == "volume":
                one += f" AND volume > {int(volume[i])}"
            elif kind == "rise":
                one += f" AND volume > {int(volume[i])} AND close > open"
            elif kind == "screen":
                one = f"close BETWEEN {_price(screens[0][i])} AND {_price(screens[1][i])}"
                one += f" AND volume > {int(heavy[i])}"
            found.append(one)
        return found

    def _at(self, symbol: Ints, name: str, share: Doubles) -> Doubles:
        """Return a value of each symbol that about such a share of its own values is below."""
        place = np.minimum((share * self._count[symbol]).astype(np.int64), self._count[symbol] - 1)
        return np.asarray(self._own[name][self._start[symbol] + place])

    def _quantile(self, name: str, share: Doubles) -> Doubles:
        """Return values of all symbols that about such a share is below."""
        value = self._all[name]
        return np.asarray(value[np.minimum((share * len(value)).astype(np.int64), len(value) - 1)])


def _price(value: float) -> str:
    """Write a price as people do: in cents, or in three digits where that is finer."""
    return f"{value:.{max(2, 2 - int(np.floor(np.log10(value))))}f}"
