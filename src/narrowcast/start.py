"""Signal handling during start-up: an interrupt while the command loads ends it immediately.

Loading takes about a second, and there is nothing to clean up. Other programs that import the package are not
affected.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def _end(number: int, _frame: object) -> None:
    """End the process without a traceback."""
    os._exit(128 + number)


if (
    os.path.basename("".join(sys.argv[:1])) == "narrowcast"  # noqa: PTH119 - pathlib itself takes its time
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, _end)
