"""The wire protocol: subjects, and MessagePack messages between clients and nodes."""

from __future__ import annotations

import sys
import zlib
from array import array
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec

from narrowcast.errors import InputError, ParameterError
from narrowcast.model.subjects import fault_of, subject_of

#: The highest number of an event: leaves room in 64 bits for the numbers of the rest of its batch.
_LAST = 1 << 62
#: A number from a client, which may send anything: bounded so that arithmetic stays within 64 bits.
_Number = Annotated[int, msgspec.Meta(ge=0, le=_LAST)]
#: A count in a report: bounded so that sums over many reports stay within 64 bits.
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
#: Maximum events of one message of a publisher: a node processes a message as a whole.
MOST = 1 << 15
#: A publisher, and its number of consecutive events.
Run: TypeAlias = tuple[str, int]


class PublishedBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Events of one publisher, as publishers send them to nodes.

    Parameters
    ----------
    publisher
        Name of the publisher.
    first
        Number of the first event; the others follow without gaps.
    payloads
        The events, at most 32,768.
    sent
        Time of publishing in seconds since 1970 by the publisher's clock; 0 when unknown.
    settle
        Whether the node should answer when it has processed the events. Where events are stored, the
        publisher otherwise receives only the server's acknowledgement that they are.
    """

    publisher: str
    first: _Number
    payloads: Annotated[list[bytes], msgspec.Meta(max_length=MOST)]
    sent: float = 0.0
    settle: bool = False


class Frame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A batch of events for all subscribers of a subject, as nodes send it.

    Events are stored in columns, which decode ten times as fast as a list of events.

    Parameters
    ----------
    exact
        Fingerprint of the receiver's subscriptions for which all events of the frame match; -1 on a channel,
        where each receiver has to filter the events itself.
    since
        Time in seconds since 1970 when the oldest event was published, or when the node received it if no
        publisher says.
    runs
        Publishers in order of the events, each with its number of consecutive events.
    numbers
        Number of each event at its publisher: 8 bytes each, little-endian.
    payloads
        The events as published.
    """

    exact: int
    since: float
    runs: list[Run]
    numbers: bytes
    payloads: list[bytes]

    def ids(self) -> list[int]:
        """Return the number of each event."""
        numbers = array("q", self.numbers)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tolist()

    def check(self) -> None:
        """Raise an InputError when the columns have different lengths."""
        n_events, runs = len(self.payloads), self.runs
        valid = len(runs) == 1 and runs[0][1] == n_events  # the usual case
        if not valid:
            valid = sum(n for _, n in runs) == n_events and all(n > 0 for _, n in runs)
        if not valid or len(self.numbers) != 8 * n_events:
            raise InputError("frame has columns of different lengths", parameter="frame")


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """Request of a subscriber that has connected; `life` distinguishes instances with the same name."""

    subscriber: str
    life: str = ""


class Bye(msgspec.Struct, tag="bye", frozen=True):
    """Request of a subscriber that disconnects; its subscriptions stay."""

    subscriber: str


class AddFilters(msgspec.Struct, tag="add", frozen=True):
    """Request to add filters to the subscriptions of a subscriber."""

    subscriber: str
    filters: list[str]


class RemoveSubscriptions(msgspec.Struct, tag="remove", frozen=True):
    """Request to remove subscriptions of a subscriber by id."""

    subscriber: str
    subscription_ids: list[int]


class PreparePlan(msgspec.Struct, tag="prepare", frozen=True):
    """Order to a subscriber to join its channels of the next plan, in addition to those it has."""

    epoch: int
    channels: list[int]


class ChannelsJoined(msgspec.Struct, tag="listening", frozen=True):
    """Report of a subscriber that it has joined these channels of a plan."""

    subscriber: str
    epoch: int
    channels: list[int]


class SubscriberReport(msgspec.Struct, tag="report", frozen=True):
    """Counts of a subscriber since its previous report.

    Parameters
    ----------
    subscriber
        Its name.
    classes
        Events per latency class from publisher to subscriber; upper bounds are in `node_counts.SECONDS`.
    total
        Sum of all these latencies in seconds.
    filtered
        Events received over a channel that matched no own filter.
    repeated
        Events received more than once.
    dropped
        Events dropped because the receive queue was full.
    """

    subscriber: str
    classes: list[_Count]
    total: Annotated[float, msgspec.Meta(ge=0, le=1e18)]
    filtered: _Count
    repeated: _Count
    dropped: _Count


class ReplayRequest(msgspec.Struct, tag="replay", frozen=True):
    """Request of a subscriber for its stored messages after a position.

    Parameters
    ----------
    subscriber
        Its name.
    after
        Sequence number of the last stored message that it has.
    token
        Last word of the subject to replay to, below the subscriber's replay subject.
    store
        Identity of the event store that `after` refers to; in any other store the position is void.
    """

    subscriber: str
    after: int
    token: str
    store: str = ""


class ReplayStarted(msgspec.Struct, tag="replaying", frozen=True):
    """Answer to `ReplayRequest`: the number of messages that are being replayed."""

    messages: int


class ReaderReplaced(msgspec.Struct, tag="taken", frozen=True):
    """Order to older instances of a subscriber to stop: the instance `life` reads its stored events now."""

    life: str


class RolloutRequest(msgspec.Struct, tag="rollout", frozen=True):
    """Request of an operator to switch to a plan, with the parameters of `ControlPlane.rollout_from`."""

    plan: str
    flow: str | None = None
    overlap: float = 5.0
    least: float = 0.0
    joins: float | None = None


class RolloutDone(msgspec.Struct, tag="rolled-out", frozen=True):
    """Answer to `RolloutRequest`: the plan in use and the number of subscribers that joined its channels."""

    epoch: int
    plan: str
    listening: int


class ReadEvents(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a subscriber has read beyond its position in the event store.

    Parameters
    ----------
    events
        By publisher, numbers of events read from frames that were read in part.
    subjects
        By subject, the sequence number up to which everything stored was read.
    """

    events: dict[str, list[_Number]] = {}
    subjects: dict[str, _Number] = {}

    def __bool__(self) -> bool:
        return bool(self.events or self.subjects)


class SubscriberState(msgspec.Struct, tag="standing", frozen=True):
    """Current state of a subscriber: answer to its requests, and order on its control subject.

    Answers `Hello`, `AddFilters`, `RemoveSubscriptions` and the other requests of subscribers.

    Parameters
    ----------
    change
        Number of the last control change; a state with a lower number is outdated.
    version
        Fingerprint of its subscriptions.
    filters
        Its filters by subscription id.
    schema
        Types of the attributes.
    epoch, channels
        The plan in use, and the channels of it that the subscriber should join.
    added
        In answers to `AddFilters`: ids of the new subscriptions, in the order of the filters.
    prepared
        Epoch of the next plan, if any; channels of all plans but these two are to be left.
    kept
        Whether subscriptions are stored on disk and so survive a restart.
    since
        When the first node started, in nanoseconds since 1970; it changes with every restart.
    after
        In answers to `Hello`: the subscriber's position in the event store; None when nothing is stored.
    store
        Identity of the event store; a restored or new store has a different one.
    had
        In answers to `Hello`: what the subscriber has read beyond `after`.
    key
        Secret word in the subject of the subscriber's position, which only the broker and it know.
    """

    change: int
    version: int
    filters: dict[int, str]
    schema: dict[str, str]
    epoch: int
    channels: list[int]
    added: list[int] = []
    prepared: int | None = None
    kept: bool = False
    since: int = 0
    after: int | None = None
    store: str = ""
    had: ReadEvents = ReadEvents()
    key: str = ""


class Heartbeat(msgspec.Struct, tag="beat", frozen=True):
    """Sign of life of the first node, for other nodes and subscribers: its start and its last change."""

    since: int
    number: int


class SubscriptionRow(msgspec.Struct, array_like=True, frozen=True):
    """One subscription."""

    subscription_id: int
    subscriber: str
    filter: str


class PlanReference(msgspec.Struct, array_like=True, frozen=True):
    """A plan in a folder: its epoch, folder, flow attribute, and a name that identifies its content."""

    epoch: int
    folder: str
    flow: str | None = None
    name: str = ""


class ControlChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the control state, as the first node sends it to other nodes, in order.

    Parameters
    ----------
    number
        Sequence number: one more than that of the previous change.
    added, removed
        New subscriptions, and ids of removed ones.
    placed
        Epoch, subscriber and channels for subscribers that the plan lacks and that were placed in it.
    joined
        Epoch and name of subscribers that have joined all their channels of the plan.
    left
        Names of subscribers that have left all channels.
    prepared
        The next plan, to be loaded now.
    used
        Epoch of the plan to use from now on.
    """

    number: int
    added: list[SubscriptionRow] = []
    removed: list[int] = []
    placed: list[tuple[int, str, list[int]]] = []
    joined: list[tuple[int, str]] = []
    left: list[str] = []
    prepared: PlanReference | None = None
    used: int | None = None


class NodeJoin(msgspec.Struct, tag="join", frozen=True):
    """Request of another node for the control state, with subscriptions of ids above `after`."""

    node: str
    after: int = -1


class NodeState(msgspec.Struct, tag="state", frozen=True):
    """Control state for another node, or one page of its subscriptions.

    Parameters
    ----------
    number
        Number of the last change that the state includes.
    schema
        Types of the attributes.
    rows
        Subscriptions in order of their ids.
    more
        Whether further pages follow.
    plan, prepared
        The plan in use and the next one; None for a plan that was not loaded from a folder.
    placed, joined
        As in `ControlChange`.
    stored
        Whether the broker stores events (at-least-once delivery).
    """

    number: int
    schema: dict[str, str]
    rows: list[SubscriptionRow]
    more: bool
    plan: PlanReference | None
    prepared: PlanReference | None
    placed: list[tuple[int, str, list[int]]]
    joined: list[tuple[int, str]]
    stored: bool = False


class Refusal(msgspec.Struct, tag="refused", frozen=True):
    """Answer to a request that was refused, with the reason.

    For a batch above the rate limit, `first` is the number of the first refused event, and `many` their
    count.
    """

    reason: str
    first: int = 0
    many: int = 0


Request: TypeAlias = (
    Hello | Bye | AddFilters | RemoveSubscriptions | ChannelsJoined | SubscriberReport | ReplayRequest
)
Answer: TypeAlias = (
    SubscriberState | Refusal | PreparePlan | RolloutDone | NodeState | ReplayStarted | ReaderReplaced
)

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_batch = msgspec.msgpack.Decoder(PublishedBatch).decode
decode_frame = msgspec.msgpack.Decoder(Frame).decode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_order = msgspec.msgpack.Decoder(RolloutRequest | NodeJoin).decode
decode_beat = msgspec.msgpack.Decoder(Heartbeat).decode
decode_change = msgspec.msgpack.Decoder(ControlChange).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode


@dataclass(frozen=True, slots=True)
class Subjects:
    """The NATS subjects of one broker, all below a prefix.

    Parameters
    ----------
    prefix
        First words of all subjects (default ``nc``): brokers on the same server need different ones.

    Examples
    --------
    >>> of = Subjects("nc")
    >>> of.channel(3, 7), of.to("anna b."), of.ingress("p1", 4), of.ask("bob")
    ('nc.out.channel.3.7', 'nc.out.to.anna%20b%2E', 'nc.in.3.p1', 'nc.ask.bob')
    >>> of.stored(of.channel(3, 7))
    'nc.keep.channel.3.7'
    """

    prefix: str = "nc"

    def __post_init__(self) -> None:
        if fault := fault_of(self.prefix):
            raise ParameterError(
                f"prefix={self.prefix!r}: {fault}; join words with single dots",
                parameter="prefix",
                value=self.prefix,
            )

    def ingress(self, publisher: str, partitions: int) -> str:
        """Return the subject for a publisher's events: its partition is a hash of its name."""
        part = zlib.crc32(publisher.encode()) % partitions
        return subject_of(f"{self.prefix}.in.{part}", publisher)

    def partition(self, number: int | None = None) -> str:
        """Return the pattern of all publishers of one partition, or of all partitions."""
        return f"{self.prefix}.in.>" if number is None else f"{self.prefix}.in.{number}.>"

    def comes_from(self, subject: str, publisher: str) -> bool:
        """Return whether a subject belongs to a publisher; permissions let no other user publish to it."""
        return subject.startswith(f"{self.plain}.") and subject.endswith(subject_of("in", publisher)[2:])

    @property
    def plain(self) -> str:
        """Subject where any NATS client may publish single events, without a publisher's name."""
        return f"{self.prefix}.in"

    def ask(self, subscriber: str) -> str:
        """Return the subject for requests of one subscriber; permissions let no other user publish to it."""
        return subject_of(f"{self.prefix}.ask", subscriber)

    @property
    def asks(self) -> str:
        """Pattern of the requests of all subscribers."""
        return f"{self.prefix}.ask.*"

    @property
    def orders(self) -> str:
        """Subject for requests of operators, and of nodes that join."""
        return f"{self.prefix}.orders"

    @property
    def changes(self) -> str:
        """Subject for control changes from the first node to other nodes."""
        return f"{self.prefix}.changes"

    @property
    def beats(self) -> str:
        """Subject for heartbeats of the first node."""
        return f"{self.prefix}.beats"

    @property
    def broadcast(self) -> str:
        """Subject that all subscribers listen to."""
        return f"{self.prefix}.out.all"

    def channel(self, epoch: int, number: int) -> str:
        """Return the subject of a channel; plans with different epochs never share a subject."""
        return f"{self.prefix}.out.channel.{epoch}.{number}"

    def to(self, subscriber: str) -> str:
        """Return the subject for direct messages to one subscriber."""
        return subject_of(f"{self.prefix}.out.to", subscriber)

    def stored(self, subject: str) -> str:
        """Return the subject where a message is stored before the server forwards it to `subject`."""
        return f"{self.prefix}.keep.{subject.removeprefix(f'{self.prefix}.out.')}"

    def position(self, subscriber: str, key: str = "*") -> str:
        """Return the subject where a subscriber stores its position; `key` is a secret of that subscriber."""
        return f"{self.prefix}.at.position.{key}.{subject_of('x', subscriber)[2:]}"

    def replay(self, subscriber: str) -> str:
        """Return the subject below which a subscriber receives replayed messages."""
        return subject_of(f"{self.prefix}.replay", subscriber)

    def control(self, subscriber: str) -> str:
        """Return the subject for orders from nodes to one subscriber."""
        return subject_of(f"{self.prefix}.control", subscriber)

    @property
    def answers(self) -> str:
        """Prefix of all reply subjects, with the dot."""
        return f"{self.prefix}.answer."

    def inbox(self, name: str) -> str:
        """Return the subject below which a client or node receives answers."""
        return subject_of(f"{self.prefix}.answer", name)

    def refusals(self, publisher: str) -> str:
        """Return the subject where a publisher learns that stored events were refused by a node."""
        return f"{self.inbox(publisher)}.refused"
