"""W3C trace contexts of merged triggers, kept up to a limit.

They help people to follow a trace and decide nothing. An invalid ``traceparent`` is dropped silently, because it may
come from anywhere, and its wake must not be lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

TRACES_MAX: Final = 32
"""The number of contexts kept, the newest; keeps wakes far below the size limit of frames."""
TRACEPARENT: Final = "traceparent"
DROPPED_MAX: Final = 1_000_000_000

# https://www.w3.org/TR/trace-context/#traceparent-header-field-values, in the length that version 00 has.
_form = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII).fullmatch


class Traces(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ``traceparent`` of each of several triggers that were merged: oldest first, the newest 32 of them.

    ``dropped`` counts earlier ones.
    """

    parents: tuple[str, ...]
    dropped: int = 0


class Traced(Protocol):
    """A trigger or a wake with trace contexts: the newest as text, and all if there are several."""

    @property
    def traceparent(self) -> str | None:
        """The newest context, unchecked."""
        ...

    @property
    def traces(self) -> Traces | None:
        """All contexts, unchecked, if there are several."""
        ...


def is_traceparent(text: str | None) -> bool:
    """Return whether ``text`` is a valid W3C ``traceparent``."""
    return text is not None and _form(text) is not None


def merged(before: Traces | None, newer: Traced) -> Traces | None:
    """Return ``before`` with the contexts of ``newer``: each once, without invalid ones."""
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
    """Return the contexts of two merged triggers."""
    return merged(merged(None, older), newer)


def carried(messages: Iterable[Mapping[str, str]]) -> Traces | None:
    """Return the contexts in the headers of messages; None without any."""
    known = dict.fromkeys(headers[TRACEPARENT] for headers in messages if is_traceparent(headers.get(TRACEPARENT)))
    parents = tuple(known)
    return Traces(parents[-TRACES_MAX:], max(0, len(parents) - TRACES_MAX)) if parents else None


def several(traces: Traces | None) -> Traces | None:
    """Return the contexts to send in addition to the newest ``traceparent``: None if there are no others."""
    return None if traces is None or (len(traces.parents) < 2 and not traces.dropped) else traces
