"""A plan in a folder is one whole version of it for every reader, whenever its writers are killed."""

from __future__ import annotations

import os
import shutil
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import narrowcast as nc
from narrowcast.errors import PlanError, TableError
from narrowcast.model import plan_store
from narrowcast.model.plan_store import CURRENT, VERSIONS, PlanStore
from support.errors import refused
from support.plan_writers import plain_files, plan_of, read, started, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Return the folder of a plan with two versions."""
    write(tmp_path / "plan", 1)
    write(tmp_path / "plan", 2)
    return tmp_path / "plan"


def versions(folder: Path) -> list[int]:
    """Return the numbers of the plans that are retained, the oldest first."""
    return [read(path) for path in PlanStore(folder)._versions()]


# ---- writers that are killed


def reads_while_writers_die(folder: Path, kills: int, seed: int, writers: int) -> set[int]:
    """Return the numbers of the plans that were read while writers were killed."""
    write(folder, 0)
    seen = set[int]()
    process = started("random", folder, kills, seed, writers)
    try:
        while process.poll() is None:
            seen.add(read(folder))
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    write(folder, 7)
    assert read(folder) == 7
    return seen


def test_every_read_is_whole_while_writers_are_killed(tmp_path: Path) -> None:
    seen = reads_while_writers_die(tmp_path / "plan", kills=40, seed=0, writers=1)
    assert len(seen) > 10


@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, 3])
def test_every_read_is_whole_for_long(tmp_path: Path, writers: int) -> None:
    seen = reads_while_writers_die(tmp_path / "plan", kills=300, seed=1, writers=writers)
    assert len(seen) > 100


@pytest.mark.parametrize("before", [(), (1,), (1, 2, 4, 6)], ids=["new", "plain", "versions"])
def test_killed_before_each_step(tmp_path: Path, before: tuple[int, ...]) -> None:
    process = started("steps", tmp_path, *before)
    assert process.wait(120) == 0


def test_two_writers_at_once(tmp_path: Path) -> None:
    def work(start: int) -> None:
        for number in range(start, start + 20):
            write(tmp_path / "plan", number)

    threads = [threading.Thread(target=work, args=(start,)) for start in (100, 200, 300)]
    write(tmp_path / "plan", 0)
    for thread in threads:
        thread.start()
    seen = set[int]()
    while any(thread.is_alive() for thread in threads):
        seen.add(read(tmp_path / "plan"))
    assert read(tmp_path / "plan") in (119, 219, 319)
    assert len(seen) > 1
    assert set(versions(tmp_path / "plan")) <= {0, *range(100, 120), *range(200, 220), *range(300, 320)}
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


# ---- the layout


def test_a_plan_that_was_never_replaced_is_a_plain_folder(tmp_path: Path) -> None:
    nc.write_plan(plan_of(2), tmp_path / "plan", method="any")
    names = ["carries.parquet", "channels.parquet", "listens.parquet", "plan.json"]
    assert sorted(path.name for path in (tmp_path / "plan").iterdir()) == names
    assert not any(path.is_symlink() for path in (tmp_path / "plan").iterdir())
    with refused(TableError, tmp_path / "plan"):
        nc.write_plan(plan_of(3), tmp_path / "plan", method="any")
    assert PlanStore(tmp_path / "nothing").name is None


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 99), min_size=1, max_size=6, unique=True))
def test_files_are_those_of_the_last_plan(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int]
) -> None:
    place = tmp_path_factory.mktemp("plans")
    for number in numbers:
        write(place / "alone" / str(number), number)
        write(place / "plan", number)
        assert read(place / "plan") == number
        found = plain_files(place / "plan")
        assert set(found) == set(plain_files(place / "alone" / str(number)))
        assert PlanStore(place / "plan").files() == found
    assert [path.name for path in place.iterdir() if path.name != "alone"] == ["plan"]


def test_an_upgrade_retains_the_plain_plan(plan: Path) -> None:
    assert versions(plan) == [1, 2]
    names = [plan_store.name_of(path) for path in PlanStore(plan)._versions()]
    assert PlanStore(plan).name == names[1]
    for number, name in enumerate(names, 1):
        held = PlanStore(plan).load(lambda folder: nc.read_plan(folder)[1].params["number"], name)
        assert held == number
    assert PlanStore(plan).files("no such name") == PlanStore(plan).files()


@given(st.integers(1, 8), st.integers(0, 8))
@settings(max_examples=15, deadline=None)
def test_old_versions_are_removed(tmp_path_factory: pytest.TempPathFactory, old: int, new: int) -> None:
    plan = tmp_path_factory.mktemp("plans") / "plan"
    for number in range(old):
        write(plan, number)
    for version in PlanStore(plan)._versions():
        os.utime(version, times=(time.time() - 60,) * 2)
    for number in range(old, old + new):
        write(plan, number)
    # The last of the old ones was replaced just now, and so were all of the new ones.
    first = max(0, min(old - 1, old + new - 3)) if old + new > 1 and new else 0
    assert versions(plan) == (list(range(first, old + new)) if old + new > 1 else [])
    assert read(plan) == old + new - 1


def test_a_version_that_is_read_stays(plan: Path) -> None:
    def read_slowly(folder: Path) -> int:
        for number in range(10, 20):
            write(plan, number)
        return read(folder)

    assert PlanStore(plan).load(read_slowly) == 2
    assert read(plan) == 19


def test_a_plain_plan_that_is_replaced_while_it_is_read(tmp_path: Path) -> None:
    write(tmp_path / "plan", 1)
    calls = list[int]()

    def read_between(folder: Path) -> tuple[int, int]:
        first = read(folder)
        if not calls:
            write(tmp_path / "plan", 2)
        calls.append(first)
        return first, read(folder)

    assert PlanStore(tmp_path / "plan").load(read_between) == (2, 2)
    assert calls == [1, 2]


def test_a_folder_that_is_replaced_by_hand_while_it_is_read(tmp_path: Path) -> None:
    for name, number in (("plan", 1), ("other", 2)):
        write(tmp_path / name, number)

    def read_between(folder: Path) -> int:
        (tmp_path / "plan").rename(tmp_path / "old")
        (tmp_path / "other").rename(tmp_path / "plan")
        return read(folder)

    with refused(PlanError, tmp_path / "plan"):
        PlanStore(tmp_path / "plan").load(read_between)
    assert read(tmp_path / "plan") == 2


# ---- what users do to folders


@pytest.mark.parametrize("links", [True, False])
def test_a_copy_is_a_plan(plan: Path, links: bool) -> None:
    copy = plan.with_name("copy")
    shutil.copytree(plan, copy, symlinks=links)
    shutil.rmtree(plan)
    assert read(copy) == 2
    assert set(plain_files(copy)) >= {"plan.json", "carries.parquet"}
    write(copy, 3)
    assert read(copy) == 3
    assert PlanStore(copy).files() == plain_files(copy)


def test_a_plan_that_is_moved_and_removed(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan.rename(plan.with_name("moved"))
    monkeypatch.chdir(plan.parent)
    write(plan.relative_to(plan.parent).with_name("moved"), 3)
    assert read(plan.with_name("moved")) == 3
    shutil.rmtree("moved")
    assert list(plan.parent.iterdir()) == []


def test_a_link_to_a_plan_is_replaced_and_the_plan_stays(plan: Path) -> None:
    link = plan.with_name("link")
    link.symlink_to("plan")
    assert read(link) == 2
    write(link, 3)
    assert (read(link), read(plan)) == (3, 2)
    assert not link.is_symlink()


def test_a_file_system_without_links(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    other = plan.with_name("other")
    for number in (1, 2, 3):
        write(other, number)
        assert read(other) == number
        assert "versions" not in [path.name for path in other.iterdir()]
    assert {path.name for path in plan.parent.iterdir()} == {"plan", "other"}


def test_a_pointer_that_names_nothing(plan: Path) -> None:
    shutil.rmtree((plan / CURRENT).resolve())
    with refused(PlanError, "000002"):
        read(plan)
    assert PlanStore(plan).name is None
    write(plan, 3)
    assert read(plan) == 3


def test_a_pointer_that_is_gone(plan: Path) -> None:
    (plan / CURRENT).unlink()
    with refused(PlanError, "plan.json"):
        read(plan)
    write(plan, 3)
    assert read(plan) == 3


def test_a_pointer_that_is_set_back(plan: Path) -> None:
    old = PlanStore(plan)._versions()[0]
    (plan / "link").symlink_to(f"{VERSIONS}/{old.name}")
    (plan / "link").rename(plan / CURRENT)
    assert read(plan) == 1
    write(plan, 3)
    assert (read(plan), versions(plan)) == (3, [1, 3])


def test_a_file_beside_the_plan(tmp_path: Path) -> None:
    write(tmp_path / "plan", 1)
    for number in (1, 2):
        store = PlanStore(tmp_path / "plan")
        write(tmp_path / "plan", number)
        name = store.name
        store.replace_file("rates.parquet", b"often")
        assert store.files()["rates.parquet"] == b"often"
        assert plain_files(store.folder) == store.files()
        assert (store.name, read(store.folder)) == (name, number)
