"""Symbols of several markets as flows, and subscribers who follow markets (tock2005, section 5.1)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from narrowcast.errors import ParameterError, TableError
from narrowcast.files import files_of, first_line, read_table
from narrowcast.model.interest import Interest
from narrowcast.validation import check_choice, check_seed
from narrowcast.workloads.base import BaseWorkload, check_count, zipf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]

#: How fast interest and rates fall with the rank of a symbol in its market: exp(-DECAY r / n) for rank r of
#: n. The top tenth of the symbols then has 55 % of the total.
DECAY = 7.981
#: Messages per second of the flow with the highest rate.
HOTTEST = 1000.0
#: Columns of a table of symbols.
COLUMNS = ("symbol", "market", "volume")
#: Why a row of the table of symbols is rejected; a row is counted under its first reason.
REASONS = ("null", "volume below 0")
#: How the highest rate of a market depends on its rank.
Rates = Literal["zipf", "flat"]

#: Random numbers processed at once; bounds the memory.
_BLOCK = 1 << 21
#: Up to this share of a market's symbols, drawing with repetition until enough symbols are distinct is
#: cheaper than a weighted choice among all.
_FEW = 1 / 16


@dataclass(frozen=True, slots=True)
class _Markets:
    """Markets, the largest first, with their symbols."""

    #: Popularity and number of symbols, per market.
    weight: Doubles
    sizes: Ints
    #: Messages per second and label, per symbol, market by market.
    rate: Doubles
    labels: pa.Array
    #: Number of rejected rows of the table, by reason.
    left_out: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows(BaseWorkload):
    """Interest in the symbols of several markets, and their message rates (tock2005, section 5.1).

    The numbers of symbols and of followers of market i are proportional to 1 / i. A subscriber follows some
    markets and wants the same share of the symbols of each, drawn without replacement with weight
    exp(-7.981 r / n) for rank r of n. Flows are numbered market by market, and in a market by popularity.

    Parameters
    ----------
    n_flows
        Number of flows; some of them may have no subscriber.
    n_subscribers
        Number of subscribers. A larger number does not change the interests of the first subscribers.
    markets
        Number of markets, at least 1.
    per_subscriber
        Number of markets that each subscriber follows, from 1 to the number of markets.
    share
        The share of a market's symbols that a follower wants, above 0 and at most 1; rounded to whole
        symbols.
    rates
        Message rates fall with the rank of the flow in its market, as interest does. They start at 1000
        messages per second in every market (`flat`), or at 1000 / i in the i-th market (`zipf`).
    symbols
        Path of a Parquet, CSV or JSON-lines table with `symbol`, `market` and `volume`, used instead of
        `n_flows`, `markets` and `rates`: flows are its symbols, the most traded first, rates are
        proportional to the volume, and the popularity of a market to its number of symbols.
    seed
        Seed of all random choices, at least 0.

    Examples
    --------
    >>> flows = Flows(n_flows=100, n_subscribers=4, markets=2, per_subscriber=1, share=0.1, seed=1)
    >>> flows.sizes().tolist()
    [67, 33]
    >>> flows.tables()["interests"].column_names, flows.tables()["rates"].num_rows
    (['subscriber', 'flow'], 100)
    >>> flows.interest()
    Interest(4 subscribers, 100 flows, 24 wants)
    """

    #: Unlike other workloads, this one generates no subscriptions and events.
    makes: ClassVar[tuple[str, ...]] = ("interests", "rates")

    n_flows: int = 20_000
    n_subscribers: int = 500
    markets: int = 10
    per_subscriber: int = 2
    share: float = 0.01
    rates: Rates = "zipf"
    symbols: str = ""
    seed: int = 0
    _read: list[_Markets] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("n_flows", "n_subscribers", "markets", "per_subscriber"):
            check_count(name, getattr(self, name), 1 if name in ("markets", "per_subscriber") else 0)
        if not self.symbols:
            self._check_markets(self.markets)
        number = isinstance(self.share, int | float | np.number) and not isinstance(self.share, bool)
        if not number or not 0 < self.share <= 1:
            limit = "a share of a market's symbols, above 0 and at most 1"
            raise ParameterError(parameter="share", value=self.share, limit=limit)
        check_choice("rates", self.rates, get_args(Rates))
        if self.symbols:
            files_of(Path(self.symbols))
        check_seed(self.seed)

    def tables(self) -> dict[str, pa.Table]:
        """Return `interests` (subscriber, flow) and `rates` (flow, rate); every flow has a rate."""
        markets = self._markets()
        indptr, flow = self._wants(markets)
        subscriber = np.repeat(np.arange(self.n_subscribers, dtype=np.int32), np.diff(indptr))
        wanted = pa.array(flow) if not self.symbols else markets.labels.take(pa.array(flow))
        return {
            "interests": pa.table({"subscriber": subscriber, "flow": wanted}),
            "rates": pa.table({"flow": markets.labels, "rate": markets.rate}),
        }

    def interest(self) -> Interest:
        """Return the interest of the tables, including subscribers without any flow."""
        markets = self._markets()
        indptr, flow = self._wants(markets)
        shape = (self.n_subscribers, len(markets.rate))
        wants = sparse.csr_array((np.ones(len(flow), np.bool_), flow, indptr), shape)
        return Interest(wants, markets.rate, np.arange(self.n_subscribers, dtype=np.int32), markets.labels)

    def sizes(self) -> Ints:
        """Return the number of symbols of each market."""
        return self._markets().sizes

    def origin(self) -> dict[str, Any]:
        """Return rows, rejected rows by reason and SHA-256 of the table of symbols; `{}` without a table."""
        if not self.symbols:
            return {}
        markets = self._markets()
        digest = hashlib.sha256()
        for file in files_of(Path(self.symbols))[1]:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        rows = len(markets.rate) + sum(markets.left_out.values())
        return {"rows": rows, "left_out": markets.left_out, "sha256": digest.hexdigest()}

    def _markets(self) -> _Markets:
        """Return the markets, generated or from the table, which is read only once."""
        if not self.symbols:
            weight = zipf(self.markets)
            sizes = _rounded(self.n_flows * weight)
            top = HOTTEST * (weight / weight[0] if self.rates == "zipf" else np.ones(self.markets))
            rate = [peak * np.exp(-DECAY * np.arange(n) / n) for peak, n in zip(top, sizes, strict=True) if n]
            labels = pa.array(np.arange(self.n_flows, dtype=np.int32))
            return _Markets(weight, sizes, np.concatenate([np.zeros(0), *rate]), labels, {})
        if not self._read:
            self._read.append(_read_symbols(self.symbols))
        self._check_markets(len(self._read[0].sizes))
        return self._read[0]

    def _check_markets(self, markets: int) -> None:
        """Raise a `ParameterError` if `per_subscriber` exceeds the number of markets."""
        if self.per_subscriber > markets:
            limit = f"at most {markets}, the number of markets"
            raise ParameterError(parameter="per_subscriber", value=self.per_subscriber, limit=limit)

    def _wants(self, markets: _Markets) -> tuple[Ints, Numbers]:
        """Return the wanted flows as the `indptr` and `indices` of a CSR matrix by subscriber."""
        follows = self._follows(markets.weight)
        wanted = np.rint(self.share * markets.sizes).astype(np.int64)
        start = np.zeros(self.n_subscribers + 1, np.int64)
        np.cumsum(wanted[follows].sum(axis=1), out=start[1:])
        flow = np.empty(start[-1], np.int32)
        place, first = start[:-1].copy(), np.cumsum(markets.sizes) - markets.sizes
        for market, (size, count) in enumerate(zip(markets.sizes.tolist(), wanted.tolist(), strict=True)):
            users = np.flatnonzero((follows == market).any(axis=1))
            if count == 0:
                continue
            done = 0
            for chosen in _distinct_ranks(self.seed, market, size, count, len(users)):
                rows = users[done : done + len(chosen)]
                flow[place[rows][:, None] + np.arange(count)] = first[market] + np.sort(chosen, axis=1)
                done += len(chosen)
            place[users] += count
        return start, flow

    def _follows(self, weight: Doubles) -> Ints:
        """Draw the markets of each subscriber by weight, without replacement; each row is sorted."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(0,)))
        found = np.empty((self.n_subscribers, self.per_subscriber), np.int64)
        step = max(1, _BLOCK // len(weight))
        for start in range(0, self.n_subscribers, step):
            rows = slice(start, min(start + step, self.n_subscribers))
            found[rows] = _weighted_choice(rng, rows.stop - start, weight, self.per_subscriber)
        return np.sort(found, axis=1)


def _rounded(parts: Doubles) -> Ints:
    """Round numbers so that the sum of the results is the rounded sum; the largest fractions round up.

    >>> _rounded(np.array([1.5, 0.75, 0.75])).tolist()
    [1, 1, 1]
    """
    down = np.floor(parts).astype(np.int64)
    more = int(np.rint(parts.sum())) - int(down.sum())
    down[np.argsort(down - parts, kind="stable")[:more]] += 1
    return down


def _weighted_choice(rng: np.random.Generator, rows: int, weight: Doubles, count: int) -> Ints:
    """Draw `count` distinct positions per row, by weight and without replacement.

    The smallest of exponential waiting times, with rates proportional to the weights, are such a draw.
    """
    with np.errstate(divide="ignore"):
        wait = rng.standard_exponential((rows, len(weight))) / weight
    if count == len(weight):
        return np.tile(np.arange(count), (rows, 1))
    return np.asarray(np.argpartition(wait, count - 1, axis=1)[:, :count])


def _distinct_ranks(seed: int, market: int, size: int, count: int, rows: int) -> Iterator[Ints]:
    """Draw `count` distinct ranks of a market per row, without replacement; yield blocks of rows.

    A row's random numbers do not depend on the number of rows after it.
    """
    streams: list[np.random.Generator] = []

    def stream(number: int) -> np.random.Generator:
        while number >= len(streams):
            key = (1, market, len(streams))
            streams.append(np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key)))
        return streams[number]

    if count > _FEW * size:
        weight = np.exp(-DECAY * np.arange(size) / size)
        step = max(1, _BLOCK // size)
        for start in range(0, rows, step):
            yield _weighted_choice(stream(0), min(step, rows - start), weight, count)
        return
    # Two draws are equal with probability of about DECAY / 2n; additional draws make a second round unlikely.
    alike = count**2 * DECAY / (4 * size)
    draws = count + int(1.2 * alike + 3 * alike**0.5) + 2
    more = max(8, draws // 8)
    step = max(1, _BLOCK // draws)
    for start in range(0, rows, step):
        n = min(step, rows - start)
        out = np.empty((n, count), np.int64)
        lacking, drawn, number = np.arange(n), _ranks(stream(0), n, draws, size), 0
        while len(lacking):
            first = _is_first(drawn)
            place = np.cumsum(first, axis=1)
            enough = place[:, -1] >= count
            selected = first & (place <= count) & enough[:, None]
            out[lacking[enough]] = drawn[selected].reshape(-1, count)
            lacking, drawn, number = lacking[~enough], drawn[~enough], number + 1
            drawn = np.hstack([drawn, _ranks(stream(number), len(lacking), more, size)])
        yield out


def _ranks(rng: np.random.Generator, rows: int, draws: int, size: int) -> Ints:
    """Draw ranks r from 0 to size - 1 with probabilities proportional to exp(-DECAY r / size)."""
    far = -np.log1p(rng.random((rows, draws)) * np.expm1(-DECAY)) * (size / DECAY)
    return np.asarray(np.minimum(far.astype(np.int64), size - 1))


def _is_first(drawn: Ints) -> NDArray[np.bool_]:
    """Return for each value whether it is the first occurrence of that value in its row."""
    bits = max(1, int(drawn.shape[1] - 1).bit_length())
    # Sorting brings equal values together, in the order in which they were drawn.
    ordered = np.sort((drawn << bits) | np.arange(drawn.shape[1]), axis=1)
    value, place = ordered >> bits, ordered & ((1 << bits) - 1)
    new = np.ones(drawn.shape, np.bool_)
    new[:, 1:] = value[:, 1:] != value[:, :-1]
    first = np.empty(drawn.shape, np.bool_)
    np.put_along_axis(first, place, new, axis=1)
    return first


def _read_symbols(path: str) -> _Markets:
    """Read the markets from a table of symbols."""
    table = read_table(path, COLUMNS).select(list(COLUMNS))
    try:
        symbol, market = (table[name].cast(pa.string()).combine_chunks() for name in COLUMNS[:2])
        volume = table["volume"].cast(pa.float64()).combine_chunks()
    except pa.ArrowException as error:
        raise TableError(
            f"{path}: a column has an unusable type: {first_line(error)}; "
            "symbol and market must be text, volume a number"
        ) from error
    missing = pc.or_(pc.or_(symbol.is_null(), market.is_null()), volume.is_null(nan_is_null=True))
    below = pc.and_(pc.invert(missing), pc.fill_null(pc.less(volume, 0), False))
    left_out = dict(zip(REASONS, (int(pc.sum(each).as_py() or 0) for each in (missing, below)), strict=True))
    valid = pc.invert(pc.or_(missing, below))
    symbol, market, amount = symbol.filter(valid), market.filter(valid), volume.filter(valid).to_numpy()
    if len(symbol) == 0 or not 0 < amount.max() < np.inf:
        raise TableError(f"{path}: no symbol has a finite volume above 0; add symbols that were traded")
    counts = symbol.value_counts()
    if len(counts) < len(symbol):
        twice = counts.field("values")[int(np.argmax(counts.field("counts").to_numpy()))].as_py()
        raise TableError(f"{path}: symbol {twice!r} has more than one row; keep one row per symbol")
    names = market.value_counts()
    size = names.field("counts").to_numpy()
    # Ties are broken by name, so that the order of rows does not matter.
    order = sorted(range(len(size)), key=lambda i: (-size[i], names.field("values")[i].as_py()))
    code = pc.index_in(market, names.field("values").take(pa.array(order))).to_numpy()
    by_name = pc.rank(symbol, tiebreaker="first").to_numpy()
    rows = np.lexsort((by_name, -amount, code))
    rate = HOTTEST * amount[rows] / amount.max()
    sizes = size[order].astype(np.int64)
    return _Markets(sizes / sizes.sum(), sizes, rate, symbol.take(pa.array(rows)), left_out)
