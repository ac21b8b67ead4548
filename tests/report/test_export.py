from __future__ import annotations

import csv
import tempfile
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast import Interest
from narrowcast.errors import ParameterError, PlanError, TableError
from narrowcast.files import read_table
from narrowcast.model.artefact import write_plan
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.subjects import subject_of
from narrowcast.report.export import PlanFolder, csv_files, multicast_files, nats_files, write_files
from narrowcast.report.export.multicast import group_addresses, mac_address
from narrowcast.report.export.nats import fault_of, word_of
from narrowcast.report.export.plan_tables import named_file

if TYPE_CHECKING:
    from narrowcast.report.export import Files

#: Two groups, 0 and 1, with sessions 2 and 3 in the first and 4 in the second.
TWO_LEVELS = [-1, -1, 0, 0, 1]


def source_of(plan: ChannelPlan, folder: Path, **said: Any) -> PlanFolder:
    """Write a plan and return it as exports take it."""
    write_plan(plan, folder, method="hash", **said)
    return PlanFolder(folder)


def two_levels(flows: list[str] | None = None) -> ChannelPlan:
    """Three flows, one in each session; the second subscriber gets the third flow directly."""
    return ChannelPlan(
        carries=[[0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]],
        listens=[[0, 0, 1, 0, 1], [0, 0, 1, 1, 0]],
        parent=TWO_LEVELS,
        subscribers=["ann", "bob"],
        flows=flows or ["x.a", "x.b", "y"],
    )


def rows(files: Files, name: str) -> list[dict[str, Any]]:
    """Return the rows of one of the files."""
    table = named_file(files, name)
    assert isinstance(table, pa.Table)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


@st.composite
def served(draw: st.DrawFn) -> tuple[Interest, ChannelPlan]:
    """Draw an interest, and a plan of one or two levels that serves it, some of it directly."""
    n_subscribers, n_flows = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    n_groups, n_sessions = draw(st.integers(1, 4)), draw(st.sampled_from([0, 1, 4, 6]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    wants = rng.random((n_subscribers, n_flows)) < 0.5
    parent = np.concatenate([np.full(n_groups, -1), rng.integers(0, n_groups, n_sessions)])
    sessions = np.setdiff1d(np.arange(len(parent)), parent)
    carries = np.zeros((n_flows, len(parent)), bool)
    listens = np.zeros((n_subscribers, len(parent)), bool)
    unicast = np.zeros(wants.shape, bool)
    for flow in range(n_flows):
        carries[flow, rng.choice(sessions, rng.integers(0, min(3, len(sessions) + 1)), replace=False)] = True
        for subscriber in np.flatnonzero(wants[:, flow]):
            carriers = np.flatnonzero(carries[flow])
            if len(carriers) and rng.random() < 0.7:
                listens[subscriber, rng.choice(carriers)] = True
            else:
                unicast[subscriber, flow] = True
    return Interest(wants), ChannelPlan(carries, listens, parent, unicast)


def reached(files: Files, to: str) -> set[tuple[int, int]]:
    """Return the pairs of subscriber and flow that the tables lead to each other, and the direct ones."""
    place = ("address", "port", "session") if to == "multicast" else ("subject",)
    at: dict[tuple[Any, ...], set[int]] = {}
    for row in rows(files, "subscribers"):
        at.setdefault(tuple(row[name] for name in place), set()).add(row["subscriber"])
    found = {
        (person, row["flow"])
        for row in rows(files, "flows")
        for person in at.get(tuple(row[name] for name in place), ())
    }
    for row in rows(files, "unicast"):
        if to == "nats":
            assert at[(row["subject"],)] == {row["subscriber"]}
        found.add((row["subscriber"], row["flow"]))
    return found


@given(served(), st.booleans())
def test_every_wanted_pair_can_be_followed(case: tuple[Interest, ChannelPlan], own_ports: bool) -> None:
    interest, plan = case
    plan.validate(interest)
    with tempfile.TemporaryDirectory() as folder:
        source = source_of(plan, Path(folder) / "plan")
        by = (plan.carries @ plan.listens.T).T + plan.unicast
        wanted = {(int(s), int(f)) for s, f in zip(*interest.wants.nonzero(), strict=True)}
        led = {(int(s), int(f)) for s, f in zip(*by.nonzero(), strict=True)}
        assert wanted <= led
        files = multicast_files(source, port_per_session=own_ports)
        assert reached(files, "multicast") == led
        assert reached(nats_files(source, mappings=False), "nats") == led
        groups = rows(files, "groups")
        in_use = np.flatnonzero(plan.used() & (plan.parent < 0))
        assert [row["group"] for row in groups] == in_use.tolist()
        assert len({row["mac"] for row in groups}) == len(groups)
        assert all(row["members"] or plan.carries[:, [row["session"]]].nnz for row in rows(files, "sessions"))
        assert sum(row["sessions"] for row in groups) == len(rows(files, "sessions"))
        if own_ports:
            ports = [row["port"] for row in rows(files, "sessions")]
            assert len(set(ports)) == len(ports)
            assert set(ports) <= set(range(5000, 5000 + plan.n_channels))


def test_multicast_of_two_levels(tmp_path: Path) -> None:
    files = multicast_files(source_of(two_levels(), tmp_path / "plan"), base="239.1.0.0/16", port=7000)
    assert rows(files, "sessions") == [
        {"address": "239.1.0.0", "port": 7000, "session": 2, "group": 0, "rate": None, "members": 2},
        {"address": "239.1.0.0", "port": 7000, "session": 3, "group": 0, "rate": None, "members": 1},
        {"address": "239.1.0.1", "port": 7000, "session": 4, "group": 1, "rate": None, "members": 1},
    ]
    assert [list(row.values()) for row in rows(files, "groups")] == [
        [0, "239.1.0.0", "01:00:5e:01:00:00", 7000, 2, None, 2],
        [1, "239.1.0.1", "01:00:5e:01:00:01", 7000, 1, None, 1],
    ]
    assert rows(files, "flows")[2] == {"flow": "y", "address": "239.1.0.1", "port": 7000, "session": 4}
    assert [(row["subscriber"], row["session"]) for row in rows(files, "subscribers")] == [
        ("ann", 2),
        ("ann", 4),
        ("bob", 2),
        ("bob", 3),
    ]
    assert rows(files, "unicast") == []


def test_channels_that_nothing_uses(tmp_path: Path) -> None:
    """They get no row; the others have the addresses and ports that they would have with them."""
    carries = [[0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
    before = ChannelPlan(carries, [[0, 0, 1, 0, 1]], parent=[-1, -1, 0, 1, 1])
    after = ChannelPlan(np.array(carries)[[2, 2, 2]], [[0, 0, 0, 0, 1]], parent=[-1, -1, 0, 0, 1])
    two = [source_of(plan, tmp_path / name) for name, plan in (("before", before), ("after", after))]
    old, new = (multicast_files(each, port_per_session=True) for each in two)
    assert [row["session"] for row in rows(old, "sessions")] == [2, 4]
    assert rows(new, "sessions") == rows(old, "sessions")[1:]
    assert [row["group"] for row in rows(new, "groups")] == [1]
    assert rows(new, "groups")[0]["address"] == rows(old, "groups")[1]["address"]
    assert [row["channel"] for row in rows(csv_files(two[1]), "channels")] == [1, 4]
    assert [row["channel"] for row in rows(nats_files(two[1]), "channels")] == [4]
    flat = source_of(ChannelPlan([[0, 0, 1]], [[0, 0, 1]]), tmp_path / "flat")
    assert [
        (r["session"], r["port"]) for r in rows(multicast_files(flat, port_per_session=True), "sessions")
    ] == [(2, 5002)]


def test_ports_of_sessions(tmp_path: Path) -> None:
    source = source_of(two_levels(), tmp_path / "plan")
    files = multicast_files(source, port=65533, port_per_session=True)
    assert [row["port"] for row in rows(files, "sessions")] == [65533, 65534, 65535]
    assert [row["port"] for row in rows(files, "groups")] == [None, None]
    with pytest.raises(ParameterError, match="end at 65536, past 65535; start at 65533 or below"):
        multicast_files(source, port=65534, port_per_session=True)
    for port in (0, -1, 65536):
        with pytest.raises(ParameterError, match=f"port is {port}; use one of 1 to 65535"):
            multicast_files(source, port=port)


@given(
    st.sampled_from(
        ["239.0.0.0/12", "239.120.0.0/13", "239.192.0.0/14", "239.254.0.0/15", "ff18::/16", "ff05::/90"]
    ),
    st.integers(0, 300),
    st.integers(0, 12),
    st.booleans(),
)
def test_addresses_are_of_the_base_and_share_no_mac(wide: str, n: int, narrower: int, last: bool) -> None:
    parts: list[Any] = list(ip_network(wide).subnets(narrower))
    base = parts[-1 if last else 0]
    try:
        found = group_addresses(str(base), n)
    except ParameterError as error:
        said = str(error)
        found = group_addresses(said.rpartition(" ")[2], n)  # the base that it says would do
    else:
        assert all(address in base for address in found)
    assert len({mac_address(address) for address in found}) == len(set(found)) == len(found) == n
    flooded = {mac_address(IPv4Address(f"224.0.0.{i}")) for i in range(256)}
    assert flooded.isdisjoint(map(mac_address, found))
    if n:
        assert group_addresses(wide, n - 1) == group_addresses(wide, n)[:-1]


def test_what_is_left_out_of_a_base() -> None:
    # 239.128.0.0 and 239.0.0.0 have the low 23 bits of 224.0.0.0.
    assert str(group_addresses("239.128.0.0/16", 1)[0]) == "239.128.1.0"
    last = [str(address) for address in group_addresses("239.255.254.0/23", 256)]
    assert last[-1] == "239.255.254.255"  # 239.255.255.x has owners
    with pytest.raises(ParameterError, match="has 256 of the 257 addresses"):
        group_addresses("239.255.254.0/23", 257)
    with pytest.raises(ParameterError, match="has 0 of the 1 addresses"):
        group_addresses("232.1.0.0/16", 1)
    # No more than there are MAC addresses, however wide the base.
    with pytest.raises(ParameterError, match=r"has 8,388,352 of the 8,388,608 .*; plan fewer channels"):
        group_addresses("239.0.0.0/8", 2**23)
    assert str(group_addresses("ff18::ffff:0:0/112", 0)) == "[]"
    with pytest.raises(ParameterError, match=r"has 0 of the 1 .* larger base, such as ff18::/96"):
        group_addresses("ff18::/112", 1)


def test_groups_of_others_are_avoided() -> None:
    """By their MAC addresses, which many addresses share."""
    theirs = ["224.64.0.0", "239.192.0.2", "ff18::8000:1"]
    found = [str(address) for address in group_addresses("239.192.0.0/14", 3, theirs)]
    assert found == ["239.192.0.1", "239.192.0.3", "239.192.0.4"]
    assert str(group_addresses("ff18::/16", 2, theirs)[1]) == "ff18::8000:2"
    with pytest.raises(ParameterError, match=r"has 3 of the 4 addresses .*; use a larger base"):
        group_addresses("239.192.0.0/30", 4, theirs[:1])
    with pytest.raises(ParameterError, match=r"avoid has 'me', which is no address; give one such as"):
        group_addresses("239.192.0.0/30", 1, ["me"])
    with pytest.raises(ParameterError, match=r"avoid has 10.0.0.1, which is no address of a multicast group"):
        group_addresses("239.192.0.0/30", 1, ["10.0.0.1"])


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        ("10.0.0.0/8", "no multicast network; use one within 224.0.0.0/4 or ff00::/8"),
        ("fe80::/64", "no multicast network"),
        ("239.192.0.1/14", "has host bits set"),
        ("somewhere", "is no network"),
        ("", "is no network"),
    ],
)
def test_bases_that_are_none(base: str, reason: str) -> None:
    with pytest.raises(ParameterError, match=reason):
        group_addresses(base, 1)


def test_mac_of_v6() -> None:
    assert mac_address(ip_address("ff18::dead:beef")) == "33:33:de:ad:be:ef"


def test_nats_of_two_levels(tmp_path: Path) -> None:
    files = nats_files(source_of(two_levels(), tmp_path / "plan"))
    assert list(files) == ["mappings.conf", "flows.csv", "subscribers.csv", "channels.csv", "unicast.csv"]
    text = files["mappings.conf"]
    assert isinstance(text, str)
    assert text.splitlines()[1:] == [
        "mappings: {",
        '  "x.a": "narrowcast.channel.2"',
        '  "x.b": "narrowcast.channel.3"',
        '  "y": "narrowcast.channel.4"',
        "}",
    ]
    assert rows(files, "flows")[0] == {
        "flow": "x.a",
        "topic": "x.a",
        "channel": 2,
        "subject": "narrowcast.channel.2",
    }
    assert rows(files, "channels")[0] == {
        "channel": 2,
        "group": 0,
        "subject": "narrowcast.channel.2",
        "rate": None,
        "members": 2,
    }
    assert [(row["subscriber"], row["subject"][-1]) for row in rows(files, "subscribers")] == [
        ("ann", "2"),
        ("ann", "4"),
        ("bob", "2"),
        ("bob", "3"),
    ]


def test_nats_keeps_topics_when_asked(tmp_path: Path) -> None:
    source = source_of(two_levels(["a b", "*", ""]), tmp_path / "plan")
    files = nats_files(source, keep_topic=True, encode=True, prefix="my.net")
    assert sorted(row["subject"] for row in rows(files, "flows")) == [
        "my.net.channel.2.a%20b",
        "my.net.channel.3.%2A",
        "my.net.channel.4.%",
    ]
    assert rows(files, "subscribers")[0]["subject"] == "my.net.channel.2.>"
    assert '  "my.net.flow.a%20b": "my.net.channel.2.a%20b"\n' in str(files["mappings.conf"])


def test_flows_of_several_subjects_cannot_be_mapped(tmp_path: Path) -> None:
    twice = ChannelPlan([[1, 1], [1, 0]], [[1, 0], [0, 1]])
    source = source_of(twice, tmp_path / "twice")
    with pytest.raises(
        PlanError, match=r"1 of 2 flows go to several subjects, such as 0 to 2; .* --no-mappings"
    ):
        nats_files(source)
    files = nats_files(source, mappings=False)
    assert "mappings.conf" not in files
    assert [(row["flow"], row["subject"]) for row in rows(files, "flows")] == [
        (0, "narrowcast.channel.0"),
        (0, "narrowcast.channel.1"),
        (1, "narrowcast.channel.0"),
    ]
    both = ChannelPlan([[1]], [[1], [0]], None, [[0], [1]])
    with pytest.raises(PlanError, match="such as 0 to 2"):
        nats_files(source_of(both, tmp_path / "both"))


def test_a_flow_for_one_subscriber_is_mapped_to_it(tmp_path: Path) -> None:
    alone = ChannelPlan([[]], [[]], None, [[1]], subscribers=["a.n n"], flows=["y"])
    source = source_of(alone, tmp_path / "plan")
    files = nats_files(source)
    assert '"y": "narrowcast.to.a%2En%20n"' in str(files["mappings.conf"])
    assert rows(files, "unicast")[0]["subject"] == "narrowcast.to.a%2En%20n"
    assert rows(files, "subscribers") == [
        {"subscriber": "a.n n", "channel": None, "subject": "narrowcast.to.a%2En%20n"}
    ]
    files = multicast_files(source)
    assert rows(files, "unicast") == [{"subscriber": "a.n n", "flow": "y"}]
    assert rows(files, "groups") == rows(files, "sessions") == rows(files, "flows") == []


@pytest.mark.parametrize(
    "flow", ["a b", "a.", ".a", "a..b", "*", "a.>", "New*", "", "\t", "a\nb", 'q"', "a\\b", "$JS.x", "{{x}}"]
)
def test_flows_that_are_no_topics(flow: str, tmp_path: Path) -> None:
    source = source_of(two_levels(["x", "y", flow]), tmp_path / "plan")
    with pytest.raises(
        ParameterError, match=r"no topic of NATS; use --encode, which makes it narrowcast\.flow\."
    ):
        nats_files(source)
    word = word_of(flow)
    assert f'"narrowcast.flow.{word}"' in str(nats_files(source, encode=True)["mappings.conf"])
    assert fault_of(f"narrowcast.flow.{word}") is None
    assert len(rows(nats_files(source, mappings=False), "flows")) == 3


@given(st.text(st.characters(codec="utf-8")))
def test_words_are_those_of_streams(name: str) -> None:
    assert f"to.{word_of(name)}" == subject_of("to", name)


def test_subjects_that_cannot_be(tmp_path: Path) -> None:
    source = source_of(two_levels(["narrowcast.x", "y", "z"]), tmp_path / "plan")
    with pytest.raises(ParameterError, match="begins as the channels' subjects do; use another --prefix"):
        nats_files(source)
    assert nats_files(source, prefix="other")
    for prefix in ("", "a b", "a..b", "a.*", "$G", "a."):
        with pytest.raises(ParameterError, match="; use words joined by single dots"):
            nats_files(source, prefix=prefix)
    long = source_of(two_levels(["é" * 1024, "é" * 1025, "z"]), tmp_path / "long")
    with pytest.raises(ParameterError, match="has 2,050 bytes, more than 2,048"):
        nats_files(long)


def test_cells_have_their_ends(tmp_path: Path) -> None:
    plan = ChannelPlan([[1, 0], [0, 1]], [[1, 1]], None, [[1, 0]], ["ann"], [7, 9])
    inf = float("inf")
    cells = pa.table({"flow": [9, 7], "lo": [[1.0, -inf], [0.0, 5.0]], "hi": [[2.0, 5.0], [1.0, inf]]})
    source = source_of(
        plan,
        tmp_path / "plan",
        flow_space="cells",
        cells=cells,
        params={"grid": {"price": [1, 2], "amount": [5]}},
    )
    ends = {"flow": 7, "price_lo": 0.0, "price_hi": 1.0, "amount_lo": 5.0, "amount_hi": inf}
    files = multicast_files(source)
    assert rows(files, "flows")[0] == {**ends, "address": "239.192.0.0", "port": 5000, "session": 0}
    assert rows(files, "unicast") == [{"subscriber": "ann", **ends}]
    files = nats_files(source)
    assert "mappings.conf" not in files
    assert rows(files, "flows")[0] == {**ends, "channel": 0, "subject": "narrowcast.channel.0"}
    assert rows(csv_files(source), "cells")[1] == ends
    for encode in (True, False):
        with pytest.raises(ParameterError, match="are cells, which have no topics"):
            nats_files(source, encode=encode, keep_topic=not encode)
    (tmp_path / "plan" / "cells.parquet").unlink()
    with pytest.raises(PlanError, match=r"cells\.parquet is missing, so nothing says what the cells are"):
        PlanFolder(tmp_path / "plan")


def test_cells_without_names_are_numbered(tmp_path: Path) -> None:
    cells = pa.table({"flow": [0], "lo": [[1.0]], "hi": [[2.0]]})
    source = source_of(ChannelPlan([[1], [1]], [[1]]), tmp_path / "plan", flow_space="cells", cells=cells)
    assert rows(csv_files(source), "cells") == [{"flow": 0, "0_lo": 1.0, "0_hi": 2.0}]
    # A cell that the table lacks is still there, without ends.
    assert rows(nats_files(source), "flows")[1] == {
        "flow": 1,
        "0_lo": None,
        "0_hi": None,
        "channel": 0,
        "subject": "narrowcast.channel.0",
    }


def test_plans_of_events_and_ranges(tmp_path: Path) -> None:
    source = source_of(ChannelPlan([[1]], [[1]]), tmp_path / "events", flow_space="events")
    assert "mappings.conf" not in nats_files(source)
    assert rows(multicast_files(source), "flows")[0]["flow"] == 0
    with pytest.raises(PlanError, match="is of ranges; export one of topics, cells or events"):
        source_of(ChannelPlan([[1]], [[1]]), tmp_path / "ranges", flow_space="ranges")


def test_tables_come_back(tmp_path: Path) -> None:
    interest = Interest([[1, 1, 1], [1, 1, 1]], rate=[1.0, 2.5, 3.0])
    plan = ChannelPlan([[1, 0], [0, 1], [0, 0]], [[1, 1], [1, 1]], None, [[0, 0, 1], [0, 0, 1]])
    source = source_of(plan, tmp_path / "plan", interest=interest)
    sizes = write_files(csv_files(source), tmp_path / "out")
    assert sizes == {"carries.csv": 2, "listens.csv": 4, "channels.csv": 2, "unicast.csv": 2}
    for name in ("carries", "listens", "channels", "unicast"):
        kept = read_table(tmp_path / "plan" / f"{name}.parquet").to_pylist()
        assert read_table(tmp_path / "out" / f"{name}.csv").to_pylist() == kept
    back = {name: read_table(tmp_path / "out" / f"{name}.csv") for name in ("carries", "listens", "unicast")}
    assert ChannelPlan.from_tables(**back, n_channels=2) == plan
    with pytest.raises(TableError, match="out exists already"):
        write_files(csv_files(source), tmp_path / "out")


def test_odd_names_come_back(tmp_path: Path) -> None:
    odd = ["", 'a "b", c', "two\nlines"]
    source = source_of(two_levels(odd), tmp_path / "plan")
    write_files(multicast_files(source), tmp_path / "out")
    with (tmp_path / "out" / "flows.csv").open(newline="", encoding="utf-8") as file:
        assert sorted(row["flow"] for row in csv.DictReader(file)) == sorted(odd)
