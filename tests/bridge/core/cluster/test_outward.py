"""Whose turn it is to tell plain subscribers, rule by rule (C10)."""

from __future__ import annotations

import math

import pytest

from bridge.contract.cluster import Member, Sent
from bridge.core.cluster.members import SINCE_MAX_MS, Peer, rank
from bridge.core.cluster.outward import MERGE_S, OUTWARD, PLACE_S, SKEW_S, SUBJECTS, UNSURE_S, Outward
from bridge.core.commands import Announce, Say, Tell
from bridge.observe.facts import WordRefused
from tests.support.bells import BOOT, QUEUE
from tests.support.member import A_S, FIRST, LAST, MemberRig, boot

SECOND = boot(first=True, number=1)
HOOK = "ab" * 16
OURS, THEIRS = "our webhooks", "other webhooks"


class TellingRig(MemberRig):
    """A member with plain subscribers by one way: `told` is what they were told, with how it came to that."""

    def __init__(self, way: str = SUBJECTS, *, alone: bool = False, webhooks: str | None = OURS) -> None:
        super().__init__(alone=alone, webhooks=webhooks)
        self.way = way
        self.turns.outward.ways[way] = None if way == SUBJECTS else QUEUE
        self.bell.reminders.announcing(self.now, True)
        self.told: list[tuple[str, float]] = []
        self._rung = len(self.rung)

    def drive(self) -> None:
        commands = self.bell.dispatch.commands
        for command in [each for each in commands if isinstance(each, Tell)]:
            assert command.way == self.way
            self.told.append((command.what, self.now))
            commands.remove(command)
        super().drive()
        if hasattr(self, "_rung"):
            rung, self._rung = self.rung[self._rung :], len(self.rung)
            for announced in rung:
                self._offer(announced)

    def _offer(self, announced: Announce) -> None:
        at = self.turns.at(self.now)
        if self.turns.outward.offer(self.now, at, self.way, announced.queue, shared=announced.shared):
            self.told.append(("at once", self.now))

    def how(self) -> list[str]:
        """Return and forget how they were told."""
        told, self.told = [what for what, _ in self.told], []
        return told

    def peer_with(self, name: str = FIRST, webhooks: str | None = OURS, *, leaving: bool = False) -> None:
        """Another says that it is there, and which webhooks it has."""
        self._seqs[name] = self._seqs.get(name, 0) + 1
        self.hear(Member(boot=name, seq=self._seqs[name], webhooks=webhooks, leaving=leaving))

    def keep(self, seconds: float, *names: str) -> None:
        """Let time pass in the company of these."""
        whole, rest = divmod(seconds, 1.0)
        for length in [1.0] * int(whole) + [rest]:
            self.wait(length)
            self.echo()
            for name in names:
                self.peer_with(name)

    def sent(
        self, name: str = FIRST, age_ms: int = 0, *, seq: int | None = None, since_ms: int = 0, hook: str | None = None,
        queue: str = QUEUE,
    ) -> None:  # fmt: skip
        """Another says that it told; it had heard our newest word ``since_ms`` ago unless ``seq`` says which."""
        heard = {BOOT: (self.turns.members.seq if seq is None else seq, since_ms)}
        hook = hook or (None if self.way == SUBJECTS else self.way)
        self.hear(Sent(boot=name, queue=queue, hook=hook, age_ms=age_ms, heard=heard))  # type: ignore[arg-type]

    def says_sent(self) -> list[Sent]:
        """Return and forget what it said that it told."""
        said = [word for word in self.words if isinstance(word, Sent)]
        self.words = [word for word in self.words if not isinstance(word, Sent)]
        return said


WAYS = pytest.mark.parametrize("way", [SUBJECTS, HOOK])


@WAYS
def test_the_first_of_the_members_tells_at_once_without_any_session(way: str) -> None:
    """No session is needed to hear a wake, and nobody is able here."""
    rig = TellingRig(way)
    rig.peer_with(LAST)
    rig.trigger_all()
    assert rig.how() == ["at once"]


@WAYS
def test_the_others_hold_it_for_a_and_each_place(way: str) -> None:
    """As for a look; nobody was heard to tell."""
    for names in ((FIRST,), (FIRST, SECOND)):
        rig = TellingRig(way)
        for name in names:
            rig.peer_with(name)
        begun = rig.now
        rig.trigger_all()
        assert rig.how() == []
        rig.keep(1.0, *names)
        rig.keep(1.0, *names)
        rig.keep(1.0, *names)
        ((what, at),) = rig.told
        assert what == "held"
        assert at - begun == pytest.approx(A_S + PLACE_S * len(names))


@WAYS
def test_a_newer_one_never_pushes_it_out(way: str) -> None:
    """C2: a stream of wakes would be told by nobody, where the first is silent and not yet missed."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    begun = rig.now
    for _ in range(30):
        rig.trigger_all()
        rig.wait(0.1)
        rig.echo()
        rig.peer_with(FIRST)
    what, at = rig.told[0]
    assert what == "held"
    assert at - begun == pytest.approx(A_S + PLACE_S)


@WAYS
def test_a_bridge_that_is_alone_tells_at_once(way: str) -> None:
    """It does not even hear itself."""
    rig = TellingRig(way, alone=True)
    rig.peer_with(FIRST)
    rig.trigger_all()
    assert rig.how() == ["at once"]


@WAYS
def test_what_one_alone_knows_it_tells_at_once(way: str) -> None:
    """A lease that lapsed here is news to nobody else; what was held goes with it."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.trigger_all()
    assert len(rig.turns.outward) == 1
    rig.trigger()
    assert rig.how() == ["at once"]
    assert len(rig.turns.outward) == 0
    rig.keep(A_S + 1, FIRST)
    assert rig.how() == []


@WAYS
def test_who_hears_that_it_was_told_drops_it(way: str) -> None:
    """The debt stands: a plain subscriber covers nothing."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.trigger_all()
    rig.sent()
    assert rig.how() == ["drop"]
    assert rig.debt().dirty
    rig.keep(A_S + 1, FIRST)
    assert rig.how() == []


def test_a_word_of_another_way_or_queue_drops_nothing() -> None:
    """Each is a story of its own."""
    rig = TellingRig(HOOK)
    rig.peer_with(FIRST)
    rig.trigger_all()
    rig.sent(hook="cd" * 16)
    rig.hear(Sent(boot=FIRST, queue=QUEUE, heard={BOOT: (rig.turns.members.seq, 0)}))  # type: ignore[arg-type]
    rig.sent(queue="billing/refunds")
    assert rig.how() == []
    assert len(rig.turns.outward) == 1


@WAYS
def test_what_came_after_it_was_told_stays_held_from_then_on(way: str) -> None:
    """It was told when its age says, and a mark is heard a moment later by one than by another."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.echo()
    rig.trigger_all()
    rig.wait(0.4)
    latest = rig.now - 0.3
    rig.trigger_all()
    rig.sent(age_ms=300)
    assert rig.how() == []
    rig.keep(A_S + 1, FIRST)
    ((what, at),) = rig.told
    assert what == "held"
    assert at == pytest.approx(latest + SKEW_S + A_S + PLACE_S)


@pytest.mark.parametrize(("later", "how"), [(SKEW_S - 0.001, ["drop"]), (SKEW_S + 0.001, [])])
def test_so_much_later_one_may_hear_of_it(later: float, how: list[str]) -> None:
    """To the digit."""
    rig = TellingRig()
    rig.peer_with(FIRST)
    rig.wait(later)
    rig.trigger_all()
    rig.wait(0.3)
    rig.sent(age_ms=round((later + 0.3) * 1000))
    assert rig.how() == how


@WAYS
def test_a_stream_of_wakes_is_not_told_by_all(way: str) -> None:
    """Each word leaves the newest few unpaid, and none of them grows old."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    for step in range(100):
        rig.trigger_all()
        rig.wait(0.1)
        if step % 10 == 9:
            rig.echo()
            rig.peer_with(FIRST)
        if step % 3 == 2:
            rig.sent(age_ms=150)
    assert "held" not in rig.how()


@pytest.mark.parametrize(
    "word",
    [
        {"seq": 0},
        {"seq": 10_000},
        {"since_ms": SINCE_MAX_MS + 1, "age_ms": 0},
    ],
)
def test_a_word_that_proves_nothing_drops_nothing(word: dict[str, int]) -> None:
    """It costs one wake more."""
    rig = TellingRig()
    rig.peer_with(FIRST)
    rig.trigger_all()
    rig.sent(**word)  # type: ignore[arg-type]
    assert rig.how() == []


@pytest.mark.parametrize(("late", "how"), [(UNSURE_S - 0.1, ["drop"]), (UNSURE_S + 0.1, [])])
def test_a_word_that_lay_in_a_buffer_says_nothing(late: float, how: list[str]) -> None:
    """It was told at some time between our word and its arrival: what came since may not have been told."""
    rig = TellingRig()
    rig.peer_with(FIRST)
    seq = rig.turns.members.seq
    rig.wait(late)
    rig.trigger_all()
    rig.sent(seq=seq, since_ms=0, age_ms=0)
    assert rig.how() == how


def held(*moments: float) -> TellingRig:
    """Return a rig that holds what it heard of at these moments, by the clock that goes on."""
    rig = TellingRig()
    rig.peer_with(FIRST)
    for at in moments:
        assert not rig.turns.outward.offer(rig.now, at, SUBJECTS, QUEUE, shared=True)
    return rig


def test_the_bounds_of_what_a_word_drops_belong_to_them() -> None:
    """To the last digit: a word as unsure as may be, and what was heard of as late as may be."""
    told = Sent(boot=FIRST, queue=QUEUE)
    for at, last, proven, how in (
        (102.0, 101.0, 101.0, ["drop"]),
        (102.0, 101.0, math.nextafter(101.0, 0.0), []),
        (102.0, 102.0 + SKEW_S, 102.0, ["drop"]),
        (102.0, math.nextafter(102.0 + SKEW_S, math.inf), 102.0, []),
    ):
        rig = held(100.5, last)
        rig.turns.outward.hear(rig.now, at, told, proven)
        rig.drive()
        assert rig.how() == how


def test_what_is_left_is_held_from_when_it_was_told_whenever_it_was_heard_of() -> None:
    """Also what was heard of just after: with it was told what the other heard of a moment before."""
    rig = held(102.05, 102.5)
    rig.turns.outward.hear(rig.now, 102.0, Sent(boot=FIRST, queue=QUEUE), 102.0)
    assert rig.turns.outward._held[SUBJECTS, QUEUE].first == 102.0 + SKEW_S
    rig = held(102.2, 102.5)
    rig.turns.outward.hear(rig.now, 102.0, Sent(boot=FIRST, queue=QUEUE), 102.0)
    assert rig.turns.outward._held[SUBJECTS, QUEUE].first == 102.2, "nor nearer than it was"


def test_in_the_order_for_the_brokers_subscribers_is_whoever_is_there() -> None:
    """Which webhooks it has says nothing of them."""
    rig = TellingRig(SUBJECTS)
    rig.peer_with(FIRST, THEIRS)
    rig.trigger_all()
    assert rig.how() == []


def test_a_word_of_nobody_known_is_refused() -> None:
    """As all others."""
    rig = TellingRig()
    rig.sent(FIRST)
    assert len(rig.facts_of(WordRefused)) == 1


@WAYS
def test_who_tells_says_so_soon_and_once_for_all_that_was_told(way: str) -> None:
    """The newest of them, by its age."""
    rig = TellingRig(way)
    rig.peer_with(LAST)
    rig.trigger_all()
    rig.wait(0.15)
    rig.trigger_all()
    assert rig.says_sent() == []
    rig.wait(MERGE_S)
    (said,) = rig.says_sent()
    assert (said.queue, said.hook) == (QUEUE, None if way == SUBJECTS else HOOK)
    assert said.age_ms in (50, 51)
    assert LAST in said.heard
    rig.keep(3.0, LAST)
    assert rig.says_sent() == []


@WAYS
def test_who_tells_late_says_so_too(way: str) -> None:
    """Or the third would tell it as well."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.trigger_all()
    rig.keep(A_S + 1, FIRST)
    assert rig.how() == ["held"]
    assert len(rig.says_sent()) == 1


def test_nobody_is_told_of_a_webhook_that_nobody_else_has() -> None:
    """Nor is anybody waited for."""
    rig = TellingRig(HOOK)
    rig.peer_with(FIRST, THEIRS)
    rig.peer_with(SECOND, None)
    rig.trigger_all()
    assert rig.how() == ["at once"]
    rig.wait(MERGE_S)
    assert rig.says_sent() == []


def test_a_bridge_without_webhooks_is_in_no_order_of_them() -> None:
    """None is not a set that two share."""
    rig = TellingRig(HOOK, webhooks=None)
    rig.peer_with(FIRST, None)
    rig.trigger_all()
    assert rig.how() == ["at once"]


@WAYS
def test_the_first_is_gone_before_it_told_and_what_it_held_is_told_again(way: str) -> None:
    """Killed between its word and the post: whoever is first now tells of what still waits."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.trigger_all()
    rig.sent()
    assert rig.how() == ["drop"]
    rig.wait(1.0)
    rig.echo()
    rig.wait(3.0)
    assert rig.how() == ["again"]


@WAYS
def test_what_is_done_is_not_told_again(way: str) -> None:
    """A worker emptied the queue meanwhile."""
    rig = TellingRig(way)
    session = rig.session()
    rig.peer_with(FIRST)
    rig.trigger_all()
    (gen,) = rig.gens(session)
    rig.started(session, gen)
    rig.cover(session, gen)
    rig.sent()
    assert rig.how() == ["drop"]
    rig.wait(1.0)
    rig.echo()
    rig.wait(3.0)
    assert "again" not in rig.how()


@WAYS
def test_a_leave_hands_over_at_once_and_its_end_does_not_again(way: str) -> None:
    """What it had under way it may not finish."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.trigger_all()
    rig.sent()
    rig.trigger_all()
    rig.peer_with(FIRST, leaving=True)
    assert rig.how() == ["drop", "again"]
    rig.peer_with(FIRST, leaving=True)
    assert rig.how() == [], "it says so every second"
    rig.trigger_all()
    assert rig.how() == ["at once"]
    for _ in range(5):
        rig.wait(1.0)
        rig.echo()
    assert rig.how() == []


@WAYS
def test_who_stays_after_all_is_succeeded_by_nobody(way: str) -> None:
    """It told of what waits, and goes on."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.trigger_all()
    rig.peer_with(FIRST, leaving=True)
    rig.how()
    rig.peer_with(FIRST)
    assert rig.how() == []


@WAYS
def test_only_the_next_in_order_takes_over(way: str) -> None:
    """The others hear that it told, or take over from it."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.peer_with(SECOND)
    first = max(FIRST, SECOND, key=lambda name: rank(QUEUE, name))
    second = SECOND if first == FIRST else FIRST
    rig.trigger_all()
    rig.sent(first)
    assert rig.how() == ["drop"]
    rig.peer_with(first, leaving=True)
    assert rig.how() == []
    rig.peer_with(second, leaving=True)
    assert rig.how() == ["again"]


@WAYS
def test_one_that_comes_after_us_leaves_nothing_to_us(way: str) -> None:
    """What it could have told was ours to tell."""
    rig = TellingRig(way)
    rig.peer_with(LAST)
    rig.trigger_all()
    assert rig.how() == ["at once"]
    rig.peer_with(LAST, leaving=True)
    assert rig.how() == []


@WAYS
def test_without_the_broker_what_is_held_is_told(way: str) -> None:
    """It is alone from now on."""
    rig = TellingRig(way)
    rig.peer_with(FIRST)
    rig.trigger_all()
    rig.turns.end(rig.now)
    rig.drive()
    assert rig.how() == ["held"]


@WAYS
def test_who_leaves_holds_what_others_tell(way: str) -> None:
    """It is last in every order, and first where nobody else could."""
    rig = TellingRig(way)
    rig.peer_with(LAST)
    rig.turns.leave(rig.now)
    rig.drive()
    rig.trigger_all()
    assert rig.how() == []
    rig.peer_with(LAST, leaving=True)
    assert "again" in rig.how() or not len(rig.turns.outward)


def test_a_reminder_is_told_by_one() -> None:
    """B12: the level is told again, and each bridge knows of it."""
    rig = TellingRig()
    rig.peer_with(FIRST)
    rig.session()
    rig.how()
    rig.bell.dispatch.ring(rig.debt(), rig.now, "resync", 1, rig.now, shared=True)
    rig.drive()
    assert rig.how() == []
    rig.bell.dispatch.ring(rig.debt(), rig.now, "resync", 1, rig.now)
    rig.drive()
    assert rig.how() == ["at once"]


OTHER, HOOK_2 = "billing/refunds", "cd" * 16
NAMES = [f"{number:032x}" for number in range(20)]


class Ways:
    """The turns of several ways, fed by hand; `done` is what came of it, in order."""

    def __init__(self, **ways: str | None) -> None:
        self.rig = MemberRig()
        self.outward = Outward(self.rig.bell.dispatch, self.rig.turns.members, OURS)
        self.outward.ways.update({SUBJECTS if way == "subjects" else way: only for way, only in ways.items()})
        self.at = self.now = self.rig.now

    def there(self, *names: str, webhooks: str | None = OURS) -> list[Peer]:
        """Have others be there, and return them."""
        members = self.rig.turns.members
        for name in names:
            members.hear(self.at, Member(boot=name, seq=1, webhooks=webhooks))
        return [members.peers[name] for name in names]

    def go(self, peer: Peer) -> None:
        """Have one of them be gone."""
        del self.rig.turns.members.peers[peer.boot]
        self.outward.succeed(self.now, self.at, peer)

    def waits(self, *queues: str) -> None:
        """Have work wait."""
        for queue in queues:
            self.rig.bell.dispatch.mark(self.rig.bell.ledger.hear(queue, self.now), self.now, "trigger", foreign=True)
        self.done()

    def offer(self, way: str = SUBJECTS, queue: str = QUEUE, *, shared: bool = True) -> bool:
        """Have one to tell of a queue."""
        return self.outward.offer(self.now, self.at, way, queue, shared=shared)

    def later(self, seconds: float) -> None:
        """Let time pass, and do what is due then."""
        self.now += seconds
        self.at += seconds
        self.outward.tick(self.now, self.at)

    def done(self) -> list[tuple[str, str, str] | Sent]:
        """Return and forget what is to be done."""
        commands, self.rig.bell.dispatch.commands = self.rig.bell.dispatch.commands, []
        told = [(each.way, each.queue, each.what) for each in commands if isinstance(each, Tell)]
        return [*told, *(each.word for each in commands if isinstance(each, Say) and isinstance(each.word, Sent))]

    def timer(self) -> float | None:
        """Return when something is due."""
        return self.rig.bell.dispatch.agenda.when(OUTWARD)


@pytest.mark.parametrize("queue", [OTHER, "billing/returns"])
def test_the_order_is_that_of_the_members_for_this_very_queue(queue: str) -> None:
    """C10, C2."""
    ways = Ways(subjects=None)
    ways.there(*NAMES)
    before = sum(rank(queue, name) > rank(queue, BOOT) for name in NAMES)
    assert ways.outward._before(SUBJECTS, queue, ways.at) == before
    assert 0 < before < len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_who_came_before_is_succeeded_and_nobody_else(name: str) -> None:
    """C10: in the order of the queue, with what is to be said of it."""
    ways = Ways(subjects=None)
    ways.waits(OTHER)
    (peer,) = ways.there(name)
    ways.go(peer)
    came_before = rank(OTHER, name) > rank(OTHER, BOOT)
    assert ways.done() == [(SUBJECTS, OTHER, "again")] * came_before


@pytest.mark.parametrize("name", NAMES)
def test_what_is_held_is_told_when_nobody_of_its_own_order_comes_before(name: str) -> None:
    """C10: also where who is there has other webhooks."""
    for webhooks in (OURS, THEIRS):
        ways = Ways(subjects=None)
        first, other = ways.there(boot(first=True, queue=OTHER), name, webhooks=webhooks)
        assert not ways.offer(queue=OTHER)
        del ways.rig.turns.members.peers[first.boot]
        ways.outward.reconsider(ways.now, ways.at)
        waits = other.boot != first.boot and rank(OTHER, name) > rank(OTHER, BOOT)
        assert ways.done() == ([] if waits else [(SUBJECTS, OTHER, "held")])


@pytest.mark.parametrize("name", NAMES)
def test_who_is_not_the_next_succeeds_nobody(name: str) -> None:
    """C10: whoever comes between takes over, and which webhooks it has says nothing of the broker's subscribers."""
    for webhooks in (OURS, THEIRS):
        ways = Ways(subjects=None)
        ways.waits(OTHER)
        gone, other = *ways.there(boot(first=True, queue=OTHER, number=3)), *ways.there(name, webhooks=webhooks)
        ways.go(gone)
        takes_over = other.boot == gone.boot or rank(OTHER, name) < rank(OTHER, BOOT)
        assert ways.done() == [(SUBJECTS, OTHER, "again")] * takes_over


def test_each_way_is_succeeded_by_itself_and_of_what_it_tells() -> None:
    """C10: of the webhooks that it had, each of its queue; of the broker's subscribers each queue where work waits."""
    third = "billing/others"
    ways = Ways(**{HOOK: QUEUE, "subjects": None, HOOK_2: OTHER})
    ways.rig.bell.ledger.hear("billing/idle", ways.now)
    ways.waits(QUEUE, OTHER, third)
    name = next(name for name in NAMES if all(rank(queue, name) > rank(queue, BOOT) for queue in (QUEUE, OTHER, third)))
    theirs = [(SUBJECTS, queue, "again") for queue in (QUEUE, OTHER, third)]
    (peer,) = ways.there(name, webhooks=THEIRS)
    ways.go(peer)
    assert ways.done() == theirs
    (peer,) = ways.there(name)
    ways.go(peer)
    assert ways.done() == [(HOOK, QUEUE, "again"), *theirs, (HOOK_2, OTHER, "again")]


@pytest.mark.parametrize("how", ["at once", "alone", "held", "again", "first"])
def test_the_others_hear_what_was_told_of_which_queue_and_when(how: str) -> None:
    """C10: whichever way it came to be told; with another's webhooks they have the broker's subscribers in common."""
    ways = Ways(subjects=None)
    ways.waits(QUEUE)
    first, last = ways.there(FIRST, LAST, webhooks=THEIRS)
    if how == "at once":
        del ways.rig.turns.members.peers[FIRST]
        assert ways.offer()
    elif how == "alone":
        assert ways.offer(shared=False)
    elif how == "again":
        ways.go(first)
    else:
        assert not ways.offer()
        if how == "first":
            del ways.rig.turns.members.peers[FIRST]
            ways.outward.reconsider(ways.now, ways.at)
        else:
            ways.later(A_S + PLACE_S)
    assert last.boot in ways.rig.turns.members.peers
    ways.done()
    ways.later(0.125)
    assert ways.done() == []
    ways.later(0.125)
    (said,) = ways.done()
    assert isinstance(said, Sent)
    assert (said.boot, said.queue, said.hook, said.age_ms) == (BOOT, QUEUE, None, 250)
    assert ways.timer() is None, "nothing is left to be done"


def test_what_is_told_at_the_moment_of_the_word_has_no_age() -> None:
    """C10: it is the newest that the word tells of."""
    ways = Ways(subjects=None)
    ways.there(LAST)
    assert ways.offer()
    ways.now += MERGE_S
    ways.at += MERGE_S
    assert ways.offer()
    ways.later(0.0)
    assert [each.age_ms for each in ways.done() if isinstance(each, Sent)] == [0]


def test_a_word_is_due_while_another_wake_is_held() -> None:
    """C10: one who comes first since then says nothing of what was told before it came."""
    ways = Ways(subjects=None)
    ways.there(LAST)
    assert ways.offer()
    ways.there(FIRST)
    assert not ways.offer()
    ways.later(MERGE_S)
    assert [type(each) for each in ways.done()] == [Sent]
    assert len(ways.outward) == 1


def test_what_was_dropped_leaves_no_timer() -> None:
    """C10."""
    ways = Ways(subjects=None)
    ways.there(FIRST)
    assert not ways.offer()
    assert ways.timer() == pytest.approx(ways.now + A_S + PLACE_S)
    ways.outward.hear(ways.now, ways.at, Sent(boot=FIRST, queue=QUEUE), ways.at)
    assert ways.done() == [(SUBJECTS, QUEUE, "drop")]
    assert ways.timer() is None


def test_what_was_held_and_told_leaves_no_timer() -> None:
    """C10: it was told with what one bridge alone knew, or by who comes first now."""
    ways = Ways(subjects=None)
    ways.waits(QUEUE)
    (first,) = ways.there(FIRST)
    assert not ways.offer()
    assert ways.offer(shared=False)
    ways.later(MERGE_S)
    assert ways.timer() is None
    assert not ways.offer()
    ways.go(first)
    assert ways.timer() is None
