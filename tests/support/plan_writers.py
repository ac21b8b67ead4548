"""Processes that write plans into one folder and are killed in the middle of it.

``random FOLDER KILLS SEED WRITERS`` lets writers replace the plan without end and kills them after random
times. ``steps FOLDER`` kills a writer before each operation on files that a write consists of, and checks
what is left.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import narrowcast as nc
from narrowcast.model import plan_store
from narrowcast.model.plan_store import CURRENT, VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that writers live at most once there is a new plan; two writes or some more.
LIFE_S = 0.05


def plan_of(number: int) -> nc.ChannelPlan:
    """Return a plan that has nothing in common with that of any other number; odd ones have `unicast`."""
    size = 2 + number % 3
    drop_duplicates = [[i == j for j in range(size)] for i in range(size)]
    return nc.ChannelPlan(
        drop_duplicates,
        drop_duplicates,
        unicast=[[number % 2 == 1 and i != j for j in range(size)] for i in range(size)],
        subscribers=[f"{number}-s{i}" for i in range(size)],
        flows=[f"{number}-f{i}" for i in range(size)],
    )


def write(folder: Path, number: int) -> None:
    """Write a plan, in place of the one before."""
    nc.write_plan(plan_of(number), folder, method="any", params={"number": number}, replace=True)


def read(folder: Path) -> int:
    """Read a plan, which has to be whole, and return its number."""
    plan, info = nc.read_plan(folder)
    number = int(info.params["number"])
    assert plan == plan_of(number)
    return number


def started(*words: Any) -> subprocess.Popen[bytes]:
    """Start a process with the arguments of this script."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    command = [sys.executable, "-m", "support.plan_writers", *map(str, words)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})


def forked(work: Callable[[], None]) -> int:
    """Return the process that does some work and ends."""
    process = os.fork()
    if process:
        return process
    try:
        work()
    except BaseException as error:  # noqa: BLE001 which a fork must not hand on
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)


def write_without_end(folder: Path, start: int) -> None:
    """Write one plan after the other."""
    while True:
        write(folder, start)
        start += 1


def kill_at_random(folder: Path, kills: int, seed: int, writers: int) -> None:
    """Kill writers after random times, all of them at once."""
    draw, store = random.Random(seed), plan_store.PlanStore(folder)
    for round_ in range(kills):
        works = [partial(write_without_end, folder, (round_ * writers + i) * 10_000) for i in range(writers)]
        before, begun = store.name, time.monotonic()
        processes = [forked(work) for work in works]
        while store.name == before:
            assert time.monotonic() - begun < 60, "no plan is written"
            time.sleep(0.001)
        time.sleep(draw.uniform(0, LIFE_S))
        for process in processes:
            os.kill(process, signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        assert codes == [-signal.SIGKILL] * writers, codes


def write_and_die(folder: Path, number: int, step: int) -> None:
    """Write a plan, but be killed before an operation on files, by its index."""
    left = step

    def hook(event: str, _: Any) -> None:
        nonlocal left
        if event != "os.kill" and event.startswith(("os.", "open", "fcntl.", "shutil.")):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    write(folder, number)


def plain_files(folder: Path) -> dict[str, bytes]:
    """Return what a reader finds in a folder who knows nothing of versions."""
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return {path.name: path.read_bytes() for path in files}


def kill_at_each_step(place: Path, before: list[int]) -> int:
    """Kill a writer at each step of a write after some other writes; return how many steps there are."""
    folder, step = place / "plan", 0
    for number in before:
        write(folder, number)
    if before:
        shutil.copytree(folder, place / "template", symlinks=True)
    known = [plain_files(folder)] if before else []
    while True:
        process = forked(partial(write_and_die, folder, 100, step))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if before or folder.exists():
            assert read(folder) in (*before[-1:], 100), step
            found = plain_files(folder)
            assert found in known or b'"number": 100' in found["plan.json"], step
            assert found in known or len(found) == 4, (step, sorted(found))  # of an even one
        if code == 0:
            assert read(folder) == 100
            return step
        assert code == -signal.SIGKILL, code
        write(folder, 200)
        assert read(folder) == 200
        if before:
            kept = plan_store.PlanStore(folder)._versions()
            assert sorted(p.name for p in (folder / VERSIONS).iterdir()) == [path.name for path in kept]
            assert len(kept) <= plan_store._RETAINED + 1
            current = [path.name for path in (folder / CURRENT).iterdir()]
            assert sorted(path.name for path in folder.iterdir()) == sorted([*current, CURRENT, VERSIONS])
        shutil.rmtree(folder)
        if before:
            shutil.copytree(place / "template", folder, symlinks=True)
        step += 1


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["random", folder, kills, seed, writers]:
            write(Path(folder), -1)  # with all modules that it needs
            kill_at_random(Path(folder), int(kills), int(seed), int(writers))
        case ["steps", place, *before]:
            warm = Path(place, "warm")
            write(warm, 1)
            write(warm, 2)
            read(warm)
            plan_store._GRACE_S = -1.0
            steps = kill_at_each_step(Path(place), list(map(int, before)))
            assert steps >= 6, steps
