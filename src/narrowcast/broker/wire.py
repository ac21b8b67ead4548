"""What goes over the wire: subjects, and messages in MessagePack."""

from __future__ import annotations

import sys
import zlib
from array import array
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec

from narrowcast.errors import InputError, ParameterError
from narrowcast.model.subjects import fault_of, subject_of

#: The highest number of an event, so that those behind it have one too.
_LAST = 1 << 62
#: A number that a message can hold, and sums of many: who says something of itself may say anything.
_Number = Annotated[int, msgspec.Meta(ge=0, le=_LAST)]
#: How often something was, in a report: sums of very many have to be numbers too.
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
#: Events of one message of a publisher, at most: a node looks at them in one go.
MOST = 1 << 15
#: A publisher, and how many of its events come one after another.
Run: TypeAlias = tuple[str, int]


class PublishedBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Events of one publisher, numbered from `first` on: what publishers send to nodes.

    `sent` is when, in seconds since 1970 by the publisher's clock; 0 where it does not say. With `settle` the
    publisher is told when a node is done with them, which it is not otherwise where they are stored.
    """

    publisher: str
    first: _Number
    payloads: Annotated[list[bytes], msgspec.Meta(max_length=MOST)]
    sent: float = 0.0
    settle: bool = False


class Frame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Events for all who listen to a subject: what nodes send.

    Events are in columns, which take a tenth of the time to read that a list of events does.

    Parameters
    ----------
    exact
        Says that the receiver wants all of them, if its subscriptions are those of this fingerprint. It is -1
        on a channel, where everybody has to look for what is theirs.
    since
        When the oldest of them was sent by its publisher; where none says so, when the node took it.
    runs
        Who published them.
    numbers
        The how many-th of its publisher each is: 8 bytes each, the lowest first.
    payloads
        As they were published.
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
        """Refuse columns that do not go together."""
        many, runs = len(self.payloads), self.runs
        right = len(runs) == 1 and runs[0][1] == many  # mostly
        if not right:
            right = sum(n for _, n in runs) == many and all(n > 0 for _, n in runs)
        if not right or len(self.numbers) != 8 * many:
            raise InputError("frame has columns of different lengths")


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """A subscriber is there, and listens to what is for it alone; `life` tells it from others of its name."""

    subscriber: str
    life: str = ""


class Bye(msgspec.Struct, tag="bye", frozen=True):
    """A subscriber is going; its subscriptions stay."""

    subscriber: str


class AddFilters(msgspec.Struct, tag="add", frozen=True):
    """A subscriber wants what a filter lets through."""

    subscriber: str
    filters: list[str]


class RemoveSubscriptions(msgspec.Struct, tag="remove", frozen=True):
    """A subscriber no longer wants what some of its subscriptions ask for."""

    subscriber: str
    subscription_ids: list[int]


class PreparePlan(msgspec.Struct, tag="prepare", frozen=True):
    """A plan will be used soon: a subscriber should listen to these channels of it, beside all others."""

    epoch: int
    channels: list[int]


class ChannelsJoined(msgspec.Struct, tag="listening", frozen=True):
    """A subscriber listens to these channels of a plan."""

    subscriber: str
    epoch: int
    channels: list[int]


class SubscriberReport(msgspec.Struct, tag="report", frozen=True):
    """What a subscriber has got since it reported last.

    Parameters
    ----------
    subscriber
        Who.
    classes, total
        How often events took how long from their publisher, in the classes of `counts.SECONDS`, and all these
        seconds together.
    filtered, repeated, dropped
        Events that came and were none of its own, that had come before, and that found no room.
    """

    subscriber: str
    classes: list[_Count]
    total: Annotated[float, msgspec.Meta(ge=0, le=1e18)]
    filtered: _Count
    repeated: _Count
    dropped: _Count


class ReplayRequest(msgspec.Struct, tag="replay", frozen=True):
    """A subscriber wants what was stored for it behind a place, below its subject for that with a token.

    A place is one of a `store`: where that is another by now, it means nothing.
    """

    subscriber: str
    after: int
    token: str
    store: str = ""


class ReplayStarted(msgspec.Struct, tag="replaying", frozen=True):
    """So many messages are on their way."""

    messages: int


class ReaderReplaced(msgspec.Struct, tag="taken", frozen=True):
    """What is stored for a subscriber is read by the one that has come last."""

    life: str


class RolloutRequest(msgspec.Struct, tag="rollout", frozen=True):
    """A plan is to be used: its folder, as nodes see it, and how; see `Desk.rollout`."""

    plan: str
    flow: str | None = None
    overlap: float = 5.0
    least: float = 0.0
    joins: float | None = None


class RolloutDone(msgspec.Struct, tag="rolled-out", frozen=True):
    """A plan is in use, and so many listen to its channels."""

    epoch: int
    plan: str
    listening: int


class ReadEvents(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a subscriber has had behind its place in what is stored.

    Parameters
    ----------
    events
        Numbers of events, by publisher: of a frame of which it has not had all.
    subjects
        The place up to which it has had all that is stored under a subject.
    """

    events: dict[str, list[_Number]] = {}
    subjects: dict[str, _Number] = {}

    def __bool__(self) -> bool:
        return bool(self.events or self.subjects)


class SubscriberState(msgspec.Struct, tag="standing", frozen=True):
    """What holds for a subscriber: an answer to `Hello`, `AddFilters` and `RemoveSubscriptions`, and on the control subject.

    Parameters
    ----------
    change
        Which change of anything this is: one with a lower number was overtaken.
    version
        The fingerprint of its subscriptions.
    filters
        Its subscriptions by id.
    schema
        The types of attributes.
    epoch, channels
        The plan that is in use, and the channels that it should listen to.
    added
        Of `AddFilters`, the ids of the filters, in their order.
    prepared
        The plan that will be used soon, if any: channels of all others are given up.
    kept
        Whether subscriptions are on disk, and so there after a restart.
    since
        When the first node started: after a restart it is another.
    after
        Of `Hello`, how far the subscriber has read what is stored for it; None where nothing is stored.
    store
        What tells the store of events from others: one that was restored, or made anew, is another.
    had
        Of `Hello`, what it has had behind `after`.
    key
        What the subject of its position has in it that nobody else knows.
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
    """The first node is there: since when, and which change was the last. Others and subscribers hear it."""

    since: int
    number: int


class SubscriptionRow(msgspec.Struct, array_like=True, frozen=True):
    """A subscription."""

    subscription_id: int
    subscriber: str
    filter: str


class PlanReference(msgspec.Struct, array_like=True, frozen=True):
    """A plan in a folder, its number, and what tells it from others that may be there."""

    epoch: int
    folder: str
    flow: str | None = None
    name: str = ""


class ControlChange(msgspec.Struct, frozen=True, kw_only=True):
    """What has changed: the first node says it to the others, one change after another.

    Parameters
    ----------
    number
        The change before has the number before it.
    added, removed
        Subscriptions that came, and ids of those that went.
    placed
        Plan, name and channels of those whom the plan does not know, and who have a place in it now.
    joined, left
        Plan and name of those who listen to their channels of it; names of those who listen to nothing.
    prepared
        A plan to read, which will be used soon.
    used
        The number of the plan that is used from now on.
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
    """Another node is there, and wants to know all that holds; `after` goes on behind an id."""

    node: str
    after: int = -1


class NodeState(msgspec.Struct, tag="state", frozen=True):
    """All that holds, for another node: the change it is of, and some of the subscriptions.

    There are more where `more` says so. A plan that is read from no folder is none. `stored` says whether
    events are stored.
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
    """What was asked for is not done, and why; of a batch, so many events from a number on came too fast."""

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
    """The subjects of one broker, all below a prefix.

    Parameters
    ----------
    prefix
        How they begin: two brokers on one server have different ones.

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
                f"prefix {self.prefix!r} cannot be used: {fault}; join words with single dots"
            )

    def ingress(self, publisher: str, partitions: int) -> str:
        """Return where a publisher's events go: always to the same of so many partitions."""
        part = zlib.crc32(publisher.encode()) % partitions
        return subject_of(f"{self.prefix}.in.{part}", publisher)

    def partition(self, number: int | None = None) -> str:
        """Return the pattern of all ingress of a partition, or of all of them."""
        return f"{self.prefix}.in.>" if number is None else f"{self.prefix}.in.{number}.>"

    def comes_from(self, subject: str, publisher: str) -> bool:
        """Return whether events at a subject are a publisher's own: others may not publish there."""
        return subject.startswith(f"{self.plain}.") and subject.endswith(subject_of("in", publisher)[2:])

    @property
    def plain(self) -> str:
        """Where anybody publishes events as they are, without a client of ours."""
        return f"{self.prefix}.in"

    def ask(self, subscriber: str) -> str:
        """Return where a subscriber asks nodes: nobody else may."""
        return subject_of(f"{self.prefix}.ask", subscriber)

    @property
    def asks(self) -> str:
        """The pattern of all that subscribers ask."""
        return f"{self.prefix}.ask.*"

    @property
    def orders(self) -> str:
        """Where those who run the broker tell nodes what to do."""
        return f"{self.prefix}.orders"

    @property
    def changes(self) -> str:
        """Where the first node tells the others what has changed."""
        return f"{self.prefix}.changes"

    @property
    def beats(self) -> str:
        """Where the first node says that it is there."""
        return f"{self.prefix}.beats"

    @property
    def everybody(self) -> str:
        """What all subscribers listen to."""
        return f"{self.prefix}.out.all"

    def channel(self, epoch: int, number: int) -> str:
        """Return a channel of a plan; another plan has others."""
        return f"{self.prefix}.out.channel.{epoch}.{number}"

    def to(self, subscriber: str) -> str:
        """Return what one subscriber alone listens to."""
        return subject_of(f"{self.prefix}.out.to", subscriber)

    def stored(self, subject: str) -> str:
        """Return where a message is stored before the server sends it on under a subject."""
        return f"{self.prefix}.keep.{subject.removeprefix(f'{self.prefix}.out.')}"

    def position(self, subscriber: str, key: str = "*") -> str:
        """Return where a subscriber writes down how far it has read what is stored, by a key of its own."""
        return f"{self.prefix}.at.position.{key}.{subject_of('x', subscriber)[2:]}"

    def replay(self, subscriber: str) -> str:
        """Return what a subscriber gets below that was stored and that it missed."""
        return subject_of(f"{self.prefix}.replay", subscriber)

    def control(self, subscriber: str) -> str:
        """Return where nodes tell a subscriber what holds."""
        return subject_of(f"{self.prefix}.control", subscriber)

    @property
    def answers(self) -> str:
        """How all subjects begin that answers go to."""
        return f"{self.prefix}.answer."

    def inbox(self, name: str) -> str:
        """Return where answers to somebody go."""
        return subject_of(f"{self.prefix}.answer", name)

    def refusals(self, publisher: str) -> str:
        """Return where a publisher hears of events that were stored, and that no node takes after all."""
        return f"{self.inbox(publisher)}.refused"
