"""What is written of hostile input, and of faults of our own, where both come in floods."""

from __future__ import annotations

import logging

import pytest

from bridge.http.server.quiet import QuietLog


def test_a_flood_of_warnings_hides_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """Each kind has a line in a second, with the number of its own that were left out."""
    now = 5.0
    error = ValueError("ours")
    quiet = QuietLog(logging.getLogger("queuebell.test"), lambda: now)
    for _ in range(3):
        quiet.warn("refused")
        quiet.fault("failed", error)
    now += 1.0
    quiet.fault("failed", error)
    quiet.warn("refused")
    more = " (and 2 more like it)"
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "refused"),
        ("ERROR", "failed"),
        ("ERROR", "failed" + more),
        ("WARNING", "refused" + more),
    ]
    assert [each.exc_info is not None and each.exc_info[1] for each in caplog.records] == [False, error, error, False]
