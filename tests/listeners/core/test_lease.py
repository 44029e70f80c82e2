"""When leases are renewed, and what is said of them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.backoff import RandomExponential
from bridge.contract.bounds import STORE_CALL_S
from bridge.contract.errors import ConfigurationError, NotPrepared, StoreError, StoreUnavailable
from listeners.core.controller import Controller
from listeners.core.deadman import DeadMan
from listeners.core.lease import (
    BUCKETS_MAX,
    Renewals,
    Visibility,
    lease_report,
    visible_again,
)
from listeners.core.liveness import Liveness
from listeners.core.scaling import DepthScaling, StepScaling
from listeners.core.table import LEADS_TO, Event, ImpossibleEvent, State
from listeners.core.trouble import AGAIN_S, Reach, Trouble


def test_what_is_done_is_forgotten() -> None:
    """No timer and no memory is left of it."""
    renewals = Renewals()
    renewals.leased(1, 100.0, 30.0)
    renewals.carried(2, 100.0)
    renewals.forget(1)
    renewals.forget(2)
    renewals.forget(3)
    assert len(renewals) == 0
    assert renewals.deadline() is None


def test_a_call_that_answers_after_a_later_one_is_renewed_before_it() -> None:
    """Leases count from when their calls began: one that took its whole time holds the most urgent of them."""
    renewals = Renewals()
    renewals.leased(1, 5.0, 20.0)
    renewals.leased(2, 9.8, 20.0)
    renewals.leased(3, 9.9, 20.0)
    renewals.leased(4, 0.0, 20.0)
    renewals.leased(5, 9.8, 20.0)
    assert renewals.deadline() == 10.0
    assert renewals.due(10.0) == [4]
    assert renewals.deadline() == 15.0
    assert renewals.due(100.0) == [1, 2, 5, 3]


def test_a_lease_that_began_anew_is_due_after_those_renewed_before_it() -> None:
    """Whether it was renewed or accepted: the older time of each is forgotten."""
    renewals = Renewals()
    renewals.leased(1, 100.0, 30.0)
    renewals.leased(2, 101.0, 30.0)
    renewals.carried(3, 101.0)
    assert (len(renewals), renewals.deadline()) == (3, 101.1)
    renewals.leased(3, 101.05, 30.0)
    renewals.leased(1, 110.0, 30.0)
    assert (len(renewals), renewals.deadline()) == (3, 116.0)
    assert renewals.due(200.0) == [2, 3, 1]


def test_one_pause_lengthens_the_visibility_once() -> None:
    """Thirty-two leases lost together were all of the old length; one lost after the new length has passed was not."""
    visibility = Visibility(30.0)
    for message in range(32):
        visibility.proved_short(1000.0 + message / 100)
    assert (visibility.seconds, visibility.too_short) == (45.0, 32)
    visibility.proved_short(1044.9)
    assert visibility.seconds == 45.0
    visibility.proved_short(1045.0)
    assert visibility.seconds == 67.5


def test_a_long_report_thins_out_upwards() -> None:
    """What ended counts as ending now; of too many every other one stays, counted from the longest."""
    assert lease_report([99.0, 100.0, 100.2, 101.0], 100.0) == [0, 1000]
    assert lease_report([100.0 + end for end in (1, 2, 3, 4)], 100.0, 4) == [1000, 2000, 3000, 4000]
    assert lease_report([100.0 + end for end in (1, 2, 3, 4, 5)], 100.0, 4) == [1000, 3000, 5000]
    assert lease_report([100.0 + end for end in range(1, 9)], 100.0, 3) == [4000, 8000]


def test_a_look_for_a_release_is_never_a_tick_early() -> None:
    """B2: rounded up by the store's resolution and 1e-4 of the delay."""
    assert visible_again(100.0, 40.0, 1) > 140.004
    assert visible_again(100.0, 40.0, 1000) == pytest.approx(141.004)
    assert visible_again(100.0, 0.0, 500) == pytest.approx(100.5, abs=1e-6)


def test_no_welcome_within_five_seconds_degrades_once() -> None:
    """And not again until a welcome has come in between."""
    liveness = Liveness(100.0)
    assert liveness.deadline() == 105.0
    assert not liveness.dead(104.9)
    assert liveness.dead(105.0)
    assert liveness.degraded
    assert liveness.deadline() is None
    assert not liveness.dead(500.0)
    liveness.welcome(600.0, 5.0)
    assert not liveness.degraded


def test_an_echo_counts_from_the_welcome_on_and_up_to_a_millisecond_ahead() -> None:
    """Stamps are whole milliseconds: that of the welcome itself is ours, and rounding puts none into the future."""
    liveness = Liveness(100.0)
    liveness.welcome(101.0, 5.0)
    assert liveness.echoed(102.0, 100_999, 0) is None
    assert liveness.echoed(102.0, 101_000, 0) == 101.0
    assert liveness.echoed(102.0, 101_050, 0) == pytest.approx(101.05)
    assert liveness.echoed(102.0, 102_000, 1) == pytest.approx(102.001)
    assert liveness.latency_s == 0.0
    assert liveness.echoed(102.0, 102_000, 2) is None


def test_a_session_that_breaks_has_five_seconds_to_come_back() -> None:
    """Counted from the first break, however often connecting fails since."""
    liveness = Liveness(100.0)
    liveness.welcome(101.0, 5.0)
    liveness.lost(110.0)
    liveness.lost(114.0)
    assert not liveness.dead(114.9)
    assert liveness.dead(115.0)


def test_only_the_echo_of_our_own_heartbeats_keeps_the_bridge_alive() -> None:
    """Three intervals without one and it counts as gone, whatever else it sends."""
    liveness = Liveness(100.0)
    liveness.welcome(101.0, 5.0)
    liveness.beat(106.0)
    assert liveness.echoed(106.2, 106_000, 100) == pytest.approx(106.1)
    assert liveness.latency_s == pytest.approx(0.1)
    assert not liveness.dead(121.0)
    assert liveness.dead(121.2)
    assert not liveness.welcomed


def test_echoes_that_cannot_be_ours_are_ignored() -> None:
    """From an older session, or from the future."""
    liveness = Liveness(100.0)
    liveness.welcome(101.0, 5.0)
    assert liveness.echoed(102.0, 100_000, 0) is None
    assert liveness.echoed(102.0, 103_000, 0) is None
    assert liveness.echoed(102.0, 101_500, 1000) is None
    liveness.lost(103.0)
    assert liveness.echoed(103.0, 102_000, 0) is None


def test_heartbeats_follow_the_size_of_the_fleet() -> None:
    """Ten thousand sessions beat every 25 s, whenever they came; when most of them left, at once more often again."""
    liveness = Liveness(100.0)
    liveness.welcome(101.0, 5.0)
    assert liveness.beat(101.0) == 101_000
    liveness.fleet(101.1, 10_000)
    assert liveness.beat(106.0) == 106_000
    assert liveness.beat(111.0) is None
    liveness.echoed(106.1, 106_000, 0)
    liveness.fleet(106.1, 100)
    assert liveness.deadline() == pytest.approx(111.1)
    assert liveness.beat(111.1) == 111_100


def test_an_echo_that_comes_late_proves_the_bridge_alive_when_it_was_sent() -> None:
    """Frames that stood in a buffer for ten seconds do not make it live ten seconds longer."""
    liveness = Liveness(100.0)
    liveness.welcome(101.0, 5.0)
    liveness.beat(106.0)
    assert liveness.echoed(116.0, 106_000, 0) == pytest.approx(106.0)
    assert liveness.latency_s == pytest.approx(10.0)
    assert not liveness.dead(120.9)
    assert liveness.dead(121.0)


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(1, 100), st.integers(0, 2000)), max_size=30))
def test_its_deadline_only_moves_forward_unless_its_numbers_shrink(news: list[tuple[float, float, int]]) -> None:
    """However stale the news; shorter numbers bring it to what they promise from now, and never nearer."""
    deadman, now = DeadMan(0.0, lambda: 0.7), 0.0
    wait = deadman.deadline()
    for step, sweep, sessions in news:
        now += step / 10
        before = deadman.deadline()
        deadman.tune(now, sweep, sessions, 0.05)
        was, wait = wait, deadman.t_dead + 0.7 * deadman.spread
        assert deadman.deadline() == (before if wait >= was else min(before, now + wait))
        before = deadman.deadline()
        deadman.heard(max(0.0, now - step))
        assert deadman.deadline() >= before


def test_a_store_that_has_answered_ends_no_worker() -> None:
    """Of whichever queue the answer was: its address is right, and what changed there may change back."""
    reach = Reach()
    one, other = Trouble(reach), Trouble(reach)
    assert not one.answered()
    assert not other.ends(ConfigurationError("this user is not let in"))


def test_the_bridge_hears_since_when_receives_fail() -> None:
    """From the first failure to the next answer, whether any of it was told or not."""
    trouble = Trouble()
    assert trouble.since is None
    trouble.begins(5.0)
    trouble.begins(7.0)
    assert trouble.since == 5.0
    assert trouble.failed(1000.0) == 1
    assert trouble.failed(1000.0 + AGAIN_S - 0.1) == 0
    assert trouble.answered()
    assert trouble.since is None
    assert not trouble.answered()
    trouble.begins(9.0)
    assert trouble.since == 9.0


IMPOSSIBLE = {
    (state, event)
    for state in (State.IDLE, State.FULL, State.COOLING, State.STOPPED)
    for event in (Event.RECEIVED, Event.FAILED)
}
"""An answer needs a receive in flight, which these states do not have (L11)."""


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_each_pair_is_listed_or_impossible(state: State, event: Event) -> None:
    """A pair stands in exactly one of the two, and what is listed names at least one state."""
    assert (event in LEADS_TO[state]) != ((state, event) in IMPOSSIBLE)
    assert LEADS_TO[state].get(event) != frozenset()


@pytest.mark.parametrize(("state", "event"), sorted(IMPOSSIBLE, key=str))
def test_an_impossible_event_is_refused(state: State, event: Event) -> None:
    """An answer without a receive in flight is a defect, and is said to be one."""
    controller = Controller(
        1, 1, scaling=DepthScaling(1), polls=RandomExponential(), retries=RandomExponential(), draw=lambda: 0.5
    )
    controller.state = state
    answer = (lambda: controller.received(0.0, 1, 0)) if event is Event.RECEIVED else lambda: controller.failed(0.0, 1)
    with pytest.raises(ImpossibleEvent, match=event.value):
        answer()


def test_an_action_that_leads_astray_is_refused() -> None:
    """The states that the table allows are asserted in production (L11)."""

    class Astray(Controller):
        def _has_room(self, now: float, free: int) -> None:
            self._stopping = True

    controller = Astray(
        1, 1, scaling=DepthScaling(1), polls=RandomExponential(), retries=RandomExponential(), draw=lambda: 0.5
    )
    with pytest.raises(ImpossibleEvent, match="room while idle led to stopped"):
        controller.room(0.0, 1)


def test_nothing_leaves_the_end() -> None:
    """STOPPED leads to itself alone, and STOPPING to nothing else."""
    assert set().union(*LEADS_TO[State.STOPPED].values()) == {State.STOPPED}
    assert set().union(*LEADS_TO[State.STOPPING].values()) == {State.STOPPING, State.STOPPED}


def test_rules_that_make_no_sense_are_refused() -> None:
    """Limits the wrong way round, steps out of order, no task at all."""
    for wrong in ((0, 1, 1), (1, 0, 1), (1, 2, 1), (math.nan, 1, 1)):
        with pytest.raises(ValueError, match="depth scaling"):
            DepthScaling(*wrong)
    for steps, beyond in ((((10, 1), (5, 2)), 3), (((10, 0),), 3), (((10, 1),), 0), ((), math.nan)):
        with pytest.raises(ValueError, match="steps"):
            StepScaling(steps, beyond)


def test_one_task_is_enough_for_a_rule() -> None:
    """The least of every number is allowed, and the defaults carry 16 batches of 32."""
    assert [StepScaling(((10, 1),), 1).tasks(depth) for depth in (9, 10)] == [1, 1]
    assert DepthScaling(1, 1, 1).tasks(9) == 1
    assert [DepthScaling().tasks(depth) for depth in (0, 32, 33, 512, 513)] == [1, 1, 2, 16, 16]


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (ConfigurationError("its client is not installed"), True),
        (NotPrepared("the tables are missing"), False),
        (StoreUnavailable("away"), False),
        (StoreError("refused"), False),
    ],
)
def test_only_what_cannot_mend_itself_ends_a_worker(error: Exception, ends: bool) -> None:
    """Tables may be made while workers run, and a store may come back; a client that is missing stays missing."""
    assert Trouble().ends(error) is ends


def test_the_spread_grows_with_the_fleet() -> None:
    """w = max(10 s, N x path latency): 1000 listeners 50 ms away spread over 50 s; the period is the bridge's."""
    deadman = DeadMan(0.0, lambda: 0.5)
    deadman.tune(0.0, 60.0, 1000, 0.05)
    deadman.heard(0.0)
    assert deadman.deadline() == 96.0 + 25.0
    deadman.tune(100.0, 120.0, 1, 0.05)
    deadman.heard(100.0)
    assert deadman.deadline() == 100.0 + 162.0 + 5.0


def test_before_a_welcome_it_stands_at_the_defaults() -> None:
    """Nothing is degraded as yet, H is 5 s however few sessions there are, and no latency is known."""
    liveness = Liveness(100.0)
    assert (liveness.beat_s, liveness.latency_s, liveness.degraded) == (5.0, 0.0, False)
    liveness.fleet(100.0, 1)
    assert liveness.beat_s == 5.0
    liveness.fleet(100.0, 10_000)
    assert liveness.beat_s == 25.0


def test_a_visibility_that_proved_too_short_grows_and_stays() -> None:
    """By half each time, tenfold at most."""
    visibility = Visibility(30.0)
    visibility.proved_short(1000.0)
    assert (visibility.seconds, visibility.too_short) == (45.0, 1)
    for turn in range(20):
        visibility.proved_short(2000.0 + turn * 300.0)
    assert visibility.seconds == 300.0


@given(st.lists(st.floats(-10, 10_000), max_size=300))
def test_a_report_names_no_lease_earlier_than_it_ends(ends: list[float]) -> None:
    """At most 32 ends, each lease rounded up to one that is named, the longest within a second."""
    report = lease_report([100.0 + end for end in ends], 100.0)
    assert len(report) <= BUCKETS_MAX
    assert report == sorted(set(report))
    for end in ends:
        assert any(named >= end * 1000 - 1e-3 for named in report)
    if ends:
        assert report[-1] <= max(0.0, max(ends)) * 1000 + 1000


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, STORE_CALL_S), st.booleans()), max_size=50))
def test_nothing_is_due_late(steps: list[tuple[float, float, bool]]) -> None:
    """Whatever comes and goes, and however long its call took, each lease comes up exactly at its half time."""
    renewals, now, expected = Renewals(), 0.0, {}
    for number, (pause, took, gone) in enumerate(steps):
        now += pause
        for due in renewals.due(now):
            assert expected.pop(due) <= now
        renewals.leased(number, now - took, 30.0)
        expected[number] = now - took + 15.0
        if gone:
            renewals.forget(number)
            del expected[number]
        assert all(at > now for at in expected.values())
        assert renewals.deadline() == (min(expected.values()) if expected else None)
