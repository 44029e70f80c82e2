"""What receives came to, as heartbeats tell it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.core.ledger import Debt
from bridge.core.receives import Receives
from bridge.core.routing import Seats
from bridge.core.settings import Periods, Tuning
from listeners.core.found import Found

BOOT, OTHER = "b" * 32, "c" * 32


def told(*receives: tuple[str, bool]) -> Found:
    found = Found()
    found.greeted(BOOT)
    for source, work in receives:
        found.received(source, work, known=False)
    return found


def test_an_idle_queue_reports_nothing() -> None:
    """Neither before its first receive, nor once the bridge has echoed what there was."""
    found = told()
    assert not found.changed
    found.received("trigger", True, known=False)
    assert found.changed
    assert found.report(7) == {"trigger": (1, 0)}
    found.echoed(7)
    assert not found.changed


def test_a_lost_heartbeat_heals() -> None:
    """The same levels go out again until a heartbeat that carried them was echoed."""
    found = told(("trigger", True), ("sweep", False))
    assert found.report(7) == {"trigger": (1, 0), "sweep": (0, 1)}
    found.received("trigger", False, known=False)
    assert found.report(8) == {"trigger": (1, 1), "sweep": (0, 1)}
    found.echoed(7)
    assert found.changed, "an echo of an older heartbeat says nothing of the newer one"
    found.echoed(8)
    assert not found.changed


def test_what_came_after_the_report_is_owed_still() -> None:
    """An echo acknowledges the levels of its own heartbeat, not those of now."""
    found = told(("trigger", True))
    found.report(7)
    found.received("trigger", True, known=False)
    found.echoed(7)
    assert found.changed
    assert found.report(8) == {"trigger": (2, 0)}


def test_a_new_boot_hears_only_what_the_last_one_was_not_told() -> None:
    """A bridge that restarts begins its counters anew; a million old receives must not show up as a burst."""
    found = told(("trigger", True), ("trigger", True))
    found.report(7)
    found.echoed(7)
    found.received("due", True, known=False)
    found.greeted(OTHER)
    assert found.report(8) == {"due": (1, 0)}
    found.greeted(OTHER)
    assert found.report(9) == {"due": (1, 0)}, "a repeated welcome of the same boot changes nothing"


def test_a_new_boot_hears_of_a_source_what_came_since() -> None:
    """Of a source that the last one was told of: found and empty, each less what that one knows."""
    found = told(("trigger", True), ("trigger", True), ("trigger", False), ("trigger", True))
    found.report(7)
    found.echoed(7)
    found.greeted(OTHER)
    assert found.report(8) == {}
    for work in (True, False, False):
        found.received("trigger", work, known=False)
    assert found.report(9) == {"trigger": (1, 2)}
    assert found.found["trigger"] == 4


def test_a_boot_that_is_met_again_hears_on_from_what_it_knows() -> None:
    """Were it told from zero once more, it would take what is new for what it has counted already."""
    found = told(("trigger", True), ("trigger", True))
    found.report(7)
    found.echoed(7)
    found.greeted(OTHER)
    found.received("trigger", True, known=False)
    assert found.report(8) == {"trigger": (1, 0)}
    found.echoed(8)
    found.greeted(BOOT)
    found.received("trigger", False, known=False)
    assert found.report(9) == {"trigger": (2, 1)}


def test_receives_before_any_bridge_are_told_to_the_first() -> None:
    """A listener that polled before it was greeted."""
    found = Found()
    found.received("poll", True, known=False)
    assert found.report(7) == {"poll": (1, 0)}
    found.greeted(BOOT)
    assert found.report(8) == {"poll": (1, 0)}


def test_what_the_bridge_has_counted_itself_is_not_told_again() -> None:
    """Receives of its own queue service, and messages that its wakes carried."""
    found = Found()
    found.received("trigger", True, known=True)
    found.carried("trigger")
    assert not found.changed
    assert dict(found.found) == {"trigger": 2}


def test_a_look_that_nobody_asked_for_and_that_met_a_new_message_is_told_of() -> None:
    """Not one by a trigger, of messages that were handed out before, or of a queue that the bridge counts."""
    found = told()
    for source, fresh in (("sweep", True), ("deadman", True), ("sweep", False), ("trigger", True), ("resync", True)):
        found.received(source, True, known=False, fresh=fresh)
    found.received("deadman", True, known=True, fresh=True)
    assert found.report(7)["unannounced"] == (2, 0)


def test_a_warning_at_most_every_ten_minutes() -> None:
    """Only for looks that nobody asked for."""
    found = told(("sweep", True), ("deadman", True), ("trigger", True), ("sweep", False))
    assert found.unasked == 2
    assert not found.suspicious("trigger", 0.0)
    assert found.suspicious("sweep", 1.0)
    assert not found.suspicious("deadman", 600.9)
    assert found.suspicious("deadman", 601.0)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("receive"), st.sampled_from(["trigger", "due", "sweep"]), st.booleans()),
            st.tuples(st.just("beat"), st.sampled_from(["heard", "echo lost", "lost", "repeated"]), st.just(True)),
        ),
        max_size=60,
    )
)
def test_the_bridge_counts_each_receive_once(story: list[tuple[str, str, bool]]) -> None:
    """Whatever heartbeats and echoes are lost or repeated, the next one that is heard makes the counts right."""
    found, receives = told(), Receives()
    debt = Debt(queue="a/b", seats=Seats(), numbers=Tuning(Periods()).of("a/b"))
    truth: dict[str, int] = {}
    frames: list[dict[str, tuple[int, int]]] = []
    for stamp, (kind, what, work) in enumerate([*story, ("beat", "heard", True)]):
        if kind == "receive":
            found.received(what, work, known=False)
            truth[what] = truth.get(what, 0) + work
        elif found.changed:
            frames.append(found.report(stamp))
            if what != "lost":
                receives.told("i" * 32, debt, frames[-1])
            if what == "repeated":
                receives.told("i" * 32, debt, frames[0])
            if what == "heard":
                found.echoed(stamp)
    assert debt.wake_sources == {source: count for source, count in truth.items() if count}
