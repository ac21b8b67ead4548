"""The Spark session: the one place that starts Spark, and the check of one that a caller brings."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from narrowcast.errors import MissingError, ParameterError
from narrowcast.spark.java import java_home, quiet_home
from narrowcast.spark.spark_errors import plainly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: Four tries for each task: with one, a single Python worker that dies fails the job.
MASTER = "local[*,4]"

#: How Spark spells the one zone in which dates and timestamps mean the same everywhere.
UTC = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00", "UTC+00:00")

#: What Spark takes for a master.
_MASTER = re.compile(r"local(\[(\*|\d+)(,\s*\d+)?\])?|local-cluster\[.+\]|(spark|k8s)://.+|yarn")
_ZONE = "spark.sql.session.timeZone"
_CASE = "spark.sql.caseSensitive"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOGGING = Path(__file__).with_name("log4j2.properties")

#: Bytes that are handed to a Python worker at once, about: packed subscriptions are large rows.
BATCH = 16 << 20

_DEFAULTS = {
    _ZONE: "UTC",
    # Measured: larger batches fall out of the processor's cache, smaller ones cost more calls.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.maxBytesPerBatch": f"{BATCH}b",
    "spark.ui.showConsoleProgress": "false",
    # Between Java and its Python workers: faster than the network, and nobody else can listen.
    "spark.python.unix.domain.socket.enabled": "true",
}
_HEAP = "spark.driver.memory"
_SHUFFLE = "spark.sql.shuffle.partitions"
#: Bytes of input that make one partition of a shuffle: they grow several times when they are unpacked.
_PARTITION = 32 << 20
_SIZE = re.compile(r"([0-9]+)(?:([kmgt])b?|(b))?")
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@contextmanager
def session(
    master: str = MASTER,
    conf: Mapping[str, str] | None = None,
    app_name: str = "narrowcast",
    *,
    ui: bool = False,
    own_interrupt: bool = False,
) -> Iterator[SparkSession]:
    """Give a Spark session for the length of a block.

    A process has one Spark: a session that runs already is given as it is, once `use` accepts it, and left
    running. Otherwise one is started on the Java that `java_home` finds, and stopped when the block ends.

    Parameters
    ----------
    master
        Where Spark runs: ``local[2,4]``, ``spark://host:7077``, ``yarn``, ``k8s://...``.
    conf
        Settings of Spark's that add to the ones made here, or override them.
    app_name
        What Spark's own pages and logs call this run.
    ui
        Whether Spark serves its own pages while it runs, at `spark.sparkContext.uiWebUrl`.
    own_interrupt
        Whether the process has its own way with SIGINT, and keeps it. Else Spark puts a handler in its place
        that cancels jobs, and that fails with a trace where it falls into the middle of a call.

    Raises
    ------
    JobError
        When Spark does not start.
    MissingError
        When pyspark or Java is missing, with the line that installs it.
    ParameterError
        When a running session does not fit: it is not in UTC, or a setting of `conf` has another value there.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingError("pyspark is not installed; run: pip install 'narrowcast[spark]'") from error
    running = _running()
    if running is not None:
        yield use(running, conf)
        return
    if not _MASTER.fullmatch(master):
        # Spark itself would tell it in many lines, and not through us.
        raise ParameterError(
            f"master is {master!r}; use one like local[*,4], spark://host:7077, yarn or k8s://https://host:443"
        )
    settings = {**_DEFAULTS, "spark.ui.enabled": str(ui).lower(), **(conf or {})}
    if master.startswith("local"):  # there all of Spark's own work is done in this one heap
        settings.setdefault(_HEAP, _heap())
    # Spark takes the last of two equal options, so a caller's own logging wins.
    settings[_JAVA_OPTIONS] = (
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} {settings.get(_JAVA_OPTIONS, '')}"
    ).strip()
    builder = SparkSession.builder.master(master).appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    handling = _no_handler() if own_interrupt else nullcontext()
    with _environment(_launch(master)), plainly(f"start Spark on {master}"), _started_or_ended(), handling:
        spark = builder.getOrCreate()
    try:
        with plainly("use Spark with these settings"):
            use(spark)
        yield spark
    finally:
        # A block that was never left ends with the process; Spark goes with it, and would wait forever here.
        if not sys.is_finalizing():
            spark.stop()


def _running() -> SparkSession | None:
    """Return the session that runs in this process, whichever thread has started it."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def use(spark: SparkSession, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session as it is when Narrowcast can work in it.

    Raises
    ------
    ParameterError
        When its time zone is not UTC, it tells names by their case, or a setting of `conf` has another value
        in it.
    """
    zone = spark.conf.get(_ZONE)
    if zone not in UTC:
        raise ParameterError(
            f"the Spark session's time zone is {zone!r} and has to be UTC, or timestamps would match other "
            f"events than the filters say; run: spark.conf.set({_ZONE!r}, 'UTC')"
        )
    if spark.conf.get(_CASE, "false") == "true":
        raise ParameterError(
            "the Spark session tells names apart by their case, which filters do not; "
            f"run: spark.conf.set({_CASE!r}, 'false')"
        )
    for key, value in (conf or {}).items():
        there = spark.conf.get(key, None)
        if there != value:
            raise ParameterError(
                f"a Spark session runs already with {key}={there}, not {value}; "
                "stop it, or leave the setting out"
            )
    return spark


@contextmanager
def sized(spark: SparkSession, n_bytes: int) -> Iterator[None]:
    """Let shuffles within a block have as many partitions as data of this size needs.

    At least two for each core; Spark itself joins those that turn out small. What the session was started
    with goes first.
    """
    if spark.sparkContext.getConf().contains(_SHUFFLE):
        yield
        return
    before = spark.conf.get(_SHUFFLE, "200")
    wanted = max(2 * spark.sparkContext.defaultParallelism, -(-n_bytes // _PARTITION))
    spark.conf.set(_SHUFFLE, str(wanted))
    try:
        yield
    finally:
        spark.conf.set(_SHUFFLE, before or "200")


def settings_of(words: Iterable[str]) -> dict[str, str]:
    """Return settings given as `key=value`.

    Examples
    --------
    >>> settings_of(["spark.driver.memory=4g", "spark.sql.ansi.enabled=true"])
    {'spark.driver.memory': '4g', 'spark.sql.ansi.enabled': 'true'}
    """
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ParameterError(f"--conf is {word!r}; give it as key=value, such as spark.driver.memory=4g")
        found[key.strip()] = value.strip()
    return found


def bytes_of(text: str, unit: str = "m") -> int:
    """Return a size as Spark writes it, in this unit where it has none.

    Examples
    --------
    >>> bytes_of("512m"), bytes_of("2g"), bytes_of("1024"), bytes_of("128b")
    (536870912, 2147483648, 1073741824, 128)
    """
    found = _SIZE.fullmatch(text.strip().lower())
    if not found:
        raise ParameterError(f"size {text!r} is none; write it as 512m or 2g")
    return int(found[1]) * _UNITS[found[2] or found[3] or unit]


def _heap() -> str:
    """Return the heap of a Spark that runs here: a quarter of the memory, from 1 to 8 GB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(max(memory >> 32, 1), 8)}g"


def _launch(master: str) -> dict[str, str]:
    """Return the environment in which Spark is started."""
    java = java_home()
    for reason in java.skipped:
        log.warning("%s; using Java %s in %s", reason, java.version, java.home)
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if master.startswith("local"):
        # Nobody else talks to a local Spark, so it need not listen to the network.
        return {"SPARK_LOCAL_IP": "127.0.0.1", **python, "JAVA_HOME": str(quiet_home(java))}
    # On a cluster the workers' Python may be in another place, which only the caller knows.
    given = {name: os.environ[name] for name in python if name in os.environ}
    return {**python, **given, "JAVA_HOME": str(quiet_home(java))}


@contextmanager
def _started_or_ended() -> Iterator[None]:
    """End the Java that is started within a block when the block is interrupted: it would stay forever."""
    before = _children()
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        from pyspark import SparkContext

        for pid in _children() - before:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        SparkContext._gateway = SparkContext._jvm = None
        raise


@contextmanager
def _no_handler() -> Iterator[None]:
    """Keep Spark from taking SIGINT for the length of a block, not even for a moment."""
    from pyspark.core import context

    theirs: Any = context
    theirs.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_: None)
    try:
        yield
    finally:
        theirs.signal = signal


def _children() -> set[int]:
    """Return the processes that this one has started, where the system tells."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            found.update(map(int, path.read_text().split()))
    return found


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the length of a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
