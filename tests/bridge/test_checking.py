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
        ("session", WELL, {"sessions": [{"listener": "w", "queue": "a/b", "state": "failing", "detail": "9 s"}]}, []),
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


@pytest.mark.parametrize("told", [{"exists": False}, {}])
def test_messages_buried_elsewhere_are_not_counted_and_the_commands_name_their_store(told: dict[str, bool]) -> None:
    """Their number is not known here, and without --store the commands would ask the wrong store."""
    (problem,) = judge(WELL, {"unattended": [{"queue": "a/b-poison", "visible": 0, "detail": "nobody", **told}]}, [])
    assert problem.code == "buried"
    assert "not known" in problem.what and "0 messages" not in problem.what
    for command in ("peek a/b-poison --json", "replay a/b-poison", "clear a/b-poison"):
        assert f"queuebell queue {command} --store URL" in problem.advice
    assert "--bridge" in problem.advice and "NATS and SQS" in problem.advice
    assert "queuebell queue forget a/b-poison" in problem.advice


@pytest.mark.parametrize(("exists", "command"), [(True, "delete"), (False, "forget")])
def test_a_mistaken_name_can_be_got_rid_of(exists: bool, command: str) -> None:
    """The way depends on whether the queue stands here."""
    (problem,) = judge(WELL, {"unattended": [{"queue": "a/b", "detail": "nobody", "exists": exists}]}, [])
    assert f"queuebell queue {command} a/b" in problem.advice


def test_workers_of_one_name_are_told_apart() -> None:
    """By the beginning of their instance, as status shows it."""
    rows = [{"listener": "twin", "instance": end * 32, "state": "silent", "detail": "silent"} for end in "ab"]
    subjects = [problem.subject for problem in judge(WELL, {"sessions": rows}, [])]
    assert subjects == ["twin (aaaaaaaa)", "twin (bbbbbbbb)"]
