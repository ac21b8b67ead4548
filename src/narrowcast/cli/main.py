"""The `narrowcast` command: what goes wrong on purpose is one line on standard error and exit code 2."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import Any

#: The signals that asked for the end.
_stopped: list[int] = []


def main() -> None:
    """Run a command."""
    # Ended from outside, a command still cleans up behind itself, as it does when interrupted.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    sys.unraisablehook = _stop_again
    try:
        code = _run()  # for an interruption that the parser of options met, it is always the same
        sys.exit(128 + _stopped[0] if _stopped else code)
    except KeyboardInterrupt:
        sys.exit(128 + (_stopped[0] if _stopped else signal.SIGINT))
    except Exception:
        if _stopped:  # an interruption that was swallowed makes its own errors
            sys.exit(128 + _stopped[0])
        raise


def _stop(number: int, _frame: object) -> None:
    """End the command, by way of all that cleans up."""
    _stopped.append(number)
    logging.disable()  # what is logged from here on are traces of the interruption
    # For all of them: the bridge to Spark gives up a call for this, and waits for its answer with any other.
    raise KeyboardInterrupt


def _stop_again(unraisable: Any) -> None:
    """Send a signal again that fell where nothing can be raised, as it may while kernels are compiled."""
    if _stopped and isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit):
        again = threading.Timer(0.05, os.kill, (os.getpid(), _stopped[0]))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)


def _run() -> int:
    """Run a command and return its exit code.

    What only commands need is imported here, so that an interruption is met while that takes its time. One
    that comes earlier, while Python loads the package itself, is met by `narrowcast.start`.
    """
    from typer.exceptions import Abort, TyperException

    from narrowcast.cli.app import app
    from narrowcast.cli.log_output import TextLog
    from narrowcast.errors import NarrowcastError

    if logging.lastResort is not None:  # what says something where a command has nobody listen to logs
        logging.lastResort.setFormatter(TextLog())
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except NarrowcastError as error:
        return _fail(str(error))
    except TyperException as error:
        context = getattr(error, "ctx", None)
        usage = f"; see {context.command_path} --help" if context else ""
        return _fail(f"{error.format_message().rstrip('.')}{usage}")
    except Abort:
        raise KeyboardInterrupt from None
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        # What could not be written must not be tried again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail(f"{error.strerror or error}{where}")
    return code if isinstance(code, int) else 0


def _fail(message: str) -> int:
    """Say what is wrong in one line, and return the code for it."""
    if not _stopped:  # an interruption makes its own errors
        print(f"narrowcast: {' '.join(message.split())}", file=sys.stderr)
    return 2
