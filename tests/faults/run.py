"""Run fault scenarios, print their results, and write them to a file.

PYTHONPATH=tests python -m faults.run                         all scenarios, which takes nearly an hour
PYTHONPATH=tests python -m faults.run soak "node killed"      some scenarios
PYTHONPATH=tests python -m faults.run --out FILE --keep DIR   write results to FILE; keep all logs in DIR

Results of other scenarios in FILE stay, each with the commit that it was measured at.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from faults.disks import NoDiskError
from faults.scenarios import SCENARIOS, Row

ROOT = Path(__file__).parents[2]
#: Columns of the table, by what they show.
COLUMNS = {
    "kills": "kills", "events": "events", "lost": "lost", "duplicated": "duplicated", "repeated": "repeated",
    "most_repeated": "most in a life", "reordered": "reordered", "recover_s": "recovers, s",
    "recover_max_s": "at most, s",
}  # fmt: skip


def git(*words: str) -> str:
    """Return the output of git, or an empty text outside a repository."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def table(rows: dict[str, Row]) -> Table:
    """Return a table of all results."""
    made = Table(title="Faults")
    made.add_column("")
    for title in (*COLUMNS.values(), "seconds", ""):
        made.add_column(title, justify="right")
    for name, row in rows.items():
        facts = row.facts | {"kills": row.kills}
        cells = [f"{facts[key]:,}" if key in facts else "" for key in COLUMNS]
        made.add_row(name, *cells, f"{facts.get('seconds', 0):.0f}", "wrong" if row.wrong else "well")
    return made


def ran(name: str, folder: Path, *, quick: bool) -> Row:
    """Run a scenario; an exception becomes a fault of its result."""
    begun = time.monotonic()
    try:
        row = SCENARIOS[name](folder, quick)
    except NoDiskError as error:
        row = Row(0, {"skipped": str(error)})
    except Exception as error:  # noqa: BLE001 - the others are still run
        row = Row(0, {}, [f"{type(error).__name__}: {error}"])
    row.facts["seconds"] = round(time.monotonic() - begun, 1)
    return row


def main() -> int:
    """Run the requested scenarios; return whether any has a fault."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(SCENARIOS)}")
    parser.add_argument("--out", type=Path, help="write what came of it there, as JSON")
    parser.add_argument("--keep", type=Path, help="keep all logs there; it must be empty")
    parser.add_argument("--quick", action="store_true", help="a few of everything")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(SCENARIOS)):
        parser.error(f"unknown scenario {unknown[0]!r}; there are: {', '.join(SCENARIOS)}")
    rows: dict[str, Row] = {}
    commit = version()  # what is written down below is a change as well
    console = Console(width=max(160, Console().width))
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as made:
        base = (given.keep or Path(made)).absolute()
        for number, name in enumerate(given.names or SCENARIOS):
            folder = base / f"{number:02d}-{'-'.join(name.replace(',', '').split())}"
            folder.mkdir(parents=True)
            rows[name] = ran(name, folder, quick=given.quick)
            console.print(name, rows[name].facts, rows[name].wrong or "well", highlight=False)
            if given.out is not None:
                write(given.out, name, rows[name], commit, quick=given.quick)
    console.print(table(rows))
    return any(row.wrong for row in rows.values())


def version() -> str:
    """Return the commit of the running code, marked if files were changed."""
    return git("rev-parse", "--short", "HEAD") + " with changes" * bool(git("status", "--porcelain"))


def write(path: Path, name: str, row: Row, commit: str, *, quick: bool) -> None:
    """Write the result of a scenario, replacing the previous one of the same name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        before: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    except (OSError, ValueError, LookupError):
        before = []
    made = {
        "scenario": name,
        "kills": row.kills,
        "well": not row.wrong,
        "full": not quick,
        **row.facts,
        "wrong_in_words": row.wrong,
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
    }
    rows = {each["scenario"]: each for each in before if each["scenario"] in SCENARIOS} | {name: made}
    document = {
        "benchmark": "faults",
        "about": "Processes killed, disks full, networks cut, strangers, garbage, minutes under load.",
        "command": f"PYTHONPATH=tests python -m faults.run NAME --out {shlex.quote(path.name)}",
        "machine": {"cores": cores, "system": platform.system(), "python": platform.python_version()},
        "rows": [rows[each] for each in SCENARIOS if each in rows],
    }
    aside = path.with_name(f".{path.name}-{os.getpid()}")
    aside.write_text(json.dumps(document, indent=1, default=str) + "\n")
    aside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
