"""What an answer proves (L8)."""

from __future__ import annotations

import pytest

from listeners.core.evidence import Evidence, Receive


def receive(epoch: int = 1, limit: int = 4, *, confirms: bool = False) -> Receive:
    return Receive(epoch, None, 0, 0.0, limit, "trigger", confirms)


@pytest.mark.parametrize(
    ("n", "visible", "complete", "covers"),
    [
        (0, None, True, True),
        (0, 0, True, True),
        (0, 3, True, False),
        (3, None, True, True),
        (3, 0, True, True),
        (3, 1, True, False),
        (4, None, True, False),
        (4, 0, True, True),
        (4, 9, True, False),
        (0, None, False, False),
        (0, 3, False, False),
        (3, 0, False, False),
    ],
)
def test_what_one_answer_proves(n: int, visible: int | None, complete: bool, covers: bool) -> None:
    """Empty, short or depth 0 on a complete store; on another, never one answer alone."""
    assert Evidence().covers(receive(), n, visible, complete, 1) is covers


def test_two_empty_answers_of_one_epoch_are_proof_enough() -> None:
    """The second must have begun after the first, and nothing have happened in between."""
    evidence = Evidence()
    assert not evidence.covers(receive(), 0, None, False, 1)
    assert evidence.half(1)
    assert not evidence.half(2)
    assert evidence.covers(receive(confirms=True), 0, None, False, 1)
    stale = Evidence()
    assert not stale.covers(receive(1), 0, None, False, 2)
    assert not stale.half(1)


@pytest.mark.parametrize(("n", "visible"), [(3, None), (3, 0), (0, 3), (4, 4)])
def test_what_brings_or_leaves_messages_is_no_half_of_a_proof(n: int, visible: int | None) -> None:
    """Neither the first one nor the second."""
    for confirms in (False, True):
        evidence = Evidence()
        assert not evidence.covers(receive(confirms=confirms), n, visible, False, 1)
        assert not evidence.half(1)


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("n", [0, 3, 4])
@pytest.mark.parametrize("visible", [None, 0, 3])
@pytest.mark.parametrize("confirms", [True, False])
def test_a_blocked_answer_proves_nothing(complete: bool, n: int, visible: int | None, confirms: bool) -> None:
    """Whatever it shows, and it is no first half of a proof either."""
    evidence = Evidence()
    assert not evidence.covers(receive(confirms=confirms), n, visible, complete, 1, blocked=True)
    assert not evidence.half(1)
