"""Metrics of a stream: sums over its micro-batches, for a terminal and for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from narrowcast.errors import MissingError, ParameterError
from narrowcast.spark.streaming.backlog import Lag

if TYPE_CHECKING:
    from types import TracebackType

    from narrowcast.spark.streaming.micro_batch import MicroBatch

#: Names and descriptions of counters and gauges.
_COUNTERS = {
    "events": "Events received",
    "rejected": "Events rejected as invalid",
    "matched": "Events that match at least one subscription",
    "matches": "Pairs of an event and a matching subscription",
}
_GAUGES = {
    "batch_seconds": "Duration of the last micro-batch in seconds",
    "batch_events": "Events of the last micro-batch",
    "snapshot": "Number of the snapshot of subscriptions",
    "arriving": "Events per second that arrived between the last two micro-batches",
    "waiting": "Messages, or files, waiting at the source",
    "missing": "Messages deleted at the source before they were read",
}


class StreamMetrics:
    """Counts of a stream's events and matches over all micro-batches so far, and its current lag.

    Examples
    --------
    >>> from narrowcast.spark.streaming.micro_batch import MicroBatch
    >>> metrics = StreamMetrics()
    >>> metrics.add(MicroBatch(0, 1000, 1, 400, 2500, 3, None, 0.5))
    >>> metrics.line()
    'batch 0: 1,000 events in 0.50 s, 2,000 per second, 2.5 matches each, snapshot 3, 1 rejected so far'
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
        """Return metrics that are served to Prometheus over HTTP.

        Parameters
        ----------
        place
            Host and port, such as ``localhost:9400``; port 0 chooses a free one.

        Raises
        ------
        ParameterError
            When the port is invalid or in use.
        MissingError
            When the package prometheus-client is not installed.
        """
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
        except ImportError as error:
            raise MissingError(
                "prometheus-client is not installed; run: pip install 'narrowcast[spark]'"
            ) from error
        host, _, port = place.rpartition(":")
        if not (port.isascii() and port.isdigit() and int(port) < 65536):
            limit = "a host and a port, such as localhost:9400"
            raise ParameterError(parameter="metrics", value=place, limit=limit)
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
            raise ParameterError(
                f"metrics={place!r}: {error.strerror}; give another port", parameter="metrics", value=place
            ) from error
        return found

    @property
    def port(self) -> int | None:
        """The port of the HTTP server; None if the metrics are not served."""
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
        """Add the counts of a micro-batch."""
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

    def set_lag(self, lag: Lag) -> None:
        """Store how far the stream is behind."""
        self.lag = lag
        if self._served:
            for name in ("arriving", "waiting", "missing"):
                if (value := getattr(lag, name)) is not None:
                    self._served[name].set(value)

    def line(self) -> str:
        """Return a line of text about the last micro-batch."""
        batch = self.last
        if batch is None:
            return "wait for events"
        rate = batch.events / max(batch.seconds, 1e-9)
        each = batch.matches / max(1, batch.events)
        waiting = "" if self.lag.waiting is None else f", {self.lag.waiting:,} {self.lag.unit} waiting"
        bad = f", {self.sums['rejected']:,} rejected so far" if self.sums["rejected"] else ""
        return (
            f"batch {batch.number}: {batch.events:,} events in {batch.seconds:.2f} s, "
            f"{rate:,.0f} per second, {each:.1f} matches each, snapshot {batch.snapshot}{waiting}{bad}"
        )

    def facts(self) -> dict[str, Any]:
        """Return all sums and the current lag as JSON values."""
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
