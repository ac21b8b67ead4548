"""Commands that run beside a test."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NARROWCAST = Path(sys.executable).with_name("narrowcast")


@contextmanager
def running(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Give a command that runs for the length of a block."""
    pipe = subprocess.PIPE
    command: list[str | Path] = [NARROWCAST, *map(str, words)]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # so that it ends the server that it has started
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """Return the first line on standard error that has some text."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"{text!r} is not on standard error")
