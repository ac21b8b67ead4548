"""Run the frozen benchmarks and write what they measured.

    python benchmarks/run.py             all of them, into benchmarks/results/
    python benchmarks/run.py filters     one of them
    python benchmarks/run.py --out DIR   somewhere else
    python benchmarks/run.py --quick     small sizes into out/benchmarks/, to see that everything runs

A workload never changes once its results are committed: a new question is a new workload. Times are medians
of several runs; compare them within one file, where everything ran on the same machine at the same time.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: What is not a benchmark itself.
HELPERS = {"run", "workloads", "peers", "sparks", "clusterings"}
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in HELPERS)


def git(*words: str) -> str:
    """Return what git says, or nothing outside a repository."""
    done = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    """Return what the numbers hang on."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": model, "cores": cores, "system": platform.system(), "python": platform.python_version()}


def main() -> None:
    """Run what was asked for."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(NAMES)}")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results, or out/benchmarks if quick")
    parser.add_argument("--quick", action="store_true", help="small sizes, where a benchmark has them")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; there are: {', '.join(NAMES)}")
    sys.path.insert(0, str(HERE.parent))
    out = given.out or (HERE.parent / "out" / "benchmarks" if given.quick else HERE / "results")
    out.mkdir(parents=True, exist_ok=True)
    for name in given.names or NAMES:
        print(f"== {name}", file=sys.stderr)
        module = importlib.import_module(f"benchmarks.{name}")
        known = inspect.signature(module.run).parameters
        options = {key: value for key, value in (("out", out), ("quick", given.quick)) if key in known}
        result = {
            "benchmark": name,
            "about": (module.__doc__ or "").strip().splitlines()[0],
            "command": f"python benchmarks/run.py {name}",
            "commit": git("rev-parse", "HEAD") + " with changes" * bool(git("status", "--porcelain", "..")),
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine(),
            **module.run(**options),
        }
        path = out / f"{name}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
