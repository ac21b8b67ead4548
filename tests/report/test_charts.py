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
from narrowcast.model.interest import Interest
from narrowcast.model.matches import Matches
from narrowcast.planning import PLANNERS
from narrowcast.report import charts
from narrowcast.report.charts import (
    CHARTS,
    GROUPS,
    SHOWN,
    Records,
    cost_bars,
    interest_matrix,
    matches_per_event,
    save_chart,
)
from narrowcast.report.page import html_page

INTEREST = Interest([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]])
MATCHES = Matches.from_pairs([0, 0, 2, 2, 2], [1, 4, 0, 1, 2], n_events=5)


def scored(interest: Interest, *methods: str) -> Records:
    plans = {name: PLANNERS[name](channels=2).fit(interest).plan_ for name in methods}
    waste = COSTS["waste"]()
    costs = {name: (waste.score(interest, plan), plan.n_groups) for name, plan in plans.items()}
    return cost_bars(costs, events=interest.n_flows)


DATA = {
    "cost-bars": scored(INTEREST, "unicast", "broadcast"),
    "interest-matrix": interest_matrix(INTEREST),
    "matches-per-event": matches_per_event(MATCHES),
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


@given(st.lists(st.integers(0, 9), max_size=30))
def test_matches_are_counted(counts: list[int]) -> None:
    event = np.repeat(np.arange(len(counts)), counts)
    index = np.concatenate([np.arange(n) for n in [0, *counts]])
    found = matches_per_event(Matches.from_pairs(event, index, n_events=len(counts)))
    assert {row["matches"]: row["events"] for row in found} == Counter(counts)


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


@settings(deadline=None, max_examples=60)
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


def test_large_matrices_are_sampled() -> None:
    wants = np.random.default_rng(0).random((500, 700)) < 0.1
    cells = interest_matrix(Interest(wants))
    for name in ("before", "after"):
        shown = np.array(sorted(panel(cells, name)))
        assert (shown.max(axis=0) + 1).tolist() == list(SHOWN)
    assert cells == interest_matrix(Interest(wants))
    assert cells != interest_matrix(Interest(wants), seed=1)


# ------------------------------------------------------------------------------------------------- drawing


def test_every_spec_is_a_chart() -> None:
    files = {
        Path(file.name).stem for file in resources.files("narrowcast.report").joinpath("specs").iterdir()
    }
    assert files == {*CHARTS, "theme"}
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


def test_marks_are_those_of_the_records(tmp_path: Path) -> None:
    _, svg = save_chart("interest-matrix", DATA["interest-matrix"], tmp_path)
    assert svg.read_text().count('fill="#3e4c59"') == INTEREST.n_wants
    _, svg = save_chart("cost-bars", DATA["cost-bars"], tmp_path)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text())
    assert "1.25, none wasted" in texts
    assert "4, 69 % wasted" in texts
    _, svg = save_chart("matches-per-event", DATA["matches-per-event"], tmp_path)
    assert "mean 1.0" in svg.read_text()


@pytest.mark.parametrize("name", CHARTS)
def test_nothing_is_drawn_too(name: str, tmp_path: Path) -> None:
    png, svg = save_chart(name, [], tmp_path)
    assert png.stat().st_size > 100
    ET.parse(svg)


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ParameterError, match=r"unknown chart 'pie'; known: cost-bars, interest-matrix, matches"
    ):
        save_chart("pie", [], tmp_path)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingError, match="pip install vl-convert-python"):
        save_chart("cost-bars", [], tmp_path)


# --------------------------------------------------------------------------------------------------- page


def test_page_holds_everything_itself(tmp_path: Path) -> None:
    drawn = [save_chart(name, DATA[name], tmp_path)[1] for name in CHARTS]
    page = html_page("Who <wants> what", {"Sizes": [("", "rows"), ("a & b", "<5>")]}, drawn)
    assert "<h1>Who &lt;wants&gt; what</h1>" in page
    assert "<tr><th></th><th>rows</th></tr>" in page
    assert "<tr><th>a &amp; b</th><td>&lt;5&gt;</td></tr>" in page
    assert page.count("<svg") == page.count("</svg>") == 3
    assert not re.search(r"<(?:script|img|link|iframe)\b|(?:src|href)=", page)
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(names)
