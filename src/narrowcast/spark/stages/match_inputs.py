"""Inputs of the matching stage: typed events, compiled filters, and the rows that were rejected."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from narrowcast.errors import TableError
from narrowcast.spark.progress import watched
from narrowcast.spark.sources.tables import fingerprint, ingest, schema_of
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.compile import compile_subscriptions, owners
from narrowcast.spark.stages.match import PARQUET, match
from narrowcast.spark.storage import read_back, write_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from rich.progress import Progress

    from narrowcast.model.schema import Schema

#: Maximum number of different reasons for rejected rows in a summary.
REASONS = 10
#: Values in a reason: quoted texts and numbers.
_VALUES = r"'[^']*'|\b\d+(\.\d+)?\b"


class MatchInputs:
    """Subscriptions and events, read and compiled for matching.

    Parameters
    ----------
    spark
        The session to work in.
    subscriptions, events
        Paths, URIs or Spark tables.
    progress
        Display of the progress.
    schema
        Types of the events, where their files have none.
    strict
        Whether a bad row is an error; otherwise it is rejected and reported.
    """

    def __init__(
        self,
        spark: SparkSession,
        subscriptions: str | Path | DataFrame,
        events: str | Path | DataFrame,
        *,
        progress: Progress,
        schema: Schema | None = None,
        strict: bool = False,
    ) -> None:
        self.spark, self.progress, self.strict = spark, progress, strict
        with watched(spark, progress, "read"), plainly("read the tables"):
            read = ingest(spark, "events", events, schema=schema)
            given = ingest(spark, "subscriptions", subscriptions)
        self.events, self.subscriptions = read.rows, given.rows
        self.schema = schema_of(self.events)
        #: Packed subscriptions, and a row for each bad filter; persisted because several jobs read them.
        self.compiled = compile_subscriptions(given.rows, self.schema).persist()
        self.rejected = rejected_of(self.compiled).unionByName(given.rejected).unionByName(read.rejected)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Counts of events, subscriptions, boxes and rejected rows, and the reasons for rejected rows."""
        from pyspark.sql import functions as sf

        with watched(self.spark, self.progress, "compile"), plainly("compile the filters"):
            found = self.compiled.agg(sf.sum("subscriptions"), sf.sum("boxes")).head()
            assert found is not None
            sums = {"subscriptions": found[0] or 0, "boxes": found[1] or 0}
            return sums | reasons_of(self.rejected, strict=self.strict) | {"events": self.events.count()}

    def fingerprints(self) -> dict[str, str]:
        """Return a hash of the rows of each input table, by the table's name."""
        with watched(self.spark, self.progress, "fingerprint the inputs"), plainly("read the tables"):
            return {
                "subscriptions": fingerprint(self.subscriptions),
                "events": fingerprint(self.events),
            }

    def columns(self) -> list[str]:
        """Return the columns of events that the filters need."""
        from pyspark.sql import functions as sf

        found = self.compiled.select(sf.explode("columns")).distinct().collect()
        return sorted(row[0] for row in found)

    @property
    def owners(self) -> DataFrame:
        """The owner of each good subscription: `subscription_id` and `subscriber`."""
        return owners(self.compiled, self.schema)

    def match(self, **options: Any) -> DataFrame:
        """Find the matching subscriptions of each event, as `narrowcast.spark.stages.match.match` does."""
        assert self.facts
        with watched(self.spark, self.progress, "estimate"), plainly("match"):
            return match(self.events, self.compiled, self.schema, **options)

    def write(self, matches: DataFrame, path: str | Path, *, counts: bool = False) -> dict[str, Any]:
        """Write the result of `match`; return the number of matches, and of events with and without one."""
        from pyspark.sql import functions as sf

        with watched(self.spark, self.progress, "match"):
            write_table(matches, path, doing=f"write {path}", options=PARQUET)
        sizes = sf.sum("matches") if counts else sf.sum(sf.size("subscription_ids"))
        with plainly(f"read {path} back"):
            found = read_back(self.spark, path).agg(sf.count("*"), sizes).head()
        assert found is not None
        matched = found[0]
        return {"matches": found[1] or 0, "matched": matched, "unmatched": self.facts["events"] - matched}

    def write_rejected(self, path: str | Path) -> None:
        """Write the rejected rows with their reasons."""
        with watched(self.spark, self.progress, "write rejected rows"):
            write_table(self.rejected, path, doing=f"write {path}")


def rejected_of(compiled: DataFrame) -> DataFrame:
    """Return the invalid filters found by compilation as rejected rows: table, reason and row."""
    from pyspark.sql import functions as sf

    bad = compiled.where("reason IS NOT NULL")
    return bad.select(sf.lit("subscriptions").alias("table"), "reason", "row")


def reasons_of(rejected: DataFrame, *, strict: bool) -> dict[str, Any]:
    """Count rejected rows, and return the most frequent reasons with their counts.

    Raises
    ------
    TableError
        With `strict`, when there is a rejected row.
    """
    from pyspark.sql import functions as sf

    # Reasons that differ only in values count as one kind.
    kind = sf.regexp_replace("reason", _VALUES, "...")
    grouped = rejected.groupBy("table", kind.alias("kind")).agg(
        sf.count("*").alias("rows"),
        sf.min("row").alias("first"),
        sf.min("reason").alias("reason"),
        (sf.min("reason") == sf.max("reason")).alias("same"),
    )
    top = grouped.orderBy(sf.desc("rows"), "table", "kind").limit(REASONS).collect()
    count = sum(row.rows for row in top) if len(top) < REASONS else rejected.count()
    if top and strict:
        worst = top[0]
        many = "a bad row" if count == 1 else f"{count:,} bad rows, one of them"
        raise TableError(
            f"{many} in {worst.table}: {worst.reason}: {worst.first}; correct it, or read without strict to "
            "reject such rows and go on",
            parameter="strict",
            value=worst.first,
        )
    reasons = {f"{row.table}: {row.reason if row.same else row.kind}": row.rows for row in top}
    if others := count - sum(reasons.values()):
        reasons["other reasons"] = others
    return {"rejected": count, "reasons": reasons}
