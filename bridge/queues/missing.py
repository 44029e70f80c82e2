"""What is said of a queue that was to exist and does not: most likely its name is a slip of the pen."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from bridge.contract.errors import QueuebellError, QueueNotFound
from bridge.queues.base import QueueStore

LISTED_MAX = 1000
NAMED_MAX = 3
ALIKE = 0.8
"""How much of two names must be the same: one letter in five may differ."""


def near(queue: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that ``queue`` may have been meant to be, the nearest first."""
    return difflib.get_close_matches(queue, names, NAMED_MAX, ALIKE)


def missing(queue: str, names: Iterable[str]) -> QueueNotFound:
    """Return the error for a put with ``create=False`` on a queue that is not there."""
    found = near(queue, names)
    meant = f" Did you mean {' or '.join(found)}?" if found else ""
    return QueueNotFound(
        f"there is no queue {queue}, and nothing was put.{meant} Make it (queuebell queue create), or let the put make "
        "it: leave out create=False, or --existing on the command line"
    )


async def missing_from(store: QueueStore, queue: str) -> QueueNotFound:
    """Return that error with the near ones of up to 1000 names of the same account, or of all where it has none."""
    names: list[str] = []
    try:
        names = await store.queues(queue.partition("/")[0] + "/", limit=LISTED_MAX)
        names = names or await store.queues(limit=LISTED_MAX)
    except QueuebellError:
        pass  # they are a courtesy: what matters is that nothing was put
    return missing(queue, names)
