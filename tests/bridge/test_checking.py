"""What is judged to be wrong with a bridge, and that each judgement says what to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bridge import checking
from bridge.checking import Problem

WELL: dict[str, Any] = {"ready": True, "checks": {"store": {"ok": True, "detail": "takes writes"}}}


def judge(readiness: object, findings: object, queues: list[Any]) -> list[Problem]:
    """Judge what a bridge answered, as it came."""
    return checking.judge(
        msgspec.convert(readiness, checking.Readiness),
        msgspec.convert(findings, checking.Findings),
        msgspec.convert(queues, list[checking.QueueState]),
    )


def test_a_bridge_that_is_well_has_no_problems() -> None:
    """Nor has one whose queues were found by triggers, however often."""
    queue = {"queue": "a/b", "wake_sources": {"trigger": 5, "due": 2}}
    assert judge(WELL, {"unattended": [], "sessions": [], "audit_found": 0, "left_out": 0}, [queue]) == []
    assert judge(WELL, {}, []) == []


@pytest.mark.parametrize(
    ("code", "readiness", "findings", "queues"),
    [
        ("not_ready", {"ready": False, "checks": {"nats": {"ok": False, "detail": "down"}}}, {}, []),
        ("not_ready", {"ready": False, "checks": {}}, {}, []),
        ("audit", WELL, {"audit_found": 2}, []),
        ("unattended", WELL, {"unattended": [{"queue": "a/b", "visible": 3, "detail": "nobody"}]}, []),
        ("stranded", WELL, {"unattended": [{"queue": "a/b", "visible": 3, "detail": "3", "stranded": True}]}, []),
        ("buried", WELL, {"unattended": [{"queue": "a/b-poison", "visible": 3, "detail": "nobody"}]}, []),
        ("session", WELL, {"sessions": [{"listener": "w", "queue": None, "state": "silent", "detail": "silent"}]}, []),
        ("session", WELL, {"sessions": [{"listener": "w", "queue": "a/b", "state": "new", "detail": "odd"}]}, []),
        ("unattended", WELL, {"left_out": 4}, []),
        ("unasked", WELL, {}, [{"queue": "a/b", "wake_sources": {"trigger": 9, "sweep": 1}}]),
        ("unasked", WELL, {}, [{"queue": "a/b", "wake_sources": {"deadman": 1}}]),
    ],
)
def test_each_problem_has_a_code_a_subject_and_advice(
    code: str, readiness: dict[str, Any], findings: dict[str, Any], queues: list[dict[str, Any]]
) -> None:
    """One of each kind."""
    (problem,) = judge(readiness, findings, queues)
    assert problem.code == code
    assert problem.subject and problem.what and problem.advice


def test_a_bus_that_is_not_required_and_down_is_still_a_problem() -> None:
    """A site may go on without it; a person wants to know."""
    readiness = {"ready": True, "checks": {"mqtt": {"ok": False, "detail": "down (not required)"}}}
    assert [problem.subject for problem in judge(readiness, {}, [])] == ["mqtt"]


def test_buried_messages_are_told_without_a_guess_and_with_the_way_back() -> None:
    """Why each was buried stands in it; the advice names the command that puts them back."""
    row = {"queue": "a/b-poison", "visible": 1, "detail": "nobody"}
    (problem,) = judge(WELL, {"unattended": [row]}, [])
    assert problem.what == "1 message was buried, and nobody listens here"
    assert "queuebell queue replay a/b-poison" in problem.advice
