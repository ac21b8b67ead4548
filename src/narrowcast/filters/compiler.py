"""Many filters to boxes: each is tokenised, and all of one shape are bound, normalised and filled at once."""

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

#: Tokens of the shapes held at a time, in the cache as in a batch: about 75 MB.
_TOKENS = 200_000


@dataclass(frozen=True, slots=True)
class CompiledFilters:
    """Filters as boxes.

    `boxes.owner` numbers the filters in the order given; a filter that can never be true has no box, and
    neither has one that is wrong: `errors` holds the reason for each of those.
    """

    boxes: Boxes
    errors: dict[int, str]


@dataclass(slots=True)
class FilterGroup:
    """The filters of one shape: where they stood, and their literals."""

    template: FilterTemplate
    rows: list[int]
    literals: list[tuple[str, ...]]


class FilterCompiler:
    """Turns filters into boxes over the keys of a schema.

    Parameters
    ----------
    schema
        The attributes that filters may name.
    limits
        Bounds on one filter.
    cache
        Keep what filters of one shape share. Without it each is parsed, bound and normalised alone.
    boxes
        Prepare the boxes too; without, filters can be grouped by shape but not compiled.

    Examples
    --------
    >>> from narrowcast.model.schema import Schema
    >>> compiler = FilterCompiler(Schema.of({"price": "double", "name": "string"}))
    >>> compiled = compiler.compile(["price > 75 AND name = 'IBM'", "price <> 3", "prize > 1"])
    >>> compiled.boxes.owner.tolist()
    [0, 1, 1]
    >>> compiled.errors
    {2: "unknown attribute 'prize'; there are: price, name"}
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
        """Return the boxes of many filters, and the reasons why some have none."""
        texts = list(filters)
        blocks: list[BoxBlock] = []
        errors: dict[int, str] = {}
        for groups, wrong in self._batches(texts):
            errors |= wrong
            for group in groups:
                blocks += _fill(group, errors)
        return CompiledFilters(_join(blocks, len(texts)), dict(sorted(errors.items())))

    def group(self, filters: Iterable[str]) -> tuple[list[FilterGroup], dict[int, str]]:
        """Return filters by shape, and the reasons against the others."""
        found: list[FilterGroup] = []
        errors: dict[int, str] = {}
        for groups, wrong in self._batches(filters):
            found += groups
            errors |= wrong
        return found, errors

    def _batches(self, filters: Iterable[str]) -> Iterator[tuple[list[FilterGroup], dict[int, str]]]:
        """Yield filters by shape, not more shapes at a time than memory is set aside for."""
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
        """Return what a filter shares with others of its shape, and its own literals."""
        return self._template(text)[:2]

    def _template(self, text: str) -> tuple[FilterTemplate, tuple[str, ...], int]:
        tokens = tokenize(text, self.limits)
        size = len(tokens.raw)
        known = self._known.get(tokens.shape) if self._cache else None
        if known is None:
            try:
                tree = parse(tokens, self.limits)  # what is wrong here is this text's own: it is not kept
                known = self._make(tree)
            except RecursionError:
                raise FilterError("is nested too deeply for the stack that is left; nest less") from None
            if self._cache:
                self._keep(tokens.shape, known, size)
        if isinstance(known, str):
            raise FilterError(known)
        return known, tokens.literals, size

    def _keep(self, shape: Shape, known: FilterTemplate | str, size: int) -> None:
        """Put a shape into the cache, which starts afresh when it is full."""
        if self._held + size > _TOKENS:
            self._known.clear()
            self._held = 0
        self._known[shape] = known
        self._held += size

    def _make(self, tree: Node) -> FilterTemplate | str:
        """Return a template, or why there is none for any filter of the shape."""
        try:
            return FilterTemplate.make(tree, self.schema, self._normal)
        except FilterError as error:
            return str(error)


def _fill(group: FilterGroup, errors: dict[int, str]) -> list[BoxBlock]:
    """Return the boxes of the filters of one shape, without those that turn out to be wrong."""
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
    """Return blocks as one set of boxes, ordered by owner."""
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
