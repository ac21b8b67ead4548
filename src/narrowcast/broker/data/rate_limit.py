"""A limit on the event rate of each publisher."""

from __future__ import annotations

from narrowcast.errors import ParameterError

#: Default maximum of remembered publishers.
MOST = 1 << 16


class PublishRateLimit:
    """Token bucket for each publisher: `rate` tokens per second, at most `burst`; each event takes one.

    Publishers with a full bucket are forgotten, since a new bucket is full too.

    Parameters
    ----------
    rate
        Events per second of one publisher, above 0.
    burst
        Maximum events at once (default: those of one second), at least 1.
    most
        Maximum publishers to remember (default 65,536). Beyond that, the one silent for longest is forgotten
        and starts with a full bucket again.

    Examples
    --------
    >>> limit = PublishRateLimit(10, burst=4)
    >>> limit.admit("p", 3, now=0.0), limit.admit("p", 3, now=0.0), limit.admit("q", 3, now=0.0)
    (3, 1, 3)
    >>> limit.admit("p", 9, now=0.25), limit.admit("p", 9, now=99.0)
    (2, 4)
    >>> limit.reason("p")
    "publisher='p': sends more than 10 events per second; slow down, or raise the limit `rate`"
    """

    def __init__(self, rate: float, burst: int | None = None, *, most: int = MOST) -> None:
        if not 0 < rate < float("inf"):
            raise ParameterError(parameter="rate", value=rate, limit="a finite number above 0")
        if burst is not None and burst < 1:
            raise ParameterError(parameter="burst", value=burst, limit="at least 1")
        if most < 1:
            raise ParameterError(parameter="most", value=most, limit="at least 1")
        self._rate, self._most = rate, most
        self._burst = max(1.0, rate if burst is None else float(burst))
        #: Tokens and time of the last event by publisher, the most recent last.
        self._buckets: dict[str, tuple[float, float]] = {}
        #: Events that were not admitted.
        self.refused = 0

    def admit(self, publisher: str, n: int, now: float) -> int:
        """Return how many of a publisher's next n events are admitted: the first ones.

        Parameters
        ----------
        publisher
            Its name.
        n
            Number of events that arrive together.
        now
            Time in seconds of a clock that never goes back, such as `time.monotonic`.
        """
        left, since = self._buckets.pop(publisher, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - since) * self._rate)
        passing = min(n, int(left))
        self._buckets[publisher] = left - passing, max(now, since)
        self.refused += n - passing
        self._forget(now)
        return passing

    def _forget(self, now: float) -> None:
        """Forget up to two publishers silent for longest, if their bucket is full or there are too many."""
        for _ in range(2):
            name = next(iter(self._buckets))
            left, since = self._buckets[name]
            full = left + (now - since) * self._rate >= self._burst
            if not (full or len(self._buckets) > self._most):
                break
            if len(self._buckets) == 1:  # the publisher of the current call
                break
            del self._buckets[name]

    def reason(self, publisher: str) -> str:
        """Return why events of a publisher are refused."""
        return (
            f"publisher={publisher!r:.100}: sends more than {self._rate:,.6g} events per second; slow down, "
            "or raise the limit `rate`"
        )

    def __len__(self) -> int:
        return len(self._buckets)
