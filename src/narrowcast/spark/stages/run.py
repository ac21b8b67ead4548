"""The pipeline from raw tables to an evaluated plan, as stages with checkpoints."""

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
from narrowcast.spark.sources.rows import fingerprint, fingerprint_and_count
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

#: Default number of recent matched events that a plan is made from.
RECENT = 10_000
_INTEREST = ("interests", "rates")
#: The outputs of all stages.
TABLES = (
    *(f"{name}.parquet" for name in ("subscriptions", "events", "unreadable", "compiled", "rejected")),
    *(f"{name}.parquet" for name in ("matches", *_INTEREST, *COLUMNS)),
    "plan",
)
#: Maximum number of bins in the histogram of matches for each event.
_SIZES = 1_000


@dataclass(frozen=True, slots=True)
class GeneratedTables:
    """Generated input tables, instead of files.

    Parameters
    ----------
    tables
        Generates the tables by name.
    parameters
        Everything that the tables depend on, as JSON values; part of the key of the first stage.
    """

    tables: Callable[[], dict[str, pa.Table]]
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The parameters of a run of the pipeline: its input tables, the method, and how to match.

    Parameters
    ----------
    source
        Paths of the tables `subscriptions` and `events`, or generated tables.
    method, channels
        Name of the planning method, and its maximum number of channels.
    seed
        Seed of the plan and of samples.
    strategy, memory
        How to match: see `match`.
    recent
        Number of recent matched events that the plan is made from.
    schema
        Types of the events, where their files have none.
    strict
        Whether a bad row is an error; otherwise it is rejected and reported.
    network
        Paths of the tables of a network, by name. Default: the network among generated tables, if any.
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
    """A run of the pipeline, with checkpoints of its finished stages.

    Parameters
    ----------
    spark
        The session to work in.
    stages
        The finished stages of the output folder.
    job
        The parameters of the run.
    progress
        Display of the progress.
    on_estimate
        Called with the estimate of matching and the chosen strategy before matching starts.
    records
        Records of the stages finished so far.
    """

    spark: SparkSession
    stages: Checkpoints
    job: RunSettings
    progress: Progress
    on_estimate: Callable[[Estimate, str], None]
    records: dict[str, StageRecord] = field(default_factory=dict)
    _shapes: dict[str, StructType] = field(default_factory=dict, repr=False)

    def do(self) -> dict[str, StageRecord]:
        """Run all stages that are not finished, and return the records of all stages in order."""
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
        """Read a table that a stage has written."""
        found = read_back(self.spark, self.stages.folder / f"{name}.parquet", self._shapes.get(name))
        self._shapes[name] = found.schema
        return found

    def _write(self, frame: DataFrame, folder: Path, name: str, **options: str) -> DataFrame:
        """Write a Spark table to the folder of a stage, read it back, and return it."""
        frame.write.options(**options).parquet(str(folder / f"{name}.parquet"))
        self._shapes[name] = frame.schema
        return read_back(self.spark, folder / f"{name}.parquet", frame.schema)

    @property
    def schema(self) -> Schema:
        """The schema of the events."""
        return schema_of(self.table("events"))

    def frames(self) -> InterestFrames:
        """Return the interest that the plan was made from, as Spark tables."""
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
        """Return the network of the run, or `NO_NETWORK`."""
        paths = [self.stages.folder / f"{name}.parquet" for name in COLUMNS]
        found = NetworkTables.read(*(path if path.exists() else None for path in paths))
        return found.fitting(text=self.frames().text)

    def sample(self, flows: int = 240, subscribers: int = 160) -> Interest:
        """Return a random sample of the interest, small enough for a chart.

        It depends only on the tables and the seed.

        Parameters
        ----------
        flows
            Maximum number of flows.
        subscribers
            Maximum number of subscribers.
        """
        from pyspark.sql import functions as sf

        frames = self.frames()
        order = sf.xxhash64("flow", sf.lit(self.job.seed))
        some_flows = frames.rates.orderBy(order, "flow").limit(flows)
        pairs = frames.interests.join(sf.broadcast(some_flows.select("flow")), "flow")
        order = sf.xxhash64("subscriber", sf.lit(self.job.seed))
        users = pairs.select("subscriber").distinct().orderBy(order, "subscriber").limit(subscribers)
        sample = pairs.join(sf.broadcast(users), "subscriber").select("subscriber", "flow")
        return Interest.from_tables(sample.toArrow())

    def _stage(
        self,
        name: str,
        after: str,
        outputs: tuple[str, ...],
        work: Callable[[Path], dict[str, Any]],
        **of: Any,
    ) -> None:
        """Run a stage unless it is finished; its key depends on the previous stage and its own parameters."""
        key = key_of(name, after=self.records[after].key if after else None, version=__version__, **of)
        with watched(self.spark, self.progress, name), plainly(f"run the stage {name!r}"):
            self.records[name] = self.stages.run(name, key, outputs, work)

    def _read(self) -> None:
        """Run the stage `read`: convert the tables to types, and reject bad rows."""
        job, source = self.job, self.job.source
        origin: dict[str, Any] = {}
        ingested: dict[str, Ingested] = {}
        prints = NetworkTables.read(**job.network).fingerprints
        if isinstance(source, GeneratedTables):
            origin = source.parameters
        else:
            with watched(self.spark, self.progress, "fingerprint the inputs"), plainly("read the inputs"):
                for name, path in source.items():
                    ingested[name] = self._ingest(name, path)
                    rows, rejected = ingested[name].rows, ingested[name].rejected
                    origin[name] = [fingerprint(rows), fingerprint(rejected)]

        def work(folder: Path) -> dict[str, Any]:
            if isinstance(source, GeneratedTables):
                (folder / "made").mkdir()
                for name, table in source.tables().items():
                    read = name in ("subscriptions", "events")
                    if read or (name in COLUMNS and not self.job.network):
                        path = str((folder / "made" if read else folder) / f"{name}.parquet")
                        with writing(path):
                            pq.write_table(table, path)
                        if read:
                            ingested[name] = self._ingest(name, path)
            for name, path in self.job.network.items():
                pq.write_table(read_table(path, COLUMNS[name]), folder / f"{name}.parquet")
            facts: dict[str, Any] = {"fingerprints": dict(prints)}
            for name, found in ingested.items():
                written = self._write(found.rows, folder, name)
                facts["fingerprints"][name], facts[name] = fingerprint_and_count(written)
            bad = ingested["subscriptions"].rejected.unionByName(ingested["events"].rejected)
            reasons_of(self._write(bad, folder, "unreadable"), strict=job.strict)
            return facts

        names = ("subscriptions", "events", "unreadable", *COLUMNS)
        outputs = tuple(f"{name}.parquet" for name in names)
        types = job.schema.to_dict() if job.schema else None
        of = {"source": origin, "types": types, "strict": job.strict, "network": prints}
        self._stage("read", "", outputs, work, writes=names, **of)

    def _ingest(self, name: str, path: str) -> Ingested:
        """Read a table, rejecting bad rows; events with a column `time` of an unusable type are an error."""
        if name != "events":
            return ingest(self.spark, name, path)
        found = ingest(self.spark, name, path, schema=self.job.schema)
        check_time(found.rows, path)
        return found

    def _compile(self) -> None:
        """Run the stage `compile`: convert filters to boxes."""
        from pyspark.sql import functions as sf

        def work(folder: Path) -> dict[str, Any]:
            subscriptions, schema = self.table("subscriptions"), self.schema
            compiled = self._write(compile_subscriptions(subscriptions, schema), folder, "compiled")
            rejected = self.table("unreadable").unionByName(rejected_of(compiled))
            reasons = reasons_of(rejected, strict=self.job.strict)
            if reasons["rejected"]:
                rejected.write.parquet(str(folder / "rejected.parquet"))
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
        """Run the stage `match`: find the subscriptions that each event matches."""
        from pyspark.sql import functions as sf

        job = self.job

        def work(folder: Path) -> dict[str, Any]:
            events, compiled = self.table("events"), self.table("compiled")
            found = match(
                events,
                compiled,
                self.schema,
                strategy=job.strategy,
                memory=job.memory,
                seed=job.seed,
                on_estimate=self.on_estimate,
            )
            written = self._write(found, folder, "matches", **PARQUET)
            sizes = written.select(sf.size("subscription_ids").alias("matches"))
            totals = sizes.agg(sf.count("*"), sf.sum("matches"), sf.max("matches")).head()
            assert totals is not None
            matched, pairs, most = (value or 0 for value in totals)
            step = max(1, -(-most // _SIZES))
            low = (sf.floor(sf.col("matches") / step) * step).cast("bigint").alias("matches")
            counted = sizes.groupBy(low).agg(sf.count("*").alias("events")).orderBy("matches").collect()
            n_events = self.records["read"].facts["events"]
            by_size = {0: n_events - matched} | {row.matches: row.events for row in counted if row.matches}
            if counted and counted[0].matches == 0:  # the bin of zero also has small positive numbers
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
        """Run the stage `interest`: make the interest in recent events from their matches."""

        def work(folder: Path) -> dict[str, Any]:
            events = self.table("events")
            owner_of = owners(self.table("compiled"), self.schema)
            frames = from_matches(self.table("matches"), owner_of, events, recent=self.job.recent)
            wants = self._write(frames.interests, folder, "interests").count()
            return {"wants": wants, "flows": self._write(frames.rates, folder, "rates").count()}

        outputs = tuple(f"{name}.parquet" for name in _INTEREST)
        self._stage("interest", "match", outputs, work, recent=self.job.recent)

    def _plan(self) -> None:
        """Run the stage `plan`: make the plan from the interest, and write it."""
        job = self.job

        def work(folder: Path) -> dict[str, Any]:
            network = self.network()
            frames = self.frames()
            planned = make_plan(frames, job.method, channels=job.channels, seed=job.seed, network=network)
            write_plan(
                planned.plan,
                folder / "plan",
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
        """Run the stage `evaluate`: compare the plan with the baselines."""

        def work(_: Path) -> dict[str, Any]:
            plan, info = read_plan(self.stages.folder / "plan")
            found = evaluate(
                self.frames(), plan, name=info.method, channels=self.job.channels, network=self.network()
            )
            return found.to_dict()

        self._stage("evaluate", "plan", (), work)
