"""Figures 4 and 5: distributions of prices, popularity and amounts of stocks (section 5.1)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy import stats

from narrowcast.errors import TableError
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.riabov2003.laws import distance, fit_normal, fit_pareto, fit_zipf
from narrowcast.workloads.quotes import read_quotes
from narrowcast.workloads.stocks import Stocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.papers.base import Study

    Doubles: TypeAlias = NDArray[np.float64]

#: The environment variable with a folder, and the file in it with real quotes.
FOLDER, FILE = "NARROWCAST_DATA", "stock_quotes.parquet"
#: The stocks of figure 5.
TOP = 3
#: Subscriptions and events of the made-up stocks.
MADE = 20_000
#: Bars of a price, and points of an amount in the figures.
_BARS, _POINTS = 61, 60
#: A law is close up to this distance, in per cent.
CLOSE = 5.0
#: Parameters of the paper's simulation, as metrics: quotes N(9, 2), lengths Pareto (4, 1).
PRINTED = {"sd_pct": 100 * 2 / 9, "alpha": 1.0, "from": 4.0}


@dataclass(frozen=True, slots=True)
class Trades:
    """The data of the figures: of all stocks under `all`, and of the most traded ones under their names.

    Parameters
    ----------
    price
        Prices, in per cent of the opening price.
    popularity
        Traded volume of each stock, the most traded first.
    amount
        The money of each trade.
    """

    price: dict[str, Doubles]
    popularity: Doubles
    amount: dict[str, Doubles]


def find_quotes(given: str) -> str:
    """Return the path of real quotes, or "" if there are none.

    It is as given, or in the folder that NARROWCAST_DATA names.
    """
    folder = os.environ.get(FOLDER, "")
    if not given and folder and Path(folder, FILE).exists():
        return str(Path(folder, FILE))
    return given


def real_trades(path: str) -> tuple[Trades, str]:
    """Return the trades of a table of quotes, and a description of them."""
    table, left_out = read_quotes(path)
    opened, high, low, close = (table[name].to_numpy() for name in ("open", "high", "low", "close"))
    # A price outside its day's range is a typing error, which would dominate the deviation.
    sound = (low <= np.minimum(opened, close)) & (np.maximum(opened, close) <= high)
    traded = table["volume"].to_numpy()
    sound &= traded > 0
    if not sound.any():
        raise TableError(
            f"{path}: no day has trades and prices between low and high; give other quotes",
            parameter="path",
            value=str(path),
        )
    coded = table["symbol"].combine_chunks().dictionary_encode()
    code = coded.indices.to_numpy()[sound]
    price, amount = 100 * (close / opened)[sound], (close * traded)[sound]
    shares = np.bincount(code, traded[sound], len(coded.dictionary))
    order = np.argsort(-shares, kind="stable")
    order = order[shares[order] > 0]
    names = {coded.dictionary[int(i)].as_py(): code == i for i in order[:TOP]}
    days = table["time"]
    caption = (
        f"{len(price):,} real quotes of {len(order)} symbols, {days[0].as_py():%Y} to {days[-1].as_py():%Y}; "
        f"{len(sound) - len(price) + sum(left_out.values()):,} rows without a trade or in error left out"
    )
    return Trades(
        {"all": price} | {name: price[mine] for name, mine in names.items()},
        shares[order].astype(np.float64),
        {"all": amount} | {name: amount[mine] for name, mine in names.items()},
    ), caption


def made_trades(seed: int) -> Trades:
    """Return the same of the stock workload: quotes, subscriptions by subscriber, lengths of intervals."""
    stocks = Stocks(n_subscriptions=MADE, n_events=MADE, seed=seed)
    points, (lo, hi) = stocks.points(), stocks.boxes()
    name = np.ceil(points[:, 1]).astype(np.int64)
    known, at, count = np.unique(name, return_inverse=True, return_counts=True)
    price = 100 * points[:, 2] / (np.bincount(at, points[:, 2]) / count)[at]
    length = hi[:, 3] - lo[:, 3]
    bound = np.isfinite(length)
    often = known[np.argsort(-count, kind="stable")[:TOP]]
    prices, amounts = {"all": price}, {"all": length[bound]}
    for place, each in zip(("first", "second", "third"), often.tolist(), strict=True):
        prices[place] = price[name == each]
        amounts[place] = length[bound & (lo[:, 1] < each) & (each <= hi[:, 1])]
    subscriptions = np.unique(stocks.subscribers().to_numpy(zero_copy_only=False), return_counts=True)[1]
    return Trades(prices, -np.sort(-subscriptions.astype(np.float64)), amounts)


def _data(study: Study) -> Outcome:
    """Fit the laws that the paper names, and draw them over the data."""
    path = find_quotes(study.params["quotes"])
    if path:
        study.tell("real quotes", 0, 1)
        trades, caption = real_trades(path)
        every, short = [trades], caption
        caption = (
            f"{caption}. A row is a day of a symbol, and not a trade as in the paper (New York Stock "
            "Exchange, 24 September 1999): price is the closing over the opening price, popularity is shares "
            "traded, and an amount is closing price times volume."
        )
    else:
        every = []
        for done, seed in enumerate(study.seeds):
            study.tell(f"seed {seed}", done, len(study.seeds))
            every.append(made_trades(seed))
        short = "synthetic: the paper's stock workload, for there are no real quotes here"
        caption = (
            "Synthetic: no table of quotes was given (set quotes=TABLE, or NARROWCAST_DATA to a folder that "
            f"has {FILE}). Prices are quotes of events over the mean of their stock, popularity is "
            "subscriptions of each subscriber, and amounts are lengths of intervals of volumes: what the "
            "paper drew from laws that it saw in its data. So this tells of the workload, not of the market."
        )
    fits = [_fits(trades) for trades in every]
    rows = [
        ResultRow.of(series, None, metric, [fit[series, metric] for fit in fits],
               paper=None if path else _printed(series, metric))
        for series, metric in fits[0]
    ]  # fmt: skip
    charts = {f"riabov2003-figure-{n}": (drawn, short) for n, drawn in _pictures(every[0]).items()}
    return Outcome(rows, charts, [caption, *_claims(rows, real=bool(path))])


def _printed(series: str, metric: str) -> float | None:
    """Return the parameter that the paper's simulation draws from."""
    if series.startswith("price") and metric == "sd_pct":
        return PRINTED["sd_pct"]
    return PRINTED.get(metric) if series.startswith("amount") else None


def _fits(trades: Trades) -> dict[tuple[str, str], float]:
    """Return the parameters and distances of all laws, by series and metric."""
    found: dict[tuple[str, str], float] = {}
    for name, price in trades.price.items():
        normal = fit_normal(price)
        middle, scale = stats.laplace.fit(price)
        far = np.abs(price - normal.mean) > 3 * normal.sd
        found |= {
            (f"price/{name}", "mean_pct"): normal.mean,
            (f"price/{name}", "sd_pct"): normal.sd,
            (f"price/{name}", "ks_pct"): normal.ks,
            (f"price/{name}", "laplace_ks_pct"): distance(
                price, stats.laplace(middle, max(scale, 1e-12)).cdf
            ),
            (f"price/{name}", "beyond_3_sd_pct"): 100 * float(far.mean()),
        }
    popular = fit_zipf(trades.popularity)
    found |= {("popularity", "exponent"): popular.exponent, ("popularity", "ks_pct"): popular.ks}
    for name, amount in trades.amount.items():
        tail, whole, logs = fit_pareto(amount), fit_pareto(amount, least=1), np.log(amount)
        found |= {
            (f"amount/{name}", "alpha"): tail.alpha,
            (f"amount/{name}", "from"): tail.begin,
            (f"amount/{name}", "tail_pct"): 100 * tail.share,
            (f"amount/{name}", "ks_pct"): tail.ks,
            (f"amount/{name}", "whole_ks_pct"): whole.ks,
            (f"amount/{name}", "lognormal_ks_pct"): fit_normal(logs).ks,
        }
    return found


def _pictures(trades: Trades) -> dict[int, list[dict[str, Any]]]:
    """Return the marks of figure 4, of all stocks, and of figure 5, of the most traded ones."""
    places = np.arange(1, len(trades.popularity) + 1)
    law = places ** -fit_zipf(trades.popularity).exponent
    law *= trades.popularity.sum() / law.sum()
    ranks = [{"panel": "popularity", "kind": kind, "x": int(x), "y": float(y)}
             for kind, ys in (("data", trades.popularity), ("Zipf", law))
             for x, y in zip(places, ys, strict=True)]  # fmt: skip
    four = [*_bars("all", trades.price["all"]), *ranks, *_tail("all", trades.amount["all"])]
    five = [
        mark
        for name in trades.price
        if name != "all"
        for mark in (*_bars(name, trades.price[name]), *_tail(name, trades.amount[name]))
    ]
    return {4: four, 5: five}


def _bars(stock: str, price: Doubles) -> list[dict[str, Any]]:
    """Return a histogram of prices, and the normal law over it, within 4 deviations of the mean."""
    law = fit_normal(price)
    sd = max(law.sd, 1e-6)  # for prices that never change
    ends = law.mean + sd * np.linspace(-4, 4, _BARS + 1)
    height = 100 * np.histogram(price, ends)[0] / len(price)
    mark = {"panel": "price", "stock": stock}
    bars = [
        mark | {"kind": "data", "x": float(a), "x2": float(b), "y": float(y)}
        for a, b, y in zip(ends[:-1], ends[1:], height, strict=True)
    ]
    middle = (ends[:-1] + ends[1:]) / 2
    line = 100 * np.diff(ends)[0] * stats.norm(law.mean, sd).pdf(middle)
    return bars + [mark | {"kind": "normal", "x": float(x), "y": float(y)}
                   for x, y in zip(middle, line, strict=True)]  # fmt: skip


def _tail(stock: str, amount: Doubles) -> list[dict[str, Any]]:
    """Return the share of trades of at least each amount, and the fitted laws."""
    ordered, law = np.sort(amount), fit_pareto(amount)
    logs = fit_normal(np.log(amount))
    # Above 0, because the axis is logarithmic.
    at = np.geomspace(ordered[0], ordered[-1] * (1 - 1e-9), _POINTS)
    share = 1 - np.searchsorted(ordered, at) / len(ordered)
    lines = {
        "data": (at, share),
        "Pareto": (at[at >= law.begin], law.share * (law.begin / at[at >= law.begin]) ** law.alpha),
        "lognormal": (at, stats.norm(logs.mean, logs.sd).sf(np.log(at))),
    }
    return [
        {"panel": "amount", "stock": stock, "kind": kind, "x": float(x), "y": 100 * float(y)}
        for kind, (xs, ys) in lines.items()
        for x, y in zip(xs, ys, strict=True)
        if y >= 0.5 / len(ordered)
    ]


def _claims(rows: list[ResultRow], *, real: bool) -> list[str]:
    """Return notes that compare the paper's claims with the results."""
    value = {(row.series, row.metric): row.measured for row in rows}
    names = [row.series.partition("/")[2] for row in rows if row.metric == "mean_pct"][1:]

    def close(series: str) -> str:
        gap = value[series, "ks_pct"]
        return f"{'close' if gap <= CLOSE else 'not close'}, {gap:.1f} % apart at most"

    def nearer(series: str, law: str, other: str) -> str:
        word = "nearer" if value[series, other] < value[series, law] else "no nearer"
        return f"{word} ({value[series, other]:.1f} %)"

    price, amount = "price/all", "amount/all"
    alphas = ", ".join(f"{value[f'amount/{name}', 'alpha']:.2f} ({name})" for name in names)
    found = [
        (
            "The paper: prices over the opening price are approximately normal (figure 4a). Here: mean "
            f"{value[price, 'mean_pct']:.2f} % and deviation {value[price, 'sd_pct']:.2f} %, {close(price)}; "
            f"{value[price, 'beyond_3_sd_pct']:.2f} % lie beyond three deviations, where a normal law has "
            f"0.27 %. A Laplace law is {nearer(price, 'ks_pct', 'laplace_ks_pct')}."
        ),
        (
            "The paper: popularity by rank is Zipf-like (figure 4b). Here: exponent "
            f"{value['popularity', 'exponent']:.2f}, {close('popularity')}."
        ),
        (
            "The paper: amounts are Zipf-like (figure 4c), or Pareto with spikes (figure 5). Here: Pareto "
            f"with exponent {value[amount, 'alpha']:.2f} for the largest {value[amount, 'tail_pct']:.0f} %, "
            f"{close(amount)}; as a law of all of them it is {value[amount, 'whole_ks_pct']:.1f} % apart. "
            f"A lognormal law of all of them is {nearer(amount, 'whole_ks_pct', 'lognormal_ks_pct')}."
        ),
        "The most traded stocks (figure 5): prices "
        + "; ".join(f"{name} {close(f'price/{name}')}" for name in names)
        + f". Amounts have exponents {alphas}.",
    ]
    none = "The paper prints no parameter of figures 4 and 5"
    return [*found, f"{none}." if real else f"{none}; the column has those that its simulation draws from."]


DATA = Experiment(
    "prices, popularity and amounts, from real quotes if available (figures 4 and 5)",
    _data,
    {"quotes": ""},
)
