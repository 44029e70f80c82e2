"""The brokers and databases of a bridge: triggers in, sessions, wakes out."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import msgspec

from queuebell.bridge.brokers import broker_maker
from queuebell.bridge.brokers.address import check_prefix, take_prefix
from queuebell.bridge.brokers.base import Broker
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.names import DEFAULT_PREFIX, split_reference
from queuebell.bridge.contract.wire import Wake, encode_frame
from queuebell.bridge.core.cluster.subscribers import SUBJECTS
from queuebell.bridge.service.announcing import Announcer, Subscriber
from queuebell.bridge.service.channels.brokered import BrokeredSessions
from queuebell.bridge.service.shared_store import SharedStore
from queuebell.bridge.service.state.answers import Subject
from queuebell.bridge.triggers.cluster import BrokerClusterLink
from queuebell.bridge.triggers.intake import Intake
from queuebell.bridge.triggers.postgres import PostgresListener
from queuebell.bridge.triggers.republishing import Republisher
from queuebell.bridge.triggers.rounds import Rounds
from queuebell.bridge.triggers.supervisor import SupervisedConnection

if TYPE_CHECKING:
    from queuebell.bridge.access.access_watch import AccessWatch
    from queuebell.bridge.service.bridge import Bridge

log = logging.getLogger("queuebell.bridge")


class BusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for all brokers of a bridge."""

    prefix: str = DEFAULT_PREFIX
    """First token of all subjects and topics."""
    republish: bool = True
    """Whether triggers received by HTTP or in process are sent to other bridges (B16)."""
    ready_requires: tuple[str, ...] | None = None
    """Names of the buses that `/readyz` requires; None: all."""
    cluster: Mapping[str, str | None] | None = None
    """How this bridge presents itself to the other cluster members (`Coordinator`); None: not in a cluster."""
    trusted: bool = True
    """Whether triggers are accepted from brokers and wakes published there, although clients are not identified."""


class Attachments:
    """All brokers and databases of a bridge, by lists of URLs; they are called ``nats``, ``nats-2`` and so on.

    Databases in ``postgres`` carry triggers only (`bridge/triggers/postgres.py`). ``access`` decides who may open a
    session over a broker; None allows all. ``ours`` has, by the address of a database with the bridge's own queues,
    whether one of its processes carries out the bridge's puts.

    Raises `ConfigurationError` for an invalid URL, and an unknown bus in `ready_requires`.
    """

    def __init__(
        self,
        bridge: Bridge,
        *,
        nats: Sequence[str] = (),
        mqtt: Sequence[str] = (),
        postgres: Sequence[str] = (),
        settings: BusSettings | None = None,
        announcer: Announcer | None = None,
        access: AccessWatch | None = None,
        ours: Mapping[str, Callable[[int], bool]] | None = None,
    ) -> None:
        settings = settings or BusSettings()
        check_prefix(settings.prefix)
        urls = {**_named("nats", nats, ("nats", "tls")), **_named("mqtt", mqtt, ("mqtt", "mqtts"))}
        databases = _named("postgres", postgres, ("postgres", "postgresql"))
        names = [*urls, *databases]
        required = names if settings.ready_requires is None else settings.ready_requires
        for name in required:
            if name not in names:
                known = ", ".join(names) or "none"
                raise ConfigurationError(f"ready_requires: there is no bus '{name}'; configured: {known}")
        if settings.cluster is not None:
            _check_cluster(settings, nats)
        self._announcer = announcer or Announcer(bridge)
        self._own_announcer = announcer is None
        # C6: all members of a cluster receive its NATS, and NOTIFY of the database behind all. A trigger of another
        # bus may reach only one, which sends it to all.
        engines = [name for name, url in databases.items() if url in (ours or {})]
        heard_by_all = names if settings.cluster is None else ["nats", *engines]
        self.buses: dict[str, Attachment] = {}
        self._sessions: dict[str, BrokeredSessions] = {}
        for name, url in urls.items():
            given, prefix = take_prefix(url)
            prefix = prefix if given != url else settings.prefix
            factory = broker_maker(given, name="queuebell-bridge", prefix=prefix)
            self.buses[name] = Attachment(
                bridge,
                factory,
                name,
                factory().kind,
                prefix=prefix,
                sessions=self._sessions.setdefault(prefix, BrokeredSessions(bridge, prefix, access=access)),
                announcer=self._announcer,
                # Every bridge listens to the databases directly.
                brokers=heard_by_all if name == "nats" else names,
                republish=settings.republish,
                trusted=settings.trusted,
                cluster=None
                if settings.cluster is None or name != "nats"
                else BrokerClusterLink(bridge, prefix, heard_by_all, **settings.cluster),
            )
            bridge.add_check(name, self.buses[name].check, required=name in required)
        self.rounds = _rounds(bridge, [url for url in databases.values() if url not in (ours or {})])
        self.databases: dict[str, PostgresListener] = {}
        for name, url in databases.items():
            own = (ours or {}).get(url, lambda _: False)
            database = self.databases[name] = PostgresListener(bridge, url, name, prefix=settings.prefix, ours=own)
            bridge.add_check(name, database.check, required=name in required)
            bridge.add_check(f"{name} puts", database.checks.puts, required=False)
            bridge.add_check(f"{name} connections", database.checks.connections, required=False)

    def subjects(self) -> list[Subject]:
        """Return where wakes are published on each bus."""
        return [bus.subject() for bus in self.buses.values() if bus.announces]

    async def __aenter__(self) -> Attachments:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin to connect to all; returns immediately."""
        for bus in self._all():
            await bus.start()
        for each in self.rounds:
            each.start()

    async def stop(self) -> None:
        """Disconnect all; may be called twice."""
        for each in self.rounds:
            await each.stop()
        for bus in self._all():
            await bus.stop()
        for sessions in self._sessions.values():
            await sessions.stop()
        if self._own_announcer:
            self._announcer.close()

    def _all(self) -> list[Attachment | PostgresListener]:
        return [*self.buses.values(), *self.databases.values()]


def _rounds(bridge: Bridge, databases: Sequence[str]) -> list[Rounds]:
    """Return what asks the stores whose credentials this bridge has."""
    found: list[Rounds] = []
    if isinstance(bridge.store, SharedStore) and (asked := bridge.store.round_store) is not None:
        found.append(Rounds(bridge, lambda: asked, here=True))
    for url in databases:
        from queuebell.bridge.queues.postgres.pgmq import PgmqStore
        from queuebell.bridge.queues.postgres.store import PostgresStore

        address, _ = take_prefix(url)
        try:
            found += [
                Rounds(bridge, partial(PostgresStore, address)),
                Rounds(bridge, partial(PgmqStore, f"pgmq://{address.partition('://')[2]}")),
            ]
        except ConfigurationError as error:
            log.warning("each queue of this database is swept by itself, for its address suits no store: %s", error)
    return found


class Attachment:
    """One broker of a bridge, called ``name``."""

    def __init__(
        self,
        bridge: Bridge,
        factory: Callable[[], Broker],
        name: str,
        kind: str,
        *,
        prefix: str,
        sessions: BrokeredSessions,
        announcer: Announcer | None,
        brokers: Collection[str],
        republish: bool,
        trusted: bool = True,
        cluster: BrokerClusterLink | None = None,
        draw: Draw = random.random,
    ) -> None:
        self.name = name
        self.way = sessions.way(kind)
        self._bridge = bridge
        self._prefix = prefix
        self._announcer = announcer
        self.cluster = cluster
        self.announces = trusted
        """Whether wakes are published here."""
        republisher = self._republisher = (
            Republisher(bridge.boot, prefix, brokers, bridge.now, bridge.emit) if republish and trusted else None
        )
        if cluster is not None and republisher is not None:
            cluster.unconfirmed = lambda: republisher.unconfirmed
            bridge.metrics.watch(
                "queuebell_cluster_owed_triggers",
                "Triggers queued for the other bridges until the broker is back",
                lambda: float(republisher.waiting),
            )
        on_echo = None if republisher is None else republisher.confirm
        self._intake = Intake(bridge, name, prefix, trusted=trusted, on_echo=on_echo)
        self._broker: Broker | None = None
        self._subscriber: Subscriber | None = None
        self._unforward: Callable[[], None] | None = None
        self._connection = SupervisedConnection(
            factory, name, self._up, bridge.gap, on_down=self._down, emit=bridge.emit, draw=draw
        )

    async def start(self) -> None:
        """Begin to connect. Start the bridge first."""
        if self._republisher is not None:
            self._unforward = self._bridge.forward(self._republisher.republish)
        if not self.announces:
            log.warning(
                "this bus carries sessions only: with auth, its triggers are rejected and no wakes are "
                "published there, unless trust_brokers = true (--trust-brokers) declares that the "
                "broker's own access list decides",
                extra={"bus": self.name},
            )
        if self._announcer is not None and self.announces:
            self._subscriber = self._announcer.subscribe(
                None,
                writable=self._writable,
                send=self._publish_wake,
                # C10: its subscribers receive from all bridges; those of another broker perhaps only from this one.
                route=None if self.cluster is None else SUBJECTS,
            )
        await self._connection.start()

    async def stop(self) -> None:
        """Disconnect, after what was published is sent. May be called twice."""
        if self._unforward is not None:
            self._unforward()
        if self._subscriber is not None:
            self._subscriber.end()
        await self._connection.stop()

    def check(self) -> tuple[bool, str]:
        """Return whether this bus works, and its state."""
        return self._connection.check()

    def subject(self) -> Subject:
        """Return where wakes are published, and whether the broker is connected."""
        return Subject(self.name, self.way.kind, self._prefix, self._broker is not None)

    async def _up(self, broker: Broker) -> None:
        await self.way.attach(broker)
        await self._intake.attach(broker)
        if self.cluster is not None:
            await self.cluster.attach(broker)
        self._broker = broker
        if self._announcer is not None and self._subscriber is not None:
            # Nothing was published without a broker, and the lost connection may have dropped wakes.
            self._announcer.catch_up(self._subscriber, 0)
        if self._republisher is not None:
            self._republisher.attach(broker)

    def _down(self) -> None:
        self._broker = None
        self.way.detach()
        if self.cluster is not None:
            self.cluster.detach()
        if self._republisher is not None:
            self._republisher.attach(None)

    # Plain subscribers on NATS and MQTT are the broker's own: without it no wake is kept for them.

    def _writable(self) -> bool:
        return self._broker is None or self._broker.writable()

    def _publish_wake(self, wake: Wake) -> None:
        if self._broker is not None:
            account, queue = split_reference(wake.queue)
            self._broker.publish((self._prefix, "wake", account, queue), encode_frame(wake))


def _check_cluster(settings: BusSettings, nats: Sequence[str]) -> None:
    if len(nats) != 1:
        raise ConfigurationError(
            "cluster: its bridges connect through one NATS cluster: set nats exactly once, its servers "
            "separated by commas, such as nats://a:4222,b:4222"
        )
    options = dict(parse_qsl(nats[0].partition("?")[2]))
    if "stream" in options and "durable" not in options:
        raise ConfigurationError(
            "cluster: bridges that share a consumer of a stream each receive a part of the triggers, but "
            "all need all of them: add durable=NAME, a different one for each bridge, to the address of "
            "nats"
        )
    if not settings.republish:
        raise ConfigurationError("cluster: bridges must pass their triggers on to the others: republish cannot be off")
    if not settings.trusted:
        raise ConfigurationError(
            "cluster: its bridges trust the messages on the broker's subjects: with auth, trust_brokers "
            "= true (--trust-brokers) must declare that the broker's own access list decides which users "
            "may send there"
        )


def _named(kind: str, urls: Sequence[str], schemes: tuple[str, ...]) -> dict[str, str]:
    for url in urls:
        if url.partition(":")[0].lower() not in schemes:
            raise ConfigurationError(
                f"{kind}: an address must start with {' or '.join(f'{each}://' for each in schemes)}"
            )
    return {kind if number == 1 else f"{kind}-{number}": url for number, url in enumerate(urls, 1)}
