"""When leases are renewed, and how they are reported."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuebell.bridge.contract.bounds import STORE_CALL_S
from queuebell.bridge.queues.base import StoredMessage
from queuebell.listeners.work.lease import (
    BUCKETS_MAX,
    Held,
    Renewals,
    Visibility,
    lease_report,
    shortest_visibility,
    visible_again,
)


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


def test_a_look_for_a_release_is_never_a_tick_early() -> None:
    """B2: rounded up by the store's resolution and 1e-4 of the delay."""
    assert visible_again(100.0, 40.0, 1) > 140.004
    assert visible_again(100.0, 40.0, 1000) == pytest.approx(141.004)
    assert visible_again(100.0, 0.0, 500) == pytest.approx(100.5, abs=1e-6)


def test_a_visibility_that_proved_too_short_grows_and_stays() -> None:
    visibility = Visibility(30.0)
    visibility.proved_short(1000.0)
    assert (visibility.seconds, visibility.too_short) == (45.0, 1)
    for turn in range(20):
        visibility.proved_short(2000.0 + turn * 300.0)
    assert visibility.seconds == 300.0


def test_a_lease_lasts_for_a_call_that_hangs_and_for_a_receive_that_waits() -> None:
    assert (shortest_visibility(10.0), shortest_visibility(10.0, 20.0)) == (20.0, 30.0)


def test_a_message_keeps_the_trace_that_it_brought() -> None:
    now, own, wakes = (
        datetime.datetime.now(datetime.UTC),
        f"00-{'1' * 32}-{'2' * 16}-01",
        f"00-{'3' * 32}-{'4' * 16}-01",
    )
    for headers, wanted in (({"traceparent": own}, (own, ())), ({"traceparent": "none"}, (wakes, (wakes,)))):
        held = Held(1, StoredMessage("1", "r", b"", 1, now, None, headers=headers), 0.0, "trigger")
        held.set_traces(wakes, (wakes,))
        assert (held.traceparent, held.traces) == wanted


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
