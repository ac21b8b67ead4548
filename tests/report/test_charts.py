from __future__ import annotations

import re
import sys
import zlib
from collections import Counter
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from narrowcast.costs import COSTS
from narrowcast.errors import MissingError, ParameterError
from narrowcast.model.cost import Cost
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning import PLANNERS
from narrowcast.planning.base import plan_of_flows
from narrowcast.report import charts
from narrowcast.report.charts import (
    BARS,
    CHARTS,
    GROUPS,
    SENT,
    SHOWN,
    Records,
    channel_load,
    compared_methods,
    cost_bars,
    interest_matrix,
    matches_per_event,
    save_chart,
)
from narrowcast.report.html_page import PROSE, html_page
from support.figures import COBAS2009, RIABOV2003, TAMARA2007, TARIQ2012, TOCK2005

INTEREST = Interest([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]])
SIZES = {0: 3, 2: 1, 3: 1}


def scored(interest: Interest, *methods: str) -> Records:
    plans = {name: PLANNERS[name](channels=2).fit(interest).plan_ for name in methods}
    waste = COSTS["waste"]()
    costs = {name: (waste.score(interest, plan), plan.n_groups) for name, plan in plans.items()}
    return cost_bars(costs, events=interest.n_flows)


ROWS = [
    {"method": name, "asked": asked, "costs": costs, "seconds": seconds, "peak_mb": seconds}
    for name, asked, costs, seconds in (
        ("ideal", None, {"network": {"total": 2.0}, "waste": {"total": 0.0}}, None),
        ("mst", 11, {"network": {"total": 5.5}, "waste": {"total": 1234.5}}, 0.25),
        ("mst", 61, {"network": {"total": 4.5}, "waste": {"total": 2000.0}}, 0.5),
        ("pairwise", 11, {}, None),
    )
]
DATA: dict[str, Records] = {
    "moves": [
        {"moves": moves, "cost": cost, "chosen": moves == 40}
        for moves, cost in ((0, 900.0), (7, 800.0), (40, 650.0), (1200, 600.0))
    ],
    **RIABOV2003,
    **TOCK2005,
    **TAMARA2007,
    **TARIQ2012,
    **COBAS2009,
    "riabov2003-figure-6": [
        {"method": method, "modes": 9, "groups": 11, "threshold": t, "improvement": 50 - 20 * t}
        for method in ("partial", "mst", "macqueen")
        for t in (0.0, 0.25, 0.5)
    ],
    "compare": compared_methods(ROWS, ["network", "waste"]),
    "cost-bars": scored(INTEREST, "unicast", "broadcast"),
    "interest-matrix": interest_matrix(INTEREST),
    "load-per-channel": channel_load([3.0, 1.0, 2.0], [5, 8, 5]),
    "matches-per-event": matches_per_event(SIZES),
}


def panel(cells: Records, name: str) -> set[tuple[int, int]]:
    return {(cell["subscriber"], cell["flow"]) for cell in cells if cell["panel"] == name}


def pixels(png: bytes) -> bytes:
    """Return the unpacked content of a PNG's IDAT chunks."""
    packed, at = b"", 8
    while at < len(png):
        size = int.from_bytes(png[at : at + 4])
        packed += png[at + 8 : at + 8 + size] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + size
    return zlib.decompress(packed)


# ------------------------------------------------------------------------------------------------ records


def test_sizes_are_put_in_order() -> None:
    found = matches_per_event({7: 2, 0: 5, 3: 0, 1: 4})
    assert found == [{"matches": m, "events": n} for m, n in ((0, 5), (1, 4), (7, 2))]
    assert matches_per_event({}) == []


def test_bars_tell_what_becomes_of_each_message() -> None:
    bars = scored(INTEREST, "unicast", "broadcast", "per-flow")
    found = {(bar["method"], bar["kind"]): bar["messages"] for bar in bars}
    # Five wanted pairs over four flows; broadcast reaches all four subscribers with each.
    assert found == {
        ("unicast\n0 channels", "wanted, by channel"): 0,
        ("unicast\n0 channels", "wanted, sent directly"): 5 / 4,
        ("unicast\n0 channels", "wasted"): 0,
        ("broadcast\n1 channel", "wanted, by channel"): 5 / 4,
        ("broadcast\n1 channel", "wanted, sent directly"): 0,
        ("broadcast\n1 channel", "wasted"): 11 / 4,
        ("per-flow\n2 channels", "wanted, by channel"): 3 / 4,
        ("per-flow\n2 channels", "wanted, sent directly"): 2 / 4,
        ("per-flow\n2 channels", "wasted"): 0,
    }


def test_bars_keep_their_order_and_show_the_ideal() -> None:
    ideal = COSTS["waste"]().ideal(INTEREST)
    nothing = Cost(0.0, dict.fromkeys(("deliveries", "wanted", "wasted", "unicast"), 0.0))
    bars = cost_bars({"zeta": (nothing, 1200), "ideal": (ideal, None), "alpha": (nothing, 1)}, events=0.5)
    assert [(bar["method"], bar["order"], bar["messages"]) for bar in bars[::3]] == [
        ("zeta\n1,200 channels", 0, 0.0),
        ("ideal\nthe least there can be", 1, 10.0),
        ("alpha\n1 channel", 2, 0.0),
    ]
    assert [bar["messages"] for bar in bars[4:6]] == [0.0, 0.0]
    assert cost_bars({"none": (nothing, 0)}, events=0)[0]["messages"] == 0.0


def test_each_channel_is_a_bar_the_busiest_first() -> None:
    bars = channel_load([1.0, 3.0, 1.0, 0.0], [2, 4, 9, 0])
    assert [(bar["first"], bar["channels"], bar["rate"], bar["listeners"]) for bar in bars] == [
        (0, 1, 3.0, 4.0),
        (1, 1, 1.0, 9.0),
        (2, 1, 1.0, 2.0),
        (3, 1, 0.0, 0.0),
    ]
    assert all(bar["rate_most"] == bar["rate"] for bar in bars)
    assert all(bar["listeners_most"] == bar["listeners"] for bar in bars)
    assert channel_load([], []) == []


@pytest.mark.parametrize("n_channels", [BARS, BARS + 1, 5003])
def test_many_channels_share_bars(n_channels: int) -> None:
    rng = np.random.default_rng(n_channels)
    rates, members = rng.random(n_channels), rng.integers(0, 1000, n_channels)
    bars = channel_load(rates, members)
    assert len(bars) == BARS
    widths = [bar["channels"] for bar in bars]
    assert [bar["first"] for bar in bars] == np.cumsum([0, *widths[:-1]]).tolist()
    assert sum(widths) == n_channels
    assert max(widths) - min(widths) <= 1
    for name, given_values in (("rate", rates), ("listeners", members)):
        assert max(bar[f"{name}_most"] for bar in bars) == given_values.max()
        total = sum(bar[name] * bar["channels"] for bar in bars)
        assert total == pytest.approx(given_values.sum())
    if n_channels > BARS:
        assert [bar["listeners"] for bar in bars] == sorted((bar["listeners"] for bar in bars), reverse=True)


def test_loads_must_be_of_the_same_channels() -> None:
    with pytest.raises(ParameterError, match=r"rates has shape \(2,\) and members \(3,\); give one of each"):
        channel_load([1.0, 2.0], [1, 2, 3])
    with pytest.raises(ParameterError, match="per channel"):
        channel_load([[1.0]], [[1]])


@settings(max_examples=60)
@given(arrays(np.bool_, st.tuples(st.integers(0, 12), st.integers(0, 12))))
def test_both_panels_show_the_same_wants(wants: NDArray[np.bool_]) -> None:
    cells = interest_matrix(Interest(wants))
    shown = wants[wants.any(axis=1)][:, wants.any(axis=0)]
    assert panel(cells, "before") == set(zip(*(axis.tolist() for axis in np.nonzero(shown)), strict=True))
    after = np.zeros_like(shown)
    for subscriber, flow in panel(cells, "after"):
        after[subscriber, flow] = True
    for axis in (0, 1):
        assert sorted(after.sum(axis=axis)) == sorted(shown.sum(axis=axis))
    assert sorted(Counter(map(tuple, after @ after.T)).values()) == sorted(
        Counter(map(tuple, shown @ shown.T)).values()
    )


def test_blocks_are_found_again() -> None:
    rng = np.random.default_rng(5)
    blocks = np.kron(np.eye(GROUPS, dtype=bool), np.ones((4, 7), bool))
    mixed = blocks[rng.permutation(4 * GROUPS)][:, rng.permutation(7 * GROUPS)]
    cells = interest_matrix(Interest(mixed))
    after = [cell for cell in cells if cell["panel"] == "after"]
    assert panel(cells, "after") == set(zip(*(axis.tolist() for axis in np.nonzero(blocks)), strict=True))
    # The groups are coloured from the first to the last, and nobody wants anything besides.
    assert [cell["group"] for cell in after] == [1 + cell["flow"] // 7 for cell in after]
    assert {cell["group"] for cell in cells if cell["panel"] == "before"} == {0}


def test_what_is_wanted_besides_is_grey() -> None:
    wants = np.kron(np.eye(GROUPS, dtype=bool), np.ones((4, 7), bool))
    wants[0, -1] = True
    after = [cell for cell in interest_matrix(Interest(wants)) if cell["panel"] == "after"]
    assert Counter(cell["group"] for cell in after) == {-1: 1} | dict.fromkeys(range(1, GROUPS + 1), 28)


def by_channel(interest: Interest, plan: ChannelPlan) -> list[tuple[int, int, int]]:
    cells = interest_matrix(interest, plan)
    return [(c["subscriber"], c["flow"], c["group"]) for c in cells if c["panel"] == "by channel"]


@settings(max_examples=60)
@given(
    arrays(np.bool_, st.tuples(st.integers(0, 8), st.integers(0, 9))),
    st.lists(st.integers(-1, 8), min_size=9, max_size=9),
)
def test_a_plan_keeps_the_wants(wants: NDArray[np.bool_], channels: list[int]) -> None:
    interest = Interest(wants)
    channel = np.array(channels)[: interest.n_flows]
    cells = interest_matrix(interest, plan_of_flows(interest, channel, 9))
    names = {cell["panel"] for cell in cells}
    assert names in (set(), {"before", "by channel"}, {"before", "directly"})
    assert ("directly" in names) == (wants.any() and not wants[:, channel >= 0].any())
    after = [cell for cell in cells if cell["panel"] != "before"]
    for axis, side in ((1, "subscriber"), (0, "flow")):
        sizes = Counter(cell[side] for cell in after)
        assert sorted(sizes.values()) == sorted(n for n in wants.sum(axis=axis).tolist() if n)
    # Each coloured cell is one that its subscriber gets from the channel it gets most from.
    most = 0
    for row in wants:
        most += np.bincount(channel[row & (channel >= 0)], minlength=1).max()
    assert sum(cell["group"] > 0 for cell in after) == most


def test_flows_and_subscribers_stand_with_their_channel() -> None:
    # Channel 2 carries flows 0 and 3 (five wants), channel 0 flow 1 (two); flow 2 is sent directly.
    interest = Interest([[0, 1, 1, 0], [1, 0, 0, 1], [1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 0]])
    plan = plan_of_flows(interest, np.array([2, 0, -1, 2]), 3)
    found = by_channel(interest, plan)
    # Subscribers: 1 and 3 get all from channel 2, 2 most; 0 half from channel 0; 4 nothing from any.
    coloured = {(row, column): group for row, column, group in found}
    assert Counter(coloured.values()) == {1: 5, 2: 1, -1: 3}
    assert {cell for cell, group in coloured.items() if group == 2} == {(3, 2)}
    assert {cell for cell, group in coloured.items() if group == -1} == {(2, 2), (3, 3), (4, 3)}
    assert {row for (row, _), group in coloured.items() if group == 1} == {0, 1, 2}


def test_plan_and_interest_meet_by_label() -> None:
    interest = Interest([[1, 1, 0], [0, 1, 1]], subscribers=["a", "b"], flows=["x", "y", "z"])
    carries, listens = [[0, 1], [1, 0], [1, 0]], [[1, 1], [1, 0]]
    plan = ChannelPlan(carries, listens, subscribers=["b", "a"], flows=["z", "y", "x"])
    found = by_channel(interest, plan)
    # Both get most from channel 0, of equals the one that serves more; b has z from channel 1.
    assert Counter(group for _, _, group in found) == {1: 3, -1: 1}
    assert (1, 2, -1) in found
    unknown = ChannelPlan([[1]], [[1]], subscribers=["else"], flows=["other"])
    assert {cell["panel"] for cell in interest_matrix(interest, unknown)} == {"before", "directly"}


def test_sessions_stand_for_their_group() -> None:
    interest = Interest([[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    # Channels 0 and 1 are sent in group 2; flow 0 is in both sessions and counts once.
    plan = ChannelPlan(
        carries=[[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]],
        listens=[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]],
        parent=[2, 2, -1, -1],
    )
    assert sorted(by_channel(interest, plan)) == [(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1), (2, 2, 2)]


def test_colours_are_taken_in_turn() -> None:
    n_channels = GROUPS + 3
    # Ever fewer flows in a channel, and one subscriber for each.
    channel = np.repeat(np.arange(n_channels), np.arange(n_channels, 0, -1))
    interest = Interest(np.arange(n_channels)[:, None] == channel[None, :])
    found = by_channel(interest, plan_of_flows(interest, channel, n_channels))
    assert [(row, column) for row, column, _ in found] == [(c, i) for i, c in enumerate(channel.tolist())]
    assert [group for _, _, group in found] == (channel % GROUPS + 1).tolist()


def test_a_flow_of_two_channels_stands_with_the_one_that_serves_more() -> None:
    interest = Interest([[1], [1], [1]])
    plan = ChannelPlan(carries=[[1, 1]], listens=[[1, 0], [0, 1], [1, 1]])
    # Each channel has two listeners: the first one wins, and who is only in the second is served there.
    assert sorted(group for _, _, group in by_channel(interest, plan)) == [1, 1, 2]


def test_large_matrices_are_sampled() -> None:
    wants = np.random.default_rng(0).random((500, 700)) < 0.1
    cells = interest_matrix(Interest(wants))
    for name in ("before", "after"):
        shown = np.array(sorted(panel(cells, name)))
        assert (shown.max(axis=0) + 1).tolist() == list(SHOWN)
    assert cells == interest_matrix(Interest(wants))
    assert cells != interest_matrix(Interest(wants), seed=1)
    plan = PLANNERS["hash"](channels=9).fit(Interest(wants)).plan_
    ordered = interest_matrix(Interest(wants), plan)
    assert [cell for cell in ordered if cell["panel"] == "before"] == [
        cell for cell in cells if cell["panel"] == "before"
    ]
    assert {cell["group"] for cell in ordered} == {-1, 0, *range(1, GROUPS + 1)}


# ------------------------------------------------------------------------------------------------- drawing


def test_every_spec_is_a_chart() -> None:
    files = {
        Path(file.name).stem for file in resources.files("narrowcast.report").joinpath("specs").iterdir()
    }
    shared = {"cobas2009-systems", "tamara2007-changes", "tamara2007-over-time"}  # that charts are like
    assert files == {*CHARTS, *shared, "empty", "theme"}
    assert set(DATA) == set(CHARTS)


@pytest.mark.parametrize("name", CHARTS)
def test_charts_are_drawn(name: str, tmp_path: Path) -> None:
    png, svg = save_chart(name, DATA[name], tmp_path, subtitle="Five < six & more")
    assert (png, svg) == (tmp_path / f"{name}.png", tmp_path / f"{name}.svg")
    drawn = ET.parse(svg).getroot()
    texts = [element.text for element in drawn.iter() if element.tag.endswith("text")]
    assert "Five < six & more" in texts
    size = [int(drawn.attrib[side]) * charts.SCALE for side in ("width", "height")]
    data = png.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert [int.from_bytes(data[at : at + 4]) for at in (16, 20)] == size
    # A byte before each line, and four for each pixel.
    assert len(pixels(data)) == size[1] * (1 + 4 * size[0])
    again = save_chart(name, DATA[name], tmp_path, subtitle="Five < six & more")
    assert again[0].read_bytes() == data


def texts_of(name: str, data: Records, folder: Path) -> list[str | None]:
    _, svg = save_chart(name, data, folder)
    return [element.text for element in ET.parse(svg).iter() if element.tag.endswith(("text", "tspan"))]


def test_marks_are_those_of_the_records(tmp_path: Path) -> None:
    _, svg = save_chart("interest-matrix", DATA["interest-matrix"], tmp_path)
    assert svg.read_text().count('fill="#3e4c59"') == INTEREST.n_wants
    texts = texts_of("cost-bars", DATA["cost-bars"], tmp_path)
    assert "1.25, none wasted" in texts
    assert "4, 69 % wasted" in texts
    assert "mean 1.0" in texts_of("matches-per-event", DATA["matches-per-event"], tmp_path)


def test_long_names_are_not_cut(tmp_path: Path) -> None:
    name = "hierarchical-top-down, on a sample, as planned"
    ideal = COSTS["waste"]().ideal(INTEREST)
    texts = texts_of("cost-bars", cost_bars({name: (ideal, 3), "ideal": (ideal, None)}), tmp_path)
    assert {name, "3 channels", "ideal", "the least there can be", "5, none wasted"} <= set(texts)


def test_the_load_says_how_uneven_it_is(tmp_path: Path) -> None:
    texts = texts_of("load-per-channel", DATA["load-per-channel"], tmp_path)
    assert {"messages a second", "mean 2, the largest 1.5 times that"} <= set(texts)
    assert {"listeners", "mean 6, the largest 1.33 times that"} <= set(texts)
    assert "channels, the one that sends most first" in texts
    many = texts_of("load-per-channel", channel_load(np.ones(1000), np.arange(1000)), tmp_path)
    assert {"mean 1, all the same", "mean 500, the largest 2 times that"} <= set(many)
    assert any(text and "a bar is several" in text for text in many)
    assert "mean 0, all the same" in texts_of("load-per-channel", channel_load([0.0], [0]), tmp_path)


@pytest.mark.parametrize(
    ("method", "title", "head"),
    [
        (None, "Interest looks like noise until what is alike stands side by side", "ordered: a colour is"),
        ("broadcast", "Who wants what, as it comes and by channel", "by channel: a colour is a channel"),
        ("unicast", "Who wants what, as it comes and by channel", "no channels: all of it is sent directly"),
    ],
)
def test_words_fit_the_order(method: str | None, title: str, head: str, tmp_path: Path) -> None:
    plan = PLANNERS[method]().fit(INTEREST).plan_ if method else None
    texts = texts_of("interest-matrix", interest_matrix(INTEREST, plan), tmp_path)
    assert title in texts
    assert any(text and text.startswith(head) for text in texts)
    assert texts.count("events" if plan is None else "flows") == 2


@pytest.mark.parametrize("name", CHARTS)
def test_nothing_is_drawn_too(name: str, tmp_path: Path) -> None:
    png, svg = save_chart(name, [], tmp_path, subtitle="Of nothing")
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    texts = [element.text for element in ET.parse(svg).iter() if element.tag.endswith("text")]
    assert {"nothing to show", "Of nothing"} <= set(texts)
    title = {"interest-matrix": "Who wants what", "load-per-channel": "There are no channels"}
    assert title.get(name) in {*texts, None}


@pytest.mark.parametrize("sizes", [{0: 4}, {5: 10}, {0: 1, 99_000: 20, 100_000: 30}])
def test_few_sizes_are_drawn(sizes: dict[int, int], tmp_path: Path) -> None:
    texts = texts_of("matches-per-event", matches_per_event(sizes), tmp_path)
    mean = sum(m * n for m, n in sizes.items()) / sum(sizes.values())
    assert f"mean {mean:,.1f}" in texts
    # The axis counts in whole matches.
    assert not any(text and re.fullmatch(r"\d+\.\d+", text) for text in texts)


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ParameterError, match=r"unknown chart 'pie'; known: cobas2009-figure-5, .*compare, cost-bars, "
    ):
        save_chart("pie", [], tmp_path)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingError, match="pip install vl-convert-python"):
        save_chart("cost-bars", [], tmp_path)


def test_compared_methods(tmp_path: Path) -> None:
    bars = DATA["compare"]
    assert [bar["method"] for bar in bars if (bar["cost"], bar["measure"]) == ("network", "cost")] == [
        "ideal",
        "mst, 61",
        "mst, 11",
    ]
    assert [(bar["measure"], bar["value"], bar["text"]) for bar in bars[6:9]] == [
        ("cost", 5.5, "5.5"),
        ("seconds", 0.25, "0.25"),
        ("memory", 0.25, "0.25"),
    ]
    # What it takes to make a plan is told once, beside the first cost.
    last = [(bar["measure"], bar["value"], bar["text"]) for bar in bars if bar["cost"] == "waste"]
    assert last == [("cost", 0.0, "0"), ("cost", 1234.5, "1,234"), ("cost", 2000.0, "2,000")]
    assert {bar["kind"] for bar in bars if bar["method"] == "ideal"} == {"without planning"}
    assert not any(bar["text"] for bar in bars if bar["method"] == "ideal" and bar["measure"] != "cost")
    one = compared_methods([row for row in ROWS if row["asked"] != 61], ["waste"])
    assert {bar["method"] for bar in one} == {"ideal", "mst"}, "one number of channels need not be told"
    texts = texts_of("compare", bars, tmp_path)
    shown = {"network (cost of links)", "waste (messages in vain)", "1,234", "seconds to plan", "mst, 61"}
    assert shown <= set(texts)
    assert "0k" not in texts
    assert sum(text == "seconds to plan" for text in texts) == 1
    # What was sent comes first, and has an order of its own.
    sent = [{**row, "replayed": {"cost": paid}} for row, paid in zip(ROWS, (7.0, 31.0, 81.0), strict=False)]
    again = compared_methods([*sent, ROWS[3]], ["network", "waste"])
    assert list(dict.fromkeys(bar["cost"] for bar in again)) == [SENT, "network", "waste"]
    first = [(bar["place"], bar["method"], bar["value"]) for bar in again[:9:3]]
    assert first == [(0, "ideal", 7.0), (0, "mst, 11", 31.0), (0, "mst, 61", 81.0)]
    costs = [bar for bar in bars if bar["measure"] == "cost"]
    assert again[9:] == [bar | {"place": bar["place"] + 1} for bar in costs]
    assert f"{SENT} (messages)" in texts_of("compare", again, tmp_path)


def test_legends_show_dashed_lines_as_dashed(tmp_path: Path) -> None:
    for name in ("riabov2003-figure-6", "riabov2003-drift"):
        _, drawn = save_chart(name, DATA[name], tmp_path)
        symbols = re.findall(r'<path transform="[^"]*" d="M-[^"]*"[^>]*>', drawn.read_text())
        assert sum('stroke-dasharray="5,4"' in each for each in symbols) == 1, name


# --------------------------------------------------------------------------------------------------- page


def test_page_holds_everything_itself(tmp_path: Path) -> None:
    drawn = [save_chart(name, DATA[name], tmp_path)[1] for name in CHARTS]
    said = {"It says": [PROSE, ("more < less",)]}
    assert "<h2>It says</h2>\n<p>more &lt; less</p>\n</body>" in html_page("A run", said, [])
    page = html_page("Who <wants> what", {"Sizes": [("", "rows"), ("a & b", "<5>")]}, drawn)
    assert "<h1>Who &lt;wants&gt; what</h1>" in page
    assert "<tr><th></th><th>rows</th></tr>" in page
    assert "<tr><th>a &amp; b</th><td>&lt;5&gt;</td></tr>" in page
    assert page.count("<svg") == page.count("</svg>") == len(CHARTS)
    assert not re.search(r"<(?:script|img|link|iframe)\b|(?:src|href)=", page)
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(names)
