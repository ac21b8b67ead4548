"""The Spark session: starts Spark, or checks a session that the caller has started."""

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

#: Four attempts for each task: with one, a single Python worker that dies fails the job.
MASTER = "local[*,4]"

#: Spark's spellings of UTC.
UTC = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00", "UTC+00:00")

#: The forms of a master that Spark accepts.
_MASTER = re.compile(r"local(\[(\*|\d+)(,\s*\d+)?\])?|local-cluster\[.+\]|(spark|k8s)://.+|yarn")
_ZONE = "spark.sql.session.timeZone"
_CASE = "spark.sql.caseSensitive"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOGGING = Path(__file__).with_name("log4j2.properties")

#: Approximate bytes of one Arrow batch to a Python worker: packed subscriptions are large rows.
BATCH = 16 << 20

_DEFAULTS = {
    _ZONE: "UTC",
    # Measured: larger batches fall out of the processor's cache, smaller ones cost more calls.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.maxBytesPerBatch": f"{BATCH}b",
    "spark.ui.showConsoleProgress": "false",
    # Between Java and its Python workers: faster than a network socket, and private to this machine.
    "spark.python.unix.domain.socket.enabled": "true",
}
_HEAP = "spark.driver.memory"
_SHUFFLE = "spark.sql.shuffle.partitions"
#: Bytes of input for one shuffle partition: data grows several times when it is unpacked.
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
    """Yield a Spark session for the length of a block.

    A process has one Spark session. One that runs already is checked with `use`, and stays running after the
    block. Otherwise a session starts on the Java that `java_home` finds, and stops when the block ends.

    Parameters
    ----------
    master
        Master URL: ``local[2,4]``, ``spark://host:7077``, ``yarn``, ``k8s://...``.
    conf
        Spark settings that add to or override Narrowcast's own.
    app_name
        Name of the application in Spark's UI and logs.
    ui
        Whether Spark serves its web UI, at `spark.sparkContext.uiWebUrl`.
    own_interrupt
        Whether the process keeps its own SIGINT handler. Otherwise Spark installs one that cancels jobs, and
        that fails with a traceback when the signal interrupts a call into Java.

    Raises
    ------
    JobError
        When Spark does not start.
    MissingError
        When pyspark or Java is missing; the message has the command that installs it.
    ParameterError
        When `master` is invalid, or the running session is not in UTC, is case-sensitive, or has another
        value for a setting in `conf`.
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
        # Spark itself would print many lines, and bypass our error handling.
        raise ParameterError(
            parameter="master",
            value=master,
            limit="like local[*,4], spark://host:7077, yarn or k8s://https://host:443",
        )
    settings = {**_DEFAULTS, "spark.ui.enabled": str(ui).lower(), **(conf or {})}
    if master.startswith("local"):  # a local Spark has a single heap for all of its work
        settings.setdefault(_HEAP, _heap())
    # Java uses the last of two equal options, so a caller's own logging configuration wins.
    settings[_JAVA_OPTIONS] = (
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} {settings.get(_JAVA_OPTIONS, '')}"
    ).strip()
    builder = SparkSession.builder.master(master).appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    handling = _without_sigint_handler() if own_interrupt else nullcontext()
    with _environment(_launch(master)), plainly(f"start Spark on {master}"), _kill_on_interrupt(), handling:
        spark = builder.getOrCreate()
    try:
        with plainly("use Spark with these settings"):
            use(spark)
        yield spark
    finally:
        # During interpreter shutdown Spark ends with the process; stopping it here would wait forever.
        if not sys.is_finalizing():
            spark.stop()


def _running() -> SparkSession | None:
    """Return the session of this process, started by any of its threads, or None."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def use(spark: SparkSession, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Check that Narrowcast can work in a Spark session, and return that session unchanged.

    Parameters
    ----------
    spark
        A running session.
    conf
        Settings that the session must have.

    Raises
    ------
    ParameterError
        When its time zone is not UTC, its column names are case-sensitive, or it has another value for a
        setting in `conf`.
    """
    zone = spark.conf.get(_ZONE)
    if zone not in UTC:
        raise ParameterError(
            f"{_ZONE}={zone!r}: must be UTC, or filters over timestamps match the wrong events; "
            f"run: spark.conf.set({_ZONE!r}, 'UTC')",
            parameter=_ZONE,
            value=zone,
            limit="UTC",
        )
    if spark.conf.get(_CASE, "false") == "true":
        raise ParameterError(
            f"{_CASE}=true: must be false, because attribute names in filters ignore case; "
            f"run: spark.conf.set({_CASE!r}, 'false')",
            parameter=_CASE,
            value="true",
            limit="false",
        )
    for key, value in (conf or {}).items():
        current = spark.conf.get(key, None)
        if current != value:
            raise ParameterError(
                f"{key}={value}: the running Spark session has {key}={current}; "
                "stop that session, or leave the setting out",
                parameter=key,
                value=value,
                limit=str(current),
            )
    return spark


@contextmanager
def sized(spark: SparkSession, n_bytes: int) -> Iterator[None]:
    """Set the number of shuffle partitions within a block to fit data of `n_bytes` bytes.

    There are at least two for each core; Spark itself merges small ones. A number of partitions in the
    configuration that the session was started with takes precedence.
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
    """Parse settings written as `key=value`.

    Examples
    --------
    >>> settings_of(["spark.driver.memory=4g", "spark.sql.ansi.enabled=true"])
    {'spark.driver.memory': '4g', 'spark.sql.ansi.enabled': 'true'}
    """
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ParameterError(
                parameter="conf", value=word, limit="key=value, such as spark.driver.memory=4g"
            )
        found[key.strip()] = value.strip()
    return found


def bytes_of(text: str, unit: str = "m") -> int:
    """Parse a size in Spark's notation, in bytes; `unit` is the unit of a bare number.

    Examples
    --------
    >>> bytes_of("512m"), bytes_of("2g"), bytes_of("1024"), bytes_of("128b")
    (536870912, 2147483648, 1073741824, 128)
    """
    found = _SIZE.fullmatch(text.strip().lower())
    if not found:
        raise ParameterError(
            f"size {text!r}: must be a whole number with an optional unit, such as 512m or 2g", value=text
        )
    return int(found[1]) * _UNITS[found[2] or found[3] or unit]


def _heap() -> str:
    """Return the default heap of a local Spark: a quarter of the memory, between 1 and 8 GB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(max(memory >> 32, 1), 8)}g"


def _launch(master: str) -> dict[str, str]:
    """Return the environment variables to start Spark with."""
    java = java_home()
    for reason in java.skipped:
        log.warning("%s; using Java %s in %s", reason, java.version, java.home)
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if master.startswith("local"):
        # A local Spark serves this process only, so it need not listen on the network.
        return {"SPARK_LOCAL_IP": "127.0.0.1", **python, "JAVA_HOME": str(quiet_home(java))}
    # On a cluster the workers' Python may have another path, which only the caller knows.
    given = {name: os.environ[name] for name in python if name in os.environ}
    return {**python, **given, "JAVA_HOME": str(quiet_home(java))}


@contextmanager
def _kill_on_interrupt() -> Iterator[None]:
    """Kill the Java started within a block when the block is interrupted: it would never exit by itself."""
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
def _without_sigint_handler() -> Iterator[None]:
    """Prevent Spark from installing a SIGINT handler within a block."""
    from pyspark.core import context

    module: Any = context
    module.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_: None)
    try:
        yield
    finally:
        module.signal = signal


def _children() -> set[int]:
    """Return the ids of this process's children; empty on systems without ``/proc``."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            found.update(map(int, path.read_text().split()))
    return found


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within a block, and restore them afterwards."""
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
