"""What is kept of compiled kernels: processes share it, whichever of them writes first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def twice(number: Any) -> Any:
    return number + number


def test_two_processes_never_write_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have read the index before either changes it, and one writes within what the other writes."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    mine: Any = kernel(twice)
    theirs: Any = kernel(twice)
    my_files, their_files = mine._cache._cache_file, theirs._cache._cache_file
    monkeypatch.setattr(my_files, "_load_index", dict)
    write = their_files._save_data

    def late(name: str, data: object) -> None:
        assert mine(1) == 2
        write(name, data)

    monkeypatch.setattr(their_files, "_save_data", late)
    assert theirs(1.5) == 3.0
    assert len(list(tmp_path.rglob("*.nbc"))) == 2

    later: Any = kernel(twice)
    assert repr(later(1)) == "2"
    assert sum(later.stats.cache_hits.values()) == 1
    assert later(1.5) == 3.0  # what it was is lost, and compiled again
    assert sum(later.stats.cache_misses.values()) == 1
    assert len(list(tmp_path.rglob("*.nbc"))) == 3
