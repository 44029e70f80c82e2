"""What an error of PostgreSQL or of its client means for a store call."""

from __future__ import annotations

from typing import Any, Final

from bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    QueuebellError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)

INIT_HINT: Final = "make the tables with 'queuebell queue init postgres://...'"
READ_ONLY: Final = "25006"
"""The server is a standby, or takes no writes for now: not on this connection, perhaps on another."""

# By SQLSTATE, whole or its class of two letters; the whole is looked up first.
_MEANING: Final[dict[str, type[StoreError]]] = {
    # The server takes connections down in mid-statement; the commit may have been done.
    "57P01": UnknownOutcome,
    "57P02": UnknownOutcome,
    "57P05": UnknownOutcome,
    "40003": UnknownOutcome,
    "08": UnknownOutcome,
    # A disk that is full, and nothing else of its class.
    "53100": StoreFull,
    # Its statement was rolled back: nothing happened.
    READ_ONLY: StoreUnavailable,
    "40": StoreUnavailable,
    "53": StoreUnavailable,
    "55": StoreUnavailable,
    "57": StoreUnavailable,
    "58": StoreUnavailable,
    "XX": StoreUnavailable,
}
_MISSING: Final = frozenset({"42P01", "42883", "3F000", "42703"})
_REFUSED: Final = frozenset({"28", "42501"})
_NO_DATABASE: Final = "3D000"


def explain(error: Exception, where: str, *, sent: bool) -> QueuebellError:
    """Return our error for one of the client; ``sent`` where the request had left for the server.

    What the server answered is believed: such a statement was rolled back, but where the connection ended with it.
    """
    state: Any = getattr(error, "sqlstate", None)
    # Errors that the client makes up when the connection is gone carry a state too; no server said those.
    if isinstance(state, str) and getattr(error, "severity", None):
        return answered(error, state, where, sent=sent)
    why = str(error) or type(error).__name__
    if sent:
        return UnknownOutcome(f"{where}: no answer from the database: {why}")
    return StoreUnavailable(f"{where}: the database cannot be reached: {why}")


def answered(error: Exception, state: str, where: str, *, sent: bool) -> QueuebellError:
    """Return our error for one that has this SQLSTATE, of whichever client; ``sent`` as for `explain`."""
    if state in _MISSING:
        return StoreError(f"{where}: the database has not the tables that are needed: {INIT_HINT}")
    if state[:2] == "22" or state == "23514":
        return BadInput("bad_parameter", "the database refuses a value: " + str(error))
    meaning = _MEANING.get(state) or _MEANING.get(state[:2]) or StoreError
    if not sent and meaning is UnknownOutcome:
        meaning = StoreUnavailable
    if state == _NO_DATABASE:
        return ConfigurationError(f"{where}: {error}: make it, or mend the address")
    if state in _REFUSED or state[:2] in _REFUSED:
        if not sent:
            return ConfigurationError(f"{where}: the database does not let this user in: {error}")
        return StoreError(f"{where}: this user may not do that: {error}")
    return meaning(f"{where}: {error} (SQLSTATE {state})")
