"""What is wrong with a bridge that runs, judged from its own answers, and what to do about it; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from bridge.contract.sources import UNASKED

POISON: Final = "-poison"


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    code: str
    """``not_ready unattended buried session audit unasked clocks``."""
    subject: str
    """The check, queue or listener that it is about."""
    what: str
    advice: str


def judge(
    readiness: Mapping[str, Any], findings: Mapping[str, Any], queues: Iterable[Mapping[str, Any]]
) -> list[Problem]:
    """Return the problems that ``/readyz``, ``/v1/findings`` and the queues' own states show, the gravest first."""
    found: list[Problem] = []
    for name, check in (readiness.get("checks") or {}).items():
        if not check.get("ok"):
            found.append(
                Problem(
                    "not_ready", str(name), str(check.get("detail")), "messages are safe; mend this, it is tried again"
                )
            )
    if not readiness.get("ready") and not found:
        found.append(Problem("not_ready", "bridge", "it is not ready and does not say why", "read its log"))
    if audited := findings.get("audit_found"):
        found.append(
            Problem(
                "audit",
                "own queues",
                f"visible work that nobody had been told of was found {audited} times since the start",
                "it was repaired each time and nothing is lost, but it is a bug: please report it with the log",
            )
        )
    found += (_unattended(row) for row in findings.get("unattended") or ())
    found += (_session(row) for row in findings.get("sessions") or ())
    for state in queues:
        sources = state.get("wake_sources") or {}
        found += (
            _unasked(str(state.get("queue")), source, sources[source])
            for source in sorted(UNASKED)
            if sources.get(source)
        )
    if left_out := findings.get("left_out"):
        found.append(
            Problem("unattended", "others", f"{left_out} more like these", "mend the first ones and check again")
        )
    return found


def _unattended(row: Mapping[str, Any]) -> Problem:
    queue = str(row.get("queue"))
    if queue.endswith(POISON):
        return Problem(
            "buried",
            queue,
            f"{row.get('visible', 0)} messages were buried after too many attempts, and nobody listens here",
            f"see why: queuebell queue peek {queue}; then put them back or clear them",
        )
    return Problem(
        "unattended",
        queue,
        str(row.get("detail")),
        "start a listener for it; where a scaler starts them, see that it asks for the depth of this queue by itself",
    )


def _session(row: Mapping[str, Any]) -> Problem:
    queue = row.get("queue")
    subject = str(row.get("listener") or row.get("instance"))
    advice = {
        "silent": "it is given up after three missed heartbeats and its work goes to others; see whether it hangs",
        "behind": "its wakes merge until it reads; see whether its process or its network is overloaded",
        "stuck": "its work went to others; see whether its store answers",
        "deaf": "what it was handed was taken back; see whether its event loop is blocked",
    }.get(str(row.get("state")), "see its log")
    return Problem("session", f"{subject} on {queue}" if queue else subject, str(row.get("detail")), advice)


def _unasked(queue: str, source: str, count: int) -> Problem:
    look = "a sweep" if source == "sweep" else "a listener's own dead-man timer"
    return Problem(
        "unasked",
        queue,
        f"{look} found work {count} times since the start: no trigger had told of it",
        "nothing is lost, only late; see that every producer publishes after its put, and that its bus is up",
    )
