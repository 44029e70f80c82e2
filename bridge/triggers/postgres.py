"""Triggers in from a PostgreSQL database: what its queues' own trigger function, or anybody, says by NOTIFY.

A payload is a queue reference alone (``NOTIFY queuebell, 'billing/orders'``: one trigger of size 1) or a trigger as
JSON. Where it names an inbox (``reply``, with ``ask`` to tell requests apart), the inbox is notified after the mark
(B1). The connection is supervised like a broker's; every LISTEN anew is a gap.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from bridge.brokers.address import take_prefix
from bridge.brokers.base import Incoming, Topic
from bridge.brokers.postgres.access import CHANNEL_BYTES_MAX
from bridge.brokers.postgres.broker import INBOX, PostgresBroker
from bridge.contract.backoff import Draw
from bridge.contract.errors import BusUnavailable, ConfigurationError
from bridge.contract.names import DEFAULT_PREFIX, is_token
from bridge.observe.facts import Fact
from bridge.queues.postgres.voice import LOOK, ROOM, Hearing, Voice, hearing, room
from bridge.triggers.intake import Intake
from bridge.triggers.promises import Promises
from bridge.triggers.supervisor import Supervised

if TYPE_CHECKING:
    from bridge.service.bridge import Bridge

log = logging.getLogger("queuebell.bridge")

ANSWERS_MAX: Final = 1000
CHECK_EVERY_S: Final = 5.0
"""How often is looked whether the database still says its puts."""
ROOM_LOOKS: Final = 12
"""After so many of them it is asked whether the server has connections left."""


class _Addressed(msgspec.Struct):
    storage_account: str
    queue_name: str
    reply: str = ""
    ask: int = 0
    promised: bool | None = None
    by: str = ""


_addressed = msgspec.json.Decoder(_Addressed).decode


class Notifications:
    """Reads payloads, has them marked, and answers who asked; one a bus, over one connection after the other.

    ``promising`` hears of each queue of which somebody says, and waits for no answer, that something was put, and what
    bridges promise. What one of the server's processes that are ``ours`` says marks nothing: this bridge put it by its
    own doors, and marks by itself.
    """

    def __init__(
        self,
        bridge: Bridge,
        bus: str,
        prefix: str,
        tell: Callable[[Fact], None],
        promising: Promising,
        ours: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._bus = bus
        self._prefix = prefix
        self._promising = promising
        self._ours = ours
        self._intake = Intake(bridge, bus, prefix, tell)
        self._line: PostgresBroker | None = None
        self._answers: list[tuple[str, str]] = []
        self._answering: asyncio.Task[None] | None = None

    async def attach(self, line: PostgresBroker) -> None:
        """Hear triggers on a fresh connection. Raises `BusUnavailable` and `ConfigurationError`."""
        self._line = line
        await line.listen(self._prefix, self.hear)

    def hear(self, payload: str, process: int = 0) -> None:
        """Take one payload that a process of the server's said. Never raises."""
        raw = payload.encode()
        if not raw.startswith(b"{"):
            if self._ours(process):
                return
            self._intake.hear(Incoming(self._topic(*payload.split("/")), b""))
            return
        try:
            asked = _addressed(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # The intake reads it again, and says what is wrong with it.
            self._intake.hear(Incoming(self._topic("", ""), raw))
            return
        acknowledge = None
        if asked.reply.startswith(INBOX):
            inbox, word = asked.reply, str(asked.ask)
            acknowledge = lambda: self._answer(inbox, word)  # noqa: E731
        elif asked.promised is not None:
            if is_token(asked.storage_account) and is_token(asked.queue_name):
                self._promising.told(f"{asked.storage_account}/{asked.queue_name}", asked.by, asked.promised)
        else:
            if is_token(asked.storage_account) and is_token(asked.queue_name):
                self._promising.put(f"{asked.storage_account}/{asked.queue_name}")
            if self._ours(process):
                return
        topic = self._topic(asked.storage_account, asked.queue_name)
        self._intake.hear(Incoming(topic, raw, acknowledge=acknowledge))

    def detach(self) -> None:
        """Forget the connection; who asked and was not answered asks again."""
        self._line = None
        self._answers.clear()
        if self._answering is not None:
            self._answering.cancel()

    def _topic(self, *queue: str) -> Topic:
        return (self._prefix, "trigger", *queue)

    def _answer(self, inbox: str, word: str) -> None:
        if len(self._answers) < ANSWERS_MAX:
            self._answers.append((inbox, word))
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
            # What was marked between the task's last look and this call.
            if self._answers and self._line is not None and not task.cancelled():
                self._answer_soon()


class Promising:
    """Keeps the promises to a database's queues, as long as there are any, on the connection that hears them."""

    def __init__(self, bus: str, prefix: str, boot: str) -> None:
        self._bus = bus
        self._promises = Promises(prefix, boot)
        self._line: PostgresBroker | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._listening: asyncio.TimerHandle | None = None

    def put(self, queue: str) -> None:
        """Note that a put of this queue has said so. Never raises."""
        if self._promises.heard(queue, asyncio.get_running_loop().time()):
            self._keep_soon()

    def told(self, queue: str, by: str, promised: bool) -> None:
        """Note what a bridge, this one or another, says of its promise. Never raises."""
        self._promises.told(queue, by, promised, asyncio.get_running_loop().time())
        if self._listening is None:
            self._listen_on()

    def attach(self, line: PostgresBroker) -> None:
        """Go on with what is owed since the connection before."""
        self._line = line
        self._keep_soon()

    def detach(self) -> None:
        """Give up what stands on the connection that is gone."""
        self._line = None
        self._promises.broke()
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    def stop(self) -> None:
        """Wait for no other bridge any more."""
        if self._listening is not None:
            self._listening.cancel()

    def _listen_on(self) -> None:
        loop = asyncio.get_running_loop()
        wait = self._promises.silent(loop.time())
        self._listening = None if wait is None else loop.call_later(wait, self._listen_on)
        self._keep_soon()

    def _keep_soon(self) -> None:
        if self._keeping is None and self._line is not None and self._promises.wait() is not None:
            self._keeping = asyncio.create_task(self._keep(self._line), name=f"promises[{self._bus}]")

    async def _keep(self, line: PostgresBroker) -> None:
        while (wait := self._promises.wait()) is not None:
            await asyncio.sleep(wait)
            try:
                await self._promises.turn(line, asyncio.get_running_loop().time())
            except BusUnavailable as error:
                log.debug("promises end with their connection: %s", error, extra={"bus": self._bus})
                return  # `detach` follows, and the next connection goes on
        self._keeping = None


class Voices:
    """Looks, while a connection stands, whether plain puts in this database ring; ``heal`` is told when they do again.

    Beside that it asks each minute whether the server has connections left.

    It changes nothing about readiness: what is published by other ways is heard all the same.
    """

    def __init__(self, bus: str, prefix: str, heal: Callable[[], object]) -> None:
        self._bus = bus
        self._prefix = prefix
        self._heal = heal
        self._hearing: Hearing | None = None
        self._room = Hearing(True, "not checked yet")
        self._looking: asyncio.Task[None] | None = None

    async def attach(self, line: PostgresBroker) -> None:
        """Look at once on a fresh connection, and from then on. Raises `BusUnavailable`."""
        await self._look(line)
        await self._ask_room(line)
        self._looking = asyncio.create_task(self._look_on(line), name=f"voices[{self._bus}]")

    def detach(self) -> None:
        """Look no more; what was seen last stands."""
        if self._looking is not None:
            self._looking.cancel()

    def check(self) -> tuple[bool, str]:
        """Return whether plain puts ring, for `/readyz`; not known yet is no fault."""
        return self._hearing or Hearing(True, "not checked yet")

    def check_room(self) -> tuple[bool, str]:
        """Return whether the server has connections left, for `/readyz`."""
        return self._room

    async def _look_on(self, line: PostgresBroker) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                await self._look(line)
                if number % ROOM_LOOKS == 0:
                    await self._ask_room(line)
            except BusUnavailable as error:
                log.debug("could not check whether puts send triggers: %s", error, extra={"bus": self._bus})
                return  # the line is broken then, and the next one looks anew

    async def _ask_room(self, line: PostgresBroker) -> None:
        (row,) = await line.ask(ROOM)
        before, self._room = self._room, room(row["used"], row["most"])
        if before.ok != self._room.ok:
            level = logging.INFO if self._room.ok else logging.WARNING
            log.log(level, "%s", self._room.detail, extra={"bus": self._bus})

    async def _look(self, line: PostgresBroker) -> None:
        rows = await line.ask(LOOK, line.search_path is None)
        before, self._hearing = self._hearing, hearing((Voice(**row) for row in rows), self._prefix)
        if before == self._hearing:
            return
        if not self._hearing.ok:
            log.warning("%s", self._hearing.detail, extra={"bus": self._bus})
        elif before is not None and not before.ok:
            log.info("fixed: %s", self._hearing.detail, extra={"bus": self._bus})
            self._heal()


class Listening:
    """One database of a bridge, under ``name``; ``url`` may say which ``prefix`` its channel has.

    ``ours`` says of the server's processes which carry out this bridge's own puts.
    """

    kind = "postgres"

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
        self.name = name
        self._prefix = own if given != url else prefix
        if len(self._prefix) > CHANNEL_BYTES_MAX:
            raise ConfigurationError(f"prefix: a channel name of PostgreSQL may have at most {CHANNEL_BYTES_MAX} bytes")
        self._promising = Promising(name, self._prefix, bridge.boot)
        self._notifications = Notifications(bridge, name, self._prefix, bridge.emit, self._promising, ours)
        self._voices = Voices(name, self._prefix, bridge.gap)
        PostgresBroker(given)  # a wrong address is told here
        self._supervised: Supervised[PostgresBroker] = Supervised(
            lambda: PostgresBroker(given), name, self._up, bridge.gap,
            on_down=self._down, tell=bridge.emit, draw=draw,
        )  # fmt: skip

    async def start(self) -> None:
        """Begin to connect; returns at once."""
        await self._supervised.start()

    async def stop(self) -> None:
        """Let go; may be called twice."""
        await self._supervised.stop()
        self._promising.stop()

    def check(self) -> tuple[bool, str]:
        """Return whether it hears, and how it stands, for `/readyz`."""
        return self._supervised.check()

    def check_puts(self) -> tuple[bool, str]:
        """Return whether plain puts in the database ring, and why not, for `/readyz`."""
        return self._voices.check()

    def check_room(self) -> tuple[bool, str]:
        """Return whether the database's server has connections left, for `/readyz`."""
        return self._voices.check_room()

    async def _up(self, line: PostgresBroker) -> None:
        await self._notifications.attach(line)
        await self._voices.attach(line)
        self._promising.attach(line)

    def _down(self) -> None:
        self._promising.detach()
        self._voices.detach()
        self._notifications.detach()
