"""Loading a saved matcher of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast.errors import IndexFileError
from narrowcast.matching import stored_index
from narrowcast.matching.base import MATCHERS
from narrowcast.matching.indexed_matcher import IndexedMatcher

if TYPE_CHECKING:
    import os


def load_matcher(path: str | os.PathLike[str], *, threads: int = 1, verify: bool = True) -> IndexedMatcher:
    """Load a saved matcher of any kind; its arrays are mapped from the file, so it is ready at once.

    Parameters
    ----------
    path
        The file that a matcher's `save` wrote.
    threads
        Number of threads that share a batch of events (default: 1).
    verify
        Whether to compare checksums, which reads the whole file once (default: true). Without it a damaged
        file may go unnoticed and crash the process.

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
            f"{path}: unknown matcher {saved.header.matcher!r}; load it with the version that saved it",
            parameter="matcher",
            value=saved.header.matcher,
        )
    matcher: IndexedMatcher = kind._restored(saved, threads)
    return matcher
