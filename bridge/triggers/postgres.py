"""Triggers by NOTIFY from a PostgreSQL database: of its queues' trigger function, or of any other client.

A payload is a queue reference (``NOTIFY queuebell, 'billing/orders'``: one trigger of size 1) or a trigger as JSON. If
it names an inbox (``reply``, with ``ask`` as the number of the request), the inbox is notified after the mark (B1).
The connection is supervised like a broker's; each new LISTEN is a gap.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from queuebell.bridge.brokers.address import take_prefix
from queuebell.bridge.brokers.base import Incoming, Topic
from queuebell.bridge.brokers.postgres.access import CHANNEL_BYTES_MAX
from queuebell.bridge.brokers.postgres.broker import INBOX, PostgresBroker
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.errors import BusUnavailable, ConfigurationError
from queuebell.bridge.contract.names import DEFAULT_PREFIX, is_token
from queuebell.bridge.queues.postgres.schema import (
    CONNECTIONS,
    TRIGGERS,
    CheckResult,
    NotifyTrigger,
    check_connections,
    check_notify,
)
from queuebell.bridge.triggers.intake import Intake
from queuebell.bridge.triggers.promises import PromiseKeeper
from queuebell.bridge.triggers.supervisor import SupervisedConnection

if TYPE_CHECKING:
    from queuebell.bridge.service.bridge import Bridge

log = logging.getLogger("queuebell.bridge")

ANSWERS_MAX: Final = 1000
CHECK_EVERY_S: Final = 5.0
"""How often it checks whether the puts of the database still notify."""
CHECKS_PER_ROOM: Final = 12
"""After this many checks it also asks whether the server has connections left."""


class PostgresListener:
    """One database of a bridge, called ``name``; the option ``prefix`` of ``url`` names its channel.

    ``ours`` returns whether a process of the server carries out this bridge's own puts.
    """

    def __init__(
        self,
        bridge: Bridge,
        url: str,
        name: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        ours: Callable[[int], bool] = lambda _: False,
        draw: Draw = random.random,
    ) -> None:
        given, own = take_prefix(url)
        self._prefix = own if given != url else prefix
        if len(self._prefix) > CHANNEL_BYTES_MAX:
            raise ConfigurationError(f"prefix: a channel name of PostgreSQL may have at most {CHANNEL_BYTES_MAX} bytes")
        self._keeper = PromiseKeeper(name, self._prefix, bridge.boot)
        self._notifications = Notifications(bridge, name, self._prefix, self._keeper, ours)
        self.checks = DatabaseChecks(name, self._prefix, bridge.gap)
        PostgresBroker(given)  # raises for a wrong address
        self._connection: SupervisedConnection[PostgresBroker] = SupervisedConnection(
            lambda: PostgresBroker(given), name, self._up, bridge.gap,
            on_down=self._down, emit=bridge.emit, draw=draw,
        )  # fmt: skip

    async def start(self) -> None:
        """Begin to connect; returns immediately."""
        await self._connection.start()

    async def stop(self) -> None:
        """Disconnect; may be called twice."""
        await self._connection.stop()
        self._keeper.stop()

    def check(self) -> tuple[bool, str]:
        """Return whether it receives triggers, and its state, for `/readyz`."""
        return self._connection.check()

    async def _up(self, line: PostgresBroker) -> None:
        await self._notifications.attach(line)
        await self.checks.attach(line)
        self._keeper.attach(line)

    def _down(self) -> None:
        self._keeper.detach()
        self.checks.detach()
        self._notifications.detach()


class _Addressed(msgspec.Struct):
    storage_account: str
    queue_name: str
    reply: str = ""
    ask: int = 0
    promised: bool | None = None
    by: str = ""


_addressed = msgspec.json.Decoder(_Addressed).decode


class Notifications:
    """Reads payloads, marks their triggers and acknowledges requests, over one connection after the other.

    ``keeper`` gets each put that expects no answer, and the promises of bridges. Notifications of the
    server's processes that are ``ours`` mark nothing: this bridge put those messages and marked them itself.
    """

    def __init__(
        self,
        bridge: Bridge,
        bus: str,
        prefix: str,
        keeper: PromiseKeeper,
        ours: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._bus = bus
        self._prefix = prefix
        self._keeper = keeper
        self._ours = ours
        self._intake = Intake(bridge, bus, prefix)
        self._line: PostgresBroker | None = None
        self._answers: list[tuple[str, str]] = []
        self._answering: asyncio.Task[None] | None = None

    async def attach(self, line: PostgresBroker) -> None:
        """Receive triggers on a new connection. Raises `BusUnavailable` and `ConfigurationError`."""
        self._line = line
        await line.listen(self._prefix, self.on_notify)

    def on_notify(self, payload: str, process: int = 0) -> None:
        """Handle a payload that a process of the server sent. Never raises."""
        raw = payload.encode()
        if not raw.startswith(b"{"):
            if self._ours(process):
                return
            self._intake.on_message(Incoming(self._topic(*payload.split("/")), b""))
            return
        try:
            asked = _addressed(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # The intake reads it again and reports the error.
            self._intake.on_message(Incoming(self._topic("", ""), raw))
            return
        acknowledge = None
        if asked.reply.startswith(INBOX):
            inbox, number = asked.reply, str(asked.ask)
            acknowledge = lambda: self._answer(inbox, number)  # noqa: E731
        elif asked.promised is not None:
            if is_token(asked.storage_account) and is_token(asked.queue_name):
                self._keeper.on_report(f"{asked.storage_account}/{asked.queue_name}", asked.by, asked.promised)
        else:
            if is_token(asked.storage_account) and is_token(asked.queue_name):
                self._keeper.on_put(f"{asked.storage_account}/{asked.queue_name}")
            if self._ours(process):
                return
        topic = self._topic(asked.storage_account, asked.queue_name)
        self._intake.on_message(Incoming(topic, raw, acknowledge=acknowledge))

    def detach(self) -> None:
        """Forget the connection; requests without an answer are repeated."""
        self._line = None
        self._answers.clear()
        if self._answering is not None:
            self._answering.cancel()

    def _topic(self, *queue: str) -> Topic:
        return (self._prefix, "trigger", *queue)

    def _answer(self, inbox: str, number: str) -> None:
        if len(self._answers) < ANSWERS_MAX:
            self._answers.append((inbox, number))
        self._answer_soon()

    def _answer_soon(self) -> None:
        if self._answering is None:
            loop = asyncio.get_running_loop()
            task = self._answering = loop.create_task(self._answer_all(), name=f"answers[{self._bus}]")
            task.add_done_callback(self._answered)

    async def _answer_all(self) -> None:
        while self._answers and self._line is not None:
            batch, self._answers = self._answers, []
            try:
                await self._line.notify(batch)
            except BusUnavailable as error:
                log.debug("a trigger was accepted but not acknowledged: %s", error, extra={"bus": self._bus})
                return

    def _answered(self, task: asyncio.Task[None]) -> None:
        if self._answering is task:
            self._answering = None
            # Marked between the task's last check and this call.
            if self._answers and self._line is not None and not task.cancelled():
                self._answer_soon()


class DatabaseChecks:
    """Checks whether plain puts in a database notify, and each minute whether its server has connections left.

    ``on_fixed`` is called when puts notify again. Readiness does not depend on it: other triggers still arrive.
    """

    def __init__(self, bus: str, prefix: str, on_fixed: Callable[[], object]) -> None:
        self._bus = bus
        self._prefix = prefix
        self._on_fixed = on_fixed
        self._puts: CheckResult | None = None
        self._room = CheckResult(True, "not checked yet")
        self._task: asyncio.Task[None] | None = None

    async def attach(self, line: PostgresBroker) -> None:
        """Check now, and regularly from then on. Raises `BusUnavailable`."""
        await self._check_puts(line)
        await self._check_room(line)
        self._task = asyncio.create_task(self._run(line), name=f"checks[{self._bus}]")

    def detach(self) -> None:
        """Stop checking; the last results stay."""
        if self._task is not None:
            self._task.cancel()

    def puts(self) -> tuple[bool, str]:
        """Return whether plain puts notify, for `/readyz`; True while unknown."""
        return self._puts or CheckResult(True, "not checked yet")

    def connections(self) -> tuple[bool, str]:
        """Return whether the server has connections left, for `/readyz`."""
        return self._room

    async def _run(self, line: PostgresBroker) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                await self._check_puts(line)
                if number % CHECKS_PER_ROOM == 0:
                    await self._check_room(line)
            except BusUnavailable as error:
                log.debug("could not check whether puts send triggers: %s", error, extra={"bus": self._bus})
                return  # the connection is broken, and the next one checks again

    async def _check_room(self, line: PostgresBroker) -> None:
        (row,) = await line.ask(CONNECTIONS)
        before, self._room = self._room, check_connections(row["used"], row["most"])
        if before.ok != self._room.ok:
            level = logging.INFO if self._room.ok else logging.WARNING
            log.log(level, "%s", self._room.detail, extra={"bus": self._bus})

    async def _check_puts(self, line: PostgresBroker) -> None:
        rows = await line.ask(TRIGGERS, line.search_path is None)
        before, self._puts = self._puts, check_notify((NotifyTrigger(**row) for row in rows), self._prefix)
        if before == self._puts:
            return
        if not self._puts.ok:
            log.warning("%s", self._puts.detail, extra={"bus": self._bus})
        elif before is not None and not before.ok:
            log.info("fixed: %s", self._puts.detail, extra={"bus": self._bus})
            self._on_fixed()
