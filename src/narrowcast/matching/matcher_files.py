"""A matcher from its file, whichever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast.errors import IndexFileError
from narrowcast.matching import stored_index
from narrowcast.matching.base import MATCHERS
from narrowcast.matching.indexed_matcher import IndexedMatcher

if TYPE_CHECKING:
    import os


def load_matcher(path: str | os.PathLike[str], *, threads: int = 1, verify: bool = True) -> IndexedMatcher:
    """Return the matcher that was saved to a file, its arrays mapped from there and ready at once.

    Parameters
    ----------
    path
        The file that a matcher's `save` wrote.
    threads
        How many threads share a batch of events.
    verify
        Whether to compare checksums, which reads the whole file once. Without it a damaged file may go
        unnoticed, and crash the process.

    Examples
    --------
    >>> import tempfile, pathlib, pyarrow as pa, narrowcast as nc
    >>> events = nc.EventBatch.from_arrow(pa.table({"price": [80.0, 75.0]}))
    >>> matcher = nc.AutoMatcher().fit(nc.compile_filters(events.schema, ["price > 75"]).subscriptions)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     matcher.save(pathlib.Path(folder) / "prices.index")
    ...     load_matcher(pathlib.Path(folder) / "prices.index").count(events).tolist()
    [1, 0]
    """
    saved = stored_index.read(path, verify=verify)
    kind = MATCHERS.get(saved.header.matcher)
    if kind is None or not issubclass(kind, IndexedMatcher):
        raise IndexFileError(
            f"{path} holds a {saved.header.matcher!r} matcher, which this narrowcast has not"
        )
    matcher: IndexedMatcher = kind._restored(saved, threads)
    return matcher
