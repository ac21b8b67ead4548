"""What the filters of a subscriber let through, of events that come over a channel which others share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.broker.data.decode import Decoder
from narrowcast.filters.limits import LENIENT
from narrowcast.filters.subscriptions import compile_filters
from narrowcast.matching import Scan
from narrowcast.model.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class SubscriberFilter:
    """Tells which events some filters let through.

    Parameters
    ----------
    schema
        The types of attributes.
    filters
        Any of them is enough.

    Examples
    --------
    >>> sieve = SubscriberFilter({"price": "double"}, ["price > 75", "price < 5"])
    >>> sieve.wanted([b'{"price": 80}', b'{"price": 9}', b"{"])
    [True, False, False]
    """

    def __init__(self, schema: Mapping[str, str], filters: Iterable[str]) -> None:
        types = Schema.of(schema)
        self._decoder = Decoder(types)
        self._filters = Scan().fit(compile_filters(types, list(filters), limits=LENIENT).subscriptions)

    def wanted(self, payloads: list[bytes]) -> list[bool]:
        """Return for each event whether it passes; what is no event does not."""
        found = np.zeros(len(payloads), np.bool_)
        for events, position in self._decoder.decode(payloads).good:
            found[position[self._filters.match(events).counts() > 0]] = True
        return found.tolist()
