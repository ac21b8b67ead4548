"""Limits on events, filters, subscriptions and rates of one broker."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from narrowcast.broker.data.decode import LARGEST
from narrowcast.errors import InputError, ParameterError
from narrowcast.filters.limits import LENIENT, FilterLimits

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Maximum bytes of a subscriber's name: it becomes one word of a subject, where a byte may take three.
LONGEST_NAME = 512
#: Maximum bytes of all filters of one subscriber, which the broker sends it in one message of 1 MB; and the
#: bytes counted for the id of each filter.
LONGEST_TEXT, _EACH = 768 << 10, 16
#: Maximum bytes of an attribute name learned from a filter: each subscriber receives all names in the same
#: message as its filters.
LONGEST_ATTRIBUTE = 256


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Limits on what publishers and subscribers may ask of a broker; each can be raised.

    The limits on subscriptions hold for requests of subscribers while the broker runs. They do not hold for
    subscriptions of a table or store that the broker starts with.

    Parameters
    ----------
    filters
        Limits on one filter: `bytes`, `depth`, `expand` and `boxes`.
    payload
        Largest event in bytes, from 2 to 1,032,192 (the default).
    subscriptions
        Subscriptions of one subscriber (default 10,000).
    text
        Bytes of all filters of one subscriber, plus 16 for each; 786,432 is the default and the maximum.
    subscribers
        Subscribers in all (default: no limit).
    attributes
        Attributes that all filters together may name (default 500). Holds only where no schema is given: each
        event is searched for every one of them.
    rate
        Events per second of one publisher (default: no limit).
    burst
        Events of one publisher that may arrive at once (default: those of one second). Needs `rate`.

    Examples
    --------
    >>> limits = BrokerLimits.parse(["payload=65536", "rate=1000", "depth=20"])
    >>> limits.payload, limits.rate, limits.burst, limits.filters.depth
    (65536, 1000.0, None, 20)
    >>> BrokerLimits.parse(["rate=0"])
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: rate=0.0: must be a finite number above 0; leave it out for any rate
    >>> BrokerLimits.parse(["size=7"])
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: limit='size=7': must be NAME=VALUE with a NAME of ...
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
            limit = f"from 2 to {LARGEST}, since a NATS message has 1 MB"
            raise ParameterError(parameter="payload", value=self.payload, limit=limit)
        if self.filters.boxes > LENIENT.boxes:
            limit = f"at most {LENIENT.boxes}, the most that subscribers accept"
            raise ParameterError(parameter="boxes", value=self.filters.boxes, limit=limit)
        if self.text > LONGEST_TEXT:
            limit = f"at most {LONGEST_TEXT}, since a NATS message has 1 MB"
            raise ParameterError(parameter="text", value=self.text, limit=limit)
        for name in ("subscriptions", "text", "subscribers", "attributes", "burst"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(parameter=name, value=value, limit="at least 1")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ParameterError(
                parameter="rate",
                value=self.rate,
                limit="a finite number above 0",
                fix="leave it out for any rate",
            )
        if self.burst is not None and self.rate is None:
            raise ParameterError(
                f"burst={self.burst}: needs rate; give both", parameter="burst", value=self.burst
            )

    @classmethod
    def parse(cls, words: Iterable[str]) -> Self:
        """Return limits given as texts of the form ``name=value``; the others have their defaults.

        Parameters
        ----------
        words
            Texts such as ``payload=65536``. Whole numbers may contain `_` and `,` between digits.

        Raises
        ------
        ParameterError
            When a name is unknown or given twice, or a value is outside its range.
        """
        broker_names = [each.name for each in fields(cls) if each.name != "filters"]
        filter_names = [each.name for each in fields(FilterLimits)]
        given: dict[str, Any] = {}
        for word in words:
            name, _, value = word.partition("=")
            if name not in filter_names and name not in broker_names:
                known = ", ".join([*filter_names, *broker_names])
                raise ParameterError(
                    parameter="limit", value=word, limit=f"NAME=VALUE with a NAME of {known}"
                )
            if name in given:
                raise ParameterError(f"{name}: given twice; leave one out", parameter=name, value=value)
            given[name] = _number(name, value)
        filters = FilterLimits(**{name: given.pop(name) for name in filter_names if name in given})
        return cls(filters=filters, **given)

    def check_name(self, subscriber: str) -> None:
        """Refuse a subscriber name that is not valid UTF-8 or is longer than 512 bytes."""
        try:
            size = len(subscriber.encode())
        except UnicodeEncodeError:
            raise InputError(
                f"subscriber={subscriber!r:.60}: must be valid UTF-8; remove unpaired surrogates",
                parameter="subscriber",
                value=subscriber,
            ) from None
        if size > LONGEST_NAME:
            raise InputError(
                f"subscriber={subscriber!r:.60}: the name has {size:,} bytes and must have at most "
                f"{LONGEST_NAME}; shorten it",
                parameter="subscriber",
                value=subscriber,
            )

    def check_subscriptions(self, subscriber: str, held: int, more: int) -> None:
        """Refuse additional subscriptions of a subscriber above the limit.

        Parameters
        ----------
        subscriber
            Its name.
        held
            Subscriptions that it has.
        more
            Additional subscriptions that it requests.
        """
        if held + more <= self.subscriptions:
            return
        asks = "" if held >= self.subscriptions else f" and requests {more:,} more"
        fix = "request fewer" if asks else "remove some"
        raise InputError(
            f"subscriber {subscriber!r:.60} has {held:,} subscriptions{asks}: must be at most "
            f"{self.subscriptions:,}; {fix}, or raise the limit `subscriptions`",
            parameter="subscriptions",
            value=held + more,
            limit=f"at most {self.subscriptions:,}",
        )

    def check_text(self, subscriber: str, held: Iterable[str], more: Iterable[str]) -> None:
        """Refuse additional filters of a subscriber when all of its filters together are too long.

        Parameters
        ----------
        subscriber
            Its name.
        held, more
            Its current filters, and those that it requests.
        """
        current, added = (sum(len(text.encode()) + _EACH for text in texts) for texts in (held, more))
        if current + added > self.text:
            fix = "" if self.text == LONGEST_TEXT else ", or raise the limit `text`"
            raise InputError(
                f"subscriber {subscriber!r:.60} has filters of {current:,} bytes and requests {added:,} "
                f"more, counting {_EACH} for the id of each: must be at most {self.text:,} in all; use fewer "
                f"or shorter filters, or a second subscriber name{fix}",
                parameter="text",
                value=current + added,
                limit=f"at most {self.text:,}",
            )

    def check_subscribers(self, subscriber: str, current: int) -> None:
        """Refuse a new subscriber when the broker already has the maximum number of subscribers."""
        if self.subscribers is not None and current >= self.subscribers:
            raise InputError(
                f"subscriber {subscriber!r:.60} is new and there are {current:,} subscribers: must be at "
                f"most {self.subscribers:,}; remove the subscriptions of another one, or raise the limit "
                "`subscribers`",
                parameter="subscribers",
                value=current + 1,
                limit=f"at most {self.subscribers:,}",
            )

    def check_attributes(self, current: int, new: Iterable[str]) -> None:
        """Refuse filters that name too many new attributes, or one with a name above 256 bytes.

        Parameters
        ----------
        current
            Attributes that filters name already.
        new
            Names of the new attributes.
        """
        names = list(new)
        for name in names:
            if (size := len(name.encode())) > LONGEST_ATTRIBUTE:
                raise InputError(
                    f"attribute {name!r:.60} has a name of {size:,} bytes: must be at most "
                    f"{LONGEST_ATTRIBUTE} without a schema; shorten it, or start the broker with a schema",
                    parameter="attribute",
                    value=name,
                    limit=f"at most {LONGEST_ATTRIBUTE} bytes",
                )
        if current + len(names) > self.attributes:
            raise InputError(
                f"filters name {current:,} attributes and {names[0]!r:.60} is new: must be at most "
                f"{self.attributes:,}; use known attributes, start the broker with a schema, or raise the "
                "limit `attributes`",
                parameter="attributes",
                value=current + len(names),
                limit=f"at most {self.attributes:,}",
            )


def _number(name: str, value: str) -> float:
    """Return the value of a limit as a number."""
    try:
        if name == "rate":
            return float(value)
        return int(value.replace("_", "").replace(",", ""))
    except ValueError:
        kind = "a number" if name == "rate" else "an integer"
        raise ParameterError(parameter=name, value=value, limit=f"{kind}, such as 1000") from None
