"""Keep the project's old private dialect out of its text.

    python scripts/words.py [FILE...]     # all tracked text by default; exit 1 and list the lines that use it

`docs/contributing.md` says how to write instead. A line that needs a word carries the comment
``words: allow``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]

#: Phrases of the dialect, and what to write instead.
INSTEAD = {
    "everybody|everyone": "all subscribers, all nodes, ...",
    "somebody|someone": "a subscriber, a user, ...",
    "nobody|no one": "no subscriber, no node, ...",
    "anybody|anyone": "any user, any client, ...",
    "whoever|whomever": "the operator, the caller, ...",
    "in vain": "wasted, unwanted",
    "so many": "the number, or a name such as n_events",
    "how many-th": "index",
    "that (?:is|are) none": "invalid ...",
    "what came of": "result of",
    "who wants what": "interest",
    "who wants which": "which subscribers want which",
    "goes? along with": "follows",
}
DIALECT = re.compile("|".join(rf"\b(?P<w{i}>{words})\b" for i, words in enumerate(INSTEAD)), re.IGNORECASE)

ALLOW = "words: allow"
FOLDERS = ("src", "docs", "examples", "scripts", "benchmarks", "README.md")
KINDS = {".py", ".md", ".json", ".toml", ""}


def tracked() -> list[Path]:
    """Return the files that are checked."""
    command = ["git", "ls-files", *FOLDERS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.split("\n") if name and "/results/" not in name]
    return [path for path in paths if path.suffix in KINDS and path != Path(__file__)]


def faults(path: Path) -> Iterator[str]:
    """Yield a line for each use of the dialect in a file."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for found in () if ALLOW in line else DIALECT.finditer(line):
            better = list(INSTEAD.values())[int(str(found.lastgroup)[1:])]
            yield f"{path.relative_to(ROOT)}:{number}: {found[0]!r}: write {better}"


def main() -> int:
    """Check files."""
    paths = [Path(name).resolve() for name in sys.argv[1:]] or tracked()
    found = [fault for path in paths for fault in faults(path)]
    for fault in found:
        print(fault, file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
