"""What is done stays done until what it was made from changes, and nothing half done is ever seen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import TableError
from narrowcast.spark.checkpoint import RECORDS, Checkpoints, key_of, staging_folder
from support.errors import refused


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def writes(*files: str, text: str = "x", facts: dict[str, Any] | None = None) -> Any:
    """Return work that writes files, with how often it was done in `calls`."""

    def work(aside: Path) -> dict[str, Any]:
        work.calls += 1  # type: ignore[attr-defined]
        for file in files:
            (aside / file).parent.mkdir(parents=True, exist_ok=True)
            (aside / file).write_text(text)
        return facts or {}

    work.calls = 0  # type: ignore[attr-defined]
    return work


# --------------------------------------------------------------------------------------------------- keys


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.booleans()))
def test_keys_are_of_what_is_said_in_any_order(parts: dict[str, Any]) -> None:
    parts.pop("stage", None)
    key = key_of("match", **parts)
    assert key == key_of("match", **dict(reversed(parts.items())))
    assert key != key_of("plan", **parts)
    assert key != key_of("match", **{**parts, "more": 1})
    assert len(key) == 32


@pytest.mark.parametrize(
    ("one", "other"), [(1, "1"), (1, True), (None, "null"), (["a", "b"], ["ab"]), (0, None)]
)
def test_keys_tell_values_apart(one: Any, other: Any) -> None:
    assert key_of("s", of=one) != key_of("s", of=other)


# ------------------------------------------------------------------------------------------------- stages


def test_a_stage_is_done_once(tmp_path: Path) -> None:
    work = writes("a.txt", "b/c.txt", facts={"rows": 7, "pairs": [(1, 2)]})
    first = Checkpoints(tmp_path)
    record = first.run("one", "k1", ("a.txt", "b"), work)
    assert (record.key, record.facts) == ("k1", {"rows": 7, "pairs": [[1, 2]]})
    assert record.seconds >= 0
    assert first.resumed == []
    second = Checkpoints(tmp_path)
    assert second.run("one", "k1", ("a.txt", "b"), work) == record
    assert (second.resumed, work.calls) == (["one"], 1)
    assert names(tmp_path) == [RECORDS, "a.txt", "b"]


def test_another_key_does_it_again_and_only_that(tmp_path: Path) -> None:
    one, two = writes("a.txt", "old.txt"), writes("b.txt")
    stages = Checkpoints(tmp_path)
    stages.run("one", "k1", ("a.txt", "old.txt"), one)
    stages.run("two", "k2", ("b.txt",), two)
    again = Checkpoints(tmp_path)
    again.run("one", "k9", ("a.txt", "old.txt"), writes("a.txt", text="new"))
    again.run("two", "k2", ("b.txt",), two)
    assert (again.resumed, two.calls) == (["two"], 1)
    assert (tmp_path / "a.txt").read_text() == "new"
    assert not (tmp_path / "old.txt").exists(), "what a stage leaves out is not there afterwards"
    later = Checkpoints(tmp_path)
    later.run("one", "k9", ("a.txt",), one)
    assert (later.resumed, one.calls) == (["one"], 1)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(143)])
def test_a_stage_that_fails_leaves_nothing(error: BaseException, tmp_path: Path) -> None:
    Checkpoints(tmp_path).run("one", "k1", ("a.txt",), writes("a.txt"))

    def fail(aside: Path) -> dict[str, Any]:
        (aside / "b.txt").write_text("half")
        raise error

    stages = Checkpoints(tmp_path)
    with pytest.raises(type(error)):
        stages.run("two", "k2", ("b.txt",), fail)
    assert names(tmp_path) == [RECORDS, "a.txt"]
    with pytest.raises(type(error)):
        stages.run("one", "k9", ("a.txt",), fail)
    # Its earlier output is gone with its record: it would not go with what comes next.
    assert names(tmp_path) == [RECORDS]
    work = writes("a.txt")
    Checkpoints(tmp_path).run("one", "k1", ("a.txt",), work)
    assert work.calls == 1


def test_what_a_killed_run_leaves_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".stage-match-xyz").mkdir()
    (tmp_path / ".stage-match-xyz" / "half.txt").write_text("half")
    (tmp_path / "b.txt").write_text("in place, but without a record")
    stages = Checkpoints(tmp_path)
    assert names(tmp_path) == ["b.txt"]
    work = writes("b.txt")
    stages.run("two", "k2", ("b.txt",), work)
    assert (work.calls, (tmp_path / "b.txt").read_text()) == (1, "x")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"one": {"key": 3}}', '{"one": null}', "\x00\xff"])
def test_records_that_are_none_count_for_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_text(text, "latin-1")
    work = writes("a.txt")
    stages = Checkpoints(tmp_path)
    stages.run("one", "k1", ("a.txt",), work)
    assert (stages.resumed, work.calls) == ([], 1)
    assert Checkpoints(tmp_path).run("one", "k1", ("a.txt",), work).key == "k1"
    assert work.calls == 1


# ----------------------------------------------------------------------------------------- staging folder


def test_an_output_is_there_when_the_block_has_ended(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with staging_folder(out) as folder:
        (folder / "a.txt").write_text("a")
        assert not out.exists()
        assert names(out.parent) == [".out-work"]
    assert names(out) == ["a.txt"]
    assert names(out.parent) == ["out"]
    assert out.stat().st_mode & 0o777 == 0o755


def test_a_failure_is_gone_on_with_and_a_fresh_start_is_not(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def fail(**options: bool) -> list[str]:
        with pytest.raises(ValueError, match="no"), staging_folder(out, **options) as folder:  # noqa: PT012
            seen = [name for name in names(folder) if name != RECORDS]
            Checkpoints(folder).run(str(len(seen)), "k", (f"{len(seen)}.txt",), writes(f"{len(seen)}.txt"))
            raise ValueError("no")
        assert not out.exists()
        return seen

    assert fail() == []
    assert fail() == ["0.txt"]
    assert fail(fresh=True) == []
    with staging_folder(out) as folder:
        assert names(folder) == [RECORDS, "0.txt"]
    assert names(tmp_path) == ["out"]


def test_a_failure_before_any_stage_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="no"), staging_folder(out) as folder:  # noqa: PT012
        (folder / "half").mkdir()
        raise ValueError("no")
    assert names(tmp_path) == []
    with staging_folder(out) as folder:
        Checkpoints(folder).run("one", "k", ("a.txt",), writes("a.txt"))
    with pytest.raises(ValueError, match="no"), staging_folder(out):
        raise ValueError("no")
    assert names(tmp_path) == ["out"]


def test_an_output_that_was_removed_is_made_again(tmp_path: Path) -> None:
    work = writes("a.txt")
    Checkpoints(tmp_path).run("one", "k", ("a.txt",), work)
    (tmp_path / "a.txt").unlink()
    stages = Checkpoints(tmp_path)
    stages.run("one", "k", ("a.txt",), work)
    assert (stages.resumed, (tmp_path / "a.txt").exists()) == ([], True)


def test_an_earlier_output_stays_whole_until_it_is_replaced(tmp_path: Path) -> None:
    """Files have a second name in the staging_folder, so they must never be written to."""
    out = tmp_path / "out"
    with staging_folder(out) as folder:
        Checkpoints(folder).run("one", "k1", ("t",), writes("t/a.txt", "t/b.txt", text="first"))
        Checkpoints(folder).run("two", "k2", ("c.txt",), writes("c.txt", text="first"))
    held = [(out / name).open() for name in ("t/a.txt", "c.txt", RECORDS)]
    before = held[2].read()
    with pytest.raises(ValueError, match="no"), staging_folder(out) as folder:  # noqa: PT012
        assert (folder / "t/a.txt").stat().st_ino == (out / "t/a.txt").stat().st_ino
        Checkpoints(folder).run("one", "k9", ("t",), writes("t/a.txt", text="second"))
        raise ValueError("no")
    assert names(out / "t") == ["a.txt", "b.txt"]
    assert (out / "t/a.txt").read_text() == "first"
    assert (out / RECORDS).read_text() == before
    with staging_folder(out) as folder:
        stages = Checkpoints(folder)
        stages.run("one", "k9", ("t",), writes("t/a.txt", text="third"))
        stages.run("two", "k7", ("c.txt",), writes("c.txt", text="third"))
        assert stages.resumed == ["one"], "the run that failed had finished it"
    assert (out / "t/a.txt").read_text() == "second"
    assert (out / "c.txt").read_text() == "third"
    assert names(out / "t") == ["a.txt"]
    assert [file.read() for file in held[:2]] == ["first", "first"]
    for file in held:
        file.close()
    assert names(tmp_path) == ["out"]


def test_where_files_cannot_be_linked_they_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with staging_folder(out) as folder:
        (folder / "a.txt").write_text("a")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with staging_folder(out) as folder:
        assert (folder / "a.txt").read_text() == "a"
        assert (folder / "a.txt").stat().st_ino != (out / "a.txt").stat().st_ino


def test_one_run_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with staging_folder(out) as folder:
        (folder / "a.txt").write_text("a")
        for fresh in (False, True):
            with (
                refused(TableError, out, parameter="out", value=str(out)),
                staging_folder(out, fresh=fresh),
            ):
                pytest.fail("the block must not start")
        assert names(folder) == ["a.txt"]
        with staging_folder(tmp_path / "other"):
            pass
    assert names(tmp_path) == ["other", "out"]
    with staging_folder(out) as folder:
        assert names(folder) == ["a.txt"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        refused(TableError, tmp_path / "file" / "out", parameter="out"),
        staging_folder(tmp_path / "file" / "out"),
    ):
        pytest.fail("the block must not start")
