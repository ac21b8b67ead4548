"""Index files: what was saved comes back, mapped from the file, or is refused with a reason."""

from __future__ import annotations

import json
import mmap
import os
import stat
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import narrowcast as nc
from narrowcast.errors import IndexFileError, ParameterError
from narrowcast.matching import MATCHERS, AutoMatcher, Bitmap, Scan, load_matcher, stored_index
from narrowcast.matching.indexed_matcher import IndexedMatcher

Make = Callable[..., IndexedMatcher]

KINDS: dict[str, Make] = {name: kind for name, kind in MATCHERS.items() if issubclass(kind, IndexedMatcher)}
MAKES: dict[str, Make] = {
    **{name: kind for name, kind in KINDS.items() if name != "bitmap"},
    "flat": lambda **given: KINDS["bitmap"](layout="flat", **given),
    "blocks": lambda **given: KINDS["bitmap"](layout="blocks", **given),
}
every = pytest.mark.parametrize("make", list(MAKES.values()), ids=list(MAKES))

SCHEMA = nc.Schema.of({"a": "bigint", "b": "double", "n": "string"})
#: Exact boxes, several of one filter, checks by pattern, by hash and between attributes, and one of none.
TEXTS = [f"a > {i}" for i in range(12)]
TEXTS += [f"a = {i} AND b > {i}.5 AND n = 'x{i}'" for i in range(20)]
TEXTS += [
    "n LIKE '%q%'",
    "a > b",
    "n = 'a name past seven bytes'",
    "a = 1 OR b < 2 OR n IS NULL",
    "FALSE",
    "TRUE",
]
ROWS = [{"a": i, "b": float(20 - i), "n": f"x{i}"} for i in range(24)]
ROWS += [{"n": "qq"}, {}, {"n": "a name past seven bytes", "b": -1.0}, {"n": "a name past seven", "a": 3}]
EVENTS = nc.EventBatch.from_rows(ROWS, SCHEMA)


def compiled(texts: list[str], first: int = 0, schema: nc.Schema = SCHEMA) -> nc.SubscriptionSet:
    ids = list(range(first, first + len(texts)))
    names = pa.array([f"sübscriber {i % 5}" for i in ids], pa.string())
    table = pa.table({"subscription_id": pa.array(ids, pa.int64()), "subscriber": names, "filter": texts})
    return nc.compile_filters(schema, table, strict=True).subscriptions


SUBSCRIPTIONS = compiled(TEXTS)


def same(matcher: IndexedMatcher, other: IndexedMatcher | Scan, events: nc.EventBatch = EVENTS) -> None:
    """Compare all answers of two matchers."""
    assert matcher.match(events) == other.match(events)
    assert matcher.count(events).tolist() == other.count(events).tolist()
    assert matcher.subscribers(events) == other.subscribers(events)
    assert matcher.bitmaps(events).tolist() == other.bitmaps(events).tolist()
    now, then = matcher.subscriptions_, other.subscriptions_
    assert now.to_arrow().equals(then.to_arrow())
    assert now.schema == then.schema


def mapped(array: NDArray[Any]) -> bool:
    """Whether an array's memory is that of a file."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)


@every
@pytest.mark.parametrize("verify", [True, False])
def test_what_was_saved_comes_back(make: Make, verify: bool, tmp_path: Path) -> None:
    path = tmp_path / "an index.ünï"
    matcher = make().fit(SUBSCRIPTIONS)
    matcher.save(path)
    for again in (type(matcher).load(path, verify=verify), load_matcher(str(path), verify=verify)):
        assert type(again) is type(matcher)
        assert {name: getattr(again, name) for name in again._params()} == {
            name: getattr(matcher, name) for name in matcher._params()
        }
        same(again, matcher)
        assert [again.match_one(row).tolist() for row in ROWS] == [m.tolist() for m in matcher.match(EVENTS)]
        assert again.stats() == matcher.stats()


@every
def test_a_loaded_matcher_takes_changes(make: Make, tmp_path: Path) -> None:
    path, more = tmp_path / "index", compiled(TEXTS[::-1], 500)
    make().fit(SUBSCRIPTIONS).save(path)
    matcher, reference = load_matcher(path), Scan().fit(SUBSCRIPTIONS)
    for _ in range(2):
        same(matcher.add(more), reference.add(more))
        same(matcher.remove([3, 501, 20]), reference.remove([3, 501, 20]))
        matcher.save(path)  # over the file that is mapped
        same(matcher, reference)
        matcher = load_matcher(path)
        same(matcher, reference)
        same(matcher.compact(), reference)
        gone = np.setdiff1d(more.subscription_id, [501])
        same(
            matcher.remove(gone).add(compiled(["a > 4"], 3)),
            reference.remove(gone).add(compiled(["a > 4"], 3)),
        )
        same(
            matcher.remove([3]).add(compiled(TEXTS[3:4], 3)),
            reference.remove([3]).add(compiled(TEXTS[3:4], 3)),
        )
        same(matcher.add(compiled(TEXTS[20:21], 20)), reference.add(compiled(TEXTS[20:21], 20)))


@every
def test_nothing_is_copied_from_the_file(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "index"
    make().fit(SUBSCRIPTIONS).save(path)
    now = load_matcher(path)._snapshot
    (segment,), (subscriptions,) = now.segments, now.sets
    arrays = {
        **segment.index.arrays(),
        "cuts": segment.ranks.all_cuts,
        "id": subscriptions.subscription_id,
        "subscriber": subscriptions.subscriber,
        **{name: getattr(subscriptions.boxes, name) for name in ("owner", "indptr", "lo", "hi", "exact")},
    }
    # single numbers and names are read, and an array without entries has nothing to map
    small = ("kind", "shape")
    copied = [name for name, a in arrays.items() if a.size > 1 and not mapped(a)]
    assert [name for name in copied if not name.endswith(small)] == []


@every
def test_wide_codes_and_many_boxes(make: Make, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    schema = nc.Schema.of({"u": "double", "v": "double"})
    lo = rng.random((40_000, 2))
    subscriptions = nc.SubscriptionSet.from_boxes(schema, ["s"] * len(lo), lo, lo + 0.01)
    matcher = make().fit(subscriptions)
    assert matcher.stats()["indexes"][0]["code_bits"] == 32
    matcher.save(tmp_path / "index")
    points = rng.random((300, 2))
    events = nc.EventBatch.from_arrow(pa.table({"u": points[:, 0], "v": points[:, 1]}))
    assert load_matcher(tmp_path / "index", threads=2).match(events) == matcher.match(events)


@every
def test_an_empty_set_comes_back(make: Make, tmp_path: Path) -> None:
    make().fit(compiled([])).save(tmp_path / "index")
    same(load_matcher(tmp_path / "index").add(SUBSCRIPTIONS), Scan().fit(SUBSCRIPTIONS))


@pytest.mark.parametrize(
    "kind",
    [
        pa.time64("us"),
        pa.duration("s"),
        pa.large_binary(),
        pa.binary(3),
        pa.decimal256(50, 2),
        pa.list_(pa.int64()),
        pa.struct([("x", pa.int64())]),
        pa.decimal128(38, 10),
        pa.null(),
        pa.timestamp("ns", "UTC"),
    ],
    ids=str,
)
def test_a_schema_of_any_type_comes_back(kind: pa.DataType, tmp_path: Path) -> None:
    schema = nc.Schema.from_arrow(pa.schema([("t", kind), ("a", pa.int64())]))
    matcher = AutoMatcher().fit(compiled(["a > 1 AND t IS NOT NULL", "t IS NULL"], schema=schema))
    matcher.save(tmp_path / "index")
    again = load_matcher(tmp_path / "index")
    events = nc.EventBatch.from_rows([{"a": 5}, {}], schema)
    same(again, matcher, events)


def test_threads_are_the_readers_choice(tmp_path: Path) -> None:
    AutoMatcher(threads=3).fit(SUBSCRIPTIONS).save(tmp_path / "index")
    assert AutoMatcher.load(tmp_path / "index").threads == 1
    assert AutoMatcher.load(tmp_path / "index", threads=2).threads == 2
    for load in (AutoMatcher.load, load_matcher):
        with pytest.raises(ParameterError, match="threads is 0; give a whole number from 1 to 1024"):
            load(tmp_path / "index", threads=0)


def test_the_checksums_are_compared_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AutoMatcher().fit(SUBSCRIPTIONS).save(tmp_path / "index")
    right = zlib.crc32
    # that of the header, which is JSON, is always compared
    monkeypatch.setattr(zlib, "crc32", lambda raw: right(raw) if bytes(raw[:1]) == b"{" else 0)
    with pytest.raises(IndexFileError, match=r"is damaged or cut short: .*checksum"):
        AutoMatcher.load(tmp_path / "index")
    same(AutoMatcher.load(tmp_path / "index", verify=False), Scan().fit(SUBSCRIPTIONS))


def test_a_file_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = stored_index.FORMAT
    with monkeypatch.context() as patch:
        patch.setattr(stored_index, "FORMAT", now + 1)
        AutoMatcher().fit(SUBSCRIPTIONS).save(tmp_path / "index")
    for load in (AutoMatcher.load, load_matcher):
        with pytest.raises(
            IndexFileError, match=f"has format {now + 1}, this narrowcast reads {now}; fit and"
        ):
            load(tmp_path / "index")


def test_a_file_of_another_matcher_is_refused(tmp_path: Path) -> None:
    AutoMatcher().fit(SUBSCRIPTIONS).save(tmp_path / "index")
    with pytest.raises(IndexFileError, match="holds a 'auto' matcher, not 'bitmap'; use load_matcher"):
        Bitmap.load(tmp_path / "index")


def test_what_is_no_index_file_is_refused(tmp_path: Path) -> None:
    table = pa.table({"a": [1]})
    with pa.ipc.new_file(tmp_path / "other", table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(b"ARROW1")
    (tmp_path / "text").write_text("a,b\n1,2\n" * 100)
    (tmp_path / "zeros").write_bytes(bytes(5000))
    (tmp_path / "folder").mkdir()
    (tmp_path / "astray").symlink_to(tmp_path / "nowhere")
    for name in ("other", "empty", "short", "text", "zeros", "folder", "astray", "missing", "missing/index"):
        for load in (AutoMatcher.load, load_matcher):
            for verify in (True, False):
                with pytest.raises(IndexFileError, match=name):
                    load(tmp_path / name, verify=verify)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    AutoMatcher().fit(SUBSCRIPTIONS).save(path)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user reads everything")
    with pytest.raises(IndexFileError, match="Permission denied"):
        load_matcher(path)


CHILD = """
    import json, pathlib, sys
    sys.path.insert(0, {folder!r})
    from {module} import EVENTS, SUBSCRIPTIONS, Scan, load_matcher
    from narrowcast.errors import IndexFileError

    path, want = pathlib.Path({path!r}), Scan().fit(SUBSCRIPTIONS)
    matches, whole, table = want.match(EVENTS), path.read_bytes(), SUBSCRIPTIONS.to_arrow()
    damaged = path.with_name("damaged")
    for at, flip in json.loads(sys.stdin.read()):
        print(at, flip, end=" ", flush=True)  # the last line tells what crashed
        raw = bytearray(whole)
        if flip:
            raw[at] ^= flip
        else:
            del raw[at:]
        damaged.write_bytes(raw)
        try:
            found = load_matcher(damaged)
        except IndexFileError as error:
            print("refused" if "\\n" not in str(error) else "refused in several lines")
            continue
        except BaseException as error:
            print("raises", type(error).__name__, str(error)[:80].replace("\\n", " "))
            continue
        try:
            right = found.match(EVENTS) == matches and found.subscriptions_.to_arrow().equals(table)
            print("the same" if right else "WRONG")
        except BaseException as error:
            print("then raises", type(error).__name__, str(error)[:80].replace("\\n", " "))
    print("done")
"""


@pytest.mark.slow
@every
def test_damage_is_refused_or_changes_nothing(make: Make, tmp_path: Path) -> None:
    """A byte that flips, or an end that is missing, in a process of its own that may not crash."""
    path = tmp_path / "index"
    make().fit(SUBSCRIPTIONS).save(path)
    size = path.stat().st_size
    rng = np.random.default_rng(0)
    places = [
        (int(at), int(flip))
        for at, flip in zip(rng.integers(0, size, 500), 2 ** rng.integers(0, 8, 500), strict=True)
    ]
    places += [(int(at), 255) for at in rng.integers(0, size, 200)]
    places += [(int(at), 0) for at in (0, 1, 7, 8, size - 1, size - 8, size - 64, *rng.integers(0, size, 60))]
    script = CHILD.format(folder=str(Path(__file__).parent), module=Path(__file__).stem, path=str(path))
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        input=json.dumps(places),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = child.stdout.splitlines()
    wrong = [line for line in lines[:-1] if not line.endswith(("refused", "the same"))]
    assert wrong == []
    assert (child.returncode, lines[-1]) == (0, "done"), child.stderr[-500:]
    assert sum(line.endswith("refused") for line in lines) > len(places) / 2


@pytest.mark.parametrize("where", ["missing/index", "file/index", "folder", "locked/index", "x" * 300])
def test_what_cannot_be_written_leaves_nothing_behind(where: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").touch()
    (tmp_path / "locked").mkdir(mode=0o500)
    if where.startswith("locked") and os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("this user writes everywhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(IndexFileError, match=f"cannot write .*{where[:50]}"):
        AutoMatcher().fit(SUBSCRIPTIONS).save(tmp_path / where)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()]
)
def test_a_failure_halfway_keeps_the_old_file(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "index"
    AutoMatcher().fit(SUBSCRIPTIONS).save(path)
    old = path.read_bytes()

    def fail(*_: object) -> Any:
        raise error

    monkeypatch.setattr(Path, "replace", fail)
    expected = IndexFileError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        AutoMatcher().fit(compiled(TEXTS[:3])).save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["index"]
    assert path.read_bytes() == old


@every
def test_a_file_is_replaced_under_its_readers(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "index"
    make().fit(SUBSCRIPTIONS).save(path)
    reader = load_matcher(path)
    make().fit(compiled(TEXTS[:5])).save(path)
    same(reader, Scan().fit(SUBSCRIPTIONS))
    same(load_matcher(path), Scan().fit(compiled(TEXTS[:5])))
    path.unlink()
    same(reader, Scan().fit(SUBSCRIPTIONS))


def test_a_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        AutoMatcher().fit(SUBSCRIPTIONS).save(tmp_path / "index")
        assert stat.S_IMODE((tmp_path / "index").stat().st_mode) == 0o640
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(old)


def test_a_symbolic_link_to_a_file_is_read(tmp_path: Path) -> None:
    AutoMatcher().fit(SUBSCRIPTIONS).save(tmp_path / "index")
    (tmp_path / "link").symlink_to("index")
    same(load_matcher(tmp_path / "link"), Scan().fit(SUBSCRIPTIONS))
