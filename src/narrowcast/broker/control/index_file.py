"""The index of a broker's subscriptions in a file, so that one that starts again has it at once."""

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
    """Where the index of the subscriptions of a store is kept.

    It may be older than the store: a subscription never changes, and its id is never another's, so that what
    is in both is right, and the rest is indexed anew.

    Parameters
    ----------
    folder
        Where.
    store
        The subscriptions.
    """

    def __init__(self, folder: str | Path, store: SubscriptionStore) -> None:
        self._path = Path(folder) / f"index-{store.name}.bin"

    def read(self, schema: Schema | None) -> AutoMatcher | None:
        """Return the index, if it is there and of a schema; of any where there is none."""
        if not self._path.exists():
            return None
        try:
            found = AutoMatcher.load(self._path)
        except (NarrowcastError, OSError) as error:
            log.warning("subscriptions are indexed anew: %s", first_line(error))
            return None
        return found if schema is None or found.subscriptions_.schema == schema else None

    def write(self, matcher: AutoMatcher) -> None:
        """Write the index aside, and then put it in place; where that fails the one before stays."""
        try:
            aside = self._path.with_name(f".{self._path.name}")
            matcher.save(aside)
            aside.replace(self._path)
        except (NarrowcastError, OSError) as error:
            log.warning("the index of subscriptions is not kept: %s", first_line(error))
