"""Indexed matcher: subscriptions can be added and removed while other threads match events.

A slot is the fixed position of a subscription; removal leaves it empty. A segment is an index over a range of
slots; the tail has the most recent subscriptions, in an append index.
"""

from __future__ import annotations

import copy
import inspect
import threading
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from narrowcast.errors import IndexFileError, InputError, ParameterError
from narrowcast.filters.checks import Checks, LazyChecks
from narrowcast.matching import stored_index
from narrowcast.matching.append_index import AppendIndex, even_cuts
from narrowcast.matching.base import MATCHERS
from narrowcast.matching.event_keys import EventKeys, with_hash_bounds
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

#: Added subscriptions are indexed when there are this many, or this share of the indexed ones.
_TAIL = 8192
_TAIL_SHARE = 8
#: Empty slots are removed when they exceed this share.
_EMPTY_SHARE = 2


class IndexedMatcher(MatchQueries):
    """A matcher whose subscriptions can change while other threads read.

    `fit` builds an index. Added subscriptions go to an append index that is searched along with it, and
    become an index of their own when they are many; a removed subscription leaves an empty slot. Every change
    replaces the snapshot; readers continue with the snapshot they started with and never wait. Writers wait
    for one another.

    Parameters
    ----------
    threads
        Number of threads that share a batch of events (default: 1).
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
        # two matchers that share a tail would overwrite each other's additions
        return copy.deepcopy(self)

    #: The kinds of index that `load` accepts.
    _indexes: ClassVar[tuple[type[BoxIndex], ...]]

    @abstractmethod
    def _index(self, boxes: CodedBoxes, ranks: Ranks, schema: Schema, sample: Codes | None) -> BoxIndex:
        """Build the index of coded boxes; a sample of events is optional."""

    def fit(self, subscriptions: SubscriptionSet, sample: EventBatch | None = None) -> Self:
        """Index subscriptions, replacing any previous ones; a sample of events shows where to be finer."""
        require_subscriptions(subscriptions)
        if sample is not None:
            require_fitting(sample, subscriptions.schema)
        with self._lock:
            self._publish(self._whole(subscriptions, sample))
        return self

    def _publish(self, then: MatcherSnapshot) -> None:
        """Make a new snapshot, with a single segment, the current one."""
        ids = SubscriptionIds(then.sets[0].subscription_id)
        self._now, self._ids = then, ids

    def _whole(self, subscriptions: SubscriptionSet, sample: EventBatch | None) -> MatcherSnapshot:
        """Return a snapshot with all given subscriptions in one segment."""
        return _snapshot(subscriptions, self._segment(subscriptions, sample), sample)

    def _segment(
        self,
        subscriptions: SubscriptionSet,
        sample: EventBatch | None,
        alive: NDArray[np.bool_] | None = None,
    ) -> Segment:
        """Return a segment of subscriptions; those flagged as removed by `alive` get no boxes."""
        checks = Checks(subscriptions.schema, subscriptions.check)
        own = with_hash_bounds(subscriptions.boxes, subscriptions.schema, checks)
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
            raise ParameterError(f"{type(self).__name__} has no subscriptions; call fit first")
        return self._now

    @property
    def subscriptions_(self) -> SubscriptionSet:
        """The current subscriptions, in the order of positions in results."""
        return self._snapshot.subscriptions

    def add(self, subscriptions: SubscriptionSet) -> Self:
        """Append subscriptions; refuse an id that is in use."""
        require_subscriptions(subscriptions)
        with self._lock:
            now = self._snapshot
            now.sets[0].require(subscriptions)
            ids = subscriptions.subscription_id
            there = self._taken(self._ids.slots(ids))
            if there.any():
                raise InputError(
                    f"subscription_id={ids[there][0]} is used twice: already present; nothing was added",
                    parameter="subscription_id",
                    value=int(ids[there][0]),
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
        """Remove subscriptions by id; the others keep their order. Refuse an unknown id."""
        ids = ids_of(subscription_id)
        with self._lock:
            now = self._snapshot
            slots = self._ids.slots(ids)
            unknown = ~self._taken(slots)
            if unknown.any():
                raise InputError(
                    f"subscription_id={ids[unknown][0]} does not exist; nothing was removed",
                    parameter="subscription_id",
                    value=int(ids[unknown][0]),
                )
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
        """Rebuild the index without empty slots. Readers continue with the old one until it is done."""
        with self._lock:
            now = self._snapshot
            self._publish(self._whole(now.subscriptions, now.sample))
        return self

    def stats(self) -> dict[str, Any]:
        """Return the numbers of subscriptions, boxes and bytes, and the statistics of each index.

        `bytes` is the size of the indexes alone; `subscription_bytes` that of the boxes and ids.
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
        """Write the subscriptions and their index to a file for `load`; pending changes are indexed first."""
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
        """Load a matcher that `save` wrote; its arrays are mapped from the file, so it is ready at once.

        Parameters
        ----------
        path
            Path of the file.
        threads
            Number of threads that share a batch of events (default: 1).
        verify
            Whether to compare checksums, which reads the whole file once (default: true). Without it a
            damaged file may go unnoticed and crash the process.
        """
        return cls._restored(stored_index.read(path, verify=verify), threads)

    @classmethod
    def _restored(cls, saved: stored_index.StoredIndex, threads: int) -> Self:
        """Return the matcher whose saved arrays were read from a file."""
        path = saved.path
        if saved.header.matcher != cls._name():
            raise IndexFileError(
                f"{path}: matcher={saved.header.matcher!r}: must be {cls._name()!r}; use load_matcher",
                parameter="matcher",
                value=saved.header.matcher,
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
        owners = _owners(subscriptions.boxes, LazyChecks(subscriptions.schema, subscriptions.check))
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
        """Return the mask of slots that exist and are not empty."""
        alive = self._snapshot.alive
        there: NDArray[np.bool_] = (slots >= 0) & (slots < self._snapshot.n_slots)
        return there if alive is None else there & alive[np.where(there, slots, 0)]

    def _sealed(self, now: MatcherSnapshot) -> MatcherSnapshot:
        """Return a snapshot whose tail is now a segment, merged with the last segments that are no larger."""
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
        """Return a view of the current subscriptions, which does not change with this matcher."""
        return MatcherView(self._snapshot, self.threads)

    def match(self, events: EventBatch) -> Matches:
        """Return for each event the positions of the matching subscriptions in `subscriptions_`."""
        return self.snapshot().match(events)

    def match_one(self, event: Mapping[str, Any] | EventBatch) -> NDArray[np.int32]:
        """Return the positions in `subscriptions_` of the subscriptions that a single event matches."""
        return self.snapshot().match_one(event)

    def count(self, events: EventBatch) -> NDArray[np.int64]:
        """Return the number of matching subscriptions of each event."""
        return self.snapshot().count(events)

    def subscribers(self, events: EventBatch) -> Matches:
        """Return for each event the positions in `subscriptions_.subscribers` of the matching subscribers."""
        return self.snapshot().subscribers(events)

    def bitmaps(self, events: EventBatch) -> NDArray[np.uint64]:
        """Return a row of flags for each event: bit `i % 64` of word `i // 64` is for position i."""
        return self.snapshot().bitmaps(events)

    def _codes(self, events: EventBatch) -> Codes:
        """Return the codes of events (ranks among box ends) for the first segment."""
        now = self._snapshot
        require_fitting(events, now.sets[0].schema)
        return now.segments[0].codes(EventKeys(events), len(events))


def check_threads(threads: int) -> int:
    """Return a number of threads; refuse values outside 1 to 1024."""
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024:
        raise ParameterError(parameter="threads", value=threads, limit="an integer from 1 to 1024")
    return threads


def _snapshot(subscriptions: SubscriptionSet, segment: Segment, sample: EventBatch | None) -> MatcherSnapshot:
    """Return the snapshot of subscriptions that are all in one given segment."""
    schema = subscriptions.schema
    tail = _fresh_tail(segment, schema)
    return MatcherSnapshot(
        (subscriptions,), len(subscriptions), (segment,), tail, EventReader(schema), sample
    )


def _fresh_tail(segment: Segment, schema: Schema) -> AppendIndex:
    """Return an empty append index whose cuts are taken from a segment."""
    ranks = segment.ranks
    cuts = {a: even_cuts(c) for a, c in zip(ranks.attribute, ranks.cuts, strict=True)}
    return AppendIndex(2 * len(schema), cuts)


def _owners(boxes: Boxes, checks: Checks | LazyChecks) -> BoxOwners:
    """Return the mapping from boxes to their subscriptions, with the checks of inexact ones."""
    return BoxOwners.of(boxes.owner, boxes.exact, boxes.n_owners, checks.keep)
