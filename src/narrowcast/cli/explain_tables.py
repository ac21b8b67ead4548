"""What `narrowcast explain` found, as tables of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from narrowcast.cli.options import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    Tables = dict[str, list[tuple[str, ...]]]

#: Letters of an event that a title has room for.
_ROOM = 200
#: What is said where nothing tells how often flows have events.
_ALIKE = ("rates", "unknown: each flow counts 1")


def event(facts: Mapping[str, Any], most: int) -> Tables:
    """Return an event: where it falls, its ways, and who gets it in vain or how one subscriber does."""
    decision = facts["decision"]
    chosen = decision["chosen"]
    text = msgspec.json.encode(facts["event"]).decode()
    rows: list[tuple[str, ...]] = [("", "value")]
    if facts["cell"] is not None:
        rows.append(("cell", _flow(facts)))
    elif facts["flow"] is not None:
        rows.append(("flow", str(facts["flow"])))
    if facts["carried_by"] is not None:
        rows.append(("carried by", _channels(facts["carried_by"])))
    if facts["matched"]:
        rows.append(("for the sake of", _placed(facts["matched"], facts["n_matched"])))
    if facts["rejected"]:
        rows.append(("bad filters, left out", f"{facts['rejected']:,}"))
    rows += [
        ("interested", _some(facts["interested"], facts["first_interested"])),
        ("sent", chosen["way"]),
        ("sent to directly", _some(facts["directly"], facts["first_directly"])),
        (
            "reached at once" if chosen["way"] == "broadcast" else "get it over channels",
            f"{facts['received']:,}",
        ),
        ("... in vain", f"{facts['wasted']:,}"),
    ]
    if decision["share"] is not None:
        who = "members" if facts["unit"] == "messages" else "nodes"
        share = f"{decision['interested']:,} of {decision['members']:,}, {100 * decision['share']:.4g} %"
        rows.append((f"{who} that are interested", share))
    if decision["break_even"] is not None:
        rows.append(("break-even on average", f"{100 * decision['break_even']:.4g} %"))
    ways = decision["ways"]
    told = [way for way in ways if way["way"] in (chosen["way"], "broadcast", "ideal", "unicast")]
    others = [way for way in ways if way not in told]
    told += others[: max(0, most - 2)]
    costs: list[tuple[str, ...]] = [("way", facts["unit"], "directly to", "")]
    costs += [
        (way["way"], number(way["cost"]), f"{way['unicast']:,}", _remark(way, chosen))
        for way in sorted(told, key=lambda way: ways.index(way))
    ]
    if len(told) < len(ways):
        costs.append((f"... and {len(ways) - len(told):,} more", "", "", ""))
    found = {
        f"The event {text[:_ROOM]}{'...' * (len(text) > _ROOM)}": rows,
        f"{_sent(chosen['way'])}: {decision['why']}": costs,
    }
    return found | _people(facts)


def _people(facts: Mapping[str, Any]) -> Tables:
    """Return the subscribers that are told of, with what fails for them."""
    people = facts["subscribers"]
    if not people:
        return {}
    rows: list[tuple[str, ...]] = [("subscriber: what fails", "subscription", "gets it")]
    for each in people:
        way = ", ".join(each["gets_it"]) or "not"
        if "filters" not in each:
            why = "wants the flow" if each["interested"] else "does not want the flow"
            rows.append((f"{each['subscriber']}: {why}", "", way))
            continue
        if not each["filters"]:
            rows.append((f"{each['subscriber']}: has no subscription", "", way))
        rows += [
            (f"{each['subscriber']}: {_fails(one)}", str(one["subscription_id"]), way)
            for one in each["filters"]
        ]
        if (left := each["n_filters"] - len(each["filters"])) > 0:
            rows.append((f"... and {left:,} more of {each['subscriber']}", "", ""))
    if facts["asked_for"] is not None:
        return {f"The event for {facts['asked_for']}": rows}
    in_vain = facts["uninterested"]
    if in_vain > len(people):
        rows.append((f"... and {in_vain - len(people):,} more", "", ""))
    return {f"{in_vain:,} who do not want it get it": rows}


def _fails(one: Mapping[str, Any]) -> str:
    """Return why a filter does not hold, in a line."""
    if one["holds"]:
        return "nothing"
    if one["reason"]:
        return f"the filter, which {one['reason']}"
    return "; ".join(
        f"{each['text']} ({', '.join(f'{name} is {_value(v)}' for name, v in each['values'].items())})"
        for each in one["fails"]
    )


def subscriber(facts: Mapping[str, Any], most: int) -> Tables:
    """Return a subscriber: what it wants and gets, and the channels it listens to."""
    rows: list[tuple[str, ...]] = [("", "value")]
    if not facts["in_plan"]:
        rows.append(("in the plan", "no: all is sent directly"))
    if "wants" in facts:
        rows += [
            ("flows wanted", f"{facts['wants']:,}"),
            ("... over channels", f"{facts['wants_over_channels']:,}"),
            ("... directly", f"{facts['wants_directly']:,}"),
            ("... not served by the plan", _some(facts["wants_missed"], facts["first_missed"])),
            ("messages wanted", number(facts["wanted_rate"])),
            ("messages over channels", number(facts["received"])),
            ("... in vain", number(facts["wasted"])),
        ]
    else:
        rows += [
            ("flows over channels", f"{facts['flows_over_channels']:,}"),
            ("flows directly", _some(facts["flows_directly"], facts["first_directly"])),
            ("what it wants of them", _missing(facts)),
        ]
    if facts.get("alike"):
        rows.append(_ALIKE)
    found: Tables = {f"What {facts['subscriber']} gets": rows}
    if "subscriptions" in facts:
        if facts["n_subscriptions"] is None:
            rows.append(("its subscriptions", "unknown: give --subscriptions"))
        else:
            found |= _own(facts)
    channels = facts["channels"]
    if not channels:
        return found
    names = ("rate", *(("wanted", "wasted") if "wants" in facts else ()))
    heads = {"wasted": "in vain"}
    listed: list[tuple[str, ...]] = [
        ("channel", "flows", "members", *(heads.get(name, name) for name in names))
    ]
    # The most wasteful first.
    order = sorted(channels, key=lambda each: -each.get("wasted", each["rate"] or 0.0))
    listed += [
        (
            str(each["channel"]) + ("" if each["group"] is None else f" in {each['group']}"),
            f"{each['flows']:,}",
            f"{each['members']:,}",
            *(_known(each[name]) for name in names),
        )
        for each in order[:most]
    ]
    if len(order) > most:
        listed.append((f"... and {len(order) - most:,} more", *[""] * (len(listed[0]) - 1)))
    return found | {f"It listens to {_channels([each['channel'] for each in channels])}": listed}


def _own(facts: Mapping[str, Any]) -> Tables:
    """Return which of a subscriber's subscriptions is in which channel."""
    listed: list[tuple[str, ...]] = [("subscription", "channel", "filter")]
    listed += [
        (
            str(each["subscription_id"]),
            "none" if each["channel"] is None else str(each["channel"]),
            each["filter"],
        )
        for each in facts["subscriptions"]
    ]
    count = facts["n_subscriptions"]
    if count > len(facts["subscriptions"]):
        listed.append((f"... and {count - len(facts['subscriptions']):,} more", "", ""))
    return {f"It has {count:,} subscription{'s' * (count != 1)}, each in a channel by itself": listed}


def channel(facts: Mapping[str, Any]) -> Tables:
    """Return a channel: what shares it, who listens, and what it wastes."""
    rows: list[tuple[str, ...]] = [("", "value")]
    if facts["parent"] is not None:
        rows.append(("a session of", f"channel {facts['parent']}"))
    if facts["sessions"]:
        rows.append(("its sessions", _channels(facts["sessions"])))
    rows += [
        ("flows", f"{facts['flows']:,}"),
        ("members", _some(facts["members"], facts["first_members"])),
        *_inside(facts),
        ("messages", _known(facts["rate"])),
    ]
    if "wasted" in facts:
        share = facts["wasted_share"]
        rows += [
            ("messages received", number(facts["delivered"])),
            ("... in vain", number(facts["wasted"]) + ("" if share is None else f" ({100 * share:.4g} %)")),
        ]
        if flow := facts["most_wasted_flow"]:
            rows.append(("most in vain for a flow", f"{number(flow['wasted'])} ({_flow(flow)})"))
        if member := facts["most_wasted_member"]:
            rows.append(("most in vain for a member", f"{number(member['wasted'])} ({member['subscriber']})"))
    else:
        rows.append(("in vain", _missing(facts)))
    if facts.get("alike"):
        rows.append(_ALIKE)
    found: Tables = {f"Channel {facts['channel']}": rows}
    flows = facts["heaviest_flows"]
    if not flows:
        return found
    if "wasted" in facts:
        listed: list[tuple[str, ...]] = [("flow", "rate", "wanted by", "in vain")]
        listed += [
            (_flow(each), number(each["rate"]), f"{each['wanted_by']:,}", number(each["wasted"]))
            for each in flows
        ]
    else:
        listed = [("flow",), *((_flow(each),) for each in flows)]
    if facts["flows"] > len(flows):
        listed.append((f"... and {facts['flows'] - len(flows):,} more", *[""] * (len(listed[0]) - 1)))
    return found | {"The flows that share it": listed}


def _inside(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the subscriptions of a channel, where the plan has each in one."""
    if "subscriptions" not in facts:
        return []
    return [("subscriptions", _some(facts["subscriptions"], facts["first_subscriptions"]))]


def _missing(facts: Mapping[str, Any]) -> str:
    """Return what would tell who wants what."""
    needed = "--interests" if facts["flow_space"] == "topics" else "--subscriptions and --events"
    return f"unknown: give {needed}"


def _sent(way: str) -> str:
    """Return a way as the start of a sentence.

    >>> _sent("none"), _sent("channel 3 + unicast")
    ('It is not sent', 'It goes by channel 3 + unicast')
    """
    return "It is not sent" if way == "none" else f"It goes by {way}"


def _remark(way: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    return "chosen" if way == chosen else "possible" if way["allowed"] else ""


def _channels(numbers: list[int], most: int = 8) -> str:
    """Return numbers of channels in words.

    >>> _channels([]), _channels([3]), _channels(list(range(10)))
    ('no channel', 'channel 3', 'channels 0, 1, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    if not numbers:
        return "no channel"
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return f"channel{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:most]))}{more}"


def _placed(matched: list[Mapping[str, Any]], count: int) -> str:
    """Return how many subscriptions match, and the first of them with their channels.

    >>> _placed([{"subscription_id": 7, "channel": 3}, {"subscription_id": 9, "channel": None}], 4)
    '4 subscriptions: 7 in channel 3, 9 in no channel, ...'
    """
    named = (
        f"{each['subscription_id']} in {_channels([] if each['channel'] is None else [each['channel']])}"
        for each in matched
    )
    more = ", ..." * (count > len(matched))
    return f"{count:,} subscription{'s' * (count > 1)}: {', '.join(named)}{more}"


def _some(count: int, first: list[Any]) -> str:
    """Return how many there are, and the first of them.

    >>> _some(3, ["ann", "bob"]), _some(0, [])
    ('3: ann, bob, ...', '0')
    """
    names = ", ".join(map(str, first))
    return f"{count:,}" + (f": {names}{', ...' * (count > len(first))}" if names else "")


def _flow(flow: Mapping[str, Any]) -> str:
    """Return a flow by its label, and a cell with the sides that it has: what is open below holds null too.

    >>> _flow({"flow": 5, "cell": {"price": [None, 7.5], "size": [1.0, 2.0], "day": [None, None]}})
    '5: null or price <= 7.5, 1 < size <= 2'
    """
    sides = []
    for name, (lo, hi) in (flow.get("cell") or {}).items():
        if lo is not None:
            sides.append(f"{name} > {lo:g}" if hi is None else f"{lo:g} < {name} <= {hi:g}")
        elif hi is not None:
            sides.append(f"null or {name} <= {hi:g}")
    return str(flow["flow"]) + (f": {', '.join(sides)}" if sides else "")


def _known(value: float | None) -> str:
    return "unknown" if value is None else number(value)


def _value(value: Any) -> str:
    return "null" if value is None else repr(value) if isinstance(value, (str, float, int)) else str(value)
