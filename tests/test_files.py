"""Tables are read whatever their format, and folders appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from narrowcast.errors import TableError
from narrowcast.files import first_line, new_folder, read_table, rows_in, swap

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "a"},
    {"id": 2, "name": 'it\'s, "b"'},
    {"id": 3, "name": None},
]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    pc.write_csv(pa.Table.from_pylist(rows), path)


def write_json(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


FORMATS: list[tuple[str, Callable[[Path, list[dict[str, Any]]], None]]] = [
    ("t.parquet", write_parquet),
    ("t.PARQUET", write_parquet),
    ("t.csv", write_csv),
    ("t.json", write_json),
    ("t.jsonl", write_json),
    ("t.ndjson", write_json),
]
formats = pytest.mark.parametrize(("name", "write"), FORMATS, ids=[name for name, _ in FORMATS])


@formats
def test_a_file_is_read_by_its_ending(tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path / name, ROWS[:2])
    assert read_table(tmp_path / name).to_pylist() == ROWS[:2]
    assert read_table(str(tmp_path / name), ("name", "id")).num_rows == 2


@formats
@pytest.mark.parametrize("limit", [0, 1, 2, 99])
def test_a_limit_reads_no_more_rows_and_keeps_the_types(
    tmp_path: Path, name: str, write: Any, limit: int
) -> None:
    write(tmp_path / name, ROWS[:2])
    table = read_table(tmp_path / name, limit=limit)
    assert table.to_pylist() == ROWS[:2][:limit]
    assert table.schema.types == [pa.int64(), pa.string()]


@formats
def test_a_folder_is_its_files_whatever_their_depth(tmp_path: Path, name: str, write: Any) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    write(tmp_path / "in" / f"1{name}", ROWS[:1])
    write(tmp_path / "in" / "deep" / f"2{name}", ROWS[1:2])
    found = read_table(tmp_path / "in").to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == ROWS[:2]
    assert read_table(tmp_path / "in", limit=1).num_rows == 1


@formats
def test_what_engines_leave_beside_their_files_is_no_data(tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path / name, ROWS[:1])
    for beside in ("_SUCCESS", f".{name}.crc", "_committed_1", ".hidden.csv", ".hidden.parquet"):
        (tmp_path / beside).write_bytes(b"\0")
    assert read_table(tmp_path).to_pylist() == ROWS[:1]


@formats
def test_a_file_of_no_format_beside_the_data_is_left_out(tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path / name, ROWS[:1])
    (tmp_path / "README.txt").write_text("what this is\n")
    assert read_table(tmp_path).to_pylist() == ROWS[:1]


@formats
def test_a_folder_has_the_columns_of_all_its_files(tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path / f"1{name}", [{"id": 1}])
    write(tmp_path / f"2{name}", [{"id": 2, "name": "b"}])
    assert read_table(tmp_path).to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": "b"}]
    assert read_table(tmp_path, ("id", "name"), limit=1).to_pylist() == [{"id": 1, "name": None}]


def test_a_key_that_comes_late_in_a_folder_is_a_column_too(tmp_path: Path) -> None:
    early = '{"id": 1}\n' * 200_000  # more than one block
    (tmp_path / "t.jsonl").write_text(early + '{"id": 2, "name": "b"}\n')
    for path in (tmp_path / "t.jsonl", tmp_path):
        assert read_table(path, ("id", "name"))["name"].to_pylist()[-1] == "b"


def test_an_empty_json_file_is_a_table_without_columns(tmp_path: Path) -> None:
    for content in ("", "\n", " \n\n"):
        (tmp_path / "t.jsonl").write_text(content)
        table = read_table(tmp_path / "t.jsonl")
        assert (table.num_rows, table.column_names) == (0, [])
    with pytest.raises(TableError, match=r"t\.jsonl has no column 'filter'; it has no columns"):
        read_table(tmp_path / "t.jsonl", ("filter",))


def test_an_empty_json_file_in_a_folder_adds_no_rows(tmp_path: Path) -> None:
    write_json(tmp_path / "1.jsonl", ROWS[:1])
    (tmp_path / "2.jsonl").write_text("")
    assert read_table(tmp_path).to_pylist() == ROWS[:1]


def test_a_missing_column_is_an_error_that_lists_those_found(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", ROWS)
    with pytest.raises(TableError, match=r"t\.csv has no column 'filter', 'x'; it has 'id', 'name'$"):
        read_table(tmp_path / "t.csv", ("filter", "id", "x"))


def test_a_missing_path_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"nope\.csv does not exist; give a Parquet, CSV or JSON-lines file"):
        read_table(tmp_path / "nope.csv")


def test_an_ending_that_names_no_format_is_refused(tmp_path: Path) -> None:
    for name, said in (("t.txt", r"ends in '\.txt'"), ("t", "t has no ending that names a format")):
        (tmp_path / name).write_text("a\n1\n")
        with pytest.raises(TableError, match=rf"{said}; use one of \.parquet, \.csv, \.json"):
            read_table(tmp_path / name)


def test_a_folder_without_tables_or_with_several_formats_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"no file that ends in \.parquet, \.csv"):
        read_table(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(TableError, match="no file that ends in"):
        read_table(tmp_path)
    write_csv(tmp_path / "a.csv", ROWS)
    write_parquet(tmp_path / "b.parquet", ROWS)
    with pytest.raises(TableError, match="mixes csv and parquet; keep one format in a folder"):
        read_table(tmp_path)


def test_json_and_json_lines_are_one_format(tmp_path: Path) -> None:
    write_json(tmp_path / "1.json", ROWS[:1])
    write_json(tmp_path / "2.jsonl", ROWS[1:])
    assert read_table(tmp_path).to_pylist() == ROWS


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.parquet", b""),
        ("t.parquet", b"PAR1 this is no table PAR1"),
        ("t.parquet", b"id,name\n1,a\n"),
        ("t.csv", b""),
        ("t.csv", b"a,b\n1\n"),
        ("t.csv", b"a,a\n1,2\n"),
        ("t.json", b'{"a":'),
        ("t.json", b'[{"a": 1}]'),
        ("t.jsonl", b'{"a": 1}\n{"a": "x"}\n'),
    ],
)
def test_a_broken_file_is_one_line_that_names_it(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    kind = {"t.parquet": "parquet", "t.csv": "csv"}.get(name, "json")
    with pytest.raises(TableError, match=rf"^cannot read .*{name} as {kind}: .+") as error:
        read_table(tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_parquet_file_cut_short_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", ROWS * 100)
    whole = (tmp_path / "t.parquet").read_bytes()
    for size in (4, len(whole) // 2, len(whole) - 1):
        (tmp_path / "t.parquet").write_bytes(whole[:size])
        with pytest.raises(TableError, match=r"cannot read .*t\.parquet as parquet"):
            read_table(tmp_path / "t.parquet")


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("a\nb")) == "a"
    assert first_line(ValueError()) == "ValueError"


# Folders


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_folder_is_there_only_after_the_block(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with new_folder(out) as aside:
        (aside / "a.txt").write_text("a")
        (aside / "b").mkdir()
        assert not out.exists()
    assert names(out) == ["a.txt", "b"]
    assert names(out.parent) == ["out"]
    assert out.stat().st_mode & 0o777 == 0o755


def test_a_crash_inside_leaves_nothing(tmp_path: Path) -> None:
    for error in (ValueError("no"), KeyboardInterrupt(), SystemExit(2)):
        with pytest.raises(type(error)), new_folder(str(tmp_path / "out")) as aside:  # noqa: PT012
            (aside / "a.txt").write_text("a")
            raise error
        assert names(tmp_path) == []


def test_a_folder_that_exists_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with (
        pytest.raises(TableError, match="out exists already; name another folder or remove it"),
        new_folder(tmp_path / "out"),
    ):
        pytest.fail("the block must not start")
    assert names(tmp_path) == ["out"]


def test_replace_puts_the_new_in_place_of_the_old(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.txt").write_text("old")
    with new_folder(tmp_path / "out", replace=True) as aside:
        (aside / "new.txt").write_text("new")
        assert names(tmp_path / "out") == ["old.txt"]
    assert names(tmp_path / "out") == ["new.txt"]
    assert names(tmp_path) == ["out"]
    with new_folder(tmp_path / "other", replace=True):
        pass
    assert names(tmp_path) == ["other", "out"]


def test_the_old_stays_when_the_block_fails(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.txt").write_text("old")
    with pytest.raises(ValueError, match="no"), new_folder(tmp_path / "out", replace=True) as aside:  # noqa: PT012
        (aside / "new.txt").write_text("new")
        raise ValueError("no")
    assert names(tmp_path / "out") == ["old.txt"]
    assert names(tmp_path) == ["out"]


def test_the_old_stays_when_the_new_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.txt").write_text("old")
    rename = Path.rename

    def fails_for_the_new(self: Path, target: Path) -> Path:
        if (self / "new.txt").exists():
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_for_the_new)
    with pytest.raises((TableError, OSError)), new_folder(tmp_path / "out", replace=True) as aside:
        (aside / "new.txt").write_text("new")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["old.txt"]


def test_what_another_wrote_in_the_meantime_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="out exists already"), new_folder(tmp_path / "out") as aside:  # noqa: PT012
        (aside / "mine.txt").write_text("mine")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs.txt").write_text("theirs")
    assert names(tmp_path / "out") == ["theirs.txt"]
    assert names(tmp_path) == ["out"]


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TableError, match=r"cannot write .*file/out: "), new_folder(tmp_path / "file" / "out"):
        pytest.fail("the block must not start")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(TableError, match="link"), new_folder(tmp_path / "link"):
        pass


def test_swap_puts_a_folder_where_there_is_none_and_in_place_of_another(tmp_path: Path) -> None:
    for text in ("one", "two"):
        (tmp_path / "aside").mkdir()
        (tmp_path / "aside" / "a.txt").write_text(text)
        (tmp_path / "aside" / f"{text}.txt").write_text(text)
        swap(tmp_path / "aside", tmp_path / "out")
        assert names(tmp_path) == ["out"]
        assert names(tmp_path / "out") == sorted(["a.txt", f"{text}.txt"])
        assert (tmp_path / "out" / "a.txt").read_text() == text


def test_a_folder_that_cannot_be_moved_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "aside").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    with pytest.raises(TableError, match=r"cannot replace \.: Device or resource busy; name another folder"):
        swap(tmp_path / "aside", Path())
    assert names(tmp_path) == ["aside", "in"]
    assert names(tmp_path / "in") == []


def test_swap_puts_the_old_back_when_there_is_nothing_new(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.txt").write_text("old")
    with pytest.raises(FileNotFoundError):
        swap(tmp_path / "nothing", tmp_path / "out")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["old.txt"]


def test_rows_that_a_file_says_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    for name in ("a", "b"):
        write_parquet(folder / f"{name}.parquet", ROWS)
    (tmp_path / "i.csv").write_text("id\n1\n")
    (tmp_path / "bad.parquet").write_text("no")
    assert (rows_in(folder / "a.parquet"), rows_in(folder)) == (3, 6)
    assert [rows_in(tmp_path / name) for name in ("i.csv", "bad.parquet", "none.parquet")] == [None] * 3
