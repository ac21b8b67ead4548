"""Symbols of several markets as flows, and the people who follow them: the workload of tock2005."""

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
from narrowcast.validation import check_seed
from narrowcast.workloads.base import BaseWorkload, check_count, zipf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]

#: How fast interest and rates fall from one symbol of a market to the next: exp(-DECAY r / n) for the r-th of
#: n. A tenth of the symbols then has 55 % of the whole.
DECAY = 7.981
#: Messages per second of the hottest flow.
HOTTEST = 1000.0
#: What a table of symbols has.
COLUMNS = ("symbol", "market", "volume")
#: Why a row of it is left out; the first that holds counts.
REASONS = ("null", "volume below 0")
#: How message rates go with the market.
Rates = Literal["zipf", "flat"]

#: Random numbers that are looked at in one go: it bounds the memory.
_BLOCK = 1 << 21
#: Up to this share of a market's symbols, drawing until there are enough is cheaper than weighing them all.
_FEW = 1 / 16


@dataclass(frozen=True, slots=True)
class _Markets:
    """Markets, the largest first: how popular each is, its symbols, and the rate of each symbol in turn."""

    weight: Doubles
    sizes: Ints
    rate: Doubles
    labels: pa.Array
    left_out: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows(BaseWorkload):
    """Interest in the symbols of several markets, and their message rates (tock2005, section 5.1).

    Market i has in proportion to 1 / i symbols, and as many people who follow it. A subscriber follows
    some markets, and of each the same share of its symbols, one chosen after the other with weight
    exp(-7.981 r / n) for the r-th of n. Flows are numbered market by market, and in a market by popularity.

    Parameters
    ----------
    n_flows
        How many flows there are; some of them nobody follows.
    n_subscribers
        How many subscribers there are. More of them leave those before as they were.
    markets
        How many markets there are.
    per_subscriber
        How many of them each subscriber follows.
    share
        The share of a market's symbols that one who follows it wants, rounded to whole symbols.
    rates
        The messages per second of a flow fall with its rank as interest does, from 1000 in the first market
        and 1000 / i in the i-th (`zipf`), or 1000 in each (`flat`).
    symbols
        A Parquet, CSV or JSON-lines table with `symbol`, `market` and `volume`. It takes the place of
        `n_flows`, `markets` and `rates`: flows are its symbols, the most traded first, and their rates go
        with the volume; a market is followed as its number of symbols is to that of the others.
    seed
        What all random choices come from.

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

    #: The tables that there are: other workloads make subscriptions and events.
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
            check_count(name, getattr(self, name))
        for name in ("markets", "per_subscriber"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} is {getattr(self, name)}; give at least 1")
        if not self.symbols:
            self._check_markets(self.markets)
        number = isinstance(self.share, int | float | np.number) and not isinstance(self.share, bool)
        if not number or not 0 < self.share <= 1:
            raise ParameterError(
                f"share is {self.share!r}; give a number above 0 and up to 1: a share of a market's symbols"
            )
        if self.rates not in get_args(Rates):
            raise ParameterError(f"rates is {self.rates!r}; give one of {', '.join(get_args(Rates))}")
        if self.symbols:
            files_of(Path(self.symbols))
        check_seed(self.seed)

    def tables(self) -> dict[str, pa.Table]:
        """Return `interests` (subscriber, flow) and `rates` (flow, rate); every flow has a rate."""
        made = self._markets()
        indptr, flow = self._wants(made)
        who = np.repeat(np.arange(self.n_subscribers, dtype=np.int32), np.diff(indptr))
        wanted = pa.array(flow) if not self.symbols else made.labels.take(pa.array(flow))
        return {
            "interests": pa.table({"subscriber": who, "flow": wanted}),
            "rates": pa.table({"flow": made.labels, "rate": made.rate}),
        }

    def interest(self) -> Interest:
        """Return what the tables say, and the subscribers who want nothing besides, if there are any."""
        made = self._markets()
        indptr, flow = self._wants(made)
        shape = (self.n_subscribers, len(made.rate))
        wants = sparse.csr_array((np.ones(len(flow), np.bool_), flow, indptr), shape)
        return Interest(wants, made.rate, np.arange(self.n_subscribers, dtype=np.int32), made.labels)

    def sizes(self) -> Ints:
        """Return how many symbols each market has."""
        return self._markets().sizes

    def origin(self) -> dict[str, Any]:
        """Return what was read of a table of symbols, if there is one: rows, those left out, and a hash."""
        if not self.symbols:
            return {}
        made = self._markets()
        digest = hashlib.sha256()
        for file in files_of(Path(self.symbols))[1]:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        rows = len(made.rate) + sum(made.left_out.values())
        return {"rows": rows, "left_out": made.left_out, "sha256": digest.hexdigest()}

    def _markets(self) -> _Markets:
        """Return the markets; a table is read once."""
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
        """Refuse more markets for each subscriber than there are."""
        if self.per_subscriber > markets:
            raise ParameterError(
                f"per_subscriber is {self.per_subscriber} and there are {markets} markets; "
                f"give {markets} at most"
            )

    def _wants(self, made: _Markets) -> tuple[Ints, Numbers]:
        """Return the flows that subscribers want, one subscriber after the other, and where each starts."""
        follows = self._follows(made.weight)
        wanted = np.rint(self.share * made.sizes).astype(np.int64)
        start = np.zeros(self.n_subscribers + 1, np.int64)
        np.cumsum(wanted[follows].sum(axis=1), out=start[1:])
        flow = np.empty(start[-1], np.int32)
        place, first = start[:-1].copy(), np.cumsum(made.sizes) - made.sizes
        for market, (size, count) in enumerate(zip(made.sizes.tolist(), wanted.tolist(), strict=True)):
            users = np.flatnonzero((follows == market).any(axis=1))
            if count == 0:
                continue
            done = 0
            for chosen in _chosen(self.seed, market, size, count, len(users)):
                rows = users[done : done + len(chosen)]
                flow[place[rows][:, None] + np.arange(count)] = first[market] + np.sort(chosen, axis=1)
                done += len(chosen)
            place[users] += count
        return start, flow

    def _follows(self, weight: Doubles) -> Ints:
        """Return the markets of each subscriber, in order: chosen one after the other, by weight."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(0,)))
        found = np.empty((self.n_subscribers, self.per_subscriber), np.int64)
        step = max(1, _BLOCK // len(weight))
        for start in range(0, self.n_subscribers, step):
            rows = slice(start, min(start + step, self.n_subscribers))
            found[rows] = _weighed(rng, rows.stop - start, weight, self.per_subscriber)
        return np.sort(found, axis=1)


def _rounded(parts: Doubles) -> Ints:
    """Round numbers so that their sum stays, as far as it is whole: those nearest to the next go up.

    >>> _rounded(np.array([1.5, 0.75, 0.75])).tolist()
    [1, 1, 1]
    """
    down = np.floor(parts).astype(np.int64)
    more = int(np.rint(parts.sum())) - int(down.sum())
    down[np.argsort(down - parts, kind="stable")[:more]] += 1
    return down


def _weighed(rng: np.random.Generator, rows: int, weight: Doubles, count: int) -> Ints:
    """Return so many of the positions for each row, chosen one after the other by weight.

    The first of clocks that ring at rates in proportion to the weights are such a choice.
    """
    with np.errstate(divide="ignore"):
        rings = rng.standard_exponential((rows, len(weight))) / weight
    if count == len(weight):
        return np.tile(np.arange(count), (rows, 1))
    return np.asarray(np.argpartition(rings, count - 1, axis=1)[:, :count])


def _chosen(seed: int, market: int, size: int, count: int, rows: int) -> Iterator[Ints]:
    """Yield, in blocks of rows, so many distinct ranks of a market each, chosen one after the other.

    Each row has its own numbers of every stream, whatever rows come after it.
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
            yield _weighed(stream(0), min(step, rows - start), weight, count)
        return
    # Two of the draws are alike with chance DECAY / 2n, about; some more make it likely that these suffice.
    alike = count**2 * DECAY / (4 * size)
    draws = count + int(1.2 * alike + 3 * alike**0.5) + 2
    more = max(8, draws // 8)
    step = max(1, _BLOCK // draws)
    for start in range(0, rows, step):
        n = min(step, rows - start)
        out = np.empty((n, count), np.int64)
        lacking, drawn, number = np.arange(n), _ranks(stream(0), n, draws, size), 0
        while len(lacking):
            first = _firsts(drawn)
            place = np.cumsum(first, axis=1)
            enough = place[:, -1] >= count
            kept = first & (place <= count) & enough[:, None]
            out[lacking[enough]] = drawn[kept].reshape(-1, count)
            lacking, drawn, number = lacking[~enough], drawn[~enough], number + 1
            drawn = np.hstack([drawn, _ranks(stream(number), len(lacking), more, size)])
        yield out


def _ranks(rng: np.random.Generator, rows: int, draws: int, size: int) -> Ints:
    """Draw ranks from 0 to size - 1 with chances in proportion to exp(-DECAY r / size)."""
    far = -np.log1p(rng.random((rows, draws)) * np.expm1(-DECAY)) * (size / DECAY)
    return np.asarray(np.minimum(far.astype(np.int64), size - 1))


def _firsts(drawn: Ints) -> NDArray[np.bool_]:
    """Return for each value whether it is the first of its kind in its row."""
    bits = max(1, int(drawn.shape[1] - 1).bit_length())
    # Equal values come together, in the order in which they were drawn.
    ordered = np.sort((drawn << bits) | np.arange(drawn.shape[1]), axis=1)
    value, place = ordered >> bits, ordered & ((1 << bits) - 1)
    new = np.ones(drawn.shape, np.bool_)
    new[:, 1:] = value[:, 1:] != value[:, :-1]
    first = np.empty(drawn.shape, np.bool_)
    np.put_along_axis(first, place, new, axis=1)
    return first


def _read_symbols(path: str) -> _Markets:
    """Return the markets of a table of symbols."""
    table = read_table(path, COLUMNS).select(list(COLUMNS))
    try:
        symbol, market = (table[name].cast(pa.string()).combine_chunks() for name in COLUMNS[:2])
        volume = table["volume"].cast(pa.float64()).combine_chunks()
    except pa.ArrowException as error:
        raise TableError(
            f"{path}: a column has a type of its own: {first_line(error)}; "
            "give text for symbol and market, and numbers for volume"
        ) from error
    missing = pc.or_(pc.or_(symbol.is_null(), market.is_null()), volume.is_null(nan_is_null=True))
    below = pc.and_(pc.invert(missing), pc.fill_null(pc.less(volume, 0), False))
    left_out = dict(zip(REASONS, (int(pc.sum(each).as_py() or 0) for each in (missing, below)), strict=True))
    good = pc.invert(pc.or_(missing, below))
    symbol, market, amount = symbol.filter(good), market.filter(good), volume.filter(good).to_numpy()
    if len(symbol) == 0 or not 0 < amount.max() < np.inf:
        raise TableError(f"{path} has no symbol with a volume above 0 and finite; give traded symbols")
    counts = symbol.value_counts()
    if len(counts) < len(symbol):
        twice = counts.field("values")[int(np.argmax(counts.field("counts").to_numpy()))].as_py()
        raise TableError(f"{path} has symbol {twice!r} more than once; keep one row for each symbol")
    names = market.value_counts()
    size = names.field("counts").to_numpy()
    # Of equals the first by name, so that the order of rows does not matter.
    order = sorted(range(len(size)), key=lambda i: (-size[i], names.field("values")[i].as_py()))
    code = pc.index_in(market, names.field("values").take(pa.array(order))).to_numpy()
    by_name = pc.rank(symbol, tiebreaker="first").to_numpy()
    rows = np.lexsort((by_name, -amount, code))
    rate = HOTTEST * amount[rows] / amount.max()
    sizes = size[order].astype(np.int64)
    return _Markets(sizes / sizes.sum(), sizes, rate, symbol.take(pa.array(rows)), left_out)
