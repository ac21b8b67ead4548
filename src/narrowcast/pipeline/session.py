"""The Spark session: the one place that starts Spark, and the check of one that a caller brings."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from narrowcast.errors import MissingError, ParameterError
from narrowcast.pipeline.java import java_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: Four tries for each task: with one, a single Python worker that dies fails the job.
MASTER = "local[*,4]"

#: How Spark spells the one zone in which dates and timestamps mean the same everywhere.
UTC = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00", "UTC+00:00")

_ZONE = "spark.sql.session.timeZone"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOGGING = Path(__file__).with_name("log4j2.properties")

_DEFAULTS = {
    _ZONE: "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "262144",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def session(
    master: str = MASTER, conf: Mapping[str, str] | None = None, app_name: str = "narrowcast"
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

    Raises
    ------
    MissingError
        When pyspark or Java is missing, with the line that installs it.
    ParameterError
        When a running session does not fit: it is not in UTC, or a setting of `conf` has another value there.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingError("pyspark is not installed; run: pip install 'narrowcast[spark]'") from error
    running = SparkSession.getActiveSession()
    if running is not None:
        yield use(running, conf)
        return
    settings = {**_DEFAULTS, **(conf or {})}
    # Spark takes the last of two equal options, so a caller's own logging wins.
    settings[_JAVA_OPTIONS] = (
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} {settings.get(_JAVA_OPTIONS, '')}"
    ).strip()
    builder = SparkSession.builder.master(master).appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _environment(_launch(master)):
        spark = builder.getOrCreate()
    try:
        yield use(spark)
    finally:
        spark.stop()


def use(spark: SparkSession, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session as it is when Narrowcast can work in it.

    Raises
    ------
    ParameterError
        When its time zone is not UTC, or a setting of `conf` has another value in it.
    """
    zone = spark.conf.get(_ZONE)
    if zone not in UTC:
        raise ParameterError(
            f"the Spark session's time zone is {zone!r} and has to be UTC, or timestamps would match other "
            f"events than the filters say; run: spark.conf.set({_ZONE!r}, 'UTC')"
        )
    for key, value in (conf or {}).items():
        there = spark.conf.get(key, None)
        if there != value:
            raise ParameterError(
                f"a Spark session runs already with {key}={there}, not {value}; "
                "stop it, or leave the setting out"
            )
    return spark


def _launch(master: str) -> dict[str, str]:
    """Return the environment in which Spark is started."""
    java = java_home()
    for reason in java.skipped:
        log.warning("%s; using Java %s in %s", reason, java.version, java.home)
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if master.startswith("local"):
        # Nobody else talks to a local Spark, so it need not listen to the network.
        return {"SPARK_LOCAL_IP": "127.0.0.1", **python, "JAVA_HOME": str(java.home)}
    # On a cluster the workers' Python may be in another place, which only the caller knows.
    return {**python, **{k: os.environ[k] for k in python if k in os.environ}, "JAVA_HOME": str(java.home)}


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
