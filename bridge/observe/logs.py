"""Log lines for people and for machines, on one handler that the command installs.

The library itself configures nothing: it only uses loggers named ``queuebell.*``.
"""

from __future__ import annotations

import datetime
import logging
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import IO, Any, Literal

import msgspec

from queuebell.bridge.contract.errors import said
from queuebell.bridge.observe import facts

# Standard attributes of a record; everything else came through `extra`.
_BUILT_IN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "suppressed"}
_TEXT_MAX = 2000
_has_words = re.compile(r"[A-Za-z]{3}").search


def configure(
    form: Literal["plain", "json"] = "plain", level: str = "info", stream: IO[str] | None = None
) -> logging.Handler:
    """Send all log lines from ``level`` upward to ``stream`` (default: standard error) and return the handler."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    handler.addFilter(Repetition())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("queuebell").setLevel(level.upper())
    return handler


class PlainLines(logging.Formatter):
    """``2026-11-20T18:00:00.123Z warning web: the message key=value``, always one line without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows it, indented."""
        name = record.name.removeprefix("queuebell.")
        line = f"{_stamp(record.created)} {record.levelname.lower()} {name}: {_clean(_words(record))}"
        for key, value in _extras(record).items():
            line += f" {key}={_clean(said(value))}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join("\n    " + _clean(part) for part in trace.splitlines())
        return line


class JsonLines(logging.Formatter):
    """One JSON object a line: ``time level logger message``, further fields, and ``error`` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry: dict[str, Any] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _words(record)[:_TEXT_MAX],
            **_extras(record),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry, enc_hook=repr).decode()


class Repetition(logging.Filter):
    """Passes ``burst`` lines of one kind in ``period`` seconds; the next one shows how many were omitted.

    A kind is logger, level, exception type and the message's format, so that one noisy peer or queue cannot hide other
    lines. For a format without words (``%s: %s``) the formatted message counts.
    """

    KINDS_MAX = 1000

    def __init__(self, burst: int = 10, period: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._burst = burst
        self._period = period
        self._clock = clock
        self._kinds: OrderedDict[tuple[object, ...], list[float]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line passes."""
        words = str(record.msg)
        error = record.exc_info[0] if record.exc_info else None
        kind = (record.name, record.levelno, error, words if _has_words(words) else _words(record))
        now = self._clock()
        seen = self._kinds.get(kind)  # [when the period began, passed, suppressed]
        if seen is None or now - seen[0] >= self._period:
            missed = 0 if seen is None else int(seen[2])
            self._kinds[kind] = [now, 1, 0]
            self._kinds.move_to_end(kind)
            if len(self._kinds) > self.KINDS_MAX:
                self._kinds.popitem(last=False)
            if missed:
                record.msg = f"{record.msg} ({missed} similar lines omitted)"
            return True
        if seen[1] < self._burst:
            seen[1] += 1
            return True
        seen[2] += 1
        return False


class FactLog:
    """An `Observer` that logs facts of interest to people, to ``queuebell.bridge``.

    A rejected listener retries for ever: that is logged once for its name, until it is accepted.
    """

    REFUSED_MAX = 1000

    def __init__(self) -> None:
        self._log = logging.getLogger("queuebell.bridge")
        self._refused: OrderedDict[str, str] = OrderedDict()

    def __call__(self, fact: facts.Fact) -> None:
        """Log a fact, if it has a message."""
        # Most facts are only counted; each put emits six.
        if (found := _WORDS.get(type(fact))) is None:
            return
        if isinstance(fact, facts.SessionOpened):
            self._refused.pop(fact.listener, None)
        elif isinstance(fact, facts.SessionRefused):
            if self._refused.get(fact.listener) == fact.code:
                return
            self._refused[fact.listener] = fact.code
            if len(self._refused) > self.REFUSED_MAX:
                self._refused.popitem(last=False)
        words, level = found
        if self._log.isEnabledFor(level):
            self._log.log(level, words, extra=msgspec.structs.asdict(fact))


# Other facts are only counted by metrics.
_WORDS: dict[type[facts.Fact], tuple[str, int]] = {
    facts.SessionOpened: ("worker connected", logging.INFO),
    facts.SessionClosed: ("worker disconnected", logging.INFO),
    facts.SessionRefused: ("worker rejected; it polls its store and retries by itself", logging.WARNING),
    facts.StartMissed: ("no worker started in time; more workers are woken", logging.WARNING),
    facts.OwnerStuck: ("a worker makes no progress; its work goes to another", logging.WARNING),
    facts.AuditFound: (
        "visible messages without a wake; this is a bug, please report it; their workers are woken now",
        logging.ERROR,
    ),
    facts.Unannounced: (
        "a worker found messages without a trigger; nothing is lost, but a publish after a put is missing",
        logging.WARNING,
    ),
    facts.BusUp: ("bus connected", logging.INFO),
    facts.BusDown: ("bus disconnected; the bridge keeps retrying", logging.WARNING),
    facts.MemberCame: ("another bridge joined the cluster", logging.INFO),
    facts.MemberGone: ("a bridge left the cluster or fell silent; the others check its queues", logging.WARNING),
    facts.MemberRefused: (
        "a bridge on the cluster's subjects is not a member of this cluster; both act alone, and nothing is lost",
        logging.WARNING,
    ),
    facts.StoreDiffers: (
        "workers of another bridge use a different store under this queue's name; their receives settle nothing here",
        logging.WARNING,
    ),
    facts.ActedLate: (
        "another bridge was due to check this queue but did not; this bridge checks it now, as designed",
        logging.INFO,
    ),
    facts.SettledByPeer: ("settled by another bridge", logging.DEBUG),
    facts.Suspended: (
        "the machine was suspended; workers receive once from every queue in an external store",
        logging.WARNING,
    ),
    facts.AccessRefused: ("access refused: unknown key, missing permission or exceeded limit", logging.WARNING),
    facts.Administered: ("administered", logging.INFO),
    facts.HandedBack: ("messages returned to the queue", logging.DEBUG),
    facts.DuplicateDropped: ("duplicate trigger dropped", logging.DEBUG),
    facts.Woken: ("worker woken", logging.DEBUG),
    facts.Triggered: ("triggered", logging.DEBUG),
}


def _stamp(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _words(record: logging.LogRecord) -> str:
    """Return the message of a record, unformatted if formatting fails, so that no line is lost."""
    try:
        return record.getMessage()
    except Exception as broken:  # noqa: BLE001 - arguments may be of any kind
        return f"{record.msg} (formatting failed: {type(broken).__name__})"


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _BUILT_IN}


def _clean(text: str) -> str:
    """Escape characters that could forge a line or control a terminal."""
    text = text[:_TEXT_MAX]
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
