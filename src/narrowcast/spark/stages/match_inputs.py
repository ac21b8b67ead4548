"""Subscriptions and events, ready to be matched: typed, bad rows set aside, filters compiled."""

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

#: Reasons against rows that are told apart in a summary.
REASONS = 10
#: Values in a reason: texts in quotes, and numbers.
_VALUES = r"'[^']*'|\b\d+(\.\d+)?\b"


class MatchInputs:
    """Subscriptions and events that were taken in.

    Parameters
    ----------
    spark
        Where they are worked on.
    subscriptions, events
        Paths, URIs or tables of Spark's.
    progress
        Where to show how far it is.
    schema
        The types of events, where their files do not tell them.
    strict
        Make a bad row an error instead of setting it aside.
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
        #: Packed subscriptions, and a row for each bad filter; kept, for several jobs read them.
        self.compiled = compile_subscriptions(given.rows, self.schema).persist()
        self.rejected = rejected_of(self.compiled).unionByName(given.rejected).unionByName(read.rejected)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """How many there are of everything, and why rows were set aside."""
        from pyspark.sql import functions as sf

        with watched(self.spark, self.progress, "compile"), plainly("compile the filters"):
            found = self.compiled.agg(sf.sum("subscriptions"), sf.sum("boxes")).head()
            assert found is not None
            sums = {"subscriptions": found[0] or 0, "boxes": found[1] or 0}
            return sums | reasons_of(self.rejected, strict=self.strict) | {"events": self.events.count()}

    def fingerprints(self) -> dict[str, str]:
        """Return what tells these tables from any others."""
        with watched(self.spark, self.progress, "look at the inputs"), plainly("read the tables"):
            return {
                "subscriptions": fingerprint(self.subscriptions),
                "events": fingerprint(self.events),
            }

    def columns(self) -> list[str]:
        """Return the columns of events that filters look at."""
        from pyspark.sql import functions as sf

        found = self.compiled.select(sf.explode("columns")).distinct().collect()
        return sorted(row[0] for row in found)

    @property
    def owners(self) -> DataFrame:
        """`subscription_id` and `subscriber` of the good subscriptions."""
        return owners(self.compiled, self.schema)

    def match(self, **options: Any) -> DataFrame:
        """Return the matches: see `narrowcast.spark.stages.match.match` for the options."""
        assert self.facts
        with watched(self.spark, self.progress, "estimate"), plainly("match"):
            return match(self.events, self.compiled, self.schema, **options)

    def write(self, matches: DataFrame, path: str | Path, *, counts: bool = False) -> dict[str, Any]:
        """Write matches, or their counts, and return how many there are."""
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
        """Write the rows that were set aside, with their reasons."""
        with watched(self.spark, self.progress, "write what was set aside"):
            write_table(self.rejected, path, doing=f"write {path}")


def rejected_of(compiled: DataFrame) -> DataFrame:
    """Return the bad filters among packed subscriptions as rows of a rejected table."""
    from pyspark.sql import functions as sf

    bad = compiled.where("reason IS NOT NULL")
    return bad.select(sf.lit("subscriptions").alias("table"), "reason", "row")


def reasons_of(rejected: DataFrame, *, strict: bool) -> dict[str, Any]:
    """Return how many rows were set aside, and the reasons met most; with `strict` one is an error."""
    from pyspark.sql import functions as sf

    # Reasons that differ only in the value they name are of one kind.
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
        many = "there is a bad row" if count == 1 else f"there are {count:,} bad rows, one of them"
        raise TableError(
            f"{many} in {worst.table}: {worst.reason}: {worst.first}; mend it, or leave --strict out to set "
            "such rows aside"
        )
    reasons = {f"{row.table}: {row.reason if row.same else row.kind}": row.rows for row in top}
    if others := count - sum(reasons.values()):
        reasons["other reasons"] = others
    return {"rejected": count, "reasons": reasons}
