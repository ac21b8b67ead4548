"""A file with the index of a broker's subscriptions, so that a restart need not build it again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from narrowcast.errors import NarrowcastError
from narrowcast.files import first_line
from narrowcast.matching import AutoMatcher

if TYPE_CHECKING:
    from narrowcast.broker.storage.subscription_store import SubscriptionStore
    from narrowcast.model.schema import Schema

log = logging.getLogger(__name__)


class IndexFile:
    """File that holds the index of the subscriptions of a store.

    The file may be older than the store. A subscription never changes and its id is never reused, so what is
    in both is right, and the rest is indexed again.

    Parameters
    ----------
    folder
        Folder of the file.
    store
        Store of the subscriptions; its name is part of the file name.
    """

    def __init__(self, folder: str | Path, store: SubscriptionStore) -> None:
        self._path = Path(folder) / f"index-{store.name}.bin"

    def read(self, schema: Schema | None) -> AutoMatcher | None:
        """Return the index; None when the file is missing, unreadable or of another schema.

        Parameters
        ----------
        schema
            The expected schema; None accepts any.
        """
        if not self._path.exists():
            return None
        try:
            matcher = AutoMatcher.load(self._path)
        except (NarrowcastError, OSError) as error:
            log.warning("subscriptions are indexed again, the index file is unusable: %s", first_line(error))
            return None
        return matcher if schema is None or matcher.subscriptions_.schema == schema else None

    def write(self, matcher: AutoMatcher) -> None:
        """Replace the file atomically; when writing fails, log a warning and leave the previous file."""
        try:
            temporary = self._path.with_name(f".{self._path.name}")
            matcher.save(temporary)
            temporary.replace(self._path)
        except (NarrowcastError, OSError) as error:
            log.warning("the index of subscriptions is not saved: %s", first_line(error))
