"""A matcher with a CobasTree per attribute: each box is in one tree, and its other bounds are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np

from narrowcast.errors import InputError, ParameterError
from narrowcast.lab.cobas.forwarding import code_of, collected
from narrowcast.lab.cobas.intervals import IntervalColumns
from narrowcast.lab.cobas.store import frozen
from narrowcast.lab.cobas.tree import CobasTree
from narrowcast.lab.kernels import cobas as kernels
from narrowcast.lab.kernels.cobas import HEIGHT, LEFT, PARENT, RIGHT, START, CobasNodes, NodeBounds
from narrowcast.matching.indexed_matcher import IndexedMatcher
from narrowcast.validation import check_choice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.cobas.forwarding import How
    from narrowcast.matching.index import CandidateBoxes, Codes
    from narrowcast.matching.ranks import CodedBoxes, Ranks
    from narrowcast.model.events import EventBatch
    from narrowcast.model.schema import Schema

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

Route = Literal["selective", "random"]


@dataclass(frozen=True, slots=True, eq=False)
class CobasIndex:
    """Immutable CobasTrees over the columns of coded boxes.

    A box (lo, hi] in codes is the interval [lo + 1, hi] in the tree of one column.

    Parameters
    ----------
    n_boxes
        Number of boxes.
    last
        The last code of each column.
    column, root
        The column and the root of each tree. A column without boxes has no tree.
    everywhere
        The boxes without bounds.
    nodes
        The nodes of all trees; they own segments.
    bounds
        The box of each segment, and its other bounds.
    """

    n_boxes: int
    last: Ints
    column: Numbers
    root: Ints
    everywhere: Numbers
    nodes: CobasNodes
    bounds: NodeBounds
    bitmaps: ClassVar[None] = None

    @classmethod
    def build(cls, boxes: CodedBoxes, weight: Doubles) -> Self:
        """Index boxes, each in the tree of the column in which its bound has the least weight.

        A box that is empty in any column contains no event, and is in no tree.
        """
        bound = kernels.least(boxes.indptr, weight)
        hollow = np.zeros(len(boxes), bool)
        hollow[boxes.box[boxes.lo >= boxes.hi]] = True
        box = np.flatnonzero((bound >= 0) & ~hollow)
        column = boxes.column[bound[box]]
        order = np.argsort(column, kind="stable")
        box, column = box[order], column[order]
        columns, start = np.unique(column, return_index=True)
        trees = []
        for some in np.split(box, start[1:]) if len(columns) else []:
            low, high = boxes.lo[bound[some]], boxes.hi[bound[some]]
            trees.append(CobasTree(IntervalColumns(low.astype(np.float64) + 1, high.astype(np.float64))))
        nodes, root = _joined(trees)
        own = box[nodes.owner].astype(np.int32)
        bounds = kernels.arrange(boxes.indptr, boxes.column, boxes.lo, boxes.hi, weight, own, bound)
        nodes = nodes._replace(owner=np.arange(len(own), dtype=np.int32))
        everywhere = np.flatnonzero(bound < 0).astype(np.int32)
        return cls._of(len(boxes), boxes.last, columns.astype(np.int32), root, everywhere, nodes, bounds)

    @classmethod
    def _of(
        cls,
        n_boxes: int,
        last: Ints,
        column: Numbers,
        root: Ints,
        everywhere: Numbers,
        nodes: CobasNodes,
        bounds: NodeBounds,
    ) -> Self:
        """Return an index with read-only arrays, as mapped ones are: kernels are compiled for them."""
        return cls(
            n_boxes,
            last,
            frozen(column),
            frozen(root),
            frozen(everywhere),
            CobasNodes(**{name: frozen(array) for name, array in nodes._asdict().items()}),
            NodeBounds(**{name: frozen(array) for name, array in bounds._asdict().items()}),
        )

    def find(self, codes: Codes) -> CandidateBoxes:
        """Return the boxes that contain each event."""
        events = self._codes(codes)
        given = (self.nodes, self.root, self.column, self.everywhere, self.n_boxes, self.bounds, events)
        return collected(lambda event, found, indptr: kernels.find(*given, event, found, indptr), len(events))

    def count(self, codes: Codes) -> Ints:
        """Return the number of boxes that contain each event."""
        counts = np.zeros(len(codes), np.int64)
        kernels.count(self.nodes, self.root, self.column, self.bounds, self._codes(codes), counts)
        return counts + len(self.everywhere)

    def probe(self, codes: Codes, how: How) -> tuple[Ints, Ints]:
        """Return the messages of each event over all trees, and its hops in the tree where it has most."""
        messages, hops = np.zeros((2, len(codes)), np.int64)
        given = (self.nodes, self.root, self.column, self._codes(codes), code_of(how))
        kernels.probe(*given, messages, hops)
        return messages, hops

    def stats(self) -> dict[str, Any]:
        """Return the numbers of trees, nodes and boxes without bounds, and the largest height."""
        return {
            "trees": len(self.root),
            "nodes": len(self.nodes.number),
            "height": int(self.nodes.link[self.root, HEIGHT].max(initial=0)),
            "everywhere": len(self.everywhere),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `restore` rebuilds the index from."""
        return {
            "n_boxes": np.array([self.n_boxes]),
            "last": self.last,
            "tree_column": self.column,
            "root": self.root,
            "everywhere": self.everywhere,
            **self.nodes._asdict(),
            **self.bounds._asdict(),
        }

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """Return the index stored in arrays; raise `ValueError` if their lengths are inconsistent."""
        nodes = CobasNodes(*(arrays[name] for name in CobasNodes._fields))
        bounds = NodeBounds(*(arrays[name] for name in NodeBounds._fields))
        root, column = arrays["root"], arrays["tree_column"]
        n_listed = {len(nodes.lower_end), len(nodes.lower), len(nodes.upper_end), len(nodes.upper)}
        n_bounds = {len(bounds.column), len(bounds.lo), len(bounds.hi), int(bounds.indptr[-1])}
        n_segments = {len(nodes.owner), len(bounds.box), len(bounds.indptr) - 1}
        fit = len(root) == len(column) and len(nodes.number) == len(nodes.link)
        fit = fit and len(n_listed) == len(n_bounds) == len(n_segments) == 1
        if not fit or root.max(initial=-1) >= len(nodes.link):
            raise ValueError("the arrays of the trees have inconsistent lengths")
        n_boxes = int(arrays["n_boxes"][0])
        return cls._of(n_boxes, arrays["last"], column, root, arrays["everywhere"], nodes, bounds)

    def _codes(self, codes: Codes) -> Codes:
        """Return codes as the kernels expect them: of one type, contiguous and read-only."""
        if codes.ndim != 2 or codes.shape[1] != len(self.last):
            raise InputError(
                parameter="codes",
                value=codes.shape,
                limit=f"of shape (events, {len(self.last)}), one column per attribute",
            )
        return frozen(np.ascontiguousarray(codes, self.bounds.lo.dtype))


class Cobas(IndexedMatcher):
    """Match events with one CobasTree per attribute, as a system of many machines would, in one process.

    A subscription is in the tree of only one of its attributes, so that no match is found twice; its bounds
    in other attributes are compared for the candidates from that tree (cobas2009, section II-D). An attribute
    that no subscription is indexed by has no tree. Fast where subscriptions are narrow in some attribute;
    `probe` returns what the lookups would cost over a network.

    Parameters
    ----------
    route
        Attribute by which a subscription is indexed: `selective` (the default), the one in which it is least
        likely to contain an event, or `random`, as published.
    seed
        Seed of the `random` route (default 0).
    threads
        Number of threads that share a batch of events.

    Examples
    --------
    >>> import pyarrow as pa, narrowcast as nc
    >>> events = nc.EventBatch.from_arrow(pa.table({"price": [80.0, 75.0], "volume": [10, 20]}))
    >>> filters = ["price > 75", "price BETWEEN 70 AND 75 AND volume > 15", "volume < 15"]
    >>> matcher = Cobas().fit(nc.compile_filters(events.schema, filters).subscriptions)
    >>> [row.tolist() for row in matcher.match(events)]
    [[0, 2], [1]]
    >>> messages, hops = matcher.probe(events)
    >>> messages.tolist(), hops.tolist()
    ([0, 1], [0, 1])
    """

    _indexes = (CobasIndex,)

    def __init__(self, *, route: Route = "selective", seed: int = 0, threads: int = 1) -> None:
        super().__init__(threads=threads)
        check_choice("route", route, get_args(Route))
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ParameterError(parameter="seed", value=seed, limit="an integer of at least 0")
        self.route = route
        self.seed = seed

    def _index(self, boxes: CodedBoxes, ranks: Ranks, schema: Schema, sample: Codes | None) -> CobasIndex:
        if self.route == "random":
            weight = np.random.default_rng(self.seed).random(len(boxes.column))
        else:
            weight = selectivity(boxes, sample)
        return CobasIndex.build(boxes, weight)

    def probe(self, events: EventBatch, how: How = "selective") -> tuple[Ints, Ints]:
        """Return the messages of each event over all trees, and its hops in the tree where it has most.

        Lookups of the first node of each tree and delivery are not counted. Subscriptions added since the
        last full indexing are not included.
        """
        index = self._snapshot.segments[0].index
        assert isinstance(index, CobasIndex)
        return index.probe(self._codes(events), how)


def selectivity(boxes: CodedBoxes, sample: Codes | None = None) -> Doubles:
    """Return the share of events that each bound is expected to contain.

    Without a sample, all codes of a column are equally likely. With one, they have the weight of one event in
    all, so that among bounds that contain no event of the sample the narrower one is the more selective.
    """
    share = (boxes.hi.astype(np.float64) - boxes.lo) / boxes.last[boxes.column]
    if sample is None or len(sample) == 0:
        return share
    for c in range(boxes.n_columns):
        seen, bound = np.sort(sample[:, c]), boxes.column == c
        ends = [np.searchsorted(seen, some[bound], side="right") for some in (boxes.lo, boxes.hi)]
        share[bound] += ends[1] - ends[0]
    weight: Doubles = share / (1 + len(sample))
    return weight


def _joined(trees: list[CobasTree]) -> tuple[CobasNodes, Ints]:
    """Return the nodes of several trees as one table with consecutive interval numbers, and their roots."""
    parts: list[CobasNodes] = []
    root = []
    n_nodes = n_listed = n_segments = 0
    for tree in trees:
        store = tree._store
        link = store.link[: store.n_nodes].copy()
        for column in (LEFT, RIGHT, PARENT):
            link[:, column] += np.where(link[:, column] < 0, 0, n_nodes)
        link[:, START] += n_listed
        at = slice(store.n_listed)
        parts.append(
            CobasNodes(
                store.number[: store.n_nodes],
                link,
                store.lower_end[at],
                store.lower[at] + np.int32(n_segments),
                store.upper_end[at],
                store.upper[at] + np.int32(n_segments),
                store.owner[: store.n_segments] + np.int32(n_segments),
            )
        )
        root.append(store.root + n_nodes)
        n_nodes, n_listed = n_nodes + store.n_nodes, n_listed + store.n_listed
        n_segments += store.n_segments
    parts.append(CobasTree()._store.nodes())  # sets the types of the arrays if there is no tree
    return CobasNodes(*map(np.concatenate, zip(*parts, strict=True))), np.array(root, np.int64)
