"""Build the HTTP answers on the bridge's state: queues, listeners, cluster, findings, readiness."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final

import msgspec
from msgspec import UNSET

from queuebell.bridge.contract.jobs import Jobs, add
from queuebell.bridge.contract.names import POISON_SUFFIX
from queuebell.bridge.contract.wire import LISTENER, SCALER, UNSEEN, Processes
from queuebell.bridge.core.cluster.coordinator import Coordinator
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.sessions import Rejection, Session, SessionQueue
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.observe.families import QueueWorkers
from queuebell.bridge.observe.slices import Slices, sliced
from queuebell.bridge.service.state.answers import (
    Check,
    Cluster,
    ClusterMember,
    Deferred,
    Findings,
    ListenerState,
    QueueState,
    Readiness,
    Receives,
    RefusedMember,
    Rejected,
    RuleNumbers,
    Subscribed,
    Troubled,
    Unattended,
)
from queuebell.bridge.service.state.content import buried, content, everything

Checks = dict[str, tuple[Callable[[], tuple[bool, str]], bool]]
"""By name: a function that returns whether it passes and a detail, and whether readiness requires it."""

ROWS_MAX: Final = 1000
"""Findings of one kind in one answer."""


def unattended(scheduler: WakeScheduler, work: PendingWork) -> str | None:
    """Describe work that waits without a session to receive it (B14); None if there is none.

    A session at another cluster member counts. Bridges that only share a store do not know each other's sessions, and
    the text says so. Paused queues and embedded queues without visible messages are never unattended. A queue that is
    only to be checked after a gap is described as such (`after_gap`). `waits_for_a_person` reports dead letters.
    """
    if stranded(work):
        count = "1 message waits" if work.visible == 1 else f"{work.visible} messages wait"
        return f"{count} in this bridge's store, but the workers of this queue use a different store"
    # Delayed and leased messages count only once they are visible.
    waiting = work.visible if work.exists else 0
    known_empty = work.exists and not waiting and not work.last_empty_external
    if len(work.sessions) or work.paused or known_empty or not (work.dirty or waiting) or _holds_dead_letters(work):
        return None
    where, ends = "no worker is connected", ""
    if scheduler.coordinator is not None:
        if any(work.queue in peer.abilities for peer in scheduler.coordinator.members.peers.values()):
            return None
        where += " to any reachable bridge of the cluster"
    elif scheduler.on_engine:
        where += " to this bridge"
        ends += ", here or at another bridge of this store"
    if after_gap(work):
        return f"triggers may have been missed; {where}"
    announced = "announced work is" if work.work_reported else "its last worker left before it received; work may be"
    what = announced if not waiting else "1 message is" if waiting == 1 else f"{waiting} messages are"
    return f"{where}; {what} waiting for one{ends}"


def waits_for_a_person(scheduler: WakeScheduler, work: PendingWork, now: float) -> str | None:
    """Describe the dead letters in this poison queue; None if there are none.

    A poison queue normally has no listener: an operator has to inspect it.
    """
    if not _holds_dead_letters(work):
        return None
    depth = content(scheduler, work, now).get("depth")
    # The queue's listeners count its poison queue, which has no listener.
    above = scheduler.pending.find(work.queue.removesuffix(POISON_SUFFIX))
    counted = None if above is None else buried(scheduler, above)
    if depth is not None:
        count = depth.visible + depth.invisible
    elif counted is not None and counted.queue == work.queue and counted.messages:
        count = counted.messages
    else:
        known_of = work.dirty and not after_gap(work)
        return "messages are dead-lettered in an external store; their number is unknown" if known_of else None
    return f"{count} {'message is' if count == 1 else 'messages are'} dead-lettered" if count else None


def _holds_dead_letters(work: PendingWork) -> bool:
    return work.queue.endswith(POISON_SUFFIX) and not len(work.sessions)


def after_gap(work: PendingWork) -> bool:
    """Return whether a queue is pending only because triggers may have been lost: no work is known."""
    return work.dirty and work.after_gap and not (work.exists and work.visible)


def stranded(work: PendingWork) -> bool:
    """Return whether the queue service has visible messages while all listeners of the queue use another store.

    A listener's store is known after its first receive.
    """
    external = work.last_empty_external and work.sessions.any_foreign and not work.sessions.any_own
    return external and work.exists and not work.paused and work.visible > 0


def failing(scheduler: WakeScheduler) -> int:
    """Count the queues of sessions that report failing receives."""
    return sum(entry.failing_since is not None for each in scheduler.sessions.named() for entry in each.queues.values())


def queues(scheduler: WakeScheduler, now: float, attended: Container[str]) -> Iterator[list[QueueWorkers]]:
    """Yield the status of each queue in slices; those ``attended`` by a webhook are not unattended."""
    rejected = scheduler.rejections.by_queue(now)

    def status_of(work: PendingWork) -> QueueWorkers:
        since = [entry.failing_since for entry in work.sessions if entry.failing_since is not None]
        return QueueWorkers(
            work.queue,
            len(work.sessions),
            stranded(work)
            or (work.queue not in attended and unattended(scheduler, work) is not None and not after_gap(work)),
            max(0.0, now - min(since)) if since else 0.0,
            len(rejected.get(work.queue, ())),
        )

    return ([status_of(work) for work in part] for part in sliced(scheduler.pending.by_queue.values()))


def scaled(scheduler: WakeScheduler) -> Iterator[tuple[str, Processes]]:
    """Yield, for each queue of each scaler, the workers that it reported."""
    for session in scheduler.sessions.named():
        for entry in session.queues.values():
            if entry.scaler and entry.processes is not None:
                yield entry.queue, entry.processes


HELD: Final = {
    "starting": "no more until those are ready",
    "maximum": "the maximum is reached",
    "backoff": "no start for another {pause:.0f} s, because of a failure",
    "uncounted": "the store cannot be counted, so no idle worker is stopped",
    "elsewhere": "workers on other machines are enough",
    "stopping": "none: it is stopping",
}


def workers(processes: Processes) -> str:
    """Describe the workers of a scaler, and why it starts no more."""
    noun = "worker" if processes.wanted == 1 else "workers"
    text = f"{processes.wanted} {noun} wanted, {processes.ready} ready, {processes.starting} starting"
    if ending := processes.running - processes.ready - processes.starting:
        text += f", {max(0, ending)} ending"
    held = processes.held
    reason = "" if held is None else HELD.get(held, held).format(pause=processes.pause_ms / 1000)
    return "; ".join(filter(None, (text, reason, _failed(processes))))


def _failed(processes: Processes) -> str:
    what = "the count failed" if processes.held == "uncounted" else "the last worker failed"
    failed = processes.failure or ""
    return f"{what}: {failed}" if failed and not failed.startswith(UNSEEN) else failed


def failing_s(entry: SessionQueue, now: float) -> float | None:
    """Return the time for which a session's receives have failed at a queue; None if the last succeeded."""
    return None if entry.failing_since is None else round(max(0.0, now - entry.failing_since), 3)


def describe(
    scheduler: WakeScheduler, queue: str, now: float, sees: Callable[[str], bool] = everything
) -> QueueState | None:
    """Return the state of one queue, or None if it was never put to, triggered or subscribed.

    The result contains dead letters only if ``sees`` accepts the poison queue.
    """
    work = scheduler.pending.find(queue)
    if work is None:
        return None
    return QueueState(
        queue=queue,
        **content(scheduler, work, now, sees),
        paused=work.paused,
        gen=work.gen,
        dirty=work.dirty,
        sessions=len(work.sessions),
        unattended=unattended(scheduler, work),
        wakes=dict(work.wakes),
        receives=Receives(work.receives, work.empty),
        wake_sources=dict(work.wake_sources),
        triggers=work.triggers,
        jobs=jobs(work),
        unannounced=work.unannounced,
    )


def jobs(work: PendingWork) -> dict[str, Jobs]:
    """Return the outcomes of a queue's messages by handler, with the calls in flight."""
    sums = dict(work.jobs or {})
    for entry in work.sessions:
        for handler, count in (entry.in_flight or {}).items():
            add(sums, handler, Jobs(in_flight=count))
    return sums


def in_flight(scheduler: WakeScheduler) -> Iterator[tuple[str, str, int]]:
    """Yield the number of calls in flight of each queue and handler, as each session reported."""
    for session in scheduler.sessions.named():
        for entry in session.queues.values():
            for handler, count in (entry.in_flight or {}).items():
                yield entry.queue, handler, count


def cluster(scheduler: WakeScheduler, coordinator: Coordinator | None, now: float) -> Cluster:
    """Return the cluster as this bridge sees it; without a coordinator it has no name."""
    if coordinator is None:
        return Cluster()
    attended = {queue for session in scheduler.sessions.named() for queue in session.queues}
    members = [
        ClusterMember(
            boot=scheduler.boot,
            address=coordinator.about.address,
            version=coordinator.about.version,
            me=True,
            leaving=coordinator.members.leaving,
            silent_ms=0,
            queues=len(attended),
            able=sum(scheduler.pending.by_queue[queue].sessions.any_ready for queue in attended),
        )
    ]
    members += [
        ClusterMember(
            boot=peer.boot,
            address=peer.member.address,
            version=peer.member.version,
            me=False,
            leaving=peer.member.leaving,
            silent_ms=round((coordinator.at(now) - peer.heard_at) * 1000),
            queues=len(peer.abilities),
            able=sum(ability.room for ability in peer.abilities.values()),
        )
        for peer in coordinator.members.peers.values()
    ]
    waiting = [
        Deferred(queue, max(0, round((at - now) * 1000)))
        for queue in coordinator.deferred
        if (at := coordinator.acts_at(queue)) is not None
    ]
    return Cluster(
        name=coordinator.name,
        alone=coordinator.members.alone(coordinator.at(now)),
        members=members,
        refused=[RefusedMember(each.boot, each.address, each.why) for each in coordinator.members.refused.values()],
        went=coordinator.members.flapping(coordinator.at(now)),
        deferred=waiting[:ROWS_MAX],
        left_out=max(0, len(waiting) - ROWS_MAX),
    )


def listeners(scheduler: WakeScheduler, now: float) -> list[ListenerState]:
    """Return the sessions that sent a hello, oldest first."""
    return [listener(scheduler, session, now) for session in scheduler.sessions.named()]


def listener(scheduler: WakeScheduler, session: Session, now: float) -> ListenerState:
    """Return the state of one session."""
    return ListenerState(
        listener=session.listener,
        instance=session.instance or "",
        channel=session.kind,
        kind=SCALER if session.scaler else LISTENER,
        connected_s=round(now - session.opened_at, 3),
        silent_s=round(now - session.last_heard, 3),
        queues=[
            Subscribed(
                queue=entry.queue,
                capacity=entry.capacity,
                free=entry.free,
                has_room=entry.has_room,
                owns=scheduler.pending.by_queue[entry.queue].owner == session.id,
                failing_s=failing_s(entry, now),
                hung=entry.hung,
                processes=entry.processes if entry.scaler else UNSET,
            )
            for entry in session.queues.values()
        ],
    )


def findings(
    scheduler: WakeScheduler, now: float, *, stalled: Container[int], notices_suspend: bool
) -> Slices[Findings]:
    """Collect the findings that an operator should know; changes nothing.

    Queues that are only pending after a gap come last; those beyond 1000 are not counted.
    """
    without_worker: list[Unattended] = []
    only_after_gap: list[Unattended] = []
    dead: list[Unattended] = []
    left_out = 0
    for part in sliced(scheduler.pending.by_queue.values()):
        for work in part:
            waiting = waits_for_a_person(scheduler, work, now)
            detail = waiting or unattended(scheduler, work)
            if detail is None:
                continue
            rows = dead if waiting else only_after_gap if after_gap(work) else without_worker
            if len(rows) >= ROWS_MAX:
                left_out += rows is not only_after_gap
                continue
            rows.append(
                Unattended(
                    queue=work.queue,
                    exists=work.exists,
                    visible=work.visible,
                    invisible=work.invisible,
                    dirty=work.dirty,
                    stranded=stranded(work),
                    after_gap=rows is only_after_gap,
                    detail=detail,
                )
            )
        yield
    troubled: list[Troubled] = []
    for sessions in sliced(scheduler.sessions.named()):
        troubled += _troubled(scheduler, now, stalled, sessions)
        yield
    return Findings(
        unattended=[*without_worker, *only_after_gap][:ROWS_MAX],
        buried=dead,
        sessions=troubled[:ROWS_MAX],
        rejected=[rejected(each, now) for each in scheduler.rejections.recent(now)],
        audit_found=scheduler.embedded.audit_found,
        notices_suspend=notices_suspend,
        crowded=crowded(scheduler),
        left_out=left_out + max(0, len(troubled) - ROWS_MAX),
        numbers=[
            RuleNumbers(match=match, **msgspec.structs.asdict(numbers))
            for match, numbers in scheduler.dispatch.tuning.each()
        ],
    )


def rejected(each: Rejection, now: float) -> Rejected:
    """Return the answer's form of a rejection."""
    return Rejected(
        queue=each.queue,
        listener=each.listener,
        code=each.code,
        detail=each.describe(now),
        count=each.count,
        first_ms=round(1000 * (now - each.first_at)),
        last_ms=round(1000 * (now - each.last_at)),
    )


def webhook_queues(webhooks: Iterable[ListenerState]) -> set[str]:
    """Return the queues whose webhook endpoint is reachable."""
    return {each.queue for row in webhooks if row.state == "ok" for each in row.queues}


def with_webhooks(found: Findings, subscribers: Iterable[ListenerState]) -> Findings:
    """Add webhooks to the findings.

    A queue with a working webhook is not unattended. One whose endpoint fails is in trouble: ``unreached``, or
    ``disabled`` after a 410.
    """
    hooks = [(row, each.queue) for row in subscribers if row.channel == "webhook" for each in row.queues]
    attended = webhook_queues(row for row, _ in hooks)
    troubled = [
        Troubled(
            listener=row.listener,
            channel="webhook",
            queue=queue,
            state="disabled" if row.state == "disabled" else "unreached",
            detail=f"its webhook did not receive the wake: {row.detail}",
        )
        for row, queue in hooks
        if row.state != "ok"
    ]
    return msgspec.structs.replace(
        found,
        unattended=[row for row in found.unattended if row.stranded or row.queue not in attended],
        sessions=[*found.sessions, *troubled][:ROWS_MAX],
    )


def _troubled(
    scheduler: WakeScheduler, now: float, stalled: Container[int], sessions: Iterable[Session]
) -> list[Troubled]:
    rows: list[Troubled] = []
    for session in sessions:

        def trouble(state: str, detail: str, queue: str | None = None, session: Session = session) -> None:
            rows.append(
                Troubled(
                    listener=session.listener,
                    instance=session.instance,
                    channel=session.kind,
                    queue=queue,
                    state=state,
                    detail=detail,
                )
            )

        silent = now - session.last_heard
        if silent > 2 * max(session.beat_s, scheduler.sessions.heartbeat_s):
            trouble("silent", f"has missed a heartbeat: silent for {silent:.0f} s")
        if session.id in stalled:
            trouble("behind", "its connection accepts no data right now")
        for entry in session.queues.values():
            state = "stuck" if entry.stuck else "deaf" if entry.unresponsive else None
            if state is not None:
                trouble(state, _DETAILS[state], entry.queue)
            if entry.hung:
                trouble("hung", hangs(entry), entry.queue)
            if entry.starved is not None:
                trouble("starved", entry.starved.describe(), entry.queue)
            since = failing_s(entry, now)
            if since is not None:
                trouble("failing", f"its receives have failed for {since:.0f} s", entry.queue)
            elif entry.scaler and entry.processes is not None and (failed := _failed(entry.processes)):
                trouble("workers", f"its workers fail to start, or exit unexpectedly: {failed}", entry.queue)
    return rows


_DETAILS: Final = {
    "stuck": "reported a start but made no progress since",
    "deaf": "did not accept the messages sent to it",
}


def hangs(entry: SessionQueue) -> str:
    """Describe how many slots of a worker its hung handlers hold."""
    return (
        f"{entry.hung} of its {max(entry.hung, entry.capacity)} handler slots are held by calls that ran past "
        "handler_timeout and do not return"
    )


def crowded(scheduler: WakeScheduler) -> str | None:
    """Report that there were more queue names than the bridge keeps; None if all fitted."""
    pending = scheduler.pending
    if not pending.evicted_with_work:
        return None
    return (
        f"{pending.evicted_with_work} times since the start the name of a queue with announced work and no worker was "
        f"dropped: the bridge keeps at most {pending.limit} names; a worker that connects to such a queue receives once"
    )


def readiness(
    failure: str | None,
    draining: bool,
    others: Checks,
    refusing: str | None = None,
    crowded: str | None = None,
    *,
    keeps: bool = True,
) -> Readiness:
    """Return whether everything required works, and each check by name.

    ``refusing`` reports that puts are rejected, ``crowded`` that not all queue names are kept; neither affects
    readiness. ``keeps`` is False if the queue API serves no queues.
    """
    works = "writable" if keeps else "none: this bridge serves queues in external stores only"
    intake = "the bridge is stopping" if draining else "triggers are accepted"
    checks = {
        "store": Check(failure is None, failure or works),
        "intake": Check(not draining, intake if refusing is None else f"{intake}; {refusing}"),
    }
    if crowded is not None:
        checks["queues"] = Check(True, crowded)
    ready = failure is None and not draining
    for name, (check, required) in others.items():
        ok, detail = check()
        checks[name] = Check(ok, detail if required else f"{detail} (not required)")
        ready = ready and (ok or not required)
    return Readiness(ready, checks)
