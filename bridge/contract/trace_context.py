"""W3C trace contexts of triggers that became one: told apart and kept, up to a bound.

They are a hint for people who follow a trace, and decide nothing. What is not of the form of a ``traceparent`` is
dropped here without a word, for it came from anywhere, and the wake that it came with is not to be lost for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

TRACES_MAX: Final = 32
"""The contexts kept of all that were merged: the newest. A wake stays far below the size of a frame with them."""
TRACEPARENT: Final = "traceparent"
DROPPED_MAX: Final = 1_000_000_000

# https://www.w3.org/TR/trace-context/#traceparent-header-field-values, in the length that version 00 has.
_form = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII).fullmatch


class Traces(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ``traceparent`` of each of several triggers that were merged: oldest first, the newest 32 of them.

    ``dropped`` counts those before them.
    """

    parents: tuple[str, ...]
    dropped: int = 0


class Traced(Protocol):
    """What tells the context of a trigger: the newest one's as text, and those of all where they are several."""

    @property
    def traceparent(self) -> str | None:
        """The newest, unchecked."""
        ...

    @property
    def traces(self) -> Traces | None:
        """All of them, unchecked, where there are several."""
        ...


def is_traceparent(text: str | None) -> bool:
    """Say whether ``text`` is a ``traceparent`` as W3C has it, and names a span."""
    return text is not None and _form(text) is not None


def merged(before: Traces | None, newer: Traced) -> Traces | None:
    """Return ``before`` with what ``newer`` tells: each context once, and what is none left out."""
    if newer.traceparent is None and newer.traces is None:
        return before
    dropped = 0
    known: dict[str, None] = {}
    for told in (before, newer.traces):
        if told is not None:
            known.update(dict.fromkeys(told.parents))
            dropped += max(0, told.dropped)
    if newer.traceparent is not None:
        known[newer.traceparent] = None
    parents = tuple(filter(is_traceparent, known))
    if not parents:
        return before
    over = max(0, len(parents) - TRACES_MAX)
    return Traces(parents[over:], min(DROPPED_MAX, dropped + over))


def joined(older: Traced, newer: Traced) -> Traces | None:
    """Return what two that become one tell together."""
    return merged(merged(None, older), newer)


def carried(messages: Iterable[Mapping[str, str]]) -> Traces | None:
    """Return the contexts in the headers of messages; None where none has any."""
    known = dict.fromkeys(headers[TRACEPARENT] for headers in messages if is_traceparent(headers.get(TRACEPARENT)))
    parents = tuple(known)
    return Traces(parents[-TRACES_MAX:], max(0, len(parents) - TRACES_MAX)) if parents else None


def several(traces: Traces | None) -> Traces | None:
    """Return what has to be told beside the newest ``traceparent``: None where that is all there is."""
    return None if traces is None or (len(traces.parents) < 2 and not traces.dropped) else traces
