"""What is known of a queue's messages: how many, since when, who counted them, and why nothing more is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from bridge.contract.names import POISON_SUFFIX
from bridge.contract.untold import UNTOLD
from bridge.core.pending_work import Counted, PendingWork
from bridge.core.wake_scheduler import WakeScheduler
from bridge.observe.count_families import Held
from bridge.observe.slices import sliced
from bridge.queues.base import Counts, Depth
from bridge.service.state.answers import QueueState

NOBODY_COUNTED: Final = "no listener has counted it yet"
NOBODY_COUNTED_BURIED: Final = "no listener that buries has counted its poison queue yet"
NOT_SEEN: Final = "nothing is granted on its poison queue"
NOT_THIS_TIME: Final = "the store did not tell it beside the newest look"


def everything(queue: str) -> bool:
    """Say that a reader sees this queue, whichever it is."""
    return True


def content(
    scheduler: WakeScheduler, work: PendingWork, now: float, sees: Callable[[str], bool] = everything
) -> dict[str, Any]:
    """Return what is known of a queue's messages, as the fields of `Content`, to a reader who ``sees`` these queues."""
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
        if known["oldest_ms"] is None and counted.visible and not _covered_since(work, counted):
            missing.add("oldest_ms")
        untold = dict.fromkeys(sorted(missing), NOT_THIS_TIME) | {**UNTOLD.get(work.store or scheduler.engine_kind, {})}
    graves = buried(scheduler, work)
    if graves is not None and not sees(graves.queue):
        untold["buried"] = NOT_SEEN
    elif graves is not None:
        known["buried"] = graves.messages
        known["buried_age_ms"] = None if graves.at is None else round((now - graves.at) * 1000)
    elif not work.queue.endswith(POISON_SUFFIX):
        untold["buried"] = NOBODY_COUNTED_BURIED
    return {**known, "untold": untold}


def _never_put(work: PendingWork) -> bool:
    """Say whether a queue is the embedded store's, by its listeners, and does not exist there: it holds nothing."""
    return not work.exists and work.sessions.any_own and not work.sessions.any_foreign


def now_counted(state: QueueState, depth: Depth, counts: Counts | None, kind: str = "") -> QueueState:
    """Return the state with what its store, of this kind, tells just now."""
    told = counts or Counts(depth.visible, depth.invisible)
    missing = [name for name in ("leased", "delayed") if getattr(told, name) is None and depth.invisible]
    if told.oldest_ms is None and depth.visible:
        missing.append("oldest_ms")
    untold = {name: words for name, words in state.untold.items() if name == "buried"}
    return msgspec.structs.replace(
        state,
        exists=True,
        depth=depth,
        depth_age_ms=None,
        depth_at_least=False,
        oldest_ms=told.oldest_ms if depth.visible else None,
        leased=told.leased,
        delayed=told.delayed,
        untold=dict.fromkeys(missing, NOT_THIS_TIME) | {**UNTOLD.get(kind, {})} | untold,
    )


def newest_counts(work: PendingWork) -> PendingWork | Counted | None:
    """Return who knows how many messages there are: the queue service of its own, else what was told of the store."""
    elsewhere = work.read_elsewhere and work.counted is not None and not work.sessions.any_own
    return work if work.exists and not elsewhere else work.counted


def oldest_since(work: PendingWork) -> float | None:
    """Return since when the message that has been visible longest is so, as far as anybody knows."""
    counted = newest_counts(work)
    if counted is None or _covered_since(work, counted):
        return None
    return counted.oldest_at


def _covered_since(work: PendingWork, counted: PendingWork | Counted) -> bool:
    """Say whether a look has found nothing since these were counted: whatever was visible then is not any more."""
    return isinstance(counted, Counted) and work.covered_at is not None and work.covered_at > counted.at


def held(scheduler: WakeScheduler, now: float) -> Iterator[list[Held]]:
    """Return slice by slice, of each queue that anything is known of, how many messages it holds."""

    def holds(work: PendingWork) -> Held | None:
        counted, graves = newest_counts(work), buried(scheduler, work)
        if counted is None and graves is None:
            return None
        since = oldest_since(work)
        # Where nothing is visible nothing waits; otherwise the store has only not told, and that is no 0.
        empty = counted is not None and (not counted.visible or _covered_since(work, counted))
        return Held(
            work.queue,
            None if counted is None else counted.visible,
            None if counted is None else counted.invisible,
            None if counted is None else counted.leased,
            None if graves is None else graves.messages,
            (0.0 if empty else None) if since is None else max(0.0, now - since),
        )

    return (list(filter(None, map(holds, part))) for part in sliced(scheduler.ledger.by_queue.values()))


class DeadLetterCount(NamedTuple):
    """How many messages lie in a poison queue; ``at`` is when they were counted, None for now."""

    queue: str
    messages: int
    at: float | None


def buried(scheduler: WakeScheduler, work: PendingWork) -> DeadLetterCount | None:
    """Return what is known of a queue's poison queue; None for a poison queue, and where nobody has told.

    The newest count is good, whether it was told of the queue or of the poison queue itself, which may have listeners.
    """
    if work.queue.endswith(POISON_SUFFIX):
        return None
    told = work.buried
    name = work.queue + POISON_SUFFIX if told is None else told.queue
    poison = scheduler.ledger.find(name)
    counted = None if poison is None else newest_counts(poison)
    if counted is not None and (told is None or not isinstance(counted, Counted) or counted.at >= told.at):
        at = counted.at if isinstance(counted, Counted) else None
        return DeadLetterCount(name, counted.visible + counted.invisible, at)
    if told is not None:
        return DeadLetterCount(name, told.messages, told.at)
    embedded = (work.exists and not work.read_elsewhere) or _never_put(work)
    return DeadLetterCount(name, 0, None) if embedded else None
