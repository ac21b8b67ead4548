"""Commands called within the test's own process, so that they use its running Spark."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from typer.testing import CliRunner, Result

from narrowcast.cli import main
from narrowcast.cli.app import app
from narrowcast.errors import NarrowcastError

if TYPE_CHECKING:
    from pathlib import Path


class Outcome(NamedTuple):
    """What a user sees of a command that has ended."""

    returncode: int
    stdout: str
    stderr: str


def outcome(*words: str | Path, columns: int = 120) -> Outcome:
    """Run a command up to its exit code and its one line of what is wrong, for a screen of this width."""
    out, err = io.StringIO(), io.StringIO()
    called = patch("sys.argv", ["narrowcast", *map(str, words)])
    with called, patch.dict("os.environ", COLUMNS=str(columns)), redirect_stdout(out), redirect_stderr(err):
        code = main._run()
    return Outcome(code, out.getvalue(), err.getvalue())


def call(*words: str | Path) -> Result:
    """Run a command and return what it printed; what it raised is in `exception`."""
    return CliRunner().invoke(app, [str(word) for word in words])


def document(*words: str | Path) -> tuple[dict[str, Any], str]:
    """Run a command with --json, and return its document and what it said on standard error."""
    found = call(*words, "--json")
    assert found.exit_code == 0, found.exception
    read: dict[str, Any] = json.loads(found.stdout)
    return read, found.stderr


def refusal(*words: str | Path) -> str:
    """Run a command that is to be refused, and return the one line that says why."""
    found = call(*words)
    assert isinstance(found.exception, NarrowcastError), (found.exception, found.stdout)
    assert found.stdout == ""
    assert "\n" not in str(found.exception)
    return str(found.exception)


def shows(message: str, values: str) -> bool:
    """Return whether a message shows all of some values, which are separated by spaces."""
    return all(value in message for value in values.split())


def table_of(text: str) -> list[list[str]]:
    """Return the rows of the tables in what a command printed."""
    lines = (line.strip("│").split("│") for line in text.splitlines() if "│" in line)
    return [[cell.strip() for cell in line] for line in lines]
