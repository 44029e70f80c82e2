"""What the client commands share: where the bridge is, asking it, and writing for people or scripts."""

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

import msgspec

from bridge.brokers.address import with_prefix
from bridge.brokers.connection import why_unreachable
from bridge.brokers.credential import Credential
from bridge.contract.address import HttpAddress, http_addresses
from bridge.contract.calls import BOOT_HEADER
from bridge.contract.errors import STATUS_BY_CODE, BusUnavailable, NotAllowed
from bridge.contract.failover import TRY_S, Failover
from queuebell.command.progress import coloured
from queuebell.command.table import laid_out
from queuebell.settings import DEFAULT_BRIDGE, Settings, load

TIMEOUT_S = 10.0
OK = 200
_NOT_ALLOWED = (401, 403)
_ELSEWHERE = (400, 401, 403, 404, 405)
"""What other web servers answer to a question of ours."""
_ANSWER_BYTES_MAX = 64 * 1024 * 1024

Answer = TypeVar("Answer")


def add_client_arguments(parser: argparse.ArgumentParser, *addresses: str, json: bool = True) -> None:
    """Declare ``--config``, the given ones of ``--bridge`` and ``--store``, and where it writes any, ``--json``."""
    for name in addresses:
        parser.add_argument(f"--{name}", metavar="URL", help=f"default {DEFAULT_BRIDGE} (QUEUEBELL_{name.upper()})")
    parser.add_argument("--config", metavar="FILE", help="TOML file (default: $QUEUEBELL_CONFIG, or none)")
    if json:
        parser.add_argument("--json", action="store_true", help="write JSON for scripts")


def client_settings(args: argparse.Namespace) -> Settings:
    """Return the settings with the command line's addresses; raises `ConfigurationError`."""
    given = {name: getattr(args, name, None) for name in ("bridge", "store")}
    return load(args.config, options=given)


def bus_address(args: argparse.Namespace) -> str:
    """Return where to publish: the bridge's address, a broker's with the prefix of the settings if it names none."""
    settings = client_settings(args)
    return with_prefix(settings.bridge, settings.prefix)


def print_json(value: object) -> None:
    """Write one JSON document on one line; to a terminal, what could drive it becomes an escape of JSON's own."""
    text = msgspec.json.encode(value).decode()
    sys.stdout.write((tamed_json(text) if sys.stdout.isatty() else text) + "\n")


def tamed_json(text: str) -> str:
    """Return a JSON document that says the same in printable characters: JSON itself leaves C1 and bidi as they are."""
    # Outside of its strings a document on one line has printable characters only.
    return text if text.isprintable() else "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def tamed(body: bytes) -> str:
    """Return a body as text that no terminal obeys: what is neither printable nor a line or a tab is escaped."""
    text = body.decode("utf-8", "backslashreplace")
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode("ascii") for one in text
    )


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, spare: Sequence[str] = ()) -> None:
    """Write rows under their heads; numbers stand to the right.

    On a terminal they fit its width, and what is left out, of the columns that may be, is said; all else gets all.
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
    """Write a line of what is wrong, in red where there are colours."""
    print(f"\x1b[31m{plain(text)}\x1b[0m" if coloured(sys.stdout) else plain(text))


def plain(cell: object) -> str:
    """Write a cell without what could drive a terminal: labels come from strangers."""
    text = "-" if cell is None else str(cell)
    return text if text.isprintable() else ascii(text)[1:-1]


class BridgeClient:
    """Asks a bridge for its state over one connection; a context manager.

    Of several equal ones it asks the first that answers, and that one to its end: ``url`` is where that is, ``gone``
    says of the others why not. With ``deadline_s`` all questions together end within it, however slowly the answers
    drip.
    """

    def __init__(self, url: str, deadline_s: float | None = None) -> None:
        addresses = http_addresses(url, "bridge")
        self._credential = Credential.of(addresses)
        self._left = Failover(addresses, random.random).round(time.monotonic())
        self._several = len(addresses) > 1
        self.gone: list[str] = []
        self.boot: str | None = None
        """Whose own queues they are of which it answered; None before, and where it holds none of its own."""
        self._begin(self._left.pop(0))
        self._deadline_s = deadline_s
        self._timer: threading.Timer | None = None
        self._late = False
        self._socket: socket.socket | None = None
        self._status = 0
        self.clocks: tuple[float | None, float, float] = (None, 0.0, 0.0)
        """When the last answer was made by the bridge's clock, as far as it says so, asked for and come by ours."""

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
                # Not the TLS layer's own: its reader must see the end, not lose its state.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def get(self, path: str) -> tuple[int, Any]:
        """Return status and decoded JSON; raises `BusUnavailable` where no bridge answers so."""
        return self._ask("GET", path)

    def read(self, path: str, kind: type[Answer]) -> tuple[int, Answer | None]:
        """Return status and answer, None for any status but 200, except that ``/readyz`` says the same whatever it is.

        Raises `BusUnavailable` where no bridge answers so.
        """
        status, told = self._ask("GET", path)
        return status, self.understood(told, kind) if status == OK or path == "/readyz" else None

    def understood(self, told: object, kind: type[Answer]) -> Answer:
        """Return an answer as what it should be; raises `BusUnavailable` where no bridge answers so."""
        try:
            return msgspec.convert(told, kind)
        except msgspec.ValidationError as error:
            raise BusUnavailable(f"{self.stranger()} ({plain(str(error))})") from None

    def post(self, path: str) -> tuple[int, Any]:
        """Have something done that takes no body, and return as `get` does."""
        return self._ask("POST", path)

    def _ask(self, method: str, path: str) -> tuple[int, Any]:
        while True:
            try:
                answer = self._ask_one(method, path)
            except BusUnavailable as error:
                # Whom it was that answered once has to answer all, or they would not fit together.
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
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # the last for names that DNS cannot have
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
        """Return a refusal that is worded as a bridge words it; raises `BusUnavailable` for any other."""
        if isinstance(told, dict) and isinstance(told.get("code"), str):
            return told
        raise self.stranger()

    def stranger(self) -> BusUnavailable:
        """Return what to raise where the last answer was not a bridge's."""
        return BusUnavailable(
            f"what answers at {self.url} is no bridge: it answers {self._status}, and not as one does. Is the address "
            "right? A bridge says it when it starts: queuebell ready on http://..."
        )


def _seconds(date: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
