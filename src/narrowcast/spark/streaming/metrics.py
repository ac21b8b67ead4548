"""How a stream fares: counted batch by batch, for a terminal and for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from narrowcast.errors import MissingError, ParameterError
from narrowcast.spark.streaming.backlog import Lag

if TYPE_CHECKING:
    from types import TracebackType

    from narrowcast.spark.streaming.micro_batch import MicroBatch

#: What is counted, and what is as it is now.
_COUNTERS = {
    "events": "Events that arrived",
    "rejected": "Events that could not be used",
    "matched": "Events that somebody wants",
    "matches": "Subscriptions that events matched",
}
_GAUGES = {
    "batch_seconds": "Seconds that the last micro-batch took",
    "batch_events": "Events of the last micro-batch",
    "snapshot": "Number of the subscriptions' snapshot",
    "arriving": "Events a second that came in between the last two micro-batches",
    "waiting": "Messages, or files of a folder, that wait at the source",
    "missing": "Messages that the source no longer had when it was their turn",
}


class StreamMetrics:
    """What went through a stream so far.

    Examples
    --------
    >>> from narrowcast.spark.streaming.micro_batch import MicroBatch
    >>> metrics = StreamMetrics()
    >>> metrics.add(MicroBatch(0, 1000, 1, 400, 2500, 3, None, 0.5))
    >>> metrics.line()
    'batch 0: 1,000 events in 0.50 s, 2,000 a second, 2.5 matches each, snapshot 3, 1 rejected so far'
    >>> metrics.facts()["rate"]
    2000.0
    """

    def __init__(self) -> None:
        self.batches, self.seconds = 0, 0.0
        self.sums = dict.fromkeys(_COUNTERS, 0)
        self.last: MicroBatch | None = None
        self.lag = Lag()
        self._served: dict[str, Any] = {}
        self._server: Any = None

    @classmethod
    def serve(cls, place: str) -> Self:
        """Return metrics that are served over HTTP at a place like ``localhost:9400``."""
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
        except ImportError as error:
            raise MissingError(
                "prometheus-client is not installed; run: pip install 'narrowcast[spark]'"
            ) from error
        host, _, port = place.rpartition(":")
        if not (port.isascii() and port.isdigit() and int(port) < 65536):
            raise ParameterError(f"--metrics is {place!r}; write it as localhost:9400")
        found = cls()
        registry = CollectorRegistry()
        for name, about in _COUNTERS.items():
            found._served[name] = Counter(f"narrowcast_{name}", about, registry=registry)
        for name, about in _GAUGES.items():
            found._served[name] = Gauge(f"narrowcast_{name}", about, registry=registry)
        found._served["batches"] = Counter("narrowcast_batches", "Micro-batches", registry=registry)
        try:
            found._server = start_http_server(int(port), host or "localhost", registry)[0]
        except OSError as error:
            raise ParameterError(f"--metrics is {place!r}: {error.strerror}; name another port") from error
        return found

    @property
    def port(self) -> int | None:
        """Where it is served."""
        return None if self._server is None else int(self._server.server_port)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def add(self, batch: MicroBatch) -> None:
        """Count a micro-batch."""
        self.batches, self.seconds = self.batches + 1, self.seconds + batch.seconds
        self.last = batch
        for name in _COUNTERS:
            self.sums[name] += getattr(batch, name)
        if self._served:
            for name in _COUNTERS:
                self._served[name].inc(getattr(batch, name))
            self._served["batches"].inc()
            self._served["batch_seconds"].set(batch.seconds)
            self._served["batch_events"].set(batch.events)
            self._served["snapshot"].set(batch.snapshot)

    def see(self, lag: Lag) -> None:
        """Take down how far the stream is behind."""
        self.lag = lag
        if self._served:
            for name in ("arriving", "waiting", "missing"):
                if (value := getattr(lag, name)) is not None:
                    self._served[name].set(value)

    def line(self) -> str:
        """Return the last micro-batch in one line."""
        batch = self.last
        if batch is None:
            return "wait for events"
        rate = batch.events / max(batch.seconds, 1e-9)
        each = batch.matches / max(1, batch.events)
        waiting = "" if self.lag.waiting is None else f", {self.lag.waiting:,} {self.lag.unit} waiting"
        bad = f", {self.sums['rejected']:,} rejected so far" if self.sums["rejected"] else ""
        return (
            f"batch {batch.number}: {batch.events:,} events in {batch.seconds:.2f} s, {rate:,.0f} a second, "
            f"{each:.1f} matches each, snapshot {batch.snapshot}{waiting}{bad}"
        )

    def facts(self) -> dict[str, Any]:
        """Return all that was counted."""
        snapshot = 0 if self.last is None else self.last.snapshot
        rate = self.sums["events"] / self.seconds if self.seconds else 0.0
        return {
            "batches": self.batches,
            **self.sums,
            "snapshot": snapshot,
            "seconds": self.seconds,
            "rate": rate,
            "arriving": self.lag.arriving,
            "waiting": self.lag.waiting,
            "missing": self.lag.missing,
        }
