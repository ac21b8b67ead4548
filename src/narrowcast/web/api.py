"""The HTTP API of a broker node."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from narrowcast import __version__
from narrowcast.broker import ControlPlane, Publisher, Subscriber, wire
from narrowcast.errors import InputError, MissingError, NarrowcastError, PaceError, PlanError, TransportError
from narrowcast.web.metrics import NodeMetrics
from narrowcast.web.tokens import OpenAccess, TokenAccess

try:
    from fastapi import FastAPI, HTTPException, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, StreamingResponse
    from fastapi_offline import FastAPIOffline
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
    from pydantic import BaseModel, Field
except ImportError as error:
    raise MissingError("fastapi is not installed; run: pip install 'narrowcast[broker]'") from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from narrowcast.broker import Node, Transport

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
#: Body of `POST /events` in the OpenAPI description.
_EVENTS = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]},
                "example": {"price": 80, "name": "IBM"},
            }
        },
    }
}
log = logging.getLogger(__name__)

#: Maximum subscriptions in one answer, and maximum events per chunk of a stream.
_PAGE = 1000
#: Seconds between checks whether the user of a stream still exists unchanged.
_CHECK = 1.0


class SubscriptionRequest(BaseModel):
    """A filter to subscribe to."""

    subscriber: str = Field(min_length=1, examples=["ann"])
    filter: str = Field(min_length=1, examples=["price > 75 AND name = 'IBM'"])


class SubscriptionReply(SubscriptionRequest):
    """A subscription."""

    subscription_id: int


class PublishReply(BaseModel):
    """Result of publishing."""

    events: int = Field(description="Number of events received.")


class Health(BaseModel):
    """State of a node."""

    status: str
    version: str
    seconds: float = Field(description="Seconds since the node started.")
    epoch: int = Field(description="Number of the plan in use.")
    plan: str = Field(description="Name that identifies the plan in use.")
    subscriptions: int = Field(description="Number of subscriptions.")
    events: int = Field(description="Number of events routed since the node started.")
    delivery: str = Field(description="Delivery guarantee: at-most-once or at-least-once.")
    trouble: str = Field("", description="Why events cannot be stored now; empty while they can.")


class RolloutBody(BaseModel):
    """A plan to roll out."""

    plan: str = Field(description="Folder of the plan on the machine of the node.", examples=["/plans/today"])
    flow: str | None = Field(None, description="For a plan of topics: attribute with an event's topic.")
    overlap: float = Field(
        5.0, ge=0, le=600, description="Seconds for subscribers to join the channels of the plan."
    )
    least: float = Field(
        0.0, ge=0, le=1, description="Share of subscribers that must join in time; else the old plan stays."
    )
    joins: float | None = Field(None, gt=0, description="Maximum channel joins per second.")


class RolloutReply(BaseModel):
    """Result of a rollout."""

    epoch: int
    plan: str
    listening: int = Field(description="Number of subscribers that joined its channels.")


def make_api(node: Node, transport: Transport, tokens: TokenAccess | None = None) -> FastAPI:
    """Return the HTTP API of a node.

    Parameters
    ----------
    node
        The node, already started.
    transport
        The node's transport.
    tokens
        Access control by users and their tokens (default: every request is allowed).
    """
    access = OpenAccess() if tokens is None else tokens
    begun = time.monotonic()
    prefix = node.subjects.prefix
    publishers: dict[str | None, Publisher] = {}
    starting = asyncio.Lock()

    async def publisher_of(name: str | None) -> Publisher:
        """Return the publisher that publishes under a user's name."""
        async with starting:
            if name not in publishers:
                made = Publisher(transport, name, prefix=prefix, partitions=node.partitions)
                publishers[name] = await made.start()
            return publishers[name]

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await publisher_of(None)
        yield
        for each in publishers.values():
            await each.aclose()

    api = FastAPIOffline(  # its documentation page loads nothing from other hosts
        title="Narrowcast",
        version=__version__,
        lifespan=life,
        redoc_url=None,
        description="Subscribe, publish, and monitor a live broker.",
    )
    registry = NodeMetrics(node).registry()
    closing: set[asyncio.Future[None]] = set()

    @api.exception_handler(NarrowcastError)
    async def refused(_: Request, error: NarrowcastError) -> JSONResponse:
        if isinstance(error, PaceError):
            return JSONResponse({"detail": str(error)}, 429, {"Retry-After": "1"})
        code = 422 if isinstance(error, InputError | PlanError) else 503
        return JSONResponse({"detail": str(error)}, code)

    @api.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without the input, which need not be valid UTF-8.
        detail = [{key: each[key] for key in ("loc", "msg", "type")} for each in error.errors()]
        return JSONResponse({"detail": detail}, 422)

    @api.get("/health", responses={503: {"model": Health, "description": "The node cannot work."}})
    async def health(response: Response) -> Health:
        """Report the state of the node.

        The status is `ok`; or with 503 `disconnected` while its NATS server does not answer, and `stuck`
        while events cannot be stored.
        """
        trouble = "" if node.stored_egress is None else node.stored_egress.trouble
        status = "disconnected" if not transport.connected else "stuck" if trouble else "ok"
        if status != "ok":
            response.status_code = 503
        return Health(
            status=status,
            delivery="at-most-once" if node.stored_egress is None else "at-least-once",
            trouble=trouble,
            version=__version__,
            seconds=time.monotonic() - begun,
            epoch=node.control.epoch.number,
            plan=node.control.epoch.routes.name,
            subscriptions=len(node.control.interests),
            events=node.counts.events,
        )

    @api.get("/metrics", response_class=Response, dependencies=access.requires())
    async def metrics() -> Response:
        """Return all metrics in the format of Prometheus."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @api.post("/subscriptions", status_code=201, dependencies=access.requires("subscriber"))
    async def subscribe(wanted: SubscriptionRequest, request: Request) -> SubscriptionReply:
        """Add a subscription; it applies to all events published from now on."""
        access.check_owner(request, wanted.subscriber)
        answer = await _control_plane(node).change(wire.AddFilters(wanted.subscriber, [wanted.filter]))
        return SubscriptionReply(
            subscription_id=answer.added[0], subscriber=wanted.subscriber, filter=wanted.filter
        )

    @api.get("/subscriptions", dependencies=access.requires("subscriber"))
    async def subscriptions(
        request: Request,
        subscriber: Annotated[str, Query(min_length=1)],
        after: int = -1,
        limit: Annotated[int, Query(ge=1, le=_PAGE)] = _PAGE,
    ) -> list[SubscriptionReply]:
        """List the subscriptions of a subscriber in order of their ids, from the first id above `after`."""
        access.check_owner(request, subscriber)
        held = sorted((n, text) for n, text in node.control.interests.of(subscriber).items() if n > after)
        return [
            SubscriptionReply(subscription_id=n, subscriber=subscriber, filter=text)
            for n, text in held[:limit]
        ]

    @api.delete(
        "/subscriptions/{subscription_id}", status_code=204, dependencies=access.requires("subscriber")
    )
    async def unsubscribe(
        subscription_id: int, request: Request, subscriber: Annotated[str, Query(min_length=1)]
    ) -> None:
        """Remove a subscription."""
        access.check_owner(request, subscriber)
        if subscription_id not in node.control.interests.of(subscriber):
            raise HTTPException(
                404, f"subscription_id={subscription_id}: not a subscription of {subscriber!r}"
            )
        await _control_plane(node).change(wire.RemoveSubscriptions(subscriber, [subscription_id]))

    @api.post("/events", status_code=202, openapi_extra=_EVENTS, dependencies=access.requires("publisher"))
    async def publish(request: Request) -> PublishReply:
        """Publish an event, or a list of events in order.

        Returns when a node has received them. Events whose values do not fit the types of their attributes
        are not delivered; the node counts them and stores them as dead letters.
        """
        events = _events_of(await request.body())
        publisher = await publisher_of(access.user_name(request))
        for number, event in enumerate(events):
            try:
                await publisher.publish(event)
            except PaceError as error:  # about earlier events, perhaps of another request
                message = f"{error}; {number} of {len(events)} events of this request were received: "
                raise PaceError(message + "send the rest again later") from error
        await publisher.flush()
        return PublishReply(events=len(events))

    @api.get(
        "/subscribers/{subscriber}/events",
        response_class=StreamingResponse,
        dependencies=access.requires("subscriber"),
    )
    async def receive(subscriber: str, request: Request) -> StreamingResponse:
        """Receive the events of a subscriber, one JSON line each, while the connection lasts."""
        access.check_owner(request, subscriber)
        reader = await Subscriber(transport, subscriber, prefix=prefix).start()

        async def lines() -> AsyncIterator[bytes]:
            delivered = True
            try:
                while access.is_current(request):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_CHECK):
                            events = await reader.take(_PAGE)
                        delivered = access.is_current(request)
                        if not events or not delivered:
                            break
                        yield b"".join(event.payload + b"\n" for event in events)
            except TransportError as error:  # such as a second reader with this name; the answer has begun
                log.warning("event stream of %s over HTTP ends: %s", subscriber, error)
            finally:  # in a task of its own: this generator is cancelled when the client has gone
                task = asyncio.ensure_future(reader.aclose(processed=delivered))
                closing.add(task)
                task.add_done_callback(closing.discard)

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    @api.post("/explain", dependencies=access.requires())
    async def explain(event: dict[str, Any]) -> dict[str, Any]:
        """Explain how an event would be delivered now, without sending it."""
        try:
            return node.explain(msgspec.json.encode(event))
        except UnicodeEncodeError as error:
            raise HTTPException(422, f"event: must be valid UTF-8: {error.reason}") from error

    @api.post("/rollout", dependencies=access.requires())
    async def rollout(wanted: RolloutBody) -> RolloutReply:
        """Switch to another plan while events flow; no subscriber misses an event."""
        done = await _control_plane(node).rollout_from(
            wanted.plan, wanted.flow, overlap=wanted.overlap, least=wanted.least, joins=wanted.joins
        )
        return RolloutReply(epoch=done.epoch, plan=done.plan, listening=done.listening)

    return api


def _events_of(body: bytes) -> list[bytes]:
    """Return the events in a request body as they are written, each on one line."""
    try:
        if body.lstrip()[:1] == b"[":
            events = [bytes(each) for each in msgspec.json.decode(body, type=list[msgspec.Raw])]
        else:
            events = [body.strip()]
        for each in events:
            _object(each)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise HTTPException(422, f"body: must be a JSON object or a list of JSON objects: {error}") from error
    return [msgspec.json.format(each, indent=-1) if b"\n" in each else each for each in events]


def _control_plane(node: Node) -> ControlPlane:
    """Return the control plane, which only the first node has."""
    if not isinstance(node.control, ControlPlane):
        raise HTTPException(409, "this node follows the first node; send changes to the first node")
    return node.control
