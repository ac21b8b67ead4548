"""The whole job, stage by stage: from raw tables to matches, an interest, a plan, its costs and a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from narrowcast import __version__
from narrowcast.files import read_table, writing
from narrowcast.model.artefact import read_plan, write_plan
from narrowcast.model.cells import NUMBERS
from narrowcast.model.interest import Interest
from narrowcast.spark.checkpoint import Checkpoints, StageRecord, key_of
from narrowcast.spark.planning.plan import costs_of, make_plan
from narrowcast.spark.progress import watched
from narrowcast.spark.session import sized
from narrowcast.spark.sources.rows import fingerprint, fingerprinted
from narrowcast.spark.sources.tables import ingest, schema_of
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.bounding_boxes import boxes_of
from narrowcast.spark.stages.compile import compile_subscriptions, owners
from narrowcast.spark.stages.evaluate import evaluate
from narrowcast.spark.stages.interest import InterestFrames, check_time, from_matches
from narrowcast.spark.stages.match import PARQUET, match
from narrowcast.spark.stages.match_inputs import reasons_of, rejected_of
from narrowcast.spark.stages.network import COLUMNS, NetworkTables
from narrowcast.spark.storage import read_back, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from rich.progress import Progress

    from narrowcast.model.schema import Schema
    from narrowcast.spark.sources.tables import Ingested
    from narrowcast.spark.stages.estimate import Estimate

    Work = Callable[[Path], dict[str, Any]]

#: The events that a plan is made from: the last ones that somebody wanted.
RECENT = 10_000
_INTEREST = ("interests", "rates")
#: What the stages write.
TABLES = (
    *(f"{name}.parquet" for name in ("subscriptions", "events", "unreadable", "compiled", "rejected")),
    *(f"{name}.parquet" for name in ("matches", *_INTEREST, *COLUMNS)),
    "plan",
)
#: Sizes of matches that are told apart in the picture.
_SIZES = 1_000


@dataclass(frozen=True, slots=True)
class GeneratedTables:
    """Tables that are made here instead of read: what makes them, and all that they depend on."""

    tables: Callable[[], dict[str, pa.Table]]
    said: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What to do.

    Parameters
    ----------
    source
        Where `subscriptions` and `events` are read from, or what makes them.
    method, channels
        How to plan, and with how many channels at most.
    seed
        Of the plan and of samples.
    strategy, memory
        How to match: see `match`.
    recent
        Of how many events the plan is made.
    schema
        The types of events, where their files do not tell them.
    strict
        End at the first bad row instead of setting it aside.
    network
        Paths of the tables of a network, by name; without, the network that a workload has.
    """

    source: GeneratedTables | dict[str, str]
    method: str = "auto"
    channels: int = 16
    seed: int = 0
    strategy: str = "auto"
    memory: int | None = None
    recent: int = RECENT
    schema: Schema | None = None
    strict: bool = False
    network: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class PipelineRun:
    """A job at work in a folder that has the stages it has finished.

    Parameters
    ----------
    spark
        Where it runs.
    stages
        What is done already.
    job
        What to do.
    progress
        Where to show how far it is.
    tell
        Called with the estimate of matching before it starts.
    """

    spark: SparkSession
    stages: Checkpoints
    job: RunSettings
    progress: Progress
    tell: Callable[[Estimate, str], None]
    records: dict[str, StageRecord] = field(default_factory=dict)
    _shapes: dict[str, StructType] = field(default_factory=dict, repr=False)

    def do(self) -> dict[str, StageRecord]:
        """Do all stages but those that are done, and return their records in order."""
        source = self.job.source
        n_bytes = (
            0
            if isinstance(source, GeneratedTables)
            else sum(size_of(self.spark, path) for path in source.values())
        )
        with sized(self.spark, n_bytes):
            self._read()
            self._compile()
            self._match()
            self._interest()
            self._plan()
            self._evaluate()
        return self.records

    def table(self, name: str) -> DataFrame:
        """Return a table that a stage has written."""
        found = read_back(self.spark, self.stages.folder / f"{name}.parquet", self._shapes.get(name))
        self._shapes[name] = found.schema
        return found

    def _keep(self, frame: DataFrame, folder: Path, name: str, **options: str) -> DataFrame:
        """Write a table of a stage, and return it as it was written."""
        frame.write.options(**options).parquet(str(folder / f"{name}.parquet"))
        self._shapes[name] = frame.schema
        return read_back(self.spark, folder / f"{name}.parquet", frame.schema)

    @property
    def schema(self) -> Schema:
        """The attributes of the events."""
        return schema_of(self.table("events"))

    def frames(self) -> InterestFrames:
        """Return the interest that the plan is made from."""
        compiled, schema = self.table("compiled"), self.schema
        return InterestFrames(
            self.table("interests"),
            self.table("rates"),
            "events",
            subscribers=owners(compiled, schema).select("subscriber").distinct(),
            boxes=boxes_of(compiled, schema)
            if any(kind.family in NUMBERS for kind in schema.types)
            else None,
        )

    def network(self) -> NetworkTables:
        """Return the network that was given, or the workload's; there may be none."""
        paths = [self.stages.folder / f"{name}.parquet" for name in COLUMNS]
        found = NetworkTables.read(*(path if path.exists() else None for path in paths))
        return found.fitting(text=self.frames().text)

    def sample(self, flows: int = 240, subscribers: int = 160) -> Interest:
        """Return a sample of the interest that a picture can show; the same for the same tables."""
        from pyspark.sql import functions as sf

        frames = self.frames()
        order = sf.xxhash64("flow", sf.lit(self.job.seed))
        some = frames.rates.orderBy(order, "flow").limit(flows)
        pairs = frames.interests.join(sf.broadcast(some.select("flow")), "flow")
        order = sf.xxhash64("subscriber", sf.lit(self.job.seed))
        people = pairs.select("subscriber").distinct().orderBy(order, "subscriber").limit(subscribers)
        shown = pairs.join(sf.broadcast(people), "subscriber").select("subscriber", "flow")
        return Interest.from_tables(shown.toArrow())

    def _stage(
        self,
        name: str,
        after: str,
        outputs: tuple[str, ...],
        work: Callable[[Path], dict[str, Any]],
        **of: Any,
    ) -> None:
        """Do a stage that depends on the one before and on some parameters."""
        key = key_of(name, after=self.records[after].key if after else None, version=__version__, **of)
        with watched(self.spark, self.progress, name), plainly(f"do the stage {name!r}"):
            self.records[name] = self.stages.run(name, key, outputs, work)

    def _read(self) -> None:
        """Take in the tables: typed, bad rows set aside."""
        job, source = self.job, self.job.source
        said: dict[str, Any] = {}
        looked: dict[str, Ingested] = {}
        prints = NetworkTables.read(**job.network).fingerprints
        if isinstance(source, GeneratedTables):
            said = source.said
        else:
            with watched(self.spark, self.progress, "look at the inputs"), plainly("read the inputs"):
                for name, path in source.items():
                    looked[name] = self._ingest(name, path)
                    said[name] = [fingerprint(looked[name].rows), fingerprint(looked[name].rejected)]

        def work(aside: Path) -> dict[str, Any]:
            if isinstance(source, GeneratedTables):
                (aside / "made").mkdir()
                for name, table in source.tables().items():
                    read = name in ("subscriptions", "events")
                    if read or (name in COLUMNS and not self.job.network):
                        path = str((aside / "made" if read else aside) / f"{name}.parquet")
                        with writing(path):
                            pq.write_table(table, path)
                        if read:
                            looked[name] = self._ingest(name, path)
            for name, path in self.job.network.items():
                pq.write_table(read_table(path, COLUMNS[name]), aside / f"{name}.parquet")
            facts: dict[str, Any] = {"fingerprints": dict(prints)}
            for name, found in looked.items():
                written = self._keep(found.rows, aside, name)
                facts["fingerprints"][name], facts[name] = fingerprinted(written)
            bad = looked["subscriptions"].rejected.unionByName(looked["events"].rejected)
            reasons_of(self._keep(bad, aside, "unreadable"), strict=job.strict)
            return facts

        names = ("subscriptions", "events", "unreadable", *COLUMNS)
        outputs = tuple(f"{name}.parquet" for name in names)
        types = job.schema.to_dict() if job.schema else None
        of = {"source": said, "types": types, "strict": job.strict, "network": prints}
        self._stage("read", "", outputs, work, writes=names, **of)

    def _ingest(self, name: str, path: str) -> Ingested:
        """Read a table; events with a time that is none are an error."""
        if name != "events":
            return ingest(self.spark, name, path)
        found = ingest(self.spark, name, path, schema=self.job.schema)
        check_time(found.rows, path)
        return found

    def _compile(self) -> None:
        """Turn filters into boxes."""
        from pyspark.sql import functions as sf

        def work(aside: Path) -> dict[str, Any]:
            subscriptions, schema = self.table("subscriptions"), self.schema
            compiled = self._keep(compile_subscriptions(subscriptions, schema), aside, "compiled")
            rejected = self.table("unreadable").unionByName(rejected_of(compiled))
            reasons = reasons_of(rejected, strict=self.job.strict)
            if reasons["rejected"]:
                rejected.write.parquet(str(aside / "rejected.parquet"))
            sums = compiled.agg(sf.sum("subscriptions"), sf.sum("boxes")).head()
            assert sums is not None
            return {
                "subscriptions": sums[0] or 0,
                "boxes": sums[1] or 0,
                "subscribers": owners(compiled, schema).select("subscriber").distinct().count(),
                **reasons,
            }

        self._stage("compile", "read", ("compiled.parquet", "rejected.parquet"), work, strict=self.job.strict)

    def _match(self) -> None:
        """Find who wants which event."""
        from pyspark.sql import functions as sf

        job = self.job

        def work(aside: Path) -> dict[str, Any]:
            events, compiled = self.table("events"), self.table("compiled")
            found = match(
                events,
                compiled,
                self.schema,
                strategy=job.strategy,
                memory=job.memory,
                seed=job.seed,
                tell=self.tell,
            )
            kept = self._keep(found, aside, "matches", **PARQUET)
            sizes = kept.select(sf.size("subscription_ids").alias("matches"))
            seen = sizes.agg(sf.count("*"), sf.sum("matches"), sf.max("matches")).head()
            assert seen is not None
            matched, pairs, most = (value or 0 for value in seen)
            step = max(1, -(-most // _SIZES))
            low = (sf.floor(sf.col("matches") / step) * step).cast("bigint").alias("matches")
            counted = sizes.groupBy(low).agg(sf.count("*").alias("events")).orderBy("matches").collect()
            n_events = self.records["read"].facts["events"]
            by_size = {0: n_events - matched} | {row.matches: row.events for row in counted if row.matches}
            if counted and counted[0].matches == 0:  # sizes that share a bin with none
                by_size[0] += counted[0].events
            return {
                "events": n_events,
                "matches": pairs,
                "matched": matched,
                "unmatched": n_events - matched,
                "most": most,
                "sizes": sorted(by_size.items()),
            }

        self._stage("match", "compile", ("matches.parquet",), work)

    def _interest(self) -> None:
        """Make an interest out of what events matched."""

        def work(aside: Path) -> dict[str, Any]:
            events = self.table("events")
            people = owners(self.table("compiled"), self.schema)
            frames = from_matches(self.table("matches"), people, events, recent=self.job.recent)
            wants = self._keep(frames.interests, aside, "interests").count()
            return {"wants": wants, "flows": self._keep(frames.rates, aside, "rates").count()}

        outputs = tuple(f"{name}.parquet" for name in _INTEREST)
        self._stage("interest", "match", outputs, work, recent=self.job.recent)

    def _plan(self) -> None:
        """Plan channels."""
        job = self.job

        def work(aside: Path) -> dict[str, Any]:
            network = self.network()
            frames = self.frames()
            planned = make_plan(frames, job.method, channels=job.channels, seed=job.seed, network=network)
            write_plan(
                planned.plan,
                aside / "plan",
                method=planned.method,
                params={"channels": job.channels, "recent": job.recent, **planned.how},
                seed=job.seed,
                flow_space="events",
                costs=costs_of(frames, planned, network=network),
                inputs=self.records["read"].facts["fingerprints"],
                interest=planned.interest,
            )
            return {"channels": planned.plan.n_groups, "method": planned.method, "path": planned.path}

        self._stage(
            "plan", "interest", ("plan",), work, method=job.method, channels=job.channels, seed=job.seed
        )

    def _evaluate(self) -> None:
        """Say what the plan costs."""

        def work(_: Path) -> dict[str, Any]:
            plan, info = read_plan(self.stages.folder / "plan")
            found = evaluate(
                self.frames(), plan, name=info.method, channels=self.job.channels, network=self.network()
            )
            return found.to_dict()

        self._stage("evaluate", "plan", (), work)
