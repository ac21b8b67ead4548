"""Event keys, extended by hashes so that equality of long strings can be indexed.

A key is an attribute value as a sortable integer. It has only the first seven bytes of a string, so the ids
of a million devices may share one key. Where a filter requires that an attribute equals a string, the boxes
of its subscription are bounded by the string's hash instead: attribute `len(schema) + a` is the hash of
attribute a. Candidates are compared with the string afterwards, so a hash collision only costs time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from narrowcast.kernels.hashing import hash_strings
from narrowcast.model.boxes import MOST_ATTRIBUTES, Boxes
from narrowcast.model.keys import FIRST, NULL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.filters.checks import Checks
    from narrowcast.model.events import EventBatch
    from narrowcast.model.schema import Schema

    Ints = NDArray[np.int64]


class EventKeys:
    """The keys of the attributes of events, followed by the hashes of their strings.

    Parameters
    ----------
    events
        The events to compute keys for.
    """

    def __init__(self, events: EventBatch) -> None:
        self._events = events
        self._hashes: dict[int, Ints] = {}

    def __call__(self, attribute: int) -> Ints:
        """Return the keys of an attribute; for attribute numbers beyond the schema, hashes."""
        plain = attribute - len(self._events.schema)
        if plain < 0:
            return self._events.keys(attribute)
        if plain not in self._hashes:
            self._hashes[plain] = hashes(self._events.columns[plain])
        return self._hashes[plain]


def hashes(column: pa.Array) -> Ints:
    """Return the hash of each string as a key; null has the key of null."""
    column = column.cast(pa.large_binary())
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    found: Ints = hash_strings(offsets, data, FIRST)
    if column.null_count:
        found[np.asarray(column.is_null())] = NULL
    found.flags.writeable = False
    return found


def with_hash_bounds(boxes: Boxes, schema: Schema, checks: Checks) -> Boxes:
    """Return the boxes with bounds on hashes where a filter requires a string that its check compares."""
    parts = [
        (owner, np.full(len(owner), attribute), hashes(values))
        for owner, attribute, values in checks.equalities()
        if schema.types[attribute].family == "string"
    ]
    if not parts or 2 * len(schema) > MOST_ATTRIBUTES:
        return boxes
    owner, attribute, value = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((attribute, owner))
    owner, attribute, value = owner[order], attribute[order], value[order]
    # if one attribute must equal two strings, one suffices: the check refuses the rest
    once = np.append(True, (owner[1:] != owner[:-1]) | (attribute[1:] != attribute[:-1]))
    owner, attribute, value = owner[once], attribute[once], value[once]
    start = np.searchsorted(owner, np.arange(boxes.n_owners + 1))
    many = np.diff(start)[boxes.owner] * ~boxes.exact
    more = np.repeat(start[:-1][boxes.owner] - (np.cumsum(many) - many), many) + np.arange(many.sum())
    box = np.concatenate([boxes.box, np.repeat(np.arange(len(boxes)), many)])
    all_attributes = np.concatenate([boxes.attribute.astype(np.int64), attribute[more] + len(schema)])
    lo = np.concatenate([boxes.lo, value[more] - 1])
    hi = np.concatenate([boxes.hi, value[more]])
    # the hash implies the bound on the first bytes
    replaced = np.isin(
        box * len(schema) + all_attributes, box[len(boxes.lo) :] * len(schema) + attribute[more]
    )
    kept = np.flatnonzero(~replaced | (all_attributes >= len(schema)))
    kept = kept[np.lexsort((all_attributes[kept], box[kept]))]
    width = np.bincount(box[kept], minlength=len(boxes))
    return Boxes.build(
        boxes.n_owners, boxes.owner, width, all_attributes[kept], lo[kept], hi[kept], boxes.exact
    )
