"""Check the map of packages in docs/architecture.md against the tree, or bring it up to date.

    python scripts/package_map.py           # exit 1 and say what differs
    python scripts/package_map.py --write   # put today's packages and lines into the page

The map is a table whose rows begin with a package in backquotes: its lines of Python, and what it holds. A
number may be 5 % or 100 lines off before the check fails, so that not every commit has to touch the page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "narrowcast"
PAGE = ROOT / "docs" / "architecture.md"

ROW = re.compile(r"^\| `([\w/]+)` \| +([\d,]+) \| (.+) \|$", re.MULTILINE)


def lines_of(folder: Path, *, deep: bool) -> int:
    """Count the lines of Python in a folder, with or without the folders below it."""
    files = folder.rglob("*.py") if deep else folder.glob("*.py")
    return sum(len(file.read_text().splitlines()) for file in files)


def packages() -> dict[str, int]:
    """Return the lines of each package and of its sub-packages, a package's own files apart from those."""
    found = {"narrowcast": lines_of(SOURCE, deep=False)}
    for package in sorted(path.parent for path in SOURCE.glob("*/__init__.py")):
        found[package.name] = lines_of(package, deep=True)
        if package.name in ("broker", "lab", "planning", "spark"):
            for part in sorted(path.parent for path in package.glob("*/__init__.py")):
                found[f"{package.name}/{part.name}"] = lines_of(part, deep=True)
    return found


def main() -> int:
    """Check or write the map."""
    text = PAGE.read_text()
    drawn = {name: int(number.replace(",", "")) for name, number, _ in ROW.findall(text)}
    there = packages()
    faults = [f"{name} is on the map and not in the tree" for name in drawn.keys() - there.keys()]
    faults += [f"{name} is in the tree and not on the map" for name in there.keys() - drawn.keys()]
    if not faults and "--write" in sys.argv[1:]:
        PAGE.write_text(ROW.sub(lambda row: f"| `{row[1]}` | {there[row[1]]:,} | {row[3]} |", text))
        return 0
    faults += [
        f"{name} has {there[name]:,} lines, on the map {drawn[name]:,}"
        for name in drawn.keys() & there.keys()
        if abs(there[name] - drawn[name]) > max(100, 0.05 * there[name])
    ]
    for fault in sorted(faults):
        print(f"docs/architecture.md: {fault}; run scripts/package_map.py --write", file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
