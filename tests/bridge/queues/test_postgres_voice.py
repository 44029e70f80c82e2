"""Whether plain puts wake listeners, judged from what stands at the tables."""

from __future__ import annotations

import datetime
import re

import pytest

from bridge.queues.postgres.marks import QUEUES_MAX, PostgresMarks
from bridge.queues.postgres.voice import Voice, hearing, room, speak


def said(channel: str) -> dict[str, str]:
    """The functions as the server keeps them: what stands between the dollars."""
    put, resume = re.findall(r"\$\$(.*?)\$\$", speak(channel), re.DOTALL)
    return {"queuebell_messages": put, "queuebell_queues": resume}


def voices(schema: str, channel: str | None, *, meant: bool = False, **other: str | None) -> list[Voice]:
    texts = {"queuebell_messages": None, "queuebell_queues": None} if channel is None else said(channel)
    texts = {**texts, **{f"queuebell_{of}": text for of, text in other.items()}}
    return [Voice(schema, of, text, meant and of == "queuebell_messages") for of, text in texts.items()]


OURS, THEIRS, SILENT, MEANT = (
    voices("a", "queuebell"),
    voices("b", "others"),
    voices("c", None),
    voices("d", None, meant=True),
)
OLDER = voices("e", "queuebell", messages="BEGIN PERFORM pg_notify('queuebell', 'x'); END")
HALF = voices("f", "queuebell", queues=None)


@pytest.mark.parametrize(
    "found, ok, words",
    [
        ([], True, "no tables of queues here ('queuebell queue init' makes them)"),
        (OURS, True, "schema a wake listeners"),
        (MEANT, True, "as was asked for"),
        (SILENT, False, "schema c has no trigger function at queuebell_messages and queuebell_queues"),
        (HALF, False, "schema f has no trigger function at queuebell_queues"),
        (OLDER, False, "schema e are of another version"),
        (THEIRS, False, "schema b notify the channel others, and this bridge listens to queuebell"),
        ([*OURS, *THEIRS], True, "schema a wake listeners"),
        ([*OURS, *MEANT], True, "schema a wake listeners"),
        ([*OURS, *SILENT], False, "schema c has no"),
        ([*THEIRS, *MEANT], False, "notify the channel others"),
        ([*MEANT, *SILENT], False, "schema c has no"),
        (OURS[:1], False, "at queuebell_queues"),
        ([*MEANT, *voices("g", None, meant=True)], True, "puts in schema d, g notify nobody, as was asked for"),
        ([*OURS, *voices("g", "queuebell")], True, "plain puts in schema a, g wake listeners"),
        ([*SILENT, *HALF], False, "queuebell_queues; schema f has no trigger function at queuebell_queues. Such"),
    ],
)
def test_what_stands_at_the_tables(found: list[Voice], ok: bool, words: str) -> None:
    """Each fault is named with its schema and what to run; what is meant, and another system's, is none."""
    hears = hearing(found, "queuebell")
    assert (hears.ok, words in hears.detail) == (ok, True), hears.detail
    assert ok or "queue init" in hears.detail


@pytest.mark.parametrize(("used", "ok"), [(0, True), (79, True), (80, False), (100, False)])
def test_a_server_that_is_nearly_full_is_said(used: int, ok: bool) -> None:
    """With how much is left and what to lower, before it refuses anybody."""
    found = room(used, 100)
    assert found.ok is ok and found.detail.startswith(f"{used} of the server's 100 connections are in use")
    assert ("pool_size" in found.detail) is not ok


EARLY = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
LATE = EARLY + datetime.timedelta(seconds=1)


def test_marks_are_not_kept_for_ever_more_queues() -> None:
    """Past the limit all begin anew."""
    marks = PostgresMarks()
    for number in range(QUEUES_MAX):
        marks.took(f"a/{number}", 0.0, EARLY)
    marks.took("a/one-more", 0.0, LATE)
    assert marks.mark("a/0", 0.1) is None
    assert marks.mark("a/one-more", 0.1) == LATE
