"""Filter compiler: turns many filters into boxes, binding and normalising each distinct shape once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import FilterError
from narrowcast.filters.filter_template import BoxBlock, FilterTemplate
from narrowcast.filters.limits import FilterLimits
from narrowcast.filters.parser import Shape, parse, tokenize
from narrowcast.filters.ranges import Literals
from narrowcast.model.boxes import Boxes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from narrowcast.filters.syntax import Node
    from narrowcast.model.schema import Schema

#: Limit on the tokens of cached shapes, in the cache and in a batch: about 75 MB.
_TOKENS = 200_000


@dataclass(frozen=True, slots=True)
class CompiledFilters:
    """The boxes of compiled filters.

    `boxes.owner` is the position of the filter in the input. A filter that can never be true has no box, nor
    has an invalid filter: `errors` maps its position to the reason.
    """

    boxes: Boxes
    errors: dict[int, str]


@dataclass(slots=True)
class FilterGroup:
    """The filters of one shape: their positions in the input, and their literals."""

    template: FilterTemplate
    rows: list[int]
    literals: list[tuple[str, ...]]


class FilterCompiler:
    """Compiles filters to boxes over the keys of a schema.

    Parameters
    ----------
    schema
        The attributes that filters may use.
    limits
        Bounds on one filter (default: `FilterLimits()`).
    cache
        Whether to reuse the result of parsing, binding and normalising for filters of the same shape
        (default:
        true).
    boxes
        Whether to prepare boxes (default: true); without, filters can only be validated and grouped by shape.

    Examples
    --------
    >>> from narrowcast.model.schema import Schema
    >>> compiler = FilterCompiler(Schema.of({"price": "double", "name": "string"}))
    >>> compiled = compiler.compile(["price > 75 AND name = 'IBM'", "price <> 3", "prize > 1"])
    >>> compiled.boxes.owner.tolist()
    [0, 1, 1]
    >>> compiled.errors
    {2: "unknown attribute 'prize'; known: price, name"}
    """

    def __init__(
        self, schema: Schema, limits: FilterLimits | None = None, *, cache: bool = True, boxes: bool = True
    ) -> None:
        self.schema = schema
        self.limits = limits or FilterLimits()
        self._cache = cache
        self._normal = self.limits if boxes else None
        self._known: dict[Shape, FilterTemplate | str] = {}
        self._held = 0

    def compile(self, filters: Iterable[str]) -> CompiledFilters:
        """Return the boxes of the filters, and the reasons why some are invalid."""
        texts = list(filters)
        blocks: list[BoxBlock] = []
        errors: dict[int, str] = {}
        for groups, wrong in self._batches(texts):
            errors |= wrong
            for group in groups:
                blocks += _fill(group, errors)
        return CompiledFilters(_join(blocks, len(texts)), dict(sorted(errors.items())))

    def group(self, filters: Iterable[str]) -> tuple[list[FilterGroup], dict[int, str]]:
        """Group valid filters by shape; return the groups and the reasons against the other filters."""
        found: list[FilterGroup] = []
        errors: dict[int, str] = {}
        for groups, wrong in self._batches(filters):
            found += groups
            errors |= wrong
        return found, errors

    def _batches(self, filters: Iterable[str]) -> Iterator[tuple[list[FilterGroup], dict[int, str]]]:
        """Yield groups of filters by shape, in batches bounded in memory."""
        groups: dict[int, FilterGroup] = {}
        errors: dict[int, str] = {}
        tokens = 0
        for row, text in enumerate(filters):
            try:
                template, literals, size = self._template(text)
            except FilterError as error:
                errors[row] = str(error)
                continue
            group = groups.get(id(template))
            if group is None:
                group = groups[id(template)] = FilterGroup(template, [], [])
                tokens += size
            group.rows.append(row)
            group.literals.append(literals)
            if tokens > _TOKENS:
                yield list(groups.values()), errors
                groups, errors, tokens = {}, {}, 0
        yield list(groups.values()), errors

    def template(self, text: str) -> tuple[FilterTemplate, tuple[str, ...]]:
        """Return the template that filters of this shape share, and this filter's literals."""
        return self._template(text)[:2]

    def _template(self, text: str) -> tuple[FilterTemplate, tuple[str, ...], int]:
        tokens = tokenize(text, self.limits)
        size = len(tokens.raw)
        known = self._known.get(tokens.shape) if self._cache else None
        if known is None:
            try:
                tree = parse(tokens, self.limits)  # an error here concerns this text alone: it is not cached
                known = self._make(tree)
            except RecursionError:
                raise FilterError("nesting exceeds the remaining stack; reduce the nesting") from None
            if self._cache:
                self._cache_shape(tokens.shape, known, size)
        if isinstance(known, str):
            raise FilterError(known)
        return known, tokens.literals, size

    def _cache_shape(self, shape: Shape, known: FilterTemplate | str, size: int) -> None:
        """Add a shape to the cache; a full cache is cleared first."""
        if self._held + size > _TOKENS:
            self._known.clear()
            self._held = 0
        self._known[shape] = known
        self._held += size

    def _make(self, tree: Node) -> FilterTemplate | str:
        """Return a template, or the reason why every filter of the shape is invalid."""
        try:
            return FilterTemplate.make(tree, self.schema, self._normal)
        except FilterError as error:
            return str(error)


def _fill(group: FilterGroup, errors: dict[int, str]) -> list[BoxBlock]:
    """Return the boxes of the filters of one shape, and record the errors of invalid ones."""
    literals = Literals(group.literals)
    rows = np.array(group.rows)
    found = group.template.boxes(literals)
    errors.update((group.rows[i], reason) for i, reason in literals.errors.items())
    bad = np.isin(np.arange(len(rows)), list(literals.errors)) if literals.errors else None
    blocks = []
    for block in found:
        keep = slice(None) if bad is None else ~bad[block.owner]
        owner = rows[block.owner[keep]]
        blocks.append(BoxBlock(block.attributes, owner, block.lo[keep], block.hi[keep], block.exact[keep]))
    return blocks


def _join(blocks: list[BoxBlock], n: int) -> Boxes:
    """Join blocks to one set of boxes ordered by owner."""
    owner = np.concatenate([np.empty(0, np.int64), *(b.owner for b in blocks)])
    width = np.concatenate(
        [np.empty(0, np.int64), *(np.full(len(b.owner), len(b.attributes)) for b in blocks)]
    )
    exact = np.concatenate([np.empty(0, bool), *(b.exact for b in blocks)])
    attribute = np.concatenate(
        [np.empty(0, np.int64), *(np.tile(b.attributes, len(b.owner)) for b in blocks)]
    )
    lo = np.concatenate([np.empty(0, np.int64), *(b.lo.reshape(-1) for b in blocks)])
    hi = np.concatenate([np.empty(0, np.int64), *(b.hi.reshape(-1) for b in blocks)])
    return Boxes.build(n, owner, width, attribute, lo, hi, exact)
