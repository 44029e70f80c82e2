"""When a relay looks again, and which queues rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.producer.outbox.pace import BUSY_S, REST_S_MAX, Pace


def middle() -> float:
    return 0.5


def test_a_queue_rests_longer_each_time_and_others_do_not() -> None:
    """0.1 s first, 30 s at most; a put that worked begins anew."""
    pace, now, rests = Pace(), 100.0, []
    for _ in range(12):
        pace.failed("a/q", now, middle)
        rests.append(pace.next_look(now, 1000.0) - now)
        assert pace.resting(now) == ["a/q"]
        now += rests[-1]
        assert pace.resting(now) == []
    assert rests == sorted(rests) and round(rests[0], 6) == 0.1 and round(rests[-1], 6) == REST_S_MAX
    pace.worked("a/q")
    pace.failed("a/q", now, middle)
    assert round(pace.next_look(now, 1000.0) - now, 6) == 0.1


def test_a_store_that_says_when_is_left_alone_so_long() -> None:
    """And a little more, so that not all come back together."""
    pace = Pace()
    pace.failed("a/q", 0.0, middle, 60.0)
    assert pace.resting(60.0) == ["a/q"]
    assert pace.next_look(0.0, 1000.0) > 60.0


def test_the_next_look() -> None:
    """After the idle time, or when the first rest ends, or soon where another relay is at work."""
    pace = Pace()
    assert pace.next_look(5.0, 60.0) == 65.0
    assert pace.next_look(5.0, 60.0, busy=True) == 5.0 + BUSY_S
    assert pace.next_look(5.0, 0.2, busy=True) == 5.2
    pace.failed("a/q", 5.0, middle)
    pace.failed("a/r", 5.0, middle, 10.0)
    assert pace.next_look(5.0, 60.0, busy=True) == 5.1
    assert 15.0 < pace.next_look(5.2, 60.0) < 16.0
    # A rest that ends now is over: what it was about is looked at now, not planned for now.
    assert pace.next_look(5.1, 1.0) == 6.1


@given(
    st.lists(
        st.tuples(st.sampled_from(["fail", "work", "keep", "wait"]), st.sampled_from("abc"), st.floats(0, 100)),
        max_size=40,
    ),
    st.floats(0, 1, exclude_max=True),
)
def test_nothing_rests_for_ever(steps: list[tuple[str, str, float]], draw: float) -> None:
    """Whatever happened: there is a next look, none later than idle, and each queue is asked again in the end."""
    pace, now = Pace(), 0.0
    for what, queue, seconds in steps:
        if what == "fail":
            pace.failed(queue, now, lambda: draw)
            assert queue in pace.resting(now)
        elif what == "work":
            pace.worked(queue)
            assert queue not in pace.resting(now)
        elif what == "keep":
            resting = pace.resting(now)
            pace.keep(now, [queue])
            assert pace.resting(now) == resting
        else:
            now += seconds
        assert now <= pace.next_look(now, 60.0) <= now + 60.0
    assert pace.resting(now + REST_S_MAX) == []
    pace.keep(now + REST_S_MAX, [])
    assert pace.next_look(now, 60.0) == now + 60.0
