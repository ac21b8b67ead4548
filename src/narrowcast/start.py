"""The first thing that is loaded: while the command loads the rest, an interruption ends it at once.

That takes a second, in which there is nothing to clean up. A program that imports the package is left alone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def _end(number: int, _frame: object) -> None:
    """End the process without a trace."""
    os._exit(128 + number)


if (
    os.path.basename("".join(sys.argv[:1])) == "narrowcast"  # noqa: PTH119 - pathlib itself takes its time
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, _end)
