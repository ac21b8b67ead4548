"""Trials of planners: each runs in its own process, which measures its time and memory.

A helper process loads the interest once, and forks for each planner. It has no Spark and starts no threads,
which makes forking safe.
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

#: A small interest to compile or load the kernels of a planner before it is timed.
_TINY = ([[1, 1, 0], [0, 1, 1], [1, 0, 1]], [3.0, 2.0, 1.0])


@dataclass(frozen=True, slots=True)
class PlannerTrial:
    """The result of fitting a planner in its own process.

    Parameters
    ----------
    seconds
        Run time of `fit`.
    megabytes
        Peak growth of the process's resident memory during `fit`, in units of 10**6 bytes. It includes the
        memory of compiled code, but not the interest, which was loaded before.
    plan
        The plan; None after a failure.
    problem
        The reason of a failure, in one line; empty on success.
    method
        The method that made the plan, if the planner chooses among others; otherwise empty.
    """

    seconds: float | None = None
    megabytes: float | None = None
    plan: ChannelPlan | None = None
    problem: str = ""
    method: str = ""


def trials(interest: Interest, planners: Sequence[Planner]) -> Generator[PlannerTrial, None, None]:
    """Fit planners to an interest one after the other, and yield the result of each.

    A planner that fails, or is killed for its memory, does not stop the others. As in `make_plan`,
    subscribers without interest are only in the plans of `broadcast` and of methods that cluster subscribers.

    Parameters
    ----------
    interest
        The interest; it is passed to the helper process as a temporary file.
    planners
        Planners that are not fitted; they must be picklable.

    Raises
    ------
    JobError
        When the helper process ends early.

    Examples
    --------
    >>> from narrowcast.planning import Broadcast, Hash
    >>> [one, two] = trials(Interest([[1, 1], [0, 1]]), [Broadcast(), Hash()])
    >>> one.plan
    ChannelPlan(1 channels, 2 flows, 2 subscribers)
    >>> two.problem
    'channels is missing: hash needs an integer of at least 1'
    """
    with tempfile.TemporaryDirectory(prefix="narrowcast-") as name:
        folder = Path(name)
        _dump(interest, folder / "interest")
        for number, planner in enumerate(planners):
            _dump(planner, folder / f"{number}.planner")
        start = "import sys; from narrowcast.spark.stages.planner_trial import serve; serve(sys.argv[1])"
        command = [sys.executable, "-P", "-c", start, name]
        none, pipe = subprocess.DEVNULL, subprocess.PIPE
        # In its own process group, so that all of its processes can be killed when the caller stops early.
        with (
            (folder / "errors").open("w+b") as errors,
            subprocess.Popen(
                command, stdin=none, stdout=pipe, stderr=errors, start_new_session=True
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for number in range(len(planners)):
                    if not process.stdout.readline():
                        errors.seek(0)
                        lines = errors.read().decode(errors="replace").strip().splitlines()
                        reason = lines[-1] if lines else "it ended early"
                        raise JobError(f"the helper process that tries methods failed: {reason}")
                    yield _load(folder / f"{number}.trial")
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _dump(value: Any, path: Path) -> None:
    with path.open("wb") as file:
        pickle.dump(value, file, protocol=5)


def _load(path: Path) -> Any:
    return pickle.loads(path.read_bytes())  # noqa: S301 - our own file, in a folder that is private to the user


def serve(name: str) -> None:
    """Run in the helper process: fit every planner in a folder, and print a line after each."""
    folder = Path(name)
    warnings.simplefilter("ignore", DeprecationWarning)  # about fork with threads: this process has none
    interest: Interest = _load(folder / "interest")
    wanting = interest.wanting()
    # Exclude the loaded interest from garbage collection in the children, which would copy its pages.
    gc.freeze()
    for number in range(len(list(folder.glob("*.planner")))):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                trial = _try(interest, wanting, folder / f"{number}.planner")
                _dump(trial, folder / f"{number}.part")
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            reason = "ended early"
            if signal_number:
                reason = f"was killed by signal {signal_number}, possibly because it ran out of memory"
            _dump(PlannerTrial(problem=f"its process {reason}"), folder / f"{number}.part")
        (folder / f"{number}.part").rename(folder / f"{number}.trial")
        print(number, flush=True)


def _try(interest: Interest, wanting: Interest, path: Path) -> PlannerTrial:
    """Fit a planner, and measure its time and memory; a failure is returned as `problem`.

    `interest` has all subscribers, `wanting` only those with interest: the planner gets the one it needs.
    """
    try:
        planner: Planner = _load(path)
        interest = interest if planner.capabilities.all_subscribers else wanting
        _warm(type(planner))
        with suppress(OSError):  # only Linux can reset the peak of resident memory
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
        return PlannerTrial(problem="it ran out of memory")
    except Exception as error:  # noqa: BLE001 - any error is reported as the problem of this planner
        return PlannerTrial(problem=f"{type(error).__name__}: {first_line(error)}")


def _warm(kind: Any) -> None:
    """Compile the kernels of a method beforehand, so that its time and memory do not include that."""
    with suppress(NarrowcastError, TypeError):
        kind(channels=2).fit(Interest(*_TINY))


def _resident() -> tuple[int, int]:
    """Return the current and the peak resident memory of this process in bytes."""
    try:
        found = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", Path("/proc/self/status").read_text()))
        return 1024 * int(found["VmRSS"]), 1024 * int(found["VmHWM"])
    except (OSError, KeyError):  # not Linux: only the peak is available
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        most = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most, most
