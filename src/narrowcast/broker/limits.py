"""How much publishers and subscribers may ask of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from narrowcast.broker.data.decode import LARGEST
from narrowcast.errors import InputError, ParameterError
from narrowcast.filters.limits import LENIENT, FilterLimits

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Bytes of the longest name of a subscriber: it becomes a word of subjects, where a byte may take three.
LONGEST_NAME = 512
#: Bytes of all filters of a subscriber, at most: it is told of them in one message, of 1 MB. Each takes some
#: more for its number.
LONGEST_TEXT, _EACH = 768 << 10, 16
#: Bytes of the longest name of an attribute that is learnt from a filter: everybody is told of all of them in
#: one message, beside its own filters.
LONGEST_ATTRIBUTE = 256


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Bounds on what anybody may ask of a broker; each can be raised.

    Those on subscriptions hold for who subscribes while the broker runs, not for tables that it starts with.

    Parameters
    ----------
    filters
        Bounds on one filter: `bytes`, `depth`, `expand` and `boxes`.
    payload
        Bytes of the largest event.
    subscriptions
        How many a subscriber may have.
    text
        Bytes of all of its filters together.
    subscribers
        How many there may be in all; any number where left out.
    attributes
        How many filters may name in all, where no schema says which there are: each event is looked at for
        every one of them.
    rate, burst
        Events a second of one publisher, any number where left out; and how many may come at once, those of a
        second unless told.

    Examples
    --------
    >>> limits = BrokerLimits.parse(["payload=65536", "rate=1000", "depth=20"])
    >>> limits.payload, limits.rate, limits.burst, limits.filters.depth
    (65536, 1000.0, None, 20)
    >>> BrokerLimits.parse(["rate=0"])
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: --limit rate=0 is not above 0; raise it, or leave it out for any rate
    >>> BrokerLimits.parse(["size=7"])
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: --limit is 'size=7'; give NAME=VALUE, with one of these names: ...
    """

    filters: FilterLimits = field(default_factory=FilterLimits)
    payload: int = LARGEST
    subscriptions: int = 10_000
    text: int = LONGEST_TEXT
    subscribers: int | None = None
    attributes: int = 500
    rate: float | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.payload <= LARGEST:
            raise ParameterError(
                f"--limit payload={self.payload} is outside 2 to {LARGEST}: a message of NATS has 1 MB"
            )
        if self.filters.boxes > LENIENT.boxes:
            raise ParameterError(
                f"--limit boxes={self.filters.boxes} is over {LENIENT.boxes}, the most that subscribers take"
            )
        if self.text > LONGEST_TEXT:
            raise ParameterError(
                f"--limit text={self.text} is over {LONGEST_TEXT}: a message of NATS has 1 MB"
            )
        for name in ("subscriptions", "text", "subscribers", "attributes", "burst"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(f"--limit {name}={value} is below 1; raise it")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ParameterError(
                f"--limit rate={self.rate:g} is not above 0; raise it, or leave it out for any rate"
            )
        if self.burst is not None and self.rate is None:
            raise ParameterError(f"--limit burst={self.burst} is given without rate; give both")

    @classmethod
    def parse(cls, words: Iterable[str]) -> Self:
        """Return limits given as `name=value`; the others are as they are unless told.

        Raises
        ------
        ParameterError
            When there is no limit of a name, or it cannot have a value.
        """
        ours = [each.name for each in fields(cls) if each.name != "filters"]
        theirs = [each.name for each in fields(FilterLimits)]
        given: dict[str, Any] = {}
        for word in words:
            name, _, value = word.partition("=")
            if name not in theirs and name not in ours:
                raise ParameterError(
                    f"--limit is {word!r}; give NAME=VALUE, with one of these names: "
                    f"{', '.join([*theirs, *ours])}"
                )
            if name in given:
                raise ParameterError(f"--limit {name} is given twice; leave one out")
            given[name] = _number(name, value)
        try:
            filters = FilterLimits(**{name: given.pop(name) for name in theirs if name in given})
        except ParameterError as error:
            raise ParameterError(f"--{error}; give another") from error
        return cls(filters=filters, **given)

    def check_name(self, subscriber: str) -> None:
        """Refuse a name that subjects cannot hold."""
        try:
            size = len(subscriber.encode())
        except UnicodeEncodeError:
            raise InputError(f"subscriber {subscriber!r:.60} is no valid text; mend the name") from None
        if size > LONGEST_NAME:
            raise InputError(
                f"subscriber {subscriber!r:.60} has a name of {size:,} bytes; the most is {LONGEST_NAME}: "
                "shorten it"
            )

    def check_subscriptions(self, subscriber: str, held: int, more: int) -> None:
        """Refuse so many more subscriptions of somebody who has some."""
        if held + more <= self.subscriptions:
            return
        asks = "" if held >= self.subscriptions else f" and asks for {more:,} more"
        fix = "ask for fewer" if asks else "give some up"
        raise InputError(
            f"{subscriber!r:.60} has {held:,} subscriptions{asks}; {self.subscriptions:,} are the most that "
            f"a subscriber may have: {fix}, or raise serve --limit subscriptions="
        )

    def check_text(self, subscriber: str, held: Iterable[str], more: Iterable[str]) -> None:
        """Refuse more filters of somebody who has some, where all together are too long."""
        there, asked = (sum(len(text.encode()) + _EACH for text in texts) for texts in (held, more))
        if there + asked > self.text:
            fix = "" if self.text == LONGEST_TEXT else ", or raise serve --limit text="
            raise InputError(
                f"{subscriber!r:.60} has filters of {there:,} bytes and asks for {asked:,} more, with "
                f"{_EACH} for the number of each; {self.text:,} are the most that a subscriber may have: use "
                f"fewer or shorter ones, or another name beside this one{fix}"
            )

    def check_subscribers(self, subscriber: str, there: int) -> None:
        """Refuse a subscriber who is new, beside so many that are there."""
        if self.subscribers is not None and there >= self.subscribers:
            raise InputError(
                f"{subscriber!r:.60} is one too many: there are {there:,} subscribers, and "
                f"{self.subscribers:,} may be there; others have to give theirs up, or raise serve --limit "
                "subscribers="
            )

    def check_attributes(self, there: int, fresh: Iterable[str]) -> None:
        """Refuse attributes that are new, beside so many that filters name already."""
        names = list(fresh)
        for name in names:
            if (size := len(name.encode())) > LONGEST_ATTRIBUTE:
                raise InputError(
                    f"attribute {name!r:.60} has a name of {size:,} bytes; the most is {LONGEST_ATTRIBUTE} "
                    "where filters say which there are: shorten it, or say so by serve --schema"
                )
        if there + len(names) > self.attributes:
            raise InputError(
                f"filters name {there:,} attributes, and {names[0]!r:.60} is new; {self.attributes:,} may be "
                "named: use those that there are, say by serve --schema which there are, or raise serve "
                "--limit attributes="
            )


def _number(name: str, value: str) -> float:
    """Return the value of a limit."""
    try:
        if name == "rate":
            return float(value)
        return int(value.replace("_", "").replace(",", ""))
    except ValueError:
        what = "a number" if name == "rate" else "a whole number"
        raise ParameterError(f"--limit {name} is {value!r}; give {what}, such as {name}=1000") from None
