"""The command as a whole: one line for what is wrong, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.cluster import until

MAIN = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'narrowcast'; from narrowcast.cli.main import main; main()",
]


def narrowcast(*words: str, out: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MAIN, *words], stdout=out, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope"], "narrowcast: No such command 'nope'; see narrowcast --help\n"),
        (["run"], "narrowcast: Missing option '--out'; see narrowcast run --help\n"),
        (["run", "--out", "x", "--channels", "many"], "see narrowcast run --help\n"),
        (["generate", "stocks", "--out", "x", "--sed", "1"], "narrowcast: No such option: --sed"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(words: list[str], message: str) -> None:
    done = narrowcast(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_version_and_help() -> None:
    assert narrowcast("--version").stdout.startswith("narrowcast 0.")
    assert "Usage: narrowcast" in narrowcast("--help").stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = narrowcast("doctor", out=full.fileno())
    assert done.returncode == 2
    assert done.stderr == "narrowcast: No space left on device\n"


def test_whoever_stops_reading_is_not_told() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = narrowcast("doctor", out=writer)
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr == ""


@pytest.mark.parametrize(("name", "code", "traces"), [("narrowcast", 130, 0), ("mine.py", -2, 1)])
def test_an_interruption_while_the_package_loads(name: str, code: int, traces: int) -> None:
    """The command ends without a traceback; a program that imports the package keeps its own handler."""
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # the test runner may ignore it
        f"sys.argv[0] = '/usr/bin/{name}'\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'narrowcast.deprecation':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "import narrowcast\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("Traceback")) == (code, "", traces)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_leaves_nothing(how: signal.Signals, tmp_path: Path) -> None:
    command = [*MAIN, "run", "--out", "out", "--set", "n_events=300000"]
    started = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    # From here on it is at work; a second later Spark is on its way, or there.
    until(lambda: (tmp_path / ".out-work").exists() or started.poll() is not None, "start of the run")
    time.sleep(1)
    started.send_signal(how)
    _, said = started.communicate(timeout=120)
    assert started.returncode == 128 + how
    # Java, when it is met while it starts, has its own last words.
    assert "narrowcast" not in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_that_was_swallowed_is_sent_again() -> None:
    """Kernels are compiled in callbacks, where nothing can be raised; so are these."""
    program = (
        "import ctypes, signal, sys, time\n"
        "from narrowcast.cli import main\n"
        "def swallow():\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    time.sleep(0)\n"
        "    return 0\n"
        "def work():\n"
        "    ctypes.CFUNCTYPE(ctypes.c_int)(swallow)()\n"
        "    time.sleep(30)\n"
        "    return 0\n"
        "main._run = work\n"
        "main.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")


def test_what_fails_after_an_interruption_is_the_interruption() -> None:
    program = (
        "import signal\n"
        "from narrowcast.cli import main\n"
        "def work():\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "    except SystemExit:\n"
        "        raise RuntimeError('no compiled object yet')\n"
        "main._run = work\n"
        "main.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")
