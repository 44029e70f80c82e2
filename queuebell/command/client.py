"""Shared by the client commands: the bridge's address, requests to it, and output for people or scripts."""

from __future__ import annotations

import argparse
import contextlib
import email.utils
import http.client
import json
import random
import shutil
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from queuebell.bridge.brokers.address import with_prefix
from queuebell.bridge.brokers.connection import why_unreachable
from queuebell.bridge.brokers.credential import Credential
from queuebell.bridge.contract.address import HttpAddress, http_addresses
from queuebell.bridge.contract.calls import BOOT_HEADER
from queuebell.bridge.contract.errors import STATUS_BY_CODE, BusUnavailable, NotAllowed
from queuebell.bridge.contract.failover import TRY_S, Failover
from queuebell.command.progress import coloured
from queuebell.command.table import laid_out
from queuebell.settings import DEFAULT_BRIDGE, Settings, load, parse_listen, reached_at

TIMEOUT_S = 10.0
OK = 200
_NOT_ALLOWED = (401, 403)
_NOT_FOUND = 404
_ELSEWHERE = (400, 401, 403, 404, 405)
"""Answers of web servers that are not a bridge."""
_ANSWER_BYTES_MAX = 64 * 1024 * 1024

Answer = TypeVar("Answer")


def add_client_arguments(parser: argparse.ArgumentParser, *addresses: str, json: bool = True) -> None:
    """Declare ``--config``, ``--bridge`` or ``--store`` if named, and ``--json``."""
    for name in addresses:
        parser.add_argument(f"--{name}", metavar="URL", help=f"default {DEFAULT_BRIDGE} (QUEUEBELL_{name.upper()})")
    parser.add_argument("--config", metavar="FILE", help="TOML file (default: $QUEUEBELL_CONFIG, or none)")
    if json:
        parser.add_argument("--json", action="store_true", help="write JSON for scripts")


def client_settings(args: argparse.Namespace) -> Settings:
    """Return the settings with the command line's addresses; raises `ConfigurationError`."""
    given = {name: getattr(args, name, None) for name in ("bridge", "store")}
    settings = load(args.config, options=given)
    if args.config is None or settings.bridge != DEFAULT_BRIDGE or given["bridge"] is not None:
        return settings
    _, port = parse_listen(settings.listen)
    return msgspec.structs.replace(settings, bridge=reached_at(settings, port)) if port else settings


def bus_address(args: argparse.Namespace) -> str:
    """Return the address to publish to; a broker's address without a prefix gets that of the settings."""
    settings = client_settings(args)
    return with_prefix(settings.bridge, settings.prefix)


def print_json(value: object) -> None:
    """Write a JSON document on one line; on a terminal, control characters are escaped."""
    text = msgspec.json.encode(value).decode()
    sys.stdout.write((tamed_json(text) if sys.stdout.isatty() else text) + "\n")


def tamed_json(text: str) -> str:
    """Return a JSON document with only printable characters; JSON itself does not escape C1 and bidi ones."""
    # Outside of its strings a document on one line has printable characters only.
    return text if text.isprintable() else "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def tamed(body: bytes) -> str:
    """Return a body as text that is safe on a terminal: all but printable characters, lines and tabs is escaped."""
    text = body.decode("utf-8", "backslashreplace")
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode("ascii") for one in text
    )


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, spare: Sequence[str] = ()) -> None:
    """Write a table with numbers aligned right.

    On a terminal it fits the width and names the ``spare`` columns that were left out; elsewhere it is complete.
    """
    right = {i for i in range(len(heads)) if rows and all(isinstance(row[i], int | float) for row in rows)}
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    texts = [[plain(cell) for cell in row] for row in rows]
    lines, left_out = laid_out(heads, texts, right=right, width=width, spare=spare)
    for line in lines:
        print("\n".join(line))
    if left_out:
        print(f"(in a wider terminal also {', '.join(left_out)})")


def trouble(text: str) -> None:
    """Write a line about a problem, in red on a terminal with colours."""
    print(f"\x1b[31m{plain(text)}\x1b[0m" if coloured(sys.stdout) else plain(text))


def plain(cell: object) -> str:
    """Return a cell without control characters, which labels from strangers may hold."""
    text = "-" if cell is None else str(cell)
    return text if text.isprintable() else ascii(text)[1:-1]


class BridgeClient:
    """Asks a bridge for its state over one connection; a context manager.

    Of several addresses it uses the first that answers for all requests: ``url`` is that address, ``gone`` has the
    errors of the others. ``deadline_s`` bounds all requests together, even if answers arrive slowly.
    """

    def __init__(self, url: str, deadline_s: float | None = None) -> None:
        addresses = http_addresses(url, "bridge")
        self._credential = Credential.of(addresses)
        self._left = Failover(addresses, random.random).round(time.monotonic())
        self._several = len(addresses) > 1
        self.gone: list[str] = []
        self.boot: str | None = None
        """Identifies the bridge's own queue service; None before the first answer, and on a shared store."""
        self._begin(self._left.pop(0))
        self._deadline_s = deadline_s
        self._timer: threading.Timer | None = None
        self._late = False
        self._socket: socket.socket | None = None
        self._status = 0
        self.clocks: tuple[float | None, float, float] = (None, 0.0, 0.0)
        """The last answer's time by the bridge's clock, if known; those of request and answer by this one's."""

    def _begin(self, where: HttpAddress) -> None:
        self.url = where.url
        within = TRY_S if self._several else TIMEOUT_S
        self._connection = (
            http.client.HTTPSConnection(where.host, where.port, timeout=within, context=self._credential.tls())
            if where.scheme == "https"
            else http.client.HTTPConnection(where.host, where.port, timeout=within)
        )

    def __enter__(self) -> BridgeClient:
        if self._deadline_s is not None:
            self._timer = threading.Timer(self._deadline_s, self._give_up)
            self._timer.name, self._timer.daemon = "deadline of the questions to the bridge", True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._connection.close()

    def _give_up(self) -> None:
        self._late = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not the TLS layer's own shutdown, which would reset the state that the reader still uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def get(self, path: str) -> tuple[int, Any]:
        """Return status and decoded JSON; raises `BusUnavailable` if no bridge answers."""
        return self._ask("GET", path)

    def read(self, path: str, kind: type[Answer]) -> tuple[int, Answer | None]:
        """Return status and answer; None for a status other than 200, except for ``/readyz``.

        Raises `BusUnavailable` if no bridge answers.
        """
        status, told = self._ask("GET", path)
        return status, self.understood(told, kind) if status == OK or path == "/readyz" else None

    def view(self, queue: str, rest: str, kind: type[Answer], *, verb: str) -> Answer | None:
        """Return what the bridge tells of a queue at ``/v1/queues/A/Q/rest``; None, with a line that says why, if not.

        ``verb`` is what the bridge would do: "show a history". Raises `BusUnavailable` for other answers.
        """
        status, told = self.get(f"/v1/queues/{quote(queue)}/{rest}")
        if status == _NOT_FOUND:
            older = self.refusal(told).get("code") == "not_found"
            why = f"is too old to {verb}" if older else f"has no queue {queue}: put to it, or create it"
            print(f"queuebell: the bridge at {self.url} {why}", file=sys.stderr)
            return None
        if status != OK:
            raise BusUnavailable(f"the bridge at {self.url} cannot {verb}: it answered {status}")
        return self.understood(told, kind)

    def understood(self, told: object, kind: type[Answer]) -> Answer:
        """Convert an answer to its type; raises `BusUnavailable` if it is not a bridge's."""
        try:
            return msgspec.convert(told, kind)
        except msgspec.ValidationError as error:
            raise BusUnavailable(f"{self.stranger()} ({plain(str(error))})") from None

    def post(self, path: str) -> tuple[int, Any]:
        """Send a request without a body, and return as `get` does."""
        return self._ask("POST", path)

    def _ask(self, method: str, path: str) -> tuple[int, Any]:
        while True:
            try:
                answer = self._ask_one(method, path)
            except BusUnavailable as error:
                # One bridge must answer all requests, or the answers would not fit together.
                if not self._left or self._late or (method != "GET" and self._connection.sock is not None):
                    raise BusUnavailable("; ".join([*self.gone, str(error)])) from None
                self.gone.append(str(error))
                self._connection.close()
                self._begin(self._left.pop(0))
            else:
                self._left = []
                return answer

    def _connect(self) -> None:
        self._connection.connect()
        self._socket = self._connection.sock
        if self._socket is not None:
            self._socket.settimeout(TIMEOUT_S)

    def _ask_one(self, method: str, path: str) -> tuple[int, Any]:
        try:
            if self._connection.sock is None and not self._late:
                self._connect()
            if self._late:
                raise TimeoutError
            asked_at = time.time()
            self._connection.request(method, path, headers={"Accept": "application/json", **self._credential.headers()})
            answer = self._connection.getresponse()
            self.clocks = (_seconds(answer.getheader("Date", "")), asked_at, time.time())
            body = answer.read(_ANSWER_BYTES_MAX)
        except (
            OSError,
            http.client.HTTPException,
            UnicodeError,
        ) as error:  # UnicodeError: a name that is not valid in DNS
            reason = why_unreachable(error) if isinstance(error, OSError) else str(error) or type(error).__name__
            if self._late:
                reason = f"its answers were not complete after {self._deadline_s:g} s"
            raise BusUnavailable(f"no bridge answers at {self.url}: {reason}") from None
        self._status = answer.status
        self.boot = answer.headers.get(BOOT_HEADER) or self.boot
        try:
            told = msgspec.json.decode(body) if body else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self.stranger() from None
        if answer.status in _NOT_ALLOWED and isinstance(told, dict) and told.get("code") in STATUS_BY_CODE:
            raise NotAllowed(str(told["code"]), f"{self.url}: {plain(told.get('detail'))}")
        if 300 <= answer.status < 400 or (answer.status in _ELSEWHERE and not isinstance(told, dict)):
            raise self.stranger()
        return answer.status, told

    def refusal(self, told: object) -> dict[str, Any]:
        """Return a refusal in a bridge's form; raises `BusUnavailable` for any other."""
        if isinstance(told, dict) and isinstance(told.get("code"), str):
            return told
        raise self.stranger()

    def stranger(self) -> BusUnavailable:
        """Return the error for an answer that is not a bridge's."""
        return BusUnavailable(
            f"what answers at {self.url} is not a bridge: it answered {self._status} in another form. Is the address "
            "right? A bridge prints it when it starts: queuebell ready on http://..."
        )


def _seconds(date: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
