from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from narrowcast.errors import MissingError, ParameterError
from narrowcast.spark import java_home, session, use
from narrowcast.spark.java import VECTOR
from narrowcast.spark.session import _MASTER, _environment, _launch, settings_of, sized
from support.errors import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONE = "spark.sql.session.timeZone"
MODULE = sys.modules[use.__module__]


def test_pyspark_missing_names_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with (
        refused(MissingError, "pyspark", "pip install 'narrowcast[spark]'"),
        session(),
    ):
        pass


def test_package_is_imported_without_pyspark() -> None:
    code = "import sys, narrowcast.spark; print('pyspark' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWCAST_SET", "before")
    monkeypatch.delenv("NARROWCAST_UNSET", raising=False)
    with suppress(KeyError), _environment({"NARROWCAST_SET": "within", "NARROWCAST_UNSET": "within"}):
        assert os.environ["NARROWCAST_SET"] == os.environ["NARROWCAST_UNSET"] == "within"
        raise KeyError
    assert os.environ["NARROWCAST_SET"] == "before"
    assert "NARROWCAST_UNSET" not in os.environ


def test_python_is_this_one_locally_and_the_callers_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    assert _launch("local[2,4]")["PYSPARK_PYTHON"] == sys.executable
    assert _launch("local[2,4]")["SPARK_LOCAL_IP"] == "127.0.0.1"
    cluster = _launch("spark://host:7077")
    assert (cluster["PYSPARK_PYTHON"], cluster["PYSPARK_DRIVER_PYTHON"]) == ("/opt/python", sys.executable)
    assert "SPARK_LOCAL_IP" not in cluster


def test_java_passed_over_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    started = _launch("local")["JAVA_HOME"]
    found = java_home().home
    assert str(tmp_path) not in (started, str(found))
    assert f"JAVA_HOME={tmp_path} cannot be run" in caplog.text
    assert str(found) in caplog.text


def test_java_is_started_without_the_module_that_it_would_warn_of() -> None:
    script = Path(_launch("local")["JAVA_HOME"]) / "bin" / "java"
    assert "jdk.incubator.vector" in script.read_text()
    done = subprocess.run([script, VECTOR, "-version"], capture_output=True, text=True, check=True)
    assert "incubator" not in done.stderr


@pytest.mark.spark
def test_settings(spark: SparkSession) -> None:
    assert spark.conf.get(ZONE) == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "65536"
    assert spark.conf.get("spark.sql.parquet.filterPushdown") == "false"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.sparkContext.pythonExec == sys.executable
    assert spark.sql("SELECT CAST(TIMESTAMP '1970-01-01 00:00:10' AS BIGINT) AS t").first() == (10,)


@pytest.mark.spark
def test_arrow_batches_are_large(spark: SparkSession) -> None:
    def sizes(batches):  # type: ignore[no-untyped-def] # shipped to a worker that need not import our types
        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": pa.array([batch.num_rows], pa.int64())})

    rows = spark.range(0, 300_000, numPartitions=1).mapInArrow(sizes, "rows bigint").collect()
    assert [row.rows for row in rows] == [65_536] * 4 + [37_856]


@pytest.mark.spark
def test_running_session_is_used_and_left_running(spark: SparkSession) -> None:
    with session() as same:
        assert same is spark
    assert spark.range(3).count() == 3


@pytest.mark.spark
def test_running_session_with_other_settings_is_refused(spark: SparkSession) -> None:
    with (
        refused(ParameterError, 2, parameter="spark.sql.shuffle.partitions", value="7"),
        session(conf={"spark.sql.shuffle.partitions": "7"}),
    ):
        pass


@pytest.mark.spark
def test_other_time_zone_is_refused(spark: SparkSession) -> None:
    try:
        spark.conf.set(ZONE, "Europe/Paris")
        with refused(ParameterError, "conf.set", parameter=ZONE, value="Europe/Paris", limit="UTC"):
            use(spark)
        spark.conf.set(ZONE, "Etc/UTC")
        assert use(spark) is spark
    finally:
        spark.conf.set(ZONE, "UTC")


@pytest.mark.spark
def test_a_case_sensitive_session_is_refused(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with refused(ParameterError, "conf.set", parameter="spark.sql.caseSensitive", value="true"):
            use(spark)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.spark
def test_running_session_of_another_thread_is_used_and_left_running(spark: SparkSession) -> None:
    seen: list[object] = []

    def work() -> None:
        with session() as same:
            seen.append(same.sparkContext is spark.sparkContext)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
    assert spark.range(3).count() == 3


@pytest.mark.parametrize("master", ["nowhere", "", "local[x]", "local[2", "spark:", "http://host", "yarn-x"])
def test_invalid_masters(master: str) -> None:
    assert not _MASTER.fullmatch(master)


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[3]", "local[*,4]", "local[2, 4]", "spark://a:7077,b:7077", "yarn"]
)
def test_valid_masters(master: str) -> None:
    assert _MASTER.fullmatch(master)


def test_master_is_looked_at_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "_running", lambda: None)
    with (
        refused(ParameterError, "local[*,4]", parameter="master", value="nowhere"),
        session("nowhere"),
    ):
        pass


@pytest.mark.parametrize(
    ("words", "found"),
    [([], {}), (["a=1", "b = x = y", "c="], {"a": "1", "b": "x = y", "c": ""}), (["a=1", "a=2"], {"a": "2"})],
)
def test_settings_as_words(words: list[str], found: dict[str, str]) -> None:
    assert settings_of(words) == found


@pytest.mark.parametrize("word", ["spark.x", "=1", " = 2", ""])
def test_invalid_settings(word: str) -> None:
    with refused(ParameterError, word, "key=value", parameter="conf", value=word):
        settings_of([word])


@pytest.mark.spark
def test_shuffles_have_as_many_partitions_as_data_need(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "spark.sql.shuffle.partitions"
    with sized(spark, 1 << 40):  # what the session was started with goes first
        assert spark.conf.get(key) == "2"
    other = "spark.sql.cbo.joinReorder.dp.threshold"  # one that it was not started with
    monkeypatch.setattr(MODULE, "_SHUFFLE", other)
    spark.conf.set(other, "12")
    for n_bytes, partitions in ((0, "4"), (5 << 25, "5"), ((5 << 25) + 1, "6")):
        with suppress(KeyError), sized(spark, n_bytes):
            assert spark.conf.get(other) == partitions
            raise KeyError
        assert spark.conf.get(other) == "12"
    spark.conf.unset(other)


@pytest.mark.slow
@pytest.mark.spark
def test_start_is_quiet_and_stop_is_real() -> None:
    code = (
        "import signal\n"
        "from narrowcast.spark import session\n"
        "mine, own = {'spark.driver.extraJavaOptions': '-Dmine=yes'}, signal.getsignal(signal.SIGINT)\n"
        "with session('local[1,4]', mine, own_interrupt=True) as spark:\n"
        "    print(spark.range(5).count(), spark._jvm.java.lang.System.getProperty('mine'))\n"
        "    print(signal.getsignal(signal.SIGINT) is own)\n"
        "print(spark.getActiveSession())\n"
    )
    python = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(python, capture_output=True, text=True, check=False)
    assert done.stdout == "5 yes\nTrue\nNone\n", done.stderr
    # What is left comes from the Java itself, before any setting is read.
    noise = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: ")]
    assert noise == []
