"""Whether plain puts wake listeners, judged from what stands at the tables."""

from __future__ import annotations

import re

import pytest

from bridge.queues.postgres.voice import Voice, hearing, outdated, room, speak


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


def test_a_function_of_another_version_says_its_channel() -> None:
    """What `queue init` brings up to date without being told to: nothing that is, nothing that is not ours."""
    ours = said("others")["queuebell_messages"]
    assert outdated(ours) is None
    assert outdated(ours.replace("LOOP", "LOOP  ", 1)) == "others"
    assert outdated(None) is None
    assert outdated("BEGIN RETURN NULL; END") is None


@pytest.mark.parametrize(("used", "ok"), [(0, True), (79, True), (80, False), (100, False)])
def test_a_server_that_is_nearly_full_is_said(used: int, ok: bool) -> None:
    """With how much is left and what to lower, before it refuses anybody."""
    found = room(used, 100)
    assert found.ok is ok and found.detail.startswith(f"{used} of the server's 100 connections are in use")
    assert ("pool_size" in found.detail) is not ok


def test_what_mends_a_channel_of_ones_own_names_it() -> None:
    """The command as it is told would else make functions for the usual channel, and mend nothing."""
    assert "'QUEUEBELL_PREFIX=shop queuebell queue init" in hearing(OURS, "shop").detail
    assert "'queuebell queue init" in hearing(THEIRS, "queuebell").detail
