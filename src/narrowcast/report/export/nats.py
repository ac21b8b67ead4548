"""A plan as subjects of NATS, and the mappings that lead topics to their channels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError, PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrowcast.model.relation import Positions
    from narrowcast.report.export.plan_tables import Files, PlanFolder

PREFIX = "narrowcast"
#: Bytes in the longest subject: a server's whole line has 4,096, with the place for the answer.
LONGEST = 2048

#: What cannot stand in a subject, or means something else in a mapping: `$1` and `{{..}}` call functions.
_ODD = re.compile(r"""[\s\0-\x1f\x7f"\\*>${}]""")


def nats_files(
    source: PlanFolder,
    *,
    prefix: str = PREFIX,
    encode: bool = False,
    keep_topic: bool = False,
    mappings: bool = True,
) -> Files:
    """Return a plan as subjects of NATS.

    A session has the subject ``PREFIX.channel.N``, with its channel's number, and a subscriber who is served
    directly ``PREFIX.to.NAME``, as `narrowcast stream` sends them.

    Parameters
    ----------
    source
        The plan.
    prefix
        How subjects begin.
    encode
        For plans of topics, whether a flow's topic is ``PREFIX.flow.NAME``, where any name becomes one word,
        escaped as in URLs. Otherwise the flow itself is the topic, and has to be a subject.
    keep_topic
        For plans of topics, whether the topic stands behind the subject of a channel, so that listeners see
        it; they then subscribe to ``PREFIX.channel.N.>``.
    mappings
        For plans of topics, whether a server is to lead each topic to its channel. It can lead each message
        to one subject only.

    Returns
    -------
    Files
        `mappings.conf` for a server where wanted, `flows` (where each is published), `subscribers` (what
        each subscribes to), `channels`, and `unicast` (what is sent directly).

    Raises
    ------
    ParameterError
        When the prefix or a flow makes no subject.
    PlanError
        When a flow goes to several subjects and a server is to lead it there.
    """
    plan, topics = source.plan, source.info.flow_space == "topics"
    subjects = _Subjects(prefix, ".>" if keep_topic else "")
    if (encode or keep_topic) and not topics:
        what = source.info.flow_space
        raise ParameterError(f"the flows of {source.folder} are {what}, which have no topics; leave them out")
    mappings = mappings and topics
    words = _words(plan.flows.to_pylist(), prefix, encode=encode) if mappings or keep_topic else None
    ends = [f".{word}" for word in words] if words is not None and keep_topic else [""] * plan.n_flows

    flow, carrier = source.carried()
    subscriber, heard = source.listened()
    person, own = source.direct()
    people: list[str] = [subjects.person(name) for name in plan.subscribers.to_pylist()]
    channel = [subjects.channel(number) for number in range(plan.n_channels)]
    sent = [channel[c] + ends[f] for f, c in zip(flow.tolist(), carrier.tolist(), strict=True)]
    direct = [people[p] + ends[f] for p, f in zip(person.tolist(), own.tolist(), strict=True)]
    served = np.unique(person)
    files: Files = {}
    told = {}
    if mappings and words is not None:
        begin = f"{prefix}.flow." if encode else ""
        told["topic"] = [f"{begin}{word}" for word in words]
        leads = _leads(plan.flows.to_pylist(), np.concatenate([flow, own]), sent + direct)
        files["mappings.conf"] = _mappings_text(told["topic"], leads)
        _check_lengths(told["topic"])
    _check_lengths([*sent, *direct, *people])
    files["flows.csv"] = pa.table(
        {
            **source.flow_columns(flow),
            **_taken(told, flow),
            "channel": pa.array(carrier, pa.int32()),
            "subject": pa.array(sent, pa.string()),
        }
    )
    listening = [channel[c] for c in heard.tolist()] + [people[p] for p in served.tolist()]
    files["subscribers.csv"] = pa.table(
        {
            "subscriber": plan.subscribers.take(np.concatenate([subscriber, served])),
            "channel": pa.array([*heard.tolist(), *[None] * len(served)], pa.int32()),
            "subject": pa.array([subject + subjects.rest for subject in listening], pa.string()),
        }
    )
    sessions = source.channels.take(pa.array(source.sessions))
    files["channels.csv"] = pa.table(
        {
            "channel": pa.array(source.sessions, pa.int32()),
            "group": pa.array(plan.groups()[source.sessions], pa.int32()),
            "subject": pa.array([channel[c] for c in source.sessions.tolist()], pa.string()),
            "rate": sessions["rate"],
            "members": sessions["members"],
        }
    )
    files["unicast.csv"] = pa.table(
        {
            "subscriber": plan.subscribers.take(person),
            **source.flow_columns(own),
            **_taken(told, own),
            "subject": pa.array(direct, pa.string()),
        }
    )
    return files


@dataclass(frozen=True, slots=True)
class _Subjects:
    """The subjects below a prefix, and what stands behind one that is subscribed to."""

    prefix: str
    rest: str

    def __post_init__(self) -> None:
        if fault := fault_of(self.prefix):
            raise ParameterError(f"prefix {self.prefix!r} {fault}; use words joined by single dots")

    def channel(self, number: int) -> str:
        """Return the subject of a channel."""
        return f"{self.prefix}.channel.{number}"

    def person(self, name: int | str) -> str:
        """Return the subject of what is sent to one subscriber."""
        return f"{self.prefix}.to.{word_of(name)}"


def word_of(name: int | str) -> str:
    """Return a name as one word of a subject, as streams write it; an empty one is a single `%`.

    >>> word_of("anna"), word_of("a.b *"), word_of(7), word_of("")
    ('anna', 'a%2Eb%20%2A', '7', '%')
    """
    return quote(str(name), safe="").replace(".", "%2E") or "%"


def fault_of(subject: str) -> str | None:
    """Return why a text can be no topic of a mapping, or None when it can.

    >>> fault_of("ticks.us.A"), fault_of("ticks..A"), fault_of("ticks.*")
    (None, 'has an empty word', "has '*' in it")
    """
    if not all(subject.split(".")):
        return "has an empty word"
    if found := _ODD.search(subject):
        return f"has {found[0]!r} in it"
    return None


def _words(flows: Sequence[int | str], prefix: str, *, encode: bool) -> list[str]:
    """Return the topic of each flow, below the prefix where it is escaped."""
    if encode:
        return [word_of(flow) for flow in flows]
    found = [str(flow) for flow in flows]
    for flow, topic in zip(flows, found, strict=True):
        if fault := fault_of(topic):
            raise ParameterError(
                f"flow {flow!r} {fault}, so that it is no topic of NATS; "
                f"use --encode, which makes it {prefix}.flow.{word_of(flow)}"
            )
        if topic == prefix or topic.startswith(f"{prefix}."):
            raise ParameterError(
                f"flow {flow!r} begins as the channels' subjects do; use another --prefix than {prefix}"
            )
    return found


def _leads(flows: Sequence[int | str], flow: Positions, subject: list[str]) -> list[str | None]:
    """Return the one subject that each flow goes to, None where it goes nowhere."""
    leads: list[str | None] = [None] * len(flows)
    count = np.bincount(flow, minlength=len(flows))
    for f, to in zip(flow.tolist(), subject, strict=True):
        leads[f] = to
    several = np.flatnonzero(count > 1)
    if len(several):
        first = int(several[0])
        raise PlanError(
            f"{len(several):,} of {len(flows):,} flows go to several subjects, such as {flows[first]!r} "
            f"to {count[first]:,}; "
            "a NATS mapping with several sends a message to one of them, not to all: use --no-mappings, "
            "and let publishers send to every subject that flows.csv and unicast.csv name"
        )
    return leads


def _mappings_text(topics: list[str], leads: list[str | None]) -> str:
    """Return the block of a server's configuration."""
    lines = [f'  "{topic}": "{to}"' for topic, to in zip(topics, leads, strict=True) if to is not None]
    head = "# Leads each topic to its channel. In the server's configuration: include mappings.conf"
    return "\n".join([head, "mappings: {", *lines, "}", ""])


def _taken(columns: dict[str, list[str]], rows: Positions) -> dict[str, pa.Array]:
    """Return some rows of columns of text."""
    return {name: pa.array(values, pa.string()).take(rows) for name, values in columns.items()}


def _check_lengths(subjects: Sequence[str]) -> None:
    """Refuse subjects that a server would not take."""
    for subject in subjects:
        if len(subject) * 4 > LONGEST and (size := len(subject.encode())) > LONGEST:
            raise ParameterError(
                f"subject {subject[:40]}... has {size:,} bytes, more than {LONGEST:,}; "
                "give the flow or subscriber a shorter name"
            )
