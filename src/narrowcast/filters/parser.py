"""Filter parser: sqlglot parses, and only the constructs of the filter language are accepted."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from sqlglot import expressions as exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from narrowcast.errors import FilterError
from narrowcast.filters.syntax import (
    MIRROR,
    And,
    AttributeReference,
    Compare,
    Constant,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Op,
    Operand,
    Or,
    Slot,
    Truth,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlglot.tokenizer_core import Token

    from narrowcast.filters.limits import FilterLimits
    from narrowcast.filters.syntax import Kind


class _Filters(Spark):
    """Spark's SQL, in which a doubled quote is a literal quote: `'it''s'`."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES = ["'", '"', "\\"]  # noqa: RUF012  (sqlglot's own way to set a dialect)


_DIALECT = _Filters()


class _Tokenizers(threading.local):
    """One tokenizer per thread: it is stateful, and creating one costs as much as using it."""

    def __init__(self) -> None:
        self.tokenizer = _DIALECT.tokenizer()


_tokenizers = _Tokenizers()
_NUMBER, _STRING = TokenType.NUMBER, TokenType.STRING
#: Placeholders for literals while sqlglot parses: private-use characters, refused in filters.
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(rf"(0\.)?{_OPEN}(\d+){_CLOSE}")
_OPS: dict[type, Op] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_CASTS: dict[str, Kind] = {
    "DOUBLE": "double",
    "FLOAT": "float",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp_ntz",
    "BIGINT": "integer",
    "INT": "integer",
    "SMALLINT": "integer",
    "TINYINT": "integer",
}

#: The kinds and texts of a filter's tokens, each literal replaced by how it was written. Filters of one shape
#: share a tree. The shape includes the kinds because `r'x'` and `x` have the same text.
Shape = tuple[tuple[int, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class FilterTokens:
    """A filter's tokens: its shape and, separately, its literals in order."""

    shape: Shape
    literals: tuple[str, ...]
    raw: list[Token]


def tokenize(text: str, limits: FilterLimits) -> FilterTokens:
    """Tokenise a filter; refuse what is too long or not text."""
    if not isinstance(text, str):
        raise FilterError(f"{text!r:.60}: must be text", value=text)
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise FilterError(f"not valid Unicode at character {error.start + 1}") from None
    if size > limits.bytes:
        raise FilterError(
            f"filter of {size:,} bytes: must have at most {limits.bytes:,}; split it into several "
            "subscriptions or raise the limit `bytes`",
            parameter="bytes",
            value=size,
            limit=f"at most {limits.bytes:,}",
        )
    try:
        raw = _tokenizers.tokenizer.tokenize(text)
    except SqlglotError as error:
        raise FilterError(f"does not parse: {_reason(error)}") from error
    if "\\" in text and any(comment.endswith("\\") for token in raw for comment in token.comments):
        raise FilterError("comment ends in a backslash, which Spark continues on the next line; remove it")
    texts = [token.text for token in raw]
    literals: list[str] = []
    kinds = [token.token_type for token in raw]
    for i, kind in enumerate(kinds):
        if kind is _NUMBER:
            number = texts[i]
            literals.append(number)
            texts[i] = "integer" if number.isdigit() else "double" if "e" in number.lower() else "decimal"
        elif kind is _STRING:
            literals.append(texts[i])
            texts[i] = "string"
    return FilterTokens((tuple(kinds), tuple(texts)), tuple(literals), raw)


def parse(tokens: FilterTokens, limits: FilterLimits) -> Node:
    """Return the tree of a filter, with a slot in place of every literal."""
    if not tokens.raw:
        raise FilterError("empty filter; write TRUE to match every event")
    _check_depth(tokens.raw, limits)
    if any(a == "::" and b.upper() == "BD" for a, b in pairwise(tokens.shape[1])):
        raise FilterError("suffix BD is not supported; write the decimal without it")
    slot = 0
    for token in tokens.raw:
        if token.token_type in (_NUMBER, _STRING):
            token.text = f"{_OPEN}{slot}{_CLOSE}"
            slot += 1
    try:
        trees = _DIALECT.parser().parse(tokens.raw, "")
    except SqlglotError as error:
        raise FilterError(f"does not parse: {_reason(error)}") from error
    except RecursionError:
        raise FilterError(
            f"nested too deeply to parse: must be within the limit depth={limits.depth}"
        ) from None
    except Exception as error:  # a large parser with untrusted input: any failure of it makes the row invalid
        raise FilterError(f"does not parse: {type(error).__name__} {error}") from error
    if len(trees) != 1 or trees[0] is None:
        raise FilterError("more than one statement: must be one boolean expression without ';'")
    try:
        return _Builder(tokens).node(trees[0])
    except RecursionError:
        raise FilterError(f"nested too deeply: must be within the limit depth={limits.depth}") from None


def _check_depth(raw: list[Token], limits: FilterLimits) -> None:
    """Refuse nesting that would overflow the parser's stack."""
    depth = run = deepest = 0
    for token in raw:
        kind = token.token_type
        if kind in (TokenType.L_PAREN, TokenType.L_BRACKET):
            depth += 1
        elif kind in (TokenType.R_PAREN, TokenType.R_BRACKET):
            depth -= 1
        run = run + 1 if kind in (TokenType.NOT, TokenType.DASH, TokenType.TILDE) else 0
        deepest = max(deepest, depth + run)
    if deepest > limits.depth:
        raise FilterError(
            f"nested {deepest} deep: must be at most {limits.depth}; remove unnecessary parentheses or raise "
            "the limit `depth`",
            parameter="depth",
            value=deepest,
            limit=f"at most {limits.depth}",
        )


def _reason(error: SqlglotError) -> str:
    """Return sqlglot's message as one plain line."""
    found = getattr(error, "errors", None)
    if not found:
        return "a quote or comment is not closed, or a literal is malformed"
    text = str(found[0]["description"]).partition(" but got <")[0]
    if text.startswith("Required keyword"):
        text = "something is missing"
    return f"{text.removeprefix('Invalid expression / ').rstrip('.').lower()} at column {found[0]['col']}"


class _Builder:
    """Converts sqlglot's tree to the filter language's; refuses unsupported nodes, quoting their text."""

    def __init__(self, tokens: FilterTokens) -> None:
        pairs = zip(*tokens.shape, strict=True)
        self._kinds = [cast("Kind", text) for kind, text in pairs if kind in (_NUMBER, _STRING)]
        self._literals = tokens.literals

    def node(self, tree: Any) -> Node:
        """Return a predicate, or a connective with its parts."""
        match tree:
            case exp.And() | exp.Or():
                combine: Callable[[tuple[Node, ...]], Node] = And if isinstance(tree, exp.And) else Or
                return combine(tuple(self.node(part) for part in self._chain(tree)))
            case exp.Paren():
                return self.node(tree.this)
            case exp.Not():
                return Not(self.node(tree.this))
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                return self._compare(_OPS[type(tree)], tree.this, tree.expression)
            case exp.Between():
                if tree.args.get("symmetric") is not None:
                    raise self._refuse(tree, "instead of SYMMETRIC write the lower end first")
                return And(
                    (
                        self._compare(">=", tree.this, tree.args["low"]),
                        self._compare("<=", tree.this, tree.args["high"]),
                    )
                )
            case exp.In():
                return self._in(tree)
            case exp.Escape(this=exp.Like()):
                escape = self._operand(tree.expression)
                if not isinstance(escape, Slot) or escape.kind != "string":
                    raise self._refuse(tree, "ESCAPE must be one character in quotes")
                return self._like(tree.this, escape)
            case exp.Like():
                return self._like(tree, None)
            case exp.Is():
                if not isinstance(tree.expression, exp.Null):
                    raise self._refuse(tree, "use IS NULL, IS NOT NULL, or = TRUE")
                return IsNull(self._operand(tree.this))
            case exp.Boolean() | exp.Null() | exp.Column() | exp.Dot():
                operand = self._operand(tree)
                assert not isinstance(operand, Slot)
                return Truth(operand)
            case _:
                raise self._refuse(tree, "use comparisons, BETWEEN, IN, LIKE, IS NULL, AND, OR and NOT")

    @staticmethod
    def _chain(tree: Any) -> list[Any]:
        """Return the operands of a chain of one connective; sqlglot nests them to the left."""
        kind, parts = type(tree), []
        while isinstance(tree, kind):
            parts.append(tree.expression)
            tree = tree.this
        parts.append(tree)
        return parts[::-1]

    def _compare(self, op: Op, left: Any, right: Any) -> Compare:
        first, second = self._operand(left), self._operand(right)
        if not isinstance(first, AttributeReference) and isinstance(second, AttributeReference):
            return Compare(MIRROR[op], second, first)
        return Compare(op, first, second)

    def _in(self, tree: Any) -> In:
        if (
            tree.args.get("query") is not None
            or tree.args.get("unnest") is not None
            or tree.args.get("field")
        ):
            raise self._refuse(tree, "IN must list values, not a query")
        if not tree.expressions:
            raise self._refuse(tree, "IN must have at least one value")
        return In(self._operand(tree.this), tuple(self._operand(item) for item in tree.expressions))

    def _like(self, tree: Any, escape: Slot | None) -> Like:
        operand, pattern = self._operand(tree.this), self._operand(tree.expression)
        if isinstance(pattern, AttributeReference):
            raise self._refuse(tree, "LIKE must have a pattern in quotes")
        return Like(operand, pattern, escape, negated=bool(tree.args.get("negate")))

    def _operand(self, tree: Any) -> Operand:
        """Return an attribute, a literal or a constant."""
        match tree:
            case exp.Paren():
                return self._operand(tree.this)
            case exp.Column() | exp.Dot():
                return AttributeReference(".".join(self._path(tree)))
            case exp.Literal():
                return self._slot(tree)
            case exp.Boolean():
                return Constant(bool(tree.this))
            case exp.Null():
                return Constant(None)
            case exp.Neg():
                inner = self._operand(tree.this)
                if isinstance(inner, Slot) and inner.kind in ("integer", "decimal", "float", "double"):
                    return Slot(inner.number, inner.kind, not inner.negative, inner.prefix)
                raise self._refuse(tree, "a minus must precede a number; arithmetic is not supported")
            case exp.Cast() | exp.TryCast():
                return self._cast(tree)
            case _:
                raise self._refuse(
                    tree,
                    "an operand must be an attribute or a literal, without arithmetic or functions",
                )

    def _path(self, tree: Any) -> list[str]:
        """Return the parts of a dotted path."""
        if isinstance(tree, exp.Dot):
            if not isinstance(tree.expression, exp.Identifier):
                raise self._refuse(tree, "a path must consist of names and dots")
            return [*self._path(tree.this), tree.expression.this]
        if not isinstance(tree, exp.Column) or any(not isinstance(p, exp.Identifier) for p in tree.parts):
            raise self._refuse(tree, "must name one attribute")
        return [part.this for part in tree.parts]

    def _slot(self, tree: Any) -> Slot:
        mark = _MARK.fullmatch(tree.this)
        if mark is None:
            raise self._refuse(tree, "write the literal without a cast")
        kind = self._kinds[int(mark[2])]
        if mark[1]:
            kind = "double" if kind == "double" else "decimal"
        return Slot(int(mark[2]), kind, prefix=mark[1] or "")

    def _cast(self, tree: Any) -> Slot:
        """Return a typed literal: `DATE '...'`, `1.5D`, `CAST('NaN' AS DOUBLE)`."""
        inner = self._operand(tree.this)
        kind = _CASTS.get(tree.args["to"].this.name)
        if not isinstance(inner, Slot) or kind is None:
            raise self._refuse(tree, "only literals can be cast, to a number, date or timestamp")
        if inner.kind == "string":
            fits = kind != "integer"
        else:
            fits = inner.kind == kind == "integer" or (
                inner.kind in ("integer", "decimal", "double") and kind in ("float", "double")
            )
        if not fits:
            raise self._refuse(tree, f"write the {kind} literal without a cast")
        return Slot(inner.number, kind, inner.negative, inner.prefix)

    def _refuse(self, tree: Any, hint: str) -> FilterError:
        sql = tree.sql(dialect=_DIALECT)
        text = re.sub(rf"{_OPEN}(\d+){_CLOSE}", lambda found: self._literals[int(found[1])], sql)
        text = text if len(text) <= 60 else text[:57] + "..."
        return FilterError(f"{text} is not in the filter language; {hint}")
