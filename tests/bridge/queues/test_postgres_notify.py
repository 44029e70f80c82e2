"""Whether plain puts wake listeners, judged from what stands at the tables."""

from __future__ import annotations

import datetime
import re

from queuebell.bridge.queues.postgres.schema import NotifyTrigger, notify_script
from queuebell.bridge.queues.postgres.store import QUEUES_MAX, PostgresMarks


def said(channel: str) -> dict[str, str]:
    """The functions as the server keeps them: what stands between the dollars."""
    put, resume = re.findall(r"\$\$(.*?)\$\$", notify_script(channel), re.DOTALL)
    return {"queuebell_messages": put, "queuebell_queues": resume}


def voices(schema: str, channel: str | None, *, meant: bool = False, **other: str | None) -> list[NotifyTrigger]:
    texts = {"queuebell_messages": None, "queuebell_queues": None} if channel is None else said(channel)
    texts = {**texts, **{f"queuebell_{of}": text for of, text in other.items()}}
    return [NotifyTrigger(schema, of, text, meant and of == "queuebell_messages") for of, text in texts.items()]


OURS, THEIRS, SILENT, MEANT = (
    voices("a", "queuebell"),
    voices("b", "others"),
    voices("c", None),
    voices("d", None, meant=True),
)


EARLY = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
LATE = EARLY + datetime.timedelta(seconds=1)


def test_marks_are_not_kept_for_ever_more_queues() -> None:
    marks = PostgresMarks()
    for number in range(QUEUES_MAX):
        marks.record(f"a/{number}", 0.0, EARLY)
    marks.record("a/one-more", 0.0, LATE)
    assert marks.mark("a/0", 0.1) is None
    assert marks.mark("a/one-more", 0.1) == LATE
