"""A matcher over an index: everything but the index itself."""

from __future__ import annotations

import copy
import inspect
import threading
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from narrowcast.errors import IndexFileError, InputError, ParameterError
from narrowcast.filters.checks import Checks, LaterChecks
from narrowcast.matching import stored_index
from narrowcast.matching.append_index import AppendIndex, some_cuts
from narrowcast.matching.base import MATCHERS
from narrowcast.matching.event_keys import EventKeys, refined
from narrowcast.matching.ids import SubscriptionIds
from narrowcast.matching.match_queries import MatchQueries, require_fitting, require_subscriptions
from narrowcast.matching.matcher_view import MatcherView
from narrowcast.matching.ranks import Ranks
from narrowcast.matching.segment import BoxOwners, Segment
from narrowcast.matching.single_event import EventReader
from narrowcast.matching.snapshot import MatcherSnapshot
from narrowcast.model.subscriptions import SubscriptionSet, ids_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Set

    from numpy.typing import ArrayLike, NDArray

    from narrowcast.matching.index import BoxIndex, Codes
    from narrowcast.matching.ranks import CodedBoxes
    from narrowcast.model.boxes import Boxes
    from narrowcast.model.events import EventBatch
    from narrowcast.model.matches import Matches
    from narrowcast.model.schema import Schema

#: Added subscriptions are indexed once there are so many, or this share of those that are.
_TAIL = 8192
_TAIL_SHARE = 8
#: Empty slots are closed once they are more than this share.
_EMPTY_SHARE = 2


class IndexedMatcher(MatchQueries):
    """A matcher whose subscriptions can change while others read.

    `fit` builds an index. What is added goes to a tail that is searched along with it, and becomes an index
    of its own when it has grown; what is removed leaves an empty slot. Every change puts a new snapshot in
    place of the last, which readers go on using for as long as they need it: they never wait. Writers wait
    for one another.

    Parameters
    ----------
    threads
        How many threads share a batch of events.
    """

    def __init__(self, *, threads: int = 1) -> None:
        self.threads = check_threads(threads)
        self._lock = threading.Lock()
        self._now: MatcherSnapshot | None = None

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def __copy__(self) -> Self:
        # two matchers that share a tail would write over one another
        return copy.deepcopy(self)

    #: The kinds of index it may have, for `load`.
    _indexes: ClassVar[tuple[type[BoxIndex], ...]]

    @abstractmethod
    def _index(self, boxes: CodedBoxes, ranks: Ranks, schema: Schema, sample: Codes | None) -> BoxIndex:
        """Build the index over coded boxes, given a sample of events where there is one."""

    def fit(self, subscriptions: SubscriptionSet, sample: EventBatch | None = None) -> Self:
        """Take up subscriptions in place of any before; a sample of events tells where to be finer."""
        require_subscriptions(subscriptions)
        if sample is not None:
            require_fitting(sample, subscriptions.schema)
        with self._lock:
            self._publish(self._whole(subscriptions, sample))
        return self

    def _publish(self, then: MatcherSnapshot) -> None:
        """Put a snapshot of subscriptions in one segment in place of the last."""
        ids = SubscriptionIds(then.sets[0].subscription_id)
        self._now, self._ids = then, ids

    def _whole(self, subscriptions: SubscriptionSet, sample: EventBatch | None) -> MatcherSnapshot:
        """Return the snapshot of subscriptions in one segment."""
        return _snapshot(subscriptions, self._segment(subscriptions, sample), sample)

    def _segment(
        self,
        subscriptions: SubscriptionSet,
        sample: EventBatch | None,
        alive: NDArray[np.bool_] | None = None,
    ) -> Segment:
        """Index subscriptions; those of empty slots get no boxes."""
        checks = Checks(subscriptions.schema, subscriptions.check)
        own = refined(subscriptions.boxes, subscriptions.schema, checks)
        if alive is not None:
            own = own.of_owners(alive)
        ranks, boxes = Ranks.code(own)
        codes = None
        if sample is not None:
            keys = EventKeys(sample)
            codes = ranks.codes([keys(a) for a in ranks.attribute], len(sample))
        index = self._index(boxes, ranks, subscriptions.schema, codes)
        return Segment(len(subscriptions), ranks, index, _owners(own, checks))

    @property
    def _snapshot(self) -> MatcherSnapshot:
        if self._now is None:
            raise ParameterError(f"{type(self).__name__} has no subscriptions yet; call fit first")
        return self._now

    @property
    def subscriptions_(self) -> SubscriptionSet:
        """The subscriptions as they are now."""
        return self._snapshot.subscriptions

    def add(self, subscriptions: SubscriptionSet) -> Self:
        """Take up more subscriptions behind those there are; an id that is there already is an error."""
        require_subscriptions(subscriptions)
        with self._lock:
            now = self._snapshot
            now.sets[0].require(subscriptions)
            ids = subscriptions.subscription_id
            there = self._taken(self._ids.slots(ids))
            if there.any():
                raise InputError(
                    f"subscription_id {ids[there][0]} is used twice: it is there already; nothing was added"
                )
            alive = now.alive
            if alive is not None:
                alive = np.concatenate([alive, np.ones(len(ids), bool)])
            tail = now.tail.put(subscriptions)
            n_slots = now.n_slots + len(ids)
            then = replace(now, sets=(*now.sets, subscriptions), n_slots=n_slots, tail=tail, alive=alive)
            if tail.n_subscriptions > max(_TAIL, now.n_indexed // _TAIL_SHARE):
                then = self._sealed(then)
            if then.plain:
                self._publish(then)
            else:
                self._ids.add(ids, now.n_slots)
                self._now = then
        return self

    def remove(self, subscription_id: ArrayLike | Set[int]) -> Self:
        """Drop subscriptions by id; the others keep their order. An unknown id is an error."""
        ids = ids_of(subscription_id)
        with self._lock:
            now = self._snapshot
            slots = self._ids.slots(ids)
            unknown = ~self._taken(slots)
            if unknown.any():
                raise InputError(f"subscription_id {ids[unknown][0]} is not there; nothing was removed")
            if len(slots) == 0:
                return self
            then = now.without(slots)
            assert then.alive is not None
            if np.count_nonzero(then.alive) < len(then.alive) / _EMPTY_SHARE:
                self._publish(self._whole(then.subscriptions, then.sample))
            else:
                self._now = then
        return self

    def compact(self) -> Self:
        """Index everything anew, empty slots left out. Readers go on with what was there until it is done."""
        with self._lock:
            now = self._snapshot
            self._publish(self._whole(now.subscriptions, now.sample))
        return self

    def stats(self) -> dict[str, Any]:
        """Return what it holds: subscriptions, boxes, bytes, and what each index tells of itself.

        `bytes` counts the index alone; `subscription_bytes` are those of the boxes and ids beside it.
        """
        now = self._snapshot
        parts = [segment.stats() for segment in now.segments]
        return {
            "matcher": self._name(),
            "subscriptions": now.n_slots if now.alive is None else int(now.alive.sum()),
            "boxes": now.n_boxes,
            "added": now.tail.n_subscriptions,
            "empty_slots": 0 if now.alive is None else int((~now.alive).sum()),
            "bytes": sum(part["bytes"] for part in parts) + now.tail.nbytes,
            "subscription_bytes": sum(
                s.boxes.nbytes + s.subscription_id.nbytes + s.subscriber.nbytes for s in now.sets
            ),
            "indexes": parts,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file that `load` maps back; what was added or removed is indexed first."""
        now = self._snapshot
        if not now.plain:
            now = self._whole(now.subscriptions, now.sample)
        (segment,) = now.segments
        ranks, (subscriptions,) = segment.ranks, now.sets
        arrays = {
            "rank.attribute": np.array(ranks.attribute, np.int64),
            "rank.cuts": ranks.all_cuts,
            "rank.at": ranks.cut_at,
            **segment.index.arrays(),
        }
        params = {name: getattr(self, name) for name in self._params()}
        kind = type(segment.index).__name__
        header = stored_index.IndexHeader.of(self._name(), kind, params, subscriptions.schema)
        stored_index.write(path, header, subscriptions, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, threads: int = 1, verify: bool = True) -> Self:
        """Return the matcher that `save` wrote, its arrays mapped from the file and ready at once.

        Parameters
        ----------
        path
            The file.
        threads
            How many threads share a batch of events.
        verify
            Whether to compare checksums, which reads the whole file once. Without it a damaged file may
            go unnoticed, and crash the process.
        """
        return cls._restored(stored_index.read(path, verify=verify), threads)

    @classmethod
    def _restored(cls, saved: stored_index.StoredIndex, threads: int) -> Self:
        """Return the matcher that a file holds."""
        path = saved.path
        if saved.header.matcher != cls._name():
            raise IndexFileError(
                f"{path} holds a {saved.header.matcher!r} matcher, not {cls._name()!r}; use load_matcher"
            )
        check_threads(threads)
        kinds = {kind.__name__: kind for kind in cls._indexes}
        arrays = saved.arrays
        try:
            attribute = tuple(arrays["rank.attribute"].tolist())
            ranks = Ranks(attribute, arrays["rank.cuts"], arrays["rank.at"])
            index = kinds[saved.header.index].restore(arrays)
            matcher = cls(**saved.header.params, threads=threads)
        except (KeyError, ValueError, TypeError, IndexError, ParameterError) as error:
            raise stored_index.damaged(path, error) from error
        subscriptions = saved.subscriptions
        owners = _owners(subscriptions.boxes, LaterChecks(subscriptions.schema, subscriptions.check))
        segment = Segment(len(subscriptions), ranks, index, owners)
        matcher._publish(_snapshot(subscriptions, segment, None))
        return matcher

    @classmethod
    def _name(cls) -> str:
        return next(name for name, kind in MATCHERS.items() if kind is cls)

    @classmethod
    def _params(cls) -> list[str]:
        return [
            name for name in inspect.signature(cls.__init__).parameters if name not in ("self", "threads")
        ]

    def _taken(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which slots are there and not empty."""
        alive = self._snapshot.alive
        there: NDArray[np.bool_] = (slots >= 0) & (slots < self._snapshot.n_slots)
        return there if alive is None else there & alive[np.where(there, slots, 0)]

    def _sealed(self, now: MatcherSnapshot) -> MatcherSnapshot:
        """Return a snapshot with its tail indexed, together with the last segments that are no larger."""
        size = now.tail.n_subscriptions
        kept = len(now.segments)
        while kept and now.segments[kept - 1].n_subscriptions <= size:
            kept -= 1
            size += now.segments[kept].n_subscriptions
        if kept == 0:
            return self._whole(now.subscriptions, now.sample)
        piece = SubscriptionSet.slots(now.sets[kept:])
        segment = self._segment(piece, now.sample, None if now.alive is None else now.alive[-size:])
        return replace(
            now,
            sets=(*now.sets[:kept], piece),
            segments=(*now.segments[:kept], segment),
            tail=_fresh_tail(segment, piece.schema),
        )

    def snapshot(self) -> MatcherView:
        """Return what there is now, to be read again and again while this matcher changes."""
        return MatcherView(self._snapshot, self.threads)

    def match(self, events: EventBatch) -> Matches:
        """Return, for each event, the positions in `subscriptions_` of those that it matches."""
        return self.snapshot().match(events)

    def match_one(self, event: Mapping[str, Any] | EventBatch) -> NDArray[np.int32]:
        """Return the positions of the subscriptions that one event matches: see Answers."""
        return self.snapshot().match_one(event)

    def count(self, events: EventBatch) -> NDArray[np.int64]:
        """Return how many subscriptions each event matches."""
        return self.snapshot().count(events)

    def subscribers(self, events: EventBatch) -> Matches:
        """Return, for each event, the positions in `subscriptions_.subscribers` of those who want it."""
        return self.snapshot().subscribers(events)

    def bitmaps(self, events: EventBatch) -> NDArray[np.uint64]:
        """Return a row of flags for each event: bit `i % 64` of word `i // 64` is for position i."""
        return self.snapshot().bitmaps(events)

    def _codes(self, events: EventBatch) -> Codes:
        """Return the codes of events in the first segment."""
        now = self._snapshot
        require_fitting(events, now.sets[0].schema)
        return now.segments[0].codes(EventKeys(events), len(events))


def check_threads(threads: int) -> int:
    """Return a number of threads; one that is none is an error."""
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024:
        raise ParameterError(f"threads is {threads!r}; give a whole number from 1 to 1024")
    return threads


def _snapshot(subscriptions: SubscriptionSet, segment: Segment, sample: EventBatch | None) -> MatcherSnapshot:
    """Return the snapshot of subscriptions that are all in one segment."""
    schema = subscriptions.schema
    tail = _fresh_tail(segment, schema)
    return MatcherSnapshot(
        (subscriptions,), len(subscriptions), (segment,), tail, EventReader(schema), sample
    )


def _fresh_tail(segment: Segment, schema: Schema) -> AppendIndex:
    """Return a tail without subscriptions, with the cuts of a segment."""
    ranks = segment.ranks
    cuts = {a: some_cuts(c) for a, c in zip(ranks.attribute, ranks.cuts, strict=True)}
    return AppendIndex(2 * len(schema), cuts)


def _owners(boxes: Boxes, checks: Checks | LaterChecks) -> BoxOwners:
    """Return how boxes become subscriptions."""
    return BoxOwners.of(boxes.owner, boxes.exact, boxes.n_owners, checks.keep)
