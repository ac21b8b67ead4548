"""Export of a plan as NATS subjects, and server mappings from topics to channels."""

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
#: Largest length of a subject in bytes: a protocol line of a server, reply subject included, has 4,096.
LONGEST = 2048

#: Characters that are invalid in a subject or special in a mapping, where `$1` and `{{..}}` are functions.
_INVALID = re.compile(r"""[\s\0-\x1f\x7f"\\*>${}]""")


def nats_files(
    source: PlanFolder,
    *,
    prefix: str = PREFIX,
    encode: bool = False,
    keep_topic: bool = False,
    mappings: bool = True,
) -> Files:
    """Return a plan as tables of NATS subjects and, for topics, a server configuration.

    The subject of a session is ``PREFIX.channel.N``, with the number of its channel; that of a subscriber
    with direct messages is ``PREFIX.to.NAME``. `narrowcast stream` publishes to the same subjects.

    Parameters
    ----------
    source
        The plan.
    prefix
        First words of all subjects; default `narrowcast`.
    encode
        For plans of topics, whether the topic of a flow is ``PREFIX.flow.NAME``, with the name of the flow
        percent-encoded as one word. By default the flow itself is the topic and has to be a valid subject.
    keep_topic
        For plans of topics, whether the topic is appended to the subject of a channel, so that listeners see
        it; they then subscribe to ``PREFIX.channel.N.>``.
    mappings
        For plans of topics, whether to write server mappings from each topic to its channel (the default). A
        mapping can have only one subject per topic.

    Returns
    -------
    Files
        `mappings.conf` for a server, if requested, and the tables `flows` (subjects to publish to),
        `subscribers` (subjects to subscribe to), `channels`, and `unicast` (subjects of direct messages).

    Raises
    ------
    ParameterError
        When the prefix or a flow is not a valid subject, or `encode` or `keep_topic` is set for a plan that
        is not of topics.
    PlanError
        When mappings are requested and a flow has several subjects.
    """
    plan, topics = source.plan, source.info.flow_space == "topics"
    subjects = _Subjects(prefix, ".>" if keep_topic else "")
    if (encode or keep_topic) and not topics:
        raise ParameterError(
            parameter="encode" if encode else "keep_topic",
            value=True,
            limit=f"False, because the flows of {source.folder} are {source.info.flow_space}, not topics",
        )
    mappings = mappings and topics
    words = _words(plan.flows.to_pylist(), prefix, encode=encode) if mappings or keep_topic else None
    suffixes = [f".{word}" for word in words] if words is not None and keep_topic else [""] * plan.n_flows

    flow, carrier = source.carried()
    listener, listened = source.listened()
    receiver, direct_flow = source.direct()
    own: list[str] = [subjects.subscriber(name) for name in plan.subscribers.to_pylist()]
    channel = [subjects.channel(number) for number in range(plan.n_channels)]
    published = [channel[c] + suffixes[f] for f, c in zip(flow.tolist(), carrier.tolist(), strict=True)]
    direct = [own[s] + suffixes[f] for s, f in zip(receiver.tolist(), direct_flow.tolist(), strict=True)]
    receivers = np.unique(receiver)
    files: Files = {}
    topic_column = {}
    if mappings and words is not None:
        start = f"{prefix}.flow." if encode else ""
        topic_column["topic"] = [f"{start}{word}" for word in words]
        targets = _mapping_targets(
            plan.flows.to_pylist(), np.concatenate([flow, direct_flow]), published + direct
        )
        files["mappings.conf"] = _mappings_text(topic_column["topic"], targets)
        _check_lengths(topic_column["topic"])
    _check_lengths([*published, *direct, *own])
    files["flows.csv"] = pa.table(
        {
            **source.flow_columns(flow),
            **_take_rows(topic_column, flow),
            "channel": pa.array(carrier, pa.int32()),
            "subject": pa.array(published, pa.string()),
        }
    )
    subscribed = [channel[c] for c in listened.tolist()] + [own[s] for s in receivers.tolist()]
    files["subscribers.csv"] = pa.table(
        {
            "subscriber": plan.subscribers.take(np.concatenate([listener, receivers])),
            "channel": pa.array([*listened.tolist(), *[None] * len(receivers)], pa.int32()),
            "subject": pa.array([subject + subjects.suffix for subject in subscribed], pa.string()),
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
            "subscriber": plan.subscribers.take(receiver),
            **source.flow_columns(direct_flow),
            **_take_rows(topic_column, direct_flow),
            "subject": pa.array(direct, pa.string()),
        }
    )
    return files


@dataclass(frozen=True, slots=True)
class _Subjects:
    """The subjects of a prefix, and the suffix that subscriptions to them have."""

    prefix: str
    suffix: str

    def __post_init__(self) -> None:
        if fault := fault_of(self.prefix):
            raise ParameterError(
                f"prefix={self.prefix!r}: {fault}; must be words separated by single dots",
                parameter="prefix",
                value=self.prefix,
                limit="words separated by single dots",
            )

    def channel(self, number: int) -> str:
        return f"{self.prefix}.channel.{number}"

    def subscriber(self, name: int | str) -> str:
        """Return the subject of direct messages to a subscriber."""
        return f"{self.prefix}.to.{word_of(name)}"


def word_of(name: int | str) -> str:
    """Return a name percent-encoded as one word of a subject; an empty name is a single `%`.

    Streams encode names in the same way.

    >>> word_of("anna"), word_of("a.b *"), word_of(7), word_of("")
    ('anna', 'a%2Eb%20%2A', '7', '%')
    """
    return quote(str(name), safe="").replace(".", "%2E") or "%"


def fault_of(subject: str) -> str | None:
    """Return why a text is not a valid topic of a mapping, or None if it is.

    >>> fault_of("ticks.us.A"), fault_of("ticks..A"), fault_of("ticks.*")
    (None, 'has an empty word', "has '*' in it")
    """
    if not all(subject.split(".")):
        return "has an empty word"
    if found := _INVALID.search(subject):
        return f"has {found[0]!r} in it"
    return None


def _words(flows: Sequence[int | str], prefix: str, *, encode: bool) -> list[str]:
    """Return the topic of each flow; with `encode`, the word that follows ``PREFIX.flow.``."""
    if encode:
        return [word_of(flow) for flow in flows]
    found = [str(flow) for flow in flows]
    for flow, topic in zip(flows, found, strict=True):
        if fault := fault_of(topic):
            raise ParameterError(
                f"flow {flow!r} {fault}: must be a valid NATS subject; set encode=True to publish it to "
                f"{prefix}.flow.{word_of(flow)}",
                parameter="encode",
                value=False,
            )
        if topic == prefix or topic.startswith(f"{prefix}."):
            raise ParameterError(
                parameter="prefix", value=prefix, limit=f"different from the first words of flow {flow!r}"
            )
    return found


def _mapping_targets(flows: Sequence[int | str], flow: Positions, subject: list[str]) -> list[str | None]:
    """Return the only subject of each flow, None for a flow without any.

    Parameters
    ----------
    flows
        Labels of all flows.
    flow, subject
        Pairs of the position of a flow and a subject.
    """
    targets: list[str | None] = [None] * len(flows)
    count = np.bincount(flow, minlength=len(flows))
    for f, to in zip(flow.tolist(), subject, strict=True):
        targets[f] = to
    several = np.flatnonzero(count > 1)
    if len(several):
        first = int(several[0])
        raise PlanError(
            f"mappings=True: {len(several):,} of {len(flows):,} flows have several subjects, such as "
            f"{flows[first]!r} with {count[first]:,}, and a NATS mapping sends a message to only one; "
            "set mappings=False and publish to all subjects in flows.csv and unicast.csv",
            parameter="mappings",
            value=True,
        )
    return targets


def _mappings_text(topics: list[str], targets: list[str | None]) -> str:
    """Return the `mappings` block of a server configuration."""
    lines = [f'  "{topic}": "{to}"' for topic, to in zip(topics, targets, strict=True) if to is not None]
    head = "# Maps each topic to its channel. In the server's configuration: include mappings.conf"
    return "\n".join([head, "mappings: {", *lines, "}", ""])


def _take_rows(columns: dict[str, list[str]], rows: Positions) -> dict[str, pa.Array]:
    """Return the given rows of columns of text."""
    return {name: pa.array(values, pa.string()).take(rows) for name, values in columns.items()}


def _check_lengths(subjects: Sequence[str]) -> None:
    """Raise a `ParameterError` if a subject is longer than a server accepts."""
    for subject in subjects:
        if len(subject) * 4 > LONGEST and (size := len(subject.encode())) > LONGEST:
            raise ParameterError(
                f"subject '{subject[:40]}...' of {size:,} bytes: must have at most {LONGEST:,} bytes; "
                "shorten the name of the flow or subscriber",
                value=subject,
                limit=f"at most {LONGEST:,} bytes",
            )
