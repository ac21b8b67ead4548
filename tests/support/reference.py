"""What filters match, by the slow and literal way and by the one under test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast import EventBatch, FilterLimits, Scan, Schema, compile_filters
from narrowcast.filters.compiler import FilterCompiler
from narrowcast.filters.evaluate import evaluate

if TYPE_CHECKING:
    import pyarrow as pa


def reference(schema: Schema, texts: list[str], table: pa.Table) -> list[list[int]]:
    """For each event, the filters that are true of it, by the literal three-valued evaluator."""
    compiler = FilterCompiler(schema, boxes=False)
    batch = EventBatch.from_arrow(table, schema)
    rows = [[column[i].as_py() for column in batch.columns] for i in range(len(batch))]
    parsed = [compiler.template(text) for text in texts]
    return [[i for i, (t, lits) in enumerate(parsed) if evaluate(t.node, lits, row) is True] for row in rows]


def found(
    schema: Schema, texts: list[str], table: pa.Table, limits: FilterLimits | None = None
) -> list[list[int]]:
    """For each event, the filters that match it, by boxes and checks."""
    compiled = compile_filters(schema, texts, limits=limits, strict=True)
    return [
        m.tolist() for m in Scan().fit(compiled.subscriptions).match(EventBatch.from_arrow(table, schema))
    ]
