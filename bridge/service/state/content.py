"""Return what is known of a queue's messages: number, age, and why other values are unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from queuebell.bridge.contract.missing_counts import UNTOLD
from queuebell.bridge.contract.names import POISON_SUFFIX
from queuebell.bridge.core.pending_work import Counted, PendingWork
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.observe.families import QueueCounts
from queuebell.bridge.observe.slices import sliced
from queuebell.bridge.queues.base import Counts, Depth
from queuebell.bridge.service.state.answers import QueueState

NOBODY_COUNTED: Final = "no worker has counted it yet"
NOBODY_COUNTED_BURIED: Final = "no worker that dead-letters has counted its poison queue yet"
NOT_SEEN: Final = "no access to its poison queue is granted"
NOT_THIS_TIME: Final = "the store did not report it with the latest receive"


def everything(queue: str) -> bool:
    """Return True: the reader may see every queue."""
    return True


def content(
    scheduler: WakeScheduler, work: PendingWork, now: float, sees: Callable[[str], bool] = everything
) -> dict[str, Any]:
    """Return the known fields of `Content` of a queue; dead letters only if ``sees`` accepts the poison queue."""
    counted = newest_counts(work)
    known: dict[str, Any] = {}
    untold: dict[str, str] = {}
    if counted is None and _never_put(work):
        known = {"exists": False, "depth": Depth(0, 0), "leased": 0, "delayed": 0}
    elif counted is None:
        untold = dict.fromkeys(("depth", "oldest_ms", "leased", "delayed"), NOBODY_COUNTED)
    else:
        since = oldest_since(work)
        known = {
            "exists": True,
            "depth": Depth(counted.visible, counted.invisible),
            "leased": counted.leased,
            "delayed": counted.delayed,
            "oldest_ms": None if since is None else max(0, round((now - since) * 1000)),
        }
    if isinstance(counted, Counted):
        known |= {"depth_age_ms": round((now - counted.at) * 1000), "depth_at_least": counted.at_least}
        missing = {name for name in ("leased", "delayed") if known[name] is None and counted.invisible}
        if known["oldest_ms"] is None and counted.visible and not _emptied_since(work, counted):
            missing.add("oldest_ms")
        untold = dict.fromkeys(sorted(missing), NOT_THIS_TIME) | {**UNTOLD.get(work.store or scheduler.engine_kind, {})}
    dead = buried(scheduler, work)
    if dead is not None and not sees(dead.queue):
        untold["buried"] = NOT_SEEN
    elif dead is not None:
        known["buried"] = dead.messages
        known["buried_age_ms"] = None if dead.at is None else round((now - dead.at) * 1000)
        if dead.queue != work.queue + POISON_SUFFIX:
            known["buried_in"] = dead.queue
    elif not work.queue.endswith(POISON_SUFFIX):
        untold["buried"] = NOBODY_COUNTED_BURIED
    return {**known, "untold": untold}


def _never_put(work: PendingWork) -> bool:
    """Return whether all listeners use the embedded store and the queue does not exist there, so that it is empty."""
    return not work.exists and work.sessions.any_own and not work.sessions.any_foreign


def now_counted(state: QueueState, depth: Depth, counts: Counts | None, kind: str = "") -> QueueState:
    """Return the state updated with the current counts of its store, which is of this ``kind``."""
    current = counts or Counts(depth.visible, depth.invisible)
    missing = [name for name in ("leased", "delayed") if getattr(current, name) is None and depth.invisible]
    if current.oldest_ms is None and depth.visible:
        missing.append("oldest_ms")
    untold = {name: reason for name, reason in state.untold.items() if name == "buried"}
    return msgspec.structs.replace(
        state,
        exists=True,
        depth=depth,
        depth_age_ms=None,
        depth_at_least=False,
        oldest_ms=current.oldest_ms if depth.visible else None,
        leased=current.leased,
        delayed=current.delayed,
        untold=dict.fromkeys(missing, NOT_THIS_TIME) | {**UNTOLD.get(kind, {})} | untold,
    )


def newest_counts(work: PendingWork) -> PendingWork | Counted | None:
    """Return the newest counts: those of the embedded queue, or else those that a listener reported of its store."""
    external = work.last_empty_external and work.counted is not None and not work.sessions.any_own
    return work if work.exists and not external else work.counted


def oldest_since(work: PendingWork) -> float | None:
    """Return since when the oldest visible message has been visible; None if unknown."""
    counted = newest_counts(work)
    if counted is None or _emptied_since(work, counted):
        return None
    return counted.oldest_at


def _emptied_since(work: PendingWork, counted: PendingWork | Counted) -> bool:
    """Return whether an empty receive followed these counts, so that nothing counted is visible any more."""
    return isinstance(counted, Counted) and work.found_empty_at is not None and work.found_empty_at > counted.at


def held(scheduler: WakeScheduler, now: float) -> Iterator[list[QueueCounts]]:
    """Yield in slices the number of messages of each queue for which anything is known."""

    def holds(work: PendingWork) -> QueueCounts | None:
        counted, dead = newest_counts(work), buried(scheduler, work)
        if counted is None and dead is None:
            return None
        since = oldest_since(work)
        # The age is 0 only if nothing is visible; otherwise the store did not report it.
        empty = counted is not None and (not counted.visible or _emptied_since(work, counted))
        return QueueCounts(
            work.queue,
            None if counted is None else counted.visible,
            None if counted is None else counted.invisible,
            None if counted is None else counted.leased,
            None if dead is None else dead.messages,
            (0.0 if empty else None) if since is None else max(0.0, now - since),
        )

    return (list(filter(None, map(holds, part))) for part in sliced(scheduler.pending.by_queue.values()))


class DeadLetterCount(NamedTuple):
    """The number of dead letters in a poison queue, counted at ``at``; None means now."""

    queue: str
    messages: int
    at: float | None


def buried(scheduler: WakeScheduler, work: PendingWork) -> DeadLetterCount | None:
    """Return the count of a queue's dead letters; None for a poison queue, or if it is unknown.

    The newest count is used, whether reported by the queue's listeners or by those of the poison queue.
    """
    if work.queue.endswith(POISON_SUFFIX):
        return None
    reported = work.buried
    name = work.queue + POISON_SUFFIX if reported is None else reported.queue
    poison = scheduler.pending.find(name)
    counted = None if poison is None else newest_counts(poison)
    if counted is not None and (reported is None or not isinstance(counted, Counted) or counted.at >= reported.at):
        at = counted.at if isinstance(counted, Counted) else None
        return DeadLetterCount(name, counted.visible + counted.invisible, at)
    if reported is not None:
        return DeadLetterCount(name, reported.messages, reported.at)
    embedded = (work.exists and not work.last_empty_external) or _never_put(work)
    return DeadLetterCount(name, 0, None) if embedded else None
