"""The HTTP API of a node."""

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
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
    from pydantic import BaseModel, Field
except ImportError as error:
    raise MissingError("fastapi is not installed; run: pip install 'narrowcast[broker]'") from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from narrowcast.broker import Node, Transport

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
#: What `POST /events` takes, for the description of the API.
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

#: Subscriptions that are listed at once, at most.
_LISTED = 1000
#: Seconds from one look at whether who reads is still a user to the next.
_LOOK = 1.0


class SubscriptionRequest(BaseModel):
    """A filter that somebody asks for."""

    subscriber: str = Field(min_length=1, examples=["ann"])
    filter: str = Field(min_length=1, examples=["price > 75 AND name = 'IBM'"])


class SubscriptionReply(SubscriptionRequest):
    """A filter that holds."""

    subscription_id: int


class PublishReply(BaseModel):
    """What became of events."""

    events: int = Field(description="How many were taken.")


class Health(BaseModel):
    """How a node is."""

    status: str
    version: str
    seconds: float = Field(description="Since it began.")
    epoch: int = Field(description="The number of the plan in use.")
    plan: str = Field(description="What tells the plan from others.")
    subscriptions: int
    events: int
    delivery: str = Field(description="What is promised.")
    trouble: str = Field("", description="Why events cannot be stored at the moment.")


class RolloutBody(BaseModel):
    """A plan to take up."""

    plan: str = Field(description="Its folder, where the node runs.", examples=["/plans/today"])
    flow: str | None = Field(None, description="For a plan of topics: the attribute that names an event's.")
    overlap: float = Field(
        5.0, ge=0, le=600, description="Seconds that subscribers have to join its channels."
    )
    least: float = Field(0.0, ge=0, le=1, description="The share who have to, or the old plan stays.")
    joins: float | None = Field(None, gt=0, description="Channels joined a second, at most.")


class RolloutReply(BaseModel):
    """What became of a plan."""

    epoch: int
    plan: str
    listening: int = Field(description="How many listen to its channels.")


def make_api(node: Node, transport: Transport, tokens: TokenAccess | None = None) -> FastAPI:
    """Return the API of a node.

    Parameters
    ----------
    node
        Which; it has been started.
    transport
        What moves its bytes.
    tokens
        Who may do what; without, everybody may do everything.
    """
    access = OpenAccess() if tokens is None else tokens
    begun = time.monotonic()
    prefix = node.subjects.prefix
    publishers: dict[str | None, Publisher] = {}
    starting = asyncio.Lock()

    async def publisher_of(name: str | None) -> Publisher:
        """Return what publishes for a user: each in its own name."""
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

    api = FastAPI(
        title="Narrowcast", version=__version__, lifespan=life,
        description="Subscribe, publish, and see how a live broker fares.",
    )  # fmt: skip
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
        # Without what was sent: that need not be text.
        told = [{key: each[key] for key in ("loc", "msg", "type")} for each in error.errors()]
        return JSONResponse({"detail": told}, 422)

    @api.get("/health", responses={503: {"model": Health, "description": "It cannot do its work."}})
    async def health(response: Response) -> Health:
        """Tell how the node is.

        That is `ok`; or with 503 `disconnected` while its NATS server does not answer, and `stuck` while
        events cannot be stored.
        """
        trouble = "" if node.storing is None else node.storing.trouble
        status = "disconnected" if not transport.connected else "stuck" if trouble else "ok"
        if status != "ok":
            response.status_code = 503
        return Health(
            status=status,
            delivery="at-most-once" if node.storing is None else "at-least-once",
            trouble=trouble,
            version=__version__,
            seconds=time.monotonic() - begun,
            epoch=node.holding.epoch.number,
            plan=node.holding.epoch.routes.name,
            subscriptions=len(node.holding.interests),
            events=node.counts.events,
        )

    @api.get("/metrics", response_class=Response, dependencies=access.needs())
    async def metrics() -> Response:
        """Give all metrics to Prometheus."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @api.post("/subscriptions", status_code=201, dependencies=access.needs("subscriber"))
    async def subscribe(wanted: SubscriptionRequest, request: Request) -> SubscriptionReply:
        """Subscribe somebody to what a filter lets through: it holds for all events published from now on."""
        access.own(request, wanted.subscriber)
        answer = await _desk(node).change(wire.AddFilters(wanted.subscriber, [wanted.filter]))
        return SubscriptionReply(
            subscription_id=answer.added[0], subscriber=wanted.subscriber, filter=wanted.filter
        )

    @api.get("/subscriptions", dependencies=access.needs("subscriber"))
    async def subscriptions(
        request: Request,
        subscriber: Annotated[str, Query(min_length=1)],
        after: int = -1,
        limit: Annotated[int, Query(ge=1, le=_LISTED)] = _LISTED,
    ) -> list[SubscriptionReply]:
        """List the subscriptions of somebody, by id; `after` goes on behind the last one seen."""
        access.own(request, subscriber)
        held = sorted((n, text) for n, text in node.holding.interests.of(subscriber).items() if n > after)
        return [
            SubscriptionReply(subscription_id=n, subscriber=subscriber, filter=text)
            for n, text in held[:limit]
        ]

    @api.delete("/subscriptions/{subscription_id}", status_code=204, dependencies=access.needs("subscriber"))
    async def unsubscribe(
        subscription_id: int, request: Request, subscriber: Annotated[str, Query(min_length=1)]
    ) -> None:
        """Give up a subscription of somebody."""
        access.own(request, subscriber)
        if subscription_id not in node.holding.interests.of(subscriber):
            raise HTTPException(404, f"subscription_id {subscription_id} is none of {subscriber!r}")
        await _desk(node).change(wire.RemoveSubscriptions(subscriber, [subscription_id]))

    @api.post("/events", status_code=202, openapi_extra=_EVENTS, dependencies=access.needs("publisher"))
    async def publish(request: Request) -> PublishReply:
        """Publish an event, or a list of events in their order, as they are written.

        It is done when a node has taken them. Those that do not fit what filters take an attribute for are
        left out there, counted and kept as dead letters.
        """
        some = _events_of(await request.body())
        publisher = await publisher_of(access.name(request))
        for number, event in enumerate(some):
            try:
                await publisher.publish(event)
            except PaceError as error:  # it is told of those before, perhaps of another request
                taken = f"{number} of {len(some)} events" if number else "nothing"
                raise PaceError(f"{error}; of this request {taken} was taken: send the rest again") from error
        await publisher.flush()
        return PublishReply(events=len(some))

    @api.get(
        "/subscribers/{subscriber}/events",
        response_class=StreamingResponse,
        dependencies=access.needs("subscriber"),
    )
    async def receive(subscriber: str, request: Request) -> StreamingResponse:
        """Receive what a subscriber wants, a JSON line each, for as long as the connection lasts."""
        access.own(request, subscriber)
        reader = await Subscriber(transport, subscriber, prefix=prefix).start()

        async def lines() -> AsyncIterator[bytes]:
            shown = True
            try:
                while access.still(request):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK):
                            some = await reader.take(_LISTED)
                        shown = access.still(request)
                        if not some or not shown:
                            break
                        yield b"".join(event.payload + b"\n" for event in some)
            except TransportError as error:  # another of this name reads: the answer has begun, and ends
                log.warning("a stream of events over HTTP ends: %s", error)
            finally:  # by itself: this is cancelled when who reads has gone
                task = asyncio.ensure_future(reader.aclose(processed=shown))
                closing.add(task)
                task.add_done_callback(closing.discard)

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    @api.post("/explain", dependencies=access.needs())
    async def explain(event: dict[str, Any]) -> dict[str, Any]:
        """Tell who would get an event right now, and which way; it is not sent."""
        try:
            return node.explain(msgspec.json.encode(event))
        except UnicodeEncodeError as error:
            raise HTTPException(422, f"the event has text that is none: {error.reason}") from error

    @api.post("/rollout", dependencies=access.needs())
    async def rollout(wanted: RolloutBody) -> RolloutReply:
        """Take up a plan while events flow: nobody misses any."""
        done = await _desk(node).rollout_from(
            wanted.plan, wanted.flow, overlap=wanted.overlap, least=wanted.least, joins=wanted.joins
        )
        return RolloutReply(epoch=done.epoch, plan=done.plan, listening=done.listening)

    return api


def _events_of(body: bytes) -> list[bytes]:
    """Return the events of a request as they are written, but each on one line."""
    try:
        if body.lstrip()[:1] == b"[":
            some = [bytes(each) for each in msgspec.json.decode(body, type=list[msgspec.Raw])]
        else:
            some = [body.strip()]
        for each in some:
            _object(each)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise HTTPException(422, f"the body is no JSON object, nor a list of them: {error}") from error
    return [msgspec.json.format(each, indent=-1) if b"\n" in each else each for each in some]


def _desk(node: Node) -> ControlPlane:
    """Return the desk of the first node; another has none."""
    if not isinstance(node.holding, ControlPlane):
        raise HTTPException(409, "this node follows the first one; ask that one for changes")
    return node.holding
