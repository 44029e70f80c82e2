"""``manage.py queuebell_relay``: puts committed rows of the outbox to a store until it is stopped."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from queuebell.bridge.contract.errors import QueuebellError
from queuebell.bridge.producer.outbox.relay import Relay, RelayState
from queuebell.bridge.producer.publisher import Publisher
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues import open_store
from queuebell.frameworks.django.outbox import relay


class Command(BaseCommand):
    """The command; SIGTERM and Ctrl-C send the committed rows and end it."""

    help = "Puts the messages of the outbox to a store, each right after its commit."

    def add_arguments(self, parser: Any) -> None:
        """Declare the options."""
        parser.add_argument("--store", required=True, help="where to put: http://host:8470, sqs://region, ...")
        parser.add_argument("--bridge", help="the bridge to tell of each put, for a store that is not its own")
        parser.add_argument("--database", help="which of DATABASES has the outbox; by default that of your routers")
        parser.add_argument(
            "--interval", type=float, default=1.0, help="seconds between looks where no commit can ring (SQLite)"
        )

    def handle(self, **options: Any) -> None:
        """Run it."""
        try:
            state = asyncio.run(self._relay(**options))
        except QueuebellError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"sent {state.sent}, refused {state.refused}")

    async def _relay(
        self, store: str, bridge: str | None, database: str | None, interval: float, **_: object
    ) -> RelayState:
        async with AsyncExitStack() as stack:
            to = await stack.enter_async_context(open_store(store))
            if bridge is None:
                it = relay(to, using=database, interval_s=interval)
            else:
                publisher = await stack.enter_async_context(Publisher(bridge))
                it = relay(PublishingQueue(to, publisher), using=database, interval_s=interval)
            await self._run(it)
            return it.state()

    async def _run(self, it: Relay) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, it.stop)
        async with it:
            self.stdout.write("queuebell outbox: ready")
            self.stdout.flush()
            await it.ended()
