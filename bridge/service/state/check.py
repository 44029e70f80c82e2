"""Find the problems of a running bridge in its own answers, with advice for each; pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from queuebell.bridge.access.grants import Reach
from queuebell.bridge.access.issuer import LEEWAY_S
from queuebell.bridge.contract.bounds import RoughCounts
from queuebell.bridge.contract.sources import UNASKED
from queuebell.bridge.contract.wire import Processes
from queuebell.bridge.core.settings import Patterns
from queuebell.bridge.service.state.answers import (
    Cluster,
    Findings,
    ListenerState,
    QueueState,
    Readiness,
    Rejected,
    RuleNumbers,
    Troubled,
    Unattended,
)

POISON: Final = "-poison"
FLAPS: Final = 3
"""Tolerated departures of a member within five minutes; a restart is one."""
CLOCKS_APART_S: Final = LEEWAY_S / 2
"""Clock difference above which a warning is due: half the leeway of tokens."""
_SHARED: Final = ("nats", "mqtt", "postgres")
"""Name prefixes of the checks of buses that several bridges can share."""


class Problem(msgspec.Struct, frozen=True):
    """One problem."""

    code: str
    """``not_ready untold crowded unattended stranded buried session rejected audit unasked``, among several bridges
    ``gone apart disconnected``, of a cluster ``alone``; of warnings ``paused grant clock issuer data``, and of a
    cluster ``unheard split refused versions flapping``."""
    subject: str
    """The check, queue, listener or principal concerned."""
    what: str
    advice: str


def among(gone: Mapping[str, str], alone: Mapping[str, str], checks: Mapping[str, Iterable[str]]) -> list[Problem]:
    """Return the problems among several bridges: those that do not answer, and those with separate queues or no bus.

    By address, ``gone`` has the reason, ``alone`` the boot of a bridge whose embedded store has queues, ``checks`` the
    names of the checks of each bridge that answers.
    """
    found = [
        Problem(
            "gone", url, why, "the other bridges are queried instead; start this one again, or remove it from the list"
        )
        for url, why in gone.items()
    ]
    if len(set(alone.values())) > 1:
        what = "each has its own embedded queues: messages put at one stay there and never reach workers at the others"
        found.append(
            Problem("apart", " and ".join(alone), what, "use only one of them for these queues, or share a store")
        )
    found += (
        Problem(
            "disconnected",
            url,
            "it is connected to no broker and no database: no triggers pass between it and the other bridges",
            "start all of them with the same --nats, --mqtt or --postgres",
        )
        for url, names in checks.items()
        if not any(name.startswith(_SHARED) for name in names)
    )
    return found


def judge(readiness: Readiness, findings: Findings, queues: Iterable[QueueState]) -> list[Problem]:
    """Return the problems in ``/readyz``, ``/v1/findings`` and the states of queues, the most severe first."""
    found: list[Problem] = []
    for name, check in readiness.checks.items():
        if not check.ok:
            found.append(
                Problem("not_ready", name, check.detail, "messages are safe; fix this, the bridge retries by itself")
            )
    if not readiness.ready and not found:
        found.append(Problem("not_ready", "bridge", "it is not ready and reports no reason", "check its log"))
    if findings.audit_found:
        found.append(
            Problem(
                "audit",
                "embedded queues",
                f"visible messages without a wake were found {findings.audit_found} times since the start",
                "each time it was repaired and nothing is lost, but this is a bug: please report it with the log",
            )
        )
    if findings.crowded:
        found.append(
            Problem(
                "crowded",
                "queue names",
                findings.crowded,
                "no message is lost; find the program that publishes to so many names, stop it, and restart the bridge "
                "to clear the names; until then the list of queues without a worker is incomplete",
            )
        )
    found += (_unattended(row) for row in [*findings.unattended, *findings.buried] if not row.after_gap)
    found += (_session(row) for row in findings.sessions)
    found += (_rejected(row) for row in findings.rejected)
    hears_database = any(name.startswith("postgres") for name in readiness.checks)
    for state in queues:
        sources = state.wake_sources
        asked = (source for source in sorted(UNASKED) if sources.get(source))
        found += (_unasked(state.queue, source, sources[source], hears_database) for source in asked)
    if findings.left_out:
        found.append(
            Problem(
                "unattended", "others", f"{findings.left_out} more like these", "fix the first ones and check again"
            )
        )
    return found


def paused(queues: Iterable[QueueState]) -> list[Problem]:
    """Return a warning for each paused queue with messages: they wait until it is resumed."""
    return [
        Problem(
            "paused",
            state.queue,
            f"it is paused, and {state.depth.visible + state.depth.invisible} messages wait",
            f"no worker receives them until `queuebell queue resume {state.queue}`",
        )
        for state in queues
        if state.paused and state.depth is not None and state.depth.visible + state.depth.invisible
    ]


def rough(listeners: Iterable[ListenerState], numbers: Sequence[RuleNumbers]) -> list[RoughCounts]:
    """Return the cost of scalers' counts for stores that cannot report an empty queue, by the bridge's settings."""
    patterns = Patterns([each.match for each in numbers])
    found: list[RoughCounts] = []
    for row in listeners:
        for each in row.queues:
            entry = patterns.first(each.queue)
            if isinstance(processes := each.processes, Processes) and processes.counts != "exact" and entry is not None:
                found.append(
                    RoughCounts(
                        queue=each.queue,
                        listener=row.listener,
                        trusted=processes.counts == "trusted",
                        counts=numbers[entry].bound().receives_mean,
                    )
                )
    return found


def in_turns(cluster: Cluster) -> list[Problem]:
    """Return the problems of a bridge's cluster, as the bridge sees it; none without a cluster."""
    if cluster.name is None:
        return []
    me = next((member for member in cluster.members if member.me), None)
    others = [member for member in cluster.members if not member.me]
    subject = f"cluster {cluster.name}"
    found: list[Problem] = []
    if not others:
        advice = "it acts alone, and nothing is lost; check that all use the same --cluster, --nats, prefix and --store"
        found.append(Problem("alone", subject, "it receives no messages from other bridges", advice))
    elif cluster.alone:
        advice = (
            "it acts alone, and nothing is lost; check that its NATS user may publish on PREFIX.cluster.* (queuebell "
            "key nats prints the grants), and that its machine is not overloaded"
        )
        what = "it receives other bridges' messages but not its own, so the others do not receive its messages either"
        found.append(Problem("unheard", subject, what, advice))
    found += (
        Problem(
            "refused",
            subject,
            f"the bridge {each.address or each.boot[:8]} is not a member: {each.why}",
            "each checks the queues by itself, and nothing is lost; give all the same --cluster and --store, or this "
            "one another prefix; if one machine is a copy of another, restart one of the two",
        )
        for each in cluster.refused
    )
    strange = sorted({member.version for member in others if me is not None and member.version != me.version})
    if strange:
        what = f"it includes bridges of other versions: {', '.join(version or 'unknown' for version in strange)}"
        found.append(Problem("versions", subject, what, "upgrade all to one version; nothing is lost until then"))
    found += (
        Problem(
            "flapping",
            subject,
            f"the bridge {member} disappeared {times} times within five minutes",
            "nothing is lost, but each time its queues are checked once more; check its log for why it stops, and "
            "whether its network or its machine freezes",
        )
        for member, times in cluster.went.items()
        if times > FLAPS
    )
    return found


def split(views: Mapping[str, Cluster]) -> list[Problem]:
    """Return a warning for each pair of members, by address, that do not receive each other's messages."""
    found: list[Problem] = []
    named = [(url, view) for url, view in views.items() if view.name is not None]
    for (one, its), (two, other) in itertools.combinations(named, 2):
        hears = {each.boot for each in its.members} >= {each.boot for each in other.members if each.me}
        heard = {each.boot for each in other.members} >= {each.boot for each in its.members if each.me}
        if its.name == other.name and not (hears and heard):
            found.append(
                Problem(
                    "split",
                    f"cluster {its.name}",
                    f"{one} and {two} do not receive each other's messages, so each checks the queues by itself",
                    "nothing is lost; check that both use one NATS cluster, with the same prefix and --store",
                )
            )
    return found


def looked_after(problems: Iterable[Problem], listened: Container[str]) -> list[Problem]:
    """Return the problems, except of unattended queues that have a listener at another bridge."""
    return [each for each in problems if each.code != "unattended" or each.subject not in listened]


def untold(path: str, status: int) -> Problem:
    """Return the problem that a bridge answers ``path`` with an error, so that nothing there was checked."""
    return Problem(
        "untold",
        path,
        f"it answered {status}, so this part was not checked",
        "try again later; if it persists, check the bridge's log, and that it is not older than this command",
    )


def _unattended(row: Unattended) -> Problem:
    queue = row.queue
    if row.stranded:
        return Problem(
            "stranded",
            queue,
            row.detail,
            "they are safe here; put to the workers' store with --store, and move these there: "
            f"queuebell queue export {queue} --delete --file FILE; "
            f"queuebell queue import {queue} --file FILE --store URL --bridge URL",
        )
    if queue.endswith(POISON) and not row.here:
        return Problem(
            "buried",
            queue,
            row.detail,
            f"{ask_their_store(queue)}; once it is empty: queuebell queue forget {queue}",
        )
    if queue.endswith(POISON):
        # Each dead letter states its reason: too many attempts are only one.
        return Problem(
            "buried",
            queue,
            row.detail,
            f"see why: queuebell queue replay --dry-run {queue}; then replay them: queuebell queue replay {queue}, "
            f"or delete them: queuebell queue clear {queue}",
        )
    end = f"queuebell queue delete {queue} (with its messages)" if row.here else f"queuebell queue forget {queue}"
    return Problem(
        "unattended",
        queue,
        row.detail,
        "start a worker for it; if a scaler starts workers, check that it reads the depth of this queue by itself; "
        f"if the name was a mistake, or the queue is gone: {end}",
    )


def ask_their_store(queue: str) -> str:
    """Return the commands that show, replay and delete the messages of a poison queue in an external store."""
    return (
        f"with the URL of that store, see why: queuebell queue replay --dry-run {queue} --store URL; replay them: "
        f"queuebell queue replay {queue} --store URL --bridge BRIDGE, or delete them: queuebell queue clear {queue} "
        "--store URL (NATS and SQS have no peek: a supervisor shows why)"
    )


def _session(row: Troubled) -> Problem:
    # The start of the instance distinguishes workers of the same name.
    named = f"{row.listener} ({row.instance[:8]})" if row.listener and row.instance else row.listener
    subject = named or row.instance or "a worker"
    advice = {
        "silent": "after three missed heartbeats its work goes to other workers; check whether it hangs",
        "behind": "its wakes merge until it reads; check whether its process or its network is overloaded",
        "workers": "it retries by itself, at growing intervals; fix the named cause: the worker's own log shows more",
        "failing": "it receives nothing there and retries by itself; its log shows why: check whether its store works",
        "hung": "messages are safe; find where the handler hangs, give its client a timeout, and restart the worker",
        "starved": "messages are safe; find out why that queue's handler hangs, and restart the worker; `reserved` "
        "slots in the pool keep other queues going",
        "stuck": "its work goes to other workers; check whether its store answers",
        "unreached": "the bridge retries by itself, every minute while work waits; check whether the endpoint answers",
        "disabled": "its endpoint answered 410: remove it from the configuration, or fix it and restart the bridge",
        "deaf": "the messages sent to it are back in the queue; check whether its event loop is blocked",
    }.get(row.state, "check its log")
    return Problem("session", f"{subject} on {row.queue}" if row.queue else subject, row.detail, advice)


def _rejected(row: Rejected) -> Problem:
    advice = {
        "store_mismatch": "it polls its own store meanwhile; start it with the same store as the others, or give one "
        "of the two another queue name",
        "forbidden": "it polls meanwhile; grant its principal 'take' on that queue: queuebell key change",
    }.get(row.code, "it polls meanwhile; check its log, and that its version matches the bridge's")
    listener = row.listener or "a worker"
    return Problem("rejected", f"{listener} on {row.queue}" if row.queue else listener, row.detail, advice)


def _unasked(queue: str, source: str, count: int, hears_database: bool) -> Problem:
    # Tables made with `--notify` notify only connected bridges, and this bridge cannot detect such tables.
    database = "" if hears_database else "; if the queue is in PostgreSQL, start the bridge with --postgres URL"
    finder = "a sweep" if source == "sweep" else "a worker's own dead-man timer"
    return Problem(
        "unasked",
        queue,
        f"{finder} found work {count} times since the start without a trigger for it",
        "nothing is lost, only late; check that every producer publishes after its put, and that its bus is up"
        + database,
    )


def doubtful_grants(
    principals: Mapping[str, Mapping[str, Iterable[str]]],
    queues: Iterable[str],
    near: Callable[[str, Iterable[str]], list[str]],
) -> list[Problem]:
    """Return a warning for each pattern that covers none of ``queues`` and is similar to the name of some.

    A pattern without a similar name may be for future queues and gets no warning. ``near`` returns the similar names.
    """
    names = list(queues)
    accounts = list(dict.fromkeys(name.partition("/")[0] for name in names))
    found: list[Problem] = []
    for principal, grants in principals.items():
        for verb, pattern in ((verb, pattern) for verb, patterns in grants.items() for pattern in patterns):
            reach = Reach([pattern])
            if any(reach.covers(name) or reach.buries_in(name) for name in names):
                continue
            account, _, queue = pattern.partition("/")
            every = queue == "*"
            alike = [f"{one}/*" for one in near(account, accounts)] if every else near(pattern.partition(":")[0], names)
            if alike:
                found.append(
                    Problem(
                        "grant",
                        principal,
                        f"{verb}={pattern} matches no queue known here: did you mean {' or '.join(alike)}?",
                        "if it is a typo, set all its grants again: queuebell key change "
                        f"{principal} --allow ...; if that queue is yet to be created, nothing is wrong",
                    )
                )
    return found


def clocks_apart(theirs: float | None, asked_at: float, told_at: float) -> list[Problem]:
    """Return a warning if a bridge's clock, by the Date of its answer, differs by more than 30 s from the local one.

    ``asked_at`` and ``told_at`` are the local times of request and answer. All are seconds since 1970; ``theirs`` is
    in whole seconds, or None without a date.
    """
    if theirs is None:
        return []
    # The date may be from any time within its second, and from any time between request and answer.
    ahead = theirs - told_at if theirs > told_at else min(theirs + 1 - asked_at, 0.0)
    if abs(ahead) <= CLOCKS_APART_S:
        return []
    return [
        Problem(
            "clock",
            "clocks",
            f"the bridge's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the local clock",
            f"tokens are valid at most {LEEWAY_S:.0f} s before they begin and after they end, and keys and "
            "certificates expire too early or too late: correct the wrong clock, by NTP",
        )
    ]
