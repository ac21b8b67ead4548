"""Stock quotes of a table as events, and generated subscriptions to them."""

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

#: Columns of a table of quotes, which has a row per symbol and day (or other period).
COLUMNS = ("symbol", "open", "high", "low", "close", "volume", "date")
PRICES = ("open", "high", "low", "close")
#: Why a row is rejected; a row is counted under its first reason.
REASONS = ("null", "price not above 0", "volume below 0")

#: Kinds of filters with their shares: a symbol; a list of symbols; a symbol within a range of prices; above
#: or below a price; in large volume; a list with large volume and a rising price; any symbol by price and
#: volume.
KINDS = {"symbol": 0.25, "list": 0.15, "band": 0.25, "alert": 0.1, "volume": 0.1, "rise": 0.1, "screen": 0.05}
#: Largest number of symbols in a list.
MAX_LIST = 5
#: Mean number of subscriptions of a subscriber; the distribution over subscribers is Zipf's law.
PER_SUBSCRIBER = 3


def read_quotes(path: str | Path) -> tuple[pa.Table, dict[str, int]]:
    """Read a table of quotes.

    Parameters
    ----------
    path
        A Parquet, CSV or JSON-lines table with `symbol`, `open`, `high`, `low`, `close`, `volume`, `date`.

    Returns
    -------
    tuple
        The quotes ordered by time, with the columns symbol, open, high, low, close (double), volume (bigint)
        and time (timestamp in UTC); and the number of rejected rows by reason.

    Raises
    ------
    TableError
        When the table does not exist, a column is missing or of a wrong type, or every row is rejected.
    """
    table = read_table(path, COLUMNS).select(list(COLUMNS))
    if table.num_rows == 0:
        raise TableError(f"{path}: the table has no rows; it needs a row per symbol and day")
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
        counts = ", ".join(f"{reason} in {count:,}" for reason, count in left_out.items() if count)
        raise TableError(f"{path}: every row is rejected ({counts}); fill all columns with valid values")
    names = ("symbol", *PRICES, "volume", "time")
    quotes = pa.table({name: columns[name] for name in names}).filter(pa.array(bad < 0))
    quotes = quotes.set_column(5, "volume", _cast(path, quotes, "volume", pa.int64()))
    return quotes.sort_by([("time", "ascending"), ("symbol", "ascending")]), left_out


def _cast(path: str | Path, table: pa.Table, name: str, to: pa.DataType) -> pa.Array:
    """Return a column converted to another type."""
    try:
        return table[name].cast(to).combine_chunks()
    except pa.ArrowException as error:
        raise TableError(
            f"{path}: column {name!r} of type {table[name].type} cannot be converted to {to}: "
            f"{first_line(error)}; correct these values or leave them empty",
            parameter=name,
        ) from error


def _times(path: str | Path, table: pa.Table) -> pa.Array:
    """Return the dates as timestamps; times without a zone are in UTC."""
    kind = table["date"].type
    if pa.types.is_timestamp(kind) and kind.tz:
        return _cast(path, table, "date", pa.timestamp("us", "UTC"))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        raise TableError(
            f"{path}: column 'date' has type {kind}; write dates such as 1999-09-24", parameter="date"
        )
    return pc.assume_timezone(_cast(path, table, "date", pa.timestamp("us")), "UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotes(BaseWorkload):
    r"""Quotes of a table as events, with subscriptions such as market data users write.

    Filters choose symbols by Zipf's law over their rank by traded value, and prices and volumes from the
    range of these symbols in the table: `symbol = 'MSFT' AND close BETWEEN 26.10 AND 27.45`. The number of
    subscriptions per subscriber follows Zipf's law, too.

    Rows with a null, a price that is not above 0 or a volume below 0 are rejected and counted.

    Parameters
    ----------
    path
        A Parquet, CSV or JSON-lines table with `symbol`, `open`, `high`, `low`, `close`, `volume`, `date`.
    n_subscriptions
        Number of subscriptions.
    n_events
        Number of events, at least 1: the last quotes by date, or all if the table has fewer.
    seed
        Seed of all random choices, at least 0.

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
                parameter="path",
                value=self.path,
                limit="the path of a table of quotes",
                fix="set path=quotes.parquet, for example",
            )
        files_of(Path(self.path))
        check_count("n_subscriptions", self.n_subscriptions)
        check_count("n_events", self.n_events, 1)
        check_seed(self.seed)

    def tables(self) -> dict[str, pa.Table]:
        """Return `subscriptions` (subscription_id, subscriber, filter) and `events`.

        An event has event_id, time, symbol, open, high, low, close and volume; its id is its row number
        among all valid quotes of the table, ordered by time.
        """
        rows = self._rows()
        first = max(0, rows.num_rows - self.n_events)
        rows = rows.slice(first)
        ids = pa.array(np.arange(first, first + rows.num_rows))
        events = rows.select(["time", "symbol", *PRICES, "volume"]).add_column(0, EVENT_ID, ids)
        return {"subscriptions": self._subscriptions(rows), "events": events}

    def origin(self) -> dict[str, Any]:
        """Return the number of rows, of rejected rows by reason, and the SHA-256 of the files."""
        rows = self._rows().num_rows
        left_out = self._read[0][1]
        digest = hashlib.sha256()
        for file in files_of(Path(self.path))[1]:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return {"rows": rows + sum(left_out.values()), "left_out": left_out, "sha256": digest.hexdigest()}

    def _rows(self) -> pa.Table:
        """Return all valid quotes; the table is read only once."""
        if not self._read:
            self._read.append(read_quotes(self.path))
        return self._read[0][0]

    def _subscriptions(self, rows: pa.Table) -> pa.Table:
        """Draw subscriptions to the given events."""
        n = self.n_subscriptions
        owners, kind, symbols, values = random_streams(self.seed, 4)
        kinds = np.array(list(KINDS))[kind.choice(len(KINDS), n, p=list(KINDS.values()))]
        market = _Market(rows)
        filters = market.filters(kinds, symbols, values)
        n_subscribers = max(1, n // PER_SUBSCRIBER)
        names = np.array([f"u{i + 1:0{len(str(n_subscribers))}}" for i in range(n_subscribers)])
        owner = names[owners.choice(n_subscribers, n, p=zipf(n_subscribers))]
        return pa.table(
            {
                "subscription_id": np.arange(n),
                "subscriber": pa.array(owner, pa.string()),
                "filter": pa.array(filters, pa.string()),
            }
        )


class _Market:
    """Symbols, the most traded first, with their prices and volumes."""

    def __init__(self, rows: pa.Table) -> None:
        coded = rows["symbol"].combine_chunks().dictionary_encode()
        code = coded.indices.to_numpy()
        traded = np.bincount(code, rows["close"].to_numpy() * rows["volume"].to_numpy())
        names = coded.dictionary.to_pylist()
        # Ties are broken by name, so that the order of rows does not matter.
        order = sorted(range(len(names)), key=lambda i: (-traded[i], names[i]))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self.literals = ["'" + names[i].replace("\\", "\\\\").replace("'", "\\'") + "'" for i in order]
        symbol = rank[code]
        self._count = np.bincount(symbol)
        self._start = np.cumsum(self._count) - self._count
        # Sorted values: by symbol and value, and by value alone.
        self._by_symbol, self._sorted = {}, {}
        for name in (*PRICES, "volume"):
            value = rows[name].to_numpy()
            self._by_symbol[name] = value[np.lexsort((value, symbol))]
            self._sorted[name] = np.sort(value)

    def filters(
        self, kinds: NDArray[np.str_], symbols: np.random.Generator, values: np.random.Generator
    ) -> list[str]:
        """Draw a filter of each of the given kinds, with one generator for symbols and one for numbers."""
        n, n_symbols = len(kinds), len(self.literals)
        popular = zipf(n_symbols)
        symbol = symbols.choice(n_symbols, n, p=popular)
        width = values.uniform(0.1, 0.5, n)
        low = values.uniform(0, 1, n) * (1 - width)
        rare = values.uniform(0.8, 0.99, n)
        up = values.random(n) < 0.5
        bands = [self._symbol_quantile(symbol, "close", share) for share in (low, low + width)]
        screens = [self._quantile("close", share) for share in (low, low + width)]
        high = self._symbol_quantile(symbol, "high", rare)
        small = self._symbol_quantile(symbol, "low", 1 - rare)
        volume, heavy = self._symbol_quantile(symbol, "volume", rare), self._quantile("volume", rare)
        found: list[str] = []
        for i, kind in enumerate(kinds.tolist()):
            one = f"symbol = {self.literals[symbol[i]]}"
            if kind in ("list", "rise") and n_symbols > 1:
                size = min(n_symbols, int(symbols.integers(2, MAX_LIST + 1)))
                further = symbols.choice(n_symbols, size, False, popular).tolist()
                members = list(dict.fromkeys([int(symbol[i]), *further]))[:size]
                one = f"symbol IN ({', '.join(self.literals[s] for s in members)})"
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

    def _symbol_quantile(self, symbol: Ints, name: str, share: Doubles) -> Doubles:
        """Return a quantile of each given symbol's own values; `share` is from 0 to 1."""
        place = np.minimum((share * self._count[symbol]).astype(np.int64), self._count[symbol] - 1)
        return np.asarray(self._by_symbol[name][self._start[symbol] + place])

    def _quantile(self, name: str, share: Doubles) -> Doubles:
        """Return quantiles of the values of all symbols."""
        value = self._sorted[name]
        return np.asarray(value[np.minimum((share * len(value)).astype(np.int64), len(value) - 1)])


def _price(value: float) -> str:
    """Format a price with two decimals, or with three significant digits if that is more precise."""
    return f"{value:.{max(2, 2 - int(np.floor(np.log10(value))))}f}"
