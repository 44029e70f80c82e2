"""When the sessions of a bridge that leaves are sent away (C7)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from queuebell.bridge.contract.cluster import Ability, Able, Member
from queuebell.bridge.core.agenda import TURN_MAX
from queuebell.bridge.core.cluster.handover import SPREAD_S, at_once, departures
from queuebell.bridge.core.cluster.members import DEPARTED_S, MEMBERS_MAX, SILENT_S, Members, Refused
from queuebell.bridge.core.cluster.subscribers import SUBJECTS
from queuebell.bridge.core.commands import AnnounceInTurn
from tests.support.bells import BOOT
from tests.support.member import FIRST, MemberRig, boot


def test_chance_decides_the_moment_within_a_share() -> None:
    """Two bridges that leave together do not send theirs away in step."""
    assert departures(4, 1, lambda: 0.0) == pytest.approx([0.0, 0.01, 0.02, 0.03])
    assert departures(4, 1, lambda: 0.5) == pytest.approx([0.005, 0.015, 0.025, 0.035])


def test_those_who_leave_as_well_take_over_nothing() -> None:
    rig = MemberRig()
    assert rig.turns.others(rig.now) == 0
    second = boot(first=True, number=1)
    rig.member(FIRST)
    rig.member(second)
    rig.echo()
    assert rig.turns.others(rig.now) == 2
    rig.member(second, leaving=True)
    assert rig.turns.others(rig.now) == 1
    rig.turns.end(rig.now)
    assert rig.turns.others(rig.now) == 0


@pytest.mark.parametrize(
    ("ends", "merged"),
    [
        ([], []),
        ([(1.0, 2)], [(1.0, 2)]),
        ([(1.0, 2), (6.0, 3)], [(6.0, 5)]),
        ([(1.0, 2), (6.001, 3)], [(1.0, 2), (6.001, 3)]),
        ([(0.0, 1), (4.0, 1), (8.0, 1), (12.0, 1)], [(4.0, 2), (12.0, 2)]),
    ],
)
def test_leases_that_end_together_are_one_look(ends: list[tuple[float, int]], merged: list[tuple[float, int]]) -> None:
    """Into the last of them, and never over more than the time in which the sessions went."""
    assert at_once(ends) == merged


def test_sessions_that_go_one_after_the_other_leave_one_look_behind() -> None:
    """At most one receive a queue and restart; a delay is told as it is."""
    rig = MemberRig()
    sessions = [rig.session() for _ in range(3)]
    for number in sessions:
        rig.wait(1.0)
        rig.lose(number)
    lost_at = rig.now
    rig.scheduler.timers.arm_due(rig.work(), rig.now, 29.0, "due", 1)
    told = rig.turns.handover(rig.now)
    (delay, lease) = sorted(event.not_before_ms for event in told)
    assert 29_000 <= delay < 29_020
    assert 30_000 <= lease < 30_020
    assert rig.now == lost_at


def held(rig: MemberRig, queues: list[str]) -> None:
    """Have plain subscribers of all be told by the other, as far as it comes first."""
    for queue in queues:
        rig.turns.subscribers.offer(rig.now, rig.turns.at(rig.now), SUBJECTS, queue, shared=True)


def succeeded(rig: MemberRig, queues: list[str]) -> None:
    """Have work wait everywhere, for nobody."""
    rig.turns.subscribers.routes[SUBJECTS] = None
    for queue in queues:
        rig.trigger_all(queue)


def deferred(rig: MemberRig, queues: list[str]) -> None:
    """Have work wait everywhere for the other, as far as it comes first."""
    session = rig.join(*queues)
    for queue in queues:
        rig.cover(session, rig.work(queue).gen, queue)
    able = dict.fromkeys(queues, Ability(True, 30_000))
    rig.hear(Able(boot=FIRST, seq=1, queues=able))  # type: ignore[arg-type]
    for queue in queues:
        rig.trigger_all(queue)


def due(rig: MemberRig, queues: list[str]) -> None:
    """Have all be due at one moment."""
    for queue in queues:
        rig.scheduler.timers.arm_due(rig.scheduler.pending.get_or_add(queue, rig.now), rig.now, 0.01, "due", 1)


def done(rig: MemberRig, fill: Callable[[MemberRig, list[str]], None]) -> int:
    """Return how far the rules have come, counted in queues."""
    if fill is held:
        return -len(rig.turns.subscribers)
    if fill is deferred:
        return -len(rig.turns.deferred)
    if fill is succeeded:
        return sum(isinstance(each, AnnounceInTurn) for each in rig.scheduler.dispatch.commands)
    return rig.scheduler.pending.newest_gen


@pytest.mark.parametrize("fill", [held, succeeded, deferred, due])
def test_no_event_takes_over_all_queues_in_one_go(fill: Callable[[MemberRig, list[str]], None]) -> None:
    """A member leaves a thousand queues, or so many are due: an event takes `TURN_MAX` at most, until none is left."""
    rig = MemberRig()
    rig.member(FIRST)
    fill(rig, [f"many/q{number}" for number in range(1000)])
    scheduler = rig.scheduler
    rig.drive()
    counts = [done(rig, fill)]
    rig.turns.on_message(rig.now, Member(boot=FIRST, seq=9, version="1.0", leaving=True))
    counts.append(done(rig, fill))
    while (deadline := scheduler.deadline()) is not None and deadline <= rig.now + 0.05:
        rig.now = max(rig.now, deadline)
        scheduler.tick(rig.now)
        counts.append(done(rig, fill))
    taken = [after - before for before, after in itertools.pairwise(counts)]
    assert max(taken) <= TURN_MAX
    assert sum(taken) > 400, "about half of them had the other first, or all were due"
    assert fill not in (held, deferred) or counts[-1] == 0


AT = 1000.0


def test_who_went_is_told_for_so_long_and_no_more_of_them_than_are_kept() -> None:
    """C1."""
    members = Members(BOOT)
    for number in range(300):
        members.on_member(AT, Member(boot=f"{number:032x}", seq=1, address="a:8470"))
        assert len(members.gone(AT + SILENT_S)) == 1
    assert len(members.departed) == 256
    went_at = AT + SILENT_S
    assert members.flapping(went_at + DEPARTED_S) == {"a:8470": 256}
    assert members.flapping(went_at + DEPARTED_S + 0.01) == {}


def test_of_those_that_were_refused_the_newest_are_remembered_with_where_they_are() -> None:
    """Anybody may say anything: whoever was heard of longest ago is forgotten first."""
    members = Members(BOOT)
    boots = [f"{number:032x}" for number in range(MEMBERS_MAX + 3)]
    for number, each in enumerate(boots):
        address = "a:8470" if number == MEMBERS_MAX else None
        assert members.refuse(AT, Member(boot=each, seq=1, address=address), "why")
    assert list(members.refused) == boots[3:]
    told = {name: (each.address, each.why, each.heard_at) for name, each in members.refused.items()}
    assert told[boots[MEMBERS_MAX]] == ("a:8470", "why", AT)
    assert told[boots[-1]] == ("", "why", AT)
    assert isinstance(members.refused[boots[-1]], Refused)


@pytest.mark.parametrize("sessions", [1, 2, 300, 499, 500, 501, 10_000])
def test_they_share_the_time_and_the_last_goes_within_five_seconds(sessions: int) -> None:
    """Ascending, each within its own share, so that no two shares ever go at once."""
    span = min(5.0, 0.01 * sessions)
    for seed in range(5):
        after = departures(sessions, 1, random.Random(seed).random)
        assert len(after) == sessions
        for place, at in enumerate(after):
            assert span * place / sessions <= at < span * (place + 1) / sessions
        assert after[-1] < SPREAD_S
