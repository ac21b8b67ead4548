"""All fault scenarios by name; each runs in full, or briefly to check that it works."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import cuts, disks, draining, fuzzing, kills, reloads, restart, soak
from faults import strangers as strange
from faults.load import Load
from faults.setting import Run, Setting

#: Kills of each kind, in full and quickly.
KILLS, FEW = 20, 2
#: Seconds in which a node serves again.
SERVES = 5.0
#: The part of the rate of good events that garbage leaves.
KEPT = 0.8
#: Inputs that are no good, in full and quickly.
INPUTS, FEW_INPUTS = 100_000, 2_000


@dataclass
class Row:
    """Result of a scenario.

    Parameters
    ----------
    kills
        Number of kills, cuts or full disks.
    facts
        Counts and measurements.
    wrong
        Faults in words; empty when there is none.
    """

    kills: int
    facts: dict[str, Any]
    wrong: list[str] = field(default_factory=list)


def row(run: Run, kills: int, load: Load, **facts: Any) -> Row:
    """Return the result of a run as a row."""
    found, recovered = run.verdict, [each for each in run.recovered if each is not None]
    wrong = list(found.examples)
    if len(recovered) < len(run.recovered):
        wrong.append(f"{len(run.recovered) - len(recovered)} times a subscriber received nothing more")
    counted = {
        name: getattr(found, name)
        for name in ("events", "deliveries", "lost", "duplicated", "repeated", "most_repeated", "outside",
                     "reordered", "wrong")
    }  # fmt: skip
    counted |= {"window": load.window, "refused": sum(each.many for each in run.refused)}
    times = sorted(recovered)
    if times:
        counted |= {"recover_s": round(times[len(times) // 2], 2), "recover_max_s": round(times[-1], 2)}
    return Row(kills, counted | facts, wrong)


def _kills(target: str, *, switching: bool) -> Callable[[Path, bool], Row]:
    def run(folder: Path, quick: bool) -> Row:
        seed = sum(target.encode()) + switching
        load = Load(seed=seed, people=4, rate=100.0) if quick else Load(seed=seed)
        times = FEW if quick else KILLS
        return row(kills.killed(folder, [target] * times, load, switching=switching), times, load)

    return run


def _mixed(folder: Path, quick: bool) -> Row:
    load = Load(seed=9, people=4, publishers=1, rate=200.0, guarded=True)
    targets = ["node", "server", "client", "client"] * (1 if quick else 5)
    return row(kills.killed(folder, targets, load, switching=True, processes=1), len(targets), load)


def _cut(*, resets: bool, clients: bool) -> Callable[[Path, bool], Row]:
    def run(folder: Path, quick: bool) -> Row:
        load = Load(seed=20 + resets + 2 * clients)
        found = cuts.cut(folder, load, resets=resets, clients=clients, seconds=4.0 if quick else cuts.CUT)
        return row(found, 1, load)

    return run


def _disk(of: Callable[..., disks.FullRun]) -> Callable[[Path, bool], Row]:
    def run(folder: Path, quick: bool) -> Row:
        load = Load(seed=30)
        found = of(folder, load, full=5.0 if quick else disks.FULL)
        kept, held = found.letters
        said = dict.fromkeys(each.replace(f"{folder}/", "") for each in found.refusals)
        made = row(found.run, 1, load, said=list(said), letters=held)
        if held != kept:
            made.wrong.append(f"{held} of {kept} dead letters are kept")
        if not any("no space left" in said or "disk is full" in said for said in found.refusals):
            made.wrong.append("no refusal says that the disk is full")
        if of is disks.kept and found.refusals[-1] != "201":
            made.wrong.append(f"subscribing fails although the disk has space again: {found.refusals[-1]}")
        return made

    return run


def _fuzzed(folder: Path, quick: bool) -> Row:
    load = Load(seed=40, rate=400.0)
    if quick:
        found = fuzzing.fuzzed(folder, load, inputs=FEW_INPUTS, parts=1, calm=3.0, part=0.0)
    else:
        found = fuzzing.fuzzed(folder, load, inputs=INPUTS)
    whiles = {"calm": found.calm, "garbage_elsewhere": found.elsewhere, "garbage": found.beside}
    facts = {"inputs": sum(found.sent.values()), "by_door": found.sent, "counts": found.counts}
    facts |= {"rate": round(found.rate)}
    facts |= {"deliveries_per_s": {name: round(each.deliveries) for name, each in whiles.items()}}
    facts |= {"node_core": {name: round(each.core, 3) for name, each in whiles.items()}}
    made = row(found.run, 0, load, **facts)
    made.wrong += found.failed
    if not found.agree:
        made.wrong.append(f"counts do not agree: {found.counts}")
    for name, other in (("without", found.calm), ("with it elsewhere", found.elsewhere)):
        beside = found.beside.deliveries
        if not quick and beside < KEPT * other.deliveries:
            made.wrong.append(
                f"{beside:.0f} deliveries a second beside garbage, {other.deliveries:.0f} {name}"
            )
    return made


def _drained(folder: Path, quick: bool) -> Row:
    load = Load(seed=41, rate=1e9, together=200, rare=20)
    found = draining.drained(folder, load, times=1 if quick else 3, fill=2.0 if quick else draining.FILL)
    made = row(found.runs[0], 0, load)
    wrong = [what for each in found.runs for what in each.verdict.examples]
    facts = made.facts | {"events": sum(each.verdict.events for each in found.runs)}
    facts |= {"deliveries": sum(each.verdict.deliveries for each in found.runs)}
    facts |= {"events_per_s": {name: [round(each) for each in own] for name, own in found.rates.items()}}
    facts |= {"left_out": found.left_out}
    kept = sum(found.rates[draining.BESIDE]) / sum(found.rates[draining.CALM])
    facts |= {"kept": round(kept, 3)}
    if not quick and kept < KEPT:
        wrong.append(f"{kept:.2f} of the events a second that there are without garbage")
    return Row(0, facts, wrong)


def _behind(folder: Path, quick: bool) -> Row:
    load = Load(seed=80, rate=1e9, limit=1_000 if quick else 3_000)
    with ExitStack() as stack:
        setting = Setting(stack, folder, load)
        setting.start()
        time.sleep(3.0 if quick else 60.0)
        setting.end()
        return row(setting.judge(), 0, load, limit=load.limit)


def _behind_killed(folder: Path, quick: bool) -> Row:
    load = Load(seed=81, rate=1e9, limit=3_000, guarded=True)
    targets = ["node", "server", "client", "client"] * (1 if quick else 5)
    return _ever_late(
        row(kills.killed(folder, targets, load, switching=True), len(targets), load, limit=load.limit)
    )


def _full_killed(folder: Path, quick: bool) -> Row:
    load = Load(seed=82, rate=1e9, people=2, together=5_000)  # messages as large as they get
    targets = ["node", "server"] * (1 if quick else 5)
    return _ever_late(row(kills.killed(folder, targets, load, switching=False), len(targets), load))


def _ever_late(made: Row) -> Row:
    """Drop the repeats outside the window: in an overloaded run they show how late all subscribers were."""
    for name in ("recover_s", "recover_max_s"):
        made.facts.pop(name, None)
    return made


def _restarted(folder: Path, quick: bool) -> Row:
    many, times = (2_000, 1) if quick else (100_000, 5)
    serving, delivered = restart.restarted(folder, subscriptions=many, people=many // 100, kills=times)
    facts = {"subscriptions": many, "serves_s": [round(each, 2) for each in serving]}
    facts |= {"delivers_s": [round(each, 2) for each in delivered], "recover_max_s": round(max(delivered), 2)}
    late = [f"serves after {each:.1f} s" for each in delivered if each > SERVES]
    return Row(times, facts, [] if quick else late)


def _strangers(folder: Path, quick: bool) -> Row:
    load = Load(seed=60, guarded=True)
    found = strange.strangers(folder, load, seconds=3.0 if quick else strange.SECONDS)
    made = row(found.run, 0, load, tried=found.tried, denied=found.refused, heard=len(found.heard))
    return Row(0, made.facts, [*made.wrong, *found.heard[:5], *found.taken[:5]])


def _reloaded(folder: Path, quick: bool) -> Row:
    load = Load(seed=70, people=100 if quick else 1_000, guarded=True)
    found = reloads.reloaded(folder, load, times=3 if quick else reloads.TIMES)
    ms = sorted(round(1000 * each) for each in found.seconds)
    facts = {"users": found.users, "reload_ms": ms[len(ms) // 2], "reload_max_ms": ms[-1]}
    lost = [f"{found.disconnects} connections were lost"] * bool(found.disconnects)
    return Row(0, facts | {"disconnects": found.disconnects}, lost)


def _soaked(folder: Path, quick: bool) -> Row:
    load = Load(seed=50, people=4)
    found = soak.soaked(folder, load, seconds=15.0, rate=400.0) if quick else soak.soaked(folder, load)
    made = row(found.run, 0, load, rate=round(found.rate), memory_mb=found.memory, p99_s=found.p99)
    if not quick and not found.flat:
        made.wrong.append(f"memory grows: {found.memory}")
    if not quick and not found.steady:
        made.wrong.append(f"events come later and later: {found.p99}")
    return made


#: What is run, by name.
SCENARIOS: dict[str, Callable[[Path, bool], Row]] = {
    "mixed kills": _mixed,
    "subscribers fall behind": _behind,
    "mixed kills, subscribers behind": _behind_killed,
    "mixed kills, full messages": _full_killed,
    "node killed": _kills("node", switching=False),
    "server killed": _kills("server", switching=False),
    "client killed": _kills("client", switching=False),
    "node killed, plans switch": _kills("node", switching=True),
    "server killed, plans switch": _kills("server", switching=True),
    "client killed, plans switch": _kills("client", switching=True),
    "node killed, 100,000 subscriptions": _restarted,
    "disk of the server full": _disk(disks.stored),
    "disk of the node full": _disk(disks.kept),
    "node cut off": _cut(resets=False, clients=False),
    "node cut off by resets": _cut(resets=True, clients=False),
    "clients cut off": _cut(resets=False, clients=True),
    "clients cut off by resets": _cut(resets=True, clients=True),
    "strangers": _strangers,
    "permissions of 1,000 users": _reloaded,
    "garbage": _fuzzed,
    "garbage, node at its limit": _drained,
    "soak": _soaked,
}
