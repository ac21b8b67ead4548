"""Planners tried out one by one, each in a process of its own: how long it takes, and how much memory.

A helper process loads the interest once, and forks for each of the planners. It has no Spark and starts no
threads, which is what makes forking safe.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narrowcast.errors import JobError, NarrowcastError
from narrowcast.files import first_line
from narrowcast.model.interest import Interest

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from narrowcast.model.plan import ChannelPlan
    from narrowcast.planning.base import Planner

#: Kernels are compiled, or found compiled, before a planner is timed: with this.
_TINY = ([[1, 1, 0], [0, 1, 1], [1, 0, 1]], [3.0, 2.0, 1.0])


@dataclass(frozen=True, slots=True)
class PlannerTrial:
    """What came of a planner.

    Parameters
    ----------
    seconds
        How long `fit` took.
    megabytes
        What the process grew by at most while it did, resident, in units of 10**6 bytes: arrays, also
        those of compiled code, and all else; not the interest, which was there before.
    plan
        What it made.
    problem
        Why it made none, in one line.
    method
        The method that made it, where the planner chose among others; empty elsewhere.
    """

    seconds: float | None = None
    megabytes: float | None = None
    plan: ChannelPlan | None = None
    problem: str = ""
    method: str = ""


def trials(interest: Interest, planners: Sequence[Planner]) -> Generator[PlannerTrial, None, None]:
    """Fit planners to an interest one after the other, and yield what came of each.

    One that fails, or that is ended for its memory, does not end the others. Those who want nothing are only
    in the plans of `broadcast` and of methods that cluster subscribers, as `make_plan` has it.

    Parameters
    ----------
    interest
        Whom to serve; it is handed over as a file in the folder for temporary files.
    planners
        With their parameters, not fitted; all of them can be pickled.

    Examples
    --------
    >>> from narrowcast.planning import Broadcast, Hash
    >>> [one, two] = trials(Interest([[1, 1], [0, 1]]), [Broadcast(), Hash()])
    >>> one.plan
    ChannelPlan(1 channels, 2 flows, 2 subscribers)
    >>> two.problem
    'channels is None; hash needs a whole number of at least 1'
    """
    with tempfile.TemporaryDirectory(prefix="narrowcast-") as name:
        folder = Path(name)
        _dump(interest, folder / "interest")
        for number, planner in enumerate(planners):
            _dump(planner, folder / f"{number}.planner")
        start = "import sys; from narrowcast.spark.stages.planner_trial import serve; serve(sys.argv[1])"
        command = [sys.executable, "-P", "-c", start, name]
        none, pipe = subprocess.DEVNULL, subprocess.PIPE
        # In a group of its own, so that all of it can be ended when nobody waits for it any more.
        with (
            (folder / "said").open("w+b") as said,
            subprocess.Popen(
                command, stdin=none, stdout=pipe, stderr=said, start_new_session=True
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for number in range(len(planners)):
                    if not process.stdout.readline():
                        said.seek(0)
                        lines = said.read().decode(errors="replace").strip().splitlines()
                        why = lines[-1] if lines else "it ended early"
                        raise JobError(f"cannot try methods in a process of their own: {why}")
                    yield _load(folder / f"{number}.trial")
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _dump(value: Any, path: Path) -> None:
    with path.open("wb") as file:
        pickle.dump(value, file, protocol=5)


def _load(path: Path) -> Any:
    return pickle.loads(path.read_bytes())  # noqa: S301 - written by ourselves, where nobody else may write


def serve(name: str) -> None:
    """Try every planner of a folder, and print a line after each: what the helper process does."""
    folder = Path(name)
    warnings.simplefilter("ignore", DeprecationWarning)  # that of forking: no thread of ours runs
    interest: Interest = _load(folder / "interest")
    wanting = interest.wanting()
    # Once, before there are children, what has been loaded is kept out of the way of their collections.
    gc.freeze()
    for number in range(len(list(folder.glob("*.planner")))):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                tried = _tried(interest, wanting, folder / f"{number}.planner")
                _dump(tried, folder / f"{number}.part")
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            number_of = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            why = f"was ended by signal {number_of}, perhaps for its memory" if number_of else "ended early"
            _dump(PlannerTrial(problem=f"its process {why}"), folder / f"{number}.part")
        (folder / f"{number}.part").rename(folder / f"{number}.trial")
        print(number, flush=True)


def _tried(interest: Interest, wanting: Interest, path: Path) -> PlannerTrial:
    """Fit a planner to all, or to those who want something, and say what that took or why it failed."""
    try:
        planner: Planner = _load(path)
        interest = interest if planner.capabilities.all_subscribers else wanting
        _warm(type(planner))
        with suppress(OSError):  # only Linux forgets how much there was at most
            Path("/proc/self/clear_refs").write_text("5")
        before, _ = _resident()
        start = time.perf_counter()
        plan = planner.fit(interest).plan_
        seconds = time.perf_counter() - start
        _, most = _resident()
        plan.validate(interest)
        return PlannerTrial(seconds, max(0, most - before) / 1e6, plan, method=planner.report_.method)
    except NarrowcastError as error:
        return PlannerTrial(problem=" ".join(str(error).split()))
    except MemoryError:
        return PlannerTrial(problem="it takes more memory than there is")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told and the others go on
        return PlannerTrial(problem=f"{type(error).__name__}: {first_line(error)}")


def _warm(kind: Any) -> None:
    """Have the kernels of a method compiled, which is part of neither its time nor its memory."""
    with suppress(NarrowcastError, TypeError):
        kind(channels=2).fit(Interest(*_TINY))


def _resident() -> tuple[int, int]:
    """Return the bytes of memory that this process has, and the most it had."""
    try:
        found = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", Path("/proc/self/status").read_text()))
        return 1024 * int(found["VmRSS"]), 1024 * int(found["VmHWM"])
    except (OSError, KeyError):  # no Linux: all that can be told is by how much the most rose
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        most = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most, most
