"""The `narrowcast` command: an expected error is one line on standard error and exit code 2."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import Any

#: The signals received that end the command.
_stopped: list[int] = []


def main() -> None:
    """Run a command."""
    # SIGTERM cleans up as an interruption does.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    sys.unraisablehook = _stop_again
    try:
        code = _run()  # the option parser has one code for all interruptions
        sys.exit(128 + _stopped[0] if _stopped else code)
    except KeyboardInterrupt:
        sys.exit(128 + (_stopped[0] if _stopped else signal.SIGINT))
    except Exception:
        if _stopped:  # errors that follow from an interruption
            sys.exit(128 + _stopped[0])
        raise


def _stop(number: int, _frame: object) -> None:
    """End the command by an exception, so that everything cleans up."""
    _stopped.append(number)
    logging.disable()  # later log lines follow from the interruption
    # For all signals: Spark's bridge abandons a call for this exception, and waits on for any other.
    raise KeyboardInterrupt


def _stop_again(unraisable: Any) -> None:
    """Repeat a signal that arrived where nothing can be raised, such as while kernels are compiled."""
    if _stopped and isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit):
        again = threading.Timer(0.05, os.kill, (os.getpid(), _stopped[0]))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)


def _run() -> int:
    """Run a command and return its exit code.

    Imports are here, so that an interruption during a slow import is handled. `narrowcast.start` handles one
    while Python loads the package itself.
    """
    from typer.exceptions import Abort, TyperException

    from narrowcast.cli.app import app
    from narrowcast.cli.command import usage_message
    from narrowcast.cli.log_output import TextLog
    from narrowcast.errors import NarrowcastError

    if logging.lastResort is not None:  # used by commands that set up no logging
        logging.lastResort.setFormatter(TextLog())
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except NarrowcastError as error:
        return _fail(str(error))
    except TyperException as error:
        context = getattr(error, "ctx", None)
        usage = f"; see {context.command_path} --help" if context else ""
        return _fail(f"{usage_message(error)}{usage}")
    except Abort:
        raise KeyboardInterrupt from None
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        # Python must not try to write the rest of the output when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail(f"{error.strerror or error}{where}")
    return code if isinstance(code, int) else 0


def _fail(message: str) -> int:
    """Print an error in one line, and return its exit code."""
    if not _stopped:  # not for errors that follow from an interruption
        print(f"narrowcast: {' '.join(message.split())}", file=sys.stderr)
    return 2
