"""Many filters to boxes: each is tokenised, and all of one shape are bound, normalised and filled at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import FilterError
from narrowcast.filters.limits import Limits
from narrowcast.filters.parse import Shape, parse, tokenize
from narrowcast.filters.ranges import Literals
from narrowcast.filters.template import Block, Template
from narrowcast.model.boxes import Boxes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narrowcast.filters.syntax import Node
    from narrowcast.model.schema import Schema

#: Shapes kept by one compiler. Past it the cache starts afresh: whoever writes filters by hand has few.
_SHAPES = 10_000


@dataclass(frozen=True, slots=True)
class Compiled:
    """Filters as boxes.

    `boxes.owner` numbers the filters in the order given; a filter that can never be true has no box, and
    neither has one that is wrong: `errors` holds the reason for each of those.
    """

    boxes: Boxes
    errors: dict[int, str]


@dataclass(slots=True)
class Group:
    """The filters of one shape: where they stood, and their literals."""

    template: Template
    rows: list[int]
    literals: list[tuple[str, ...]]


class Compiler:
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
    >>> compiler = Compiler(Schema.of({"price": "double", "name": "string"}))
    >>> compiled = compiler.compile(["price > 75 AND name = 'IBM'", "price <> 3", "prize > 1"])
    >>> compiled.boxes.owner.tolist()
    [0, 1, 1]
    >>> compiled.errors
    {2: "unknown attribute 'prize'; there are: price, name"}
    """

    def __init__(
        self, schema: Schema, limits: Limits | None = None, *, cache: bool = True, boxes: bool = True
    ) -> None:
        self.schema = schema
        self.limits = limits or Limits()
        self._cache = cache
        self._normal = self.limits if boxes else None
        self._known: dict[Shape, Template | str] = {}

    def compile(self, filters: Iterable[str]) -> Compiled:
        """Return the boxes of many filters, and the reasons why some have none."""
        groups, errors, n = self.group(filters)
        blocks: list[Block] = []
        for group in groups:
            literals = Literals(group.literals)
            rows = np.array(group.rows)
            found = group.template.boxes(literals)
            errors.update((group.rows[i], reason) for i, reason in literals.errors.items())
            bad = np.isin(np.arange(len(rows)), list(literals.errors)) if literals.errors else None
            for block in found:
                keep = slice(None) if bad is None else ~bad[block.owner]
                owner = rows[block.owner[keep]]
                blocks.append(
                    Block(block.attributes, owner, block.lo[keep], block.hi[keep], block.exact[keep])
                )
        return Compiled(_join(blocks, n), dict(sorted(errors.items())))

    def group(self, filters: Iterable[str]) -> tuple[list[Group], dict[int, str], int]:
        """Return filters by shape, the reasons against the others, and how many there were."""
        groups: dict[int, Group] = {}
        errors: dict[int, str] = {}
        n = 0
        for n, text in enumerate(filters, start=1):
            try:
                template, literals = self.template(text)
            except FilterError as error:
                errors[n - 1] = str(error)
                continue
            group = groups.get(id(template))
            if group is None:
                group = groups[id(template)] = Group(template, [], [])
            group.rows.append(n - 1)
            group.literals.append(literals)
        return list(groups.values()), errors, n

    def template(self, text: str) -> tuple[Template, tuple[str, ...]]:
        """Return what a filter shares with others of its shape, and its own literals."""
        tokens = tokenize(text, self.limits)
        known = self._known.get(tokens.shape) if self._cache else None
        if known is None:
            try:
                tree = parse(tokens, self.limits)  # what is wrong here is this text's own: it is not kept
                known = self._make(tree)
            except RecursionError:
                raise FilterError("is nested too deeply for the stack that is left; nest less") from None
            if self._cache:
                if len(self._known) >= _SHAPES:
                    self._known.clear()
                self._known[tokens.shape] = known
        if isinstance(known, str):
            raise FilterError(known)
        return known, tokens.literals

    def _make(self, tree: Node) -> Template | str:
        """Return a template, or why there is none for any filter of the shape."""
        try:
            return Template.make(tree, self.schema, self._normal)
        except FilterError as error:
            return str(error)


def _join(blocks: list[Block], n: int) -> Boxes:
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
