"""How many events a second each publisher may send."""

from __future__ import annotations

from narrowcast.errors import ParameterError

#: Publishers that are remembered, at most.
MOST = 1 << 16


class PublishRateLimit:
    """Lets through so many events a second of each publisher, and some at once: a bucket of tokens for each.

    A bucket that is full again is the same as none, so that those who have paused are forgotten.

    Parameters
    ----------
    rate
        Events a second of one publisher.
    burst
        How many may come at once; those of a second unless told.
    most
        Publishers that are remembered; past that the one who is silent the longest is forgotten, and has a
        full bucket when it comes again.

    Examples
    --------
    >>> pace = PublishRateLimit(10, burst=4)
    >>> pace.admit("p", 3, now=0.0), pace.admit("p", 3, now=0.0), pace.admit("q", 3, now=0.0)
    (3, 1, 3)
    >>> pace.admit("p", 9, now=0.25), pace.admit("p", 9, now=99.0)
    (2, 4)
    >>> pace.reason("p")
    "publisher 'p' sends more than 10 events a second; slow down, or raise serve --limit rate="
    """

    def __init__(self, rate: float, burst: int | None = None, *, most: int = MOST) -> None:
        if not 0 < rate < float("inf"):
            raise ParameterError(f"rate is {rate}; give events a second, above 0")
        if (burst is not None and burst < 1) or most < 1:
            raise ParameterError(f"burst is {burst} and most {most}; give at least 1 of each")
        self._rate, self._most = rate, most
        self._burst = max(1.0, rate if burst is None else float(burst))
        #: What each had left, and when; who was heard last comes last.
        self._left: dict[str, tuple[float, float]] = {}
        #: Events that were not let through.
        self.refused = 0

    def admit(self, publisher: str, n: int, now: float) -> int:
        """Return how many of a publisher's next n events may pass.

        Parameters
        ----------
        publisher
            Who.
        n
            How many come at once; the first of them may pass.
        now
            Seconds, of a clock that does not go back: `time.monotonic`.
        """
        left, since = self._left.pop(publisher, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - since) * self._rate)
        passing = min(n, int(left))
        self._left[publisher] = left - passing, max(now, since)
        self.refused += n - passing
        self._forget(now)
        return passing

    def _forget(self, now: float) -> None:
        """Forget two of those silent for longest, if their buckets are full, or there are too many."""
        for _ in range(2):
            name = next(iter(self._left))
            left, since = self._left[name]
            full = left + (now - since) * self._rate >= self._burst
            if not (full or len(self._left) > self._most):
                break
            if len(self._left) == 1:  # of whom this was asked just now
                break
            del self._left[name]

    def reason(self, publisher: str) -> str:
        """Return why events of a publisher do not pass."""
        return (
            f"publisher {publisher!r:.100} sends more than {self._rate:,.6g} events a second; slow down, or "
            "raise serve --limit rate="
        )

    def __len__(self) -> int:
        return len(self._left)
