"""What of the JetStream store the conformance suite does not ask: limits of leases, lost connections, strangers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from queuebell.bridge.brokers.base import Incoming
from queuebell.bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    QueueNotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import BATCH_MAX, Claim, Depth, Extend, NewMessage, Settlement, StoredMessage
from queuebell.bridge.queues.jetstream import store as jetstream_leases
from queuebell.bridge.queues.jetstream.api import (
    NANO,
    ConsumerGone,
    ConsumerState,
    Delivery,
    JetStreamApi,
    Names,
    Refusal,
    Taken,
    meaning,
    reference_of,
)
from queuebell.bridge.queues.jetstream.store import JetStreamStore, headers_size, headers_to_send
from queuebell.bridge.queues.jetstream.wire import Answers
from tests.support.brokers import NatsServer, nats_that_says
from tests.support.processes import PATIENCE_S

# Private: `_pull`, `_wire`: replaced by a server that is silent, late or wrong.
# `_checked_streams`: the streams that a store has checked.

QUEUE = "shop/orders"
LONG = 30.0
NAMES = Names.of("queuebell", QUEUE)


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path) as server:
        yield server


@pytest_asyncio.fixture
async def store(server: NatsServer) -> AsyncIterator[JetStreamStore]:
    async with JetStreamStore(f"nats://127.0.0.1:{server.port}") as store:
        yield store


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each look at a consumer the time that it takes on a busy machine."""
    monkeypatch.setattr(jetstream_leases, "REFRESH_TIMEOUT_S", PATIENCE_S)


async def consume(server: NatsServer, *, ack_wait: float = 30, **config: int) -> None:
    """Make or change the queue's consumer as somebody else might."""
    client = await nats.connect(f"nats://127.0.0.1:{server.port}")
    await client.jsm().add_consumer(
        NAMES.stream,
        ConsumerConfig(durable_name=NAMES.consumer, ack_policy=AckPolicy.EXPLICIT, ack_wait=ack_wait, **config),
    )
    await client.close()


async def remove_consumer(server: NatsServer) -> None:
    """Remove the queue's consumer as somebody else might."""
    client = await nats.connect(f"nats://127.0.0.1:{server.port}")
    await client.jsm().delete_consumer(NAMES.stream, NAMES.consumer)
    await client.close()


async def ack_wait(server: NatsServer) -> float:
    """How long leases last, as the server has it."""
    told = await ask(server, f"CONSUMER.INFO.{NAMES.stream}.{NAMES.consumer}")
    return float(told["config"]["ack_wait"]) / 1e9


def test_acknowledgements_are_read() -> None:
    """The subject of an acknowledgement tells stream, count, sequence and time, in the short and the long form."""
    short = "$JS.ACK.queuebell=a=b.queuebell.2.7.9.1700000000123456789.4"
    long = "$JS.ACK._.hash.queuebell=a=b.queuebell.2.7.9.1700000000123456789.4.random"
    for subject in (short, long):
        delivery = Delivery.of(subject)
        assert (delivery.stream, delivery.consumer) == ("queuebell=a=b", "queuebell")
        assert (delivery.delivered, delivery.sequence) == (2, 7)
        assert delivery.stored_at.isoformat() == "2023-11-14T22:13:20.123456+00:00"
    for subject in ("", "x", "$JS.ACK.a.b", short + " ", short.replace(".2.", ".x."), "a" + short):
        assert Delivery.of(subject) is None


def test_streams_lead_back_to_references() -> None:
    assert reference_of("queuebell", Names.of("queuebell", "a-b/c_d").stream) == "a-b/c_d"
    for stream in ("ORDERS", "other=a=b", "queuebell=a", "queuebell=a=b=c", "queuebell=a=.b"):
        assert reference_of("queuebell", stream) is None


@pytest.mark.parametrize("query", ["prefix=a.b", "replicas=0", "replicas=6", "stream=x", "ack_wait=3"])
def test_addresses_that_are_none(query: str) -> None:
    with pytest.raises(ConfigurationError):
        open_store(f"nats://127.0.0.1:4222?{query}")


class Scripted:
    """A connection on which each message that is put gets the next answer: ok, full, gone, or none."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers
        self.sent: list[bytes] = []

    async def connect(self) -> None:
        """There is one."""

    def check_size(self, size: int) -> None:
        """All fit."""

    @contextlib.contextmanager
    def asking(self) -> Iterator[Answers]:
        yield Answers("reply", 0.0, lambda: None)

    def send(self, subject: str, payload: bytes, answers: Answers, headers: dict[str, str] | None) -> None:
        said = self.answers[len(self.sent)]
        self.sent.append(payload)
        number = len(self.sent)
        if said == "gone":
            raise StoreUnavailable("the connection is gone")
        if said == "ok":
            answers.add(Incoming(("x",), b'{"stream": "%s", "seq": %d}' % (NAMES.stream.encode(), number)))
        if said == "full":
            answers.add(Incoming(("x",), b'{"error": {"code": 503, "err_code": 10077, "description": "full"}}'))
        if said == "lost":
            answers.add(None)


@pytest.mark.parametrize(
    ("answers", "put"),
    [
        (["ok", "ok", "ok"], 3),
        (["ok", "full", "ok"], 2),
        (["full", "ok"], 1),
        (["ok", "gone", "gone", "gone"], 1),
        (["ok", "lost"], 1),
        (["lost"], 0),
        (["gone", "lost"], 0),
        (["lost", "gone", "gone"], 0),
    ],
)
async def test_a_put_that_failed_tells_how_many_stand(answers: list[str], put: int) -> None:
    store, wire = JetStreamStore("nats://127.0.0.1:4222"), Scripted(answers)
    store._wire = wire  # type: ignore[assignment]
    store._checked_streams.add(NAMES.stream)
    messages = [NewMessage(b"%d" % number) for number in range(len(answers))]
    if put == len(answers):
        assert [receipt.id for receipt in await store.put(QUEUE, messages)] == ["1", "2", "3"]
    else:
        with pytest.raises(UnknownOutcome, match=f"^{put} of {len(answers)} messages were put, then: "):
            await store.put(QUEUE, messages)
    assert wire.sent == [message.body for message in messages]


@pytest.mark.parametrize(
    ("refusal", "kind", "said"),
    [
        (Refusal(404, 10059, "stream not found"), QueueNotFound, "there is no such stream"),
        (Refusal(404, 10014, "consumer not found"), ConsumerGone, "there is no such consumer"),
        (Refusal(400, 10149, "consumer does not exist"), ConsumerGone, "there is no such consumer"),
        (Refusal(400, 10058, "name in use"), Taken, r"rejected: name in use \(10058\); nothing was changed"),
        *(
            (Refusal(503, code, "full"), StoreFull, rf"no space: full \({code}\); acknowledged messages are safe")
            for code in (10023, 10047, 10049, 10077, 10122)
        ),
        (Refusal(503, 10008, "not available"), StoreUnavailable, r"temporarily unavailable: not available \(10008\)"),
        (Refusal(408, 0, "late"), StoreUnavailable, r"temporarily unavailable: late \(408\)"),
        (Refusal(500, 10052, "odd"), StoreError, r"rejected: odd \(10052\); nothing was changed"),
    ],
)
def test_what_a_refusal_means(refusal: Refusal, kind: type[StoreError], said: str) -> None:
    """Its class says whether another try is worth it, and its text what the server said."""
    error = meaning(refusal)
    assert type(error) is kind
    assert re.fullmatch(f"jetstream: {said}", str(error))


class TestJetStream:
    async def test_a_count_that_fails_takes_no_message_along(
        self, server: NatsServer, store: JetStreamStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What came is handed over; where the end of the answer may be the limit's, it proves nothing."""
        await store.put(QUEUE, [NewMessage(b"%d" % n) for n in range(3)])
        await consume(server, max_ack_pending=2)
        await store.receive(QUEUE, 1, LONG)

        async def fails(*_: object) -> ConsumerState:
            raise StoreUnavailable("no leader")

        monkeypatch.setattr(JetStreamApi, "consumer", fails)
        received = await store.receive(QUEUE, 5, LONG)
        assert ([message.body for message in received.messages], received.blocked) == ([b"1"], True)

    async def test_a_look_that_fails_is_put_off(self, store: JetStreamStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """A server that is silent about consumers holds up one receive, not each; later it is asked again."""
        await store.put(QUEUE, [NewMessage(b"%d" % n) for n in range(4)])
        await store.receive(QUEUE, 1, LONG)
        asked: list[Names] = []

        async def silent(_: JetStreamApi, names: Names) -> ConsumerState:
            asked.append(names)
            return await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(JetStreamApi, "consumer", silent)
        monkeypatch.setattr(jetstream_leases, "REFRESH_S", 0.0)
        monkeypatch.setattr(jetstream_leases, "REFRESH_TIMEOUT_S", 0.01)
        for _ in range(2):
            assert len((await store.receive(QUEUE, 1, LONG)).messages) == 1
        assert asked == [NAMES]
        monkeypatch.setattr(jetstream_leases, "RETRY_S", 0.0)
        assert len((await store.receive(QUEUE, 1, LONG)).messages) == 1
        assert asked == [NAMES] * 2

    @pytest.mark.parametrize("lease_s", [2.0, LONG])
    async def test_a_consumer_that_is_gone(self, lease_s: float, server: NatsServer, store: JetStreamStore) -> None:
        """A receive makes it anew, be it that it wants longer leases than were known, or finds nobody."""
        await store.put(QUEUE, [NewMessage(b"one")])
        await store.receive(QUEUE, 1, 2.0)
        await remove_consumer(server)
        assert [message.body for message in (await store.receive(QUEUE, 1, lease_s)).messages] == [b"one"]
        assert await ack_wait(server) == lease_s

    @pytest.mark.parametrize("what", ["consumer", "stream"])
    @pytest.mark.parametrize("due", [False, True])
    async def test_a_settlement_whose_consumer_is_gone_is_answered(
        self, what: str, due: bool, server: NatsServer, store: JetStreamStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each item is told that its lease is gone, at once, also where one asks for longer leases than there were."""
        await store.put(QUEUE, [NewMessage(b"one"), NewMessage(b"two")])
        one, two = (await store.receive(QUEUE, 2, 2.0)).messages
        if what == "consumer":
            await remove_consumer(server)
        else:
            async with JetStreamStore(f"nats://127.0.0.1:{server.port}") as other:
                await other.delete(QUEUE)
        if due:
            monkeypatch.setattr(jetstream_leases, "REFRESH_S", 0.0)
        settled = await store.settle(
            QUEUE,
            Settlement(
                delete=[Claim(one.id, one.pop_receipt)],
                extend=[Extend(two.id, two.pop_receipt, 2.0 if due else LONG)],
            ),
        )
        assert [item.code for item in (*settled.delete, *settled.extend)] == ["message_not_found"] * 2
        pulls: list[Names] = []
        pull = store._pull

        async def counted(names: Names, consumer: ConsumerState, limit: int) -> tuple[list[StoredMessage], str]:
            pulls.append(names)
            return await pull(names, consumer, limit)

        monkeypatch.setattr(store, "_pull", counted)
        if what == "consumer":
            again = await store.receive(QUEUE, 2, 2.0)
            assert [message.body for message in again.messages] == [b"one", b"two"]
        else:
            with pytest.raises(QueueNotFound):
                await store.receive(QUEUE, 2, 2.0)
        assert len(pulls) == (what == "consumer"), "what is gone is forgotten: nothing is asked of it in vain"

    async def test_headers_count_in_what_the_server_takes(self, tmp_path: Path) -> None:
        """More than fits in one message is refused, and the connection goes on: the server would have ended it."""
        async with (
            NatsServer(tmp_path, extra="max_payload: 70000") as server,
            JetStreamStore(f"nats://127.0.0.1:{server.port}") as store,
        ):
            await store.create(QUEUE)
            headers = {"a": "x" * 5000}
            size = 70_000 - headers_size(headers_to_send(headers))
            with pytest.raises(BadInput) as refused:
                await store.put(QUEUE, [NewMessage(b"x" * 65_536, headers=headers)])
            assert refused.value.code == "message_too_large"
            await store.put(QUEUE, [NewMessage(b"x" * size, headers=headers)])
            (message,) = (await store.receive(QUEUE, 5, LONG)).messages
            assert (len(message.body), message.headers) == (size, headers)

    async def test_it_comes_back_after_the_server_does(self, server: NatsServer, store: JetStreamStore) -> None:
        """While the server is away calls say so; afterwards the next one connects anew and finds what was stored."""
        await store.put(QUEUE, [NewMessage(b"one")])
        await server.kill()
        with pytest.raises(StoreUnavailable):
            await store.receive(QUEUE, 1, LONG)
        await server.start()
        assert [message.body for message in (await store.receive(QUEUE, 1, LONG)).messages] == [b"one"]

    async def test_a_server_without_jetstream_is_told(self, tmp_path: Path) -> None:
        """A server that has no JetStream is no store; it may get it, so another try is worth it."""
        async with (
            NatsServer(tmp_path / "plain", jetstream=False) as plain,
            JetStreamStore(f"nats://127.0.0.1:{plain.port}") as store,
        ):
            with pytest.raises(StoreUnavailable, match="no JetStream"):
                await store.put(QUEUE, [NewMessage(b"one")])

    @pytest.mark.parametrize("version", ["2.9.10", "1.4.1", "2.9.0-RC.1"])
    async def test_a_server_that_is_too_old_is_refused(self, version: str) -> None:
        """At the first call, in words that say what is needed; nothing is sent to it."""
        async with nats_that_says(version) as port, JetStreamStore(f"nats://127.0.0.1:{port}") as store:
            with pytest.raises(ConfigurationError, match=r"this is NATS \d\.\d; the store needs 2\.10 or newer"):
                await store.put(QUEUE, [NewMessage(b"one")])

    @pytest.mark.parametrize("version", ["2.10.0", "2.15.1", "3.0.0", "unheard of"])
    async def test_a_server_that_is_new_enough_is_asked(self, version: str) -> None:
        async with (
            nats_that_says(version) as port,
            JetStreamStore(f"nats://127.0.0.1:{port}", timeout=0.1) as store,
        ):
            with pytest.raises(UnknownOutcome, match=r"no answer within 0\.1 s"):
                await store.put(QUEUE, [NewMessage(b"one")])


class TestAConsumerThatHasNotHeardYet:
    """The server tells a consumer of a message after it acknowledged the put, and says "none" in between (L8)."""

    @staticmethod
    def unresponsive(store: JetStreamStore, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        pull, left = store._pull, times

        async def answer(names: Names, consumer: ConsumerState, limit: int) -> tuple[list[StoredMessage], str]:
            nonlocal left
            left -= 1
            return ([], "404") if left >= 0 else await pull(names, consumer, limit)

        monkeypatch.setattr(store, "_pull", answer)

    async def test_one_that_hears_nothing_at_all_proves_nothing(
        self, store: JetStreamStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Then the answer covers nothing, and the listener looks again with its back-off."""
        await store.put(QUEUE, [NewMessage(b"one")])
        self.unresponsive(store, monkeypatch, 10)
        received = await store.receive(QUEUE, 5, LONG)
        assert (received.messages, received.blocked) == ([], True)


SECOND = NANO
FITS = "fits"
LATER = "2999-01-01T00:00:00Z"
STREAMS: list[tuple[dict[str, Any], str | int]] = [
    ({"description": "by hand", "metadata": {"team": "shop"}, "max_consumers": 1, "first_seq": 100}, FITS),
    ({"num_replicas": 1, "placement": {"cluster": ""}, "storage": "memory", "allow_direct": True}, FITS),
    ({"compression": "s2", "persist_mode": "async", "duplicate_window": SECOND, "max_msg_size": 100}, FITS),
    ({"subjects": ["shop.>", "queuebell.queue.*.{queue}"]}, FITS),
    ({"subjects": ["shop.>"]}, "the subjects .*: nothing can be put"),
    ({"subjects": None, "mirror": {"name": "origin"}, "mirror_direct": True}, r"the subjects \[\]: nothing can be put"),
    ({"sources": [{"name": "origin"}], "republish": {"src": ">", "dest": "copies.>"}}, FITS),
    ({"subject_transform": {"src": ">", "dest": "other.>"}}, "a subject_transform"),
    ({"retention": "interest"}, "retention interest: it drops messages put"),
    ({"retention": "limits"}, "retention limits: it keeps handled messages"),
    ({"no_ack": True}, "no_ack"),
    ({"discard": "old"}, FITS),
    ({"discard": "old", "max_msgs": 9}, "discard old and max_msgs: a full stream drops its oldest"),
    ({"discard": "old", "max_msgs": 9, "max_bytes": 9000}, "discard old and max_msgs and max_bytes"),
    ({"discard": "old", "max_msgs_per_subject": 9}, "max_msgs_per_subject: a full stream drops its oldest"),
    ({"max_msgs_per_subject": 9}, "max_msgs_per_subject"),
    ({"max_msgs_per_subject": 9, "discard_new_per_subject": True, "max_msgs": 9, "max_bytes": 9000}, FITS),
    ({"max_age": 3600 * SECOND}, "max_age: messages are removed before they are handled"),
    ({"consumer_limits": {"inactive_threshold": 3600 * SECOND}}, "consumer_limits with an inactive_threshold"),
    ({"consumer_limits": {"max_ack_pending": 9}, "deny_delete": True, "deny_purge": True}, FITS),
    ({"allow_msg_ttl": True, "subject_delete_marker_ttl": 60 * SECOND, "allow_rollup_hdrs": True}, FITS),
    ({"allow_atomic": True, "allow_batched": True}, FITS),
    ({"allow_msg_schedules": True, "discard": "old"}, FITS),
    ({"sealed": True}, "sealed: nothing can be put"),
    ({"allow_msg_counter": True, "discard": "old"}, 10052),
    ({"template_owner": "x"}, 10025),
]
"""Every field of a stream, but its name, beside work-queue retention and discard new; a number is the server's no."""
CONSUMERS: list[tuple[dict[str, Any], str | int]] = [
    ({"description": "by hand", "metadata": {"team": "shop"}, "ack_wait": 40 * SECOND, "sample_freq": "100%"}, FITS),
    ({"deliver_policy": "all", "replay_policy": "instant", "num_replicas": 1, "mem_storage": True}, FITS),
    ({"max_waiting": 1, "max_ack_pending": 9, "max_bytes": 100, "max_batch": BATCH_MAX, "max_expires": SECOND}, FITS),
    ({"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, 10101),
    ({"deliver_policy": "by_start_time", "opt_start_time": LATER}, 10101),
    ({"deliver_policy": "new"}, 10101),
    ({"ack_policy": "all"}, "ack_policy all"),
    ({"ack_policy": "none"}, "ack_policy none"),
    ({"headers_only": True}, "headers_only"),
    ({"backoff": [SECOND, 2 * SECOND], "max_deliver": 5}, "backoff"),
    ({"max_deliver": 5}, "max_deliver: a message whose last delivery fails"),
    ({"deliver_subject": "elsewhere", "deliver_group": "x", "idle_heartbeat": SECOND}, "a deliver_subject"),
    ({"flow_control": True}, 10089),
    ({"rate_limit_bps": 1000}, 10086),
    ({"direct": True}, 10090),
    ({"filter_subject": "queuebell.queue.shop.*"}, FITS),
    ({"filter_subjects": ["shop.>", "{subject}"]}, FITS),
    ({"filter_subject": "shop.>"}, r"the filter \['shop.>'\]: it excludes queuebell.queue.shop"),
    ({"filter_subjects": ["shop.a", "shop.b"]}, "the filter"),
    ({"replay_policy": "original"}, "replay_policy original: it delays messages"),
    ({"inactive_threshold": 3600 * SECOND}, "an inactive_threshold"),
    ({"priority_groups": ["a"], "priority_policy": "overflow"}, "priority_groups: workers name no group"),
    (
        {"priority_groups": ["a"], "priority_policy": "pinned_client", "priority_timeout": 9 * SECOND},
        "priority_groups",
    ),
    ({"max_batch": BATCH_MAX - 1}, "max_batch: workers ask for up to 32"),
    ({"max_expires": SECOND // 1000}, "max_expires: workers wait 0.05 s"),
    ({"pause_until": LATER}, "paused"),
]
"""Every field of a consumer but its names."""


async def ask(server: NatsServer, operation: str, asked: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask JetStream as somebody else might."""
    client = await nats.connect(f"nats://127.0.0.1:{server.port}")
    answer = await client.request(f"$JS.API.{operation}", b"" if asked is None else json.dumps(asked).encode())
    await client.close()
    return json.loads(answer.data)


async def made_by_hand(
    server: NatsServer, names: Names, stream: dict[str, Any], consumer: dict[str, Any] | None = None
) -> int | None:
    """Make a stream, and its consumer, as somebody else might; the server's error, if any."""
    config = {"name": names.stream, "subjects": [names.subject], "retention": "workqueue", "discard": "new"} | stream
    sealed = config.pop("sealed", False)
    made = await ask(server, f"STREAM.CREATE.{names.stream}", {key: it for key, it in config.items() if it is not None})
    if sealed:
        made = await ask(server, f"STREAM.UPDATE.{names.stream}", {**config, "sealed": True})
    if consumer is not None:
        asked = {"name": names.consumer, "durable_name": names.consumer, "ack_policy": "explicit", **consumer}
        create = f"CONSUMER.CREATE.{names.stream}.{names.consumer}"
        made = await ask(server, create, {"stream_name": names.stream, "config": asked})
    return made.get("error", {}).get("err_code")


def filled(settings: dict[str, Any], names: Names) -> dict[str, Any]:
    """Return the settings with the names of one queue in them."""
    written = json.dumps(settings).replace("{subject}", names.subject).replace("{queue}", names.subject.split(".")[-1])
    return json.loads(written)


async def goes_through(store: JetStreamStore, queue: str) -> bool:
    """Say whether what is put is received, and gone once it is deleted."""
    await store.put(queue, [NewMessage(b"x")])
    (one,) = (await store.receive(queue, 5, LONG)).messages
    await store.settle(queue, Settlement(delete=[Claim(one.id, one.pop_receipt)]))
    return await store.depth(queue) == Depth(0, 0) and not (await store.receive(queue, 5, LONG)).messages


def test_the_tables_have_every_field() -> None:
    """Those that the client library knows; the server's answers may have more, which come later."""
    for table, kind in ((STREAMS, StreamConfig), (CONSUMERS, ConsumerConfig)):
        known = {field.name for field in dataclasses.fields(kind)} - {"name", "durable_name"}
        assert known <= {name for settings, _ in table for name in settings}


async def test_each_setting_of_a_stream_fits_or_is_refused_at_its_first_use(
    server: NatsServer, store: JetStreamStore
) -> None:
    """By a put, a receive and a creation, whichever comes first; a put leaves nothing behind (L3)."""
    await ask(server, "STREAM.CREATE.origin", {"name": "origin", "subjects": ["origin"]})
    for number, (settings, said) in enumerate(STREAMS):
        queue = f"shop/q{number}"
        names = Names.of("queuebell", queue)
        # Patterns of two rows may not meet, so that a stream goes before the next one comes.
        code = await made_by_hand(server, names, filled(settings, names))
        assert code == (said if isinstance(said, int) else None), settings
        if said == FITS:
            assert await goes_through(store, queue), settings
        elif isinstance(said, str):
            for use in (
                lambda queue=queue: store.put(queue, [NewMessage(b"x")]),
                lambda queue=queue: store.receive(queue),
                lambda queue=queue: store.create(queue),
            ):
                with pytest.raises(ConfigurationError, match=f"the stream {names.stream} has {said}") as refused:
                    await use()
                assert (refused.value.code, refused.value.retryable) == ("unsupported", False)
            state = (await ask(server, f"STREAM.INFO.{names.stream}"))["state"]
            assert (state["messages"], state["consumer_count"]) == (0, 0), settings
        await ask(server, f"STREAM.DELETE.{names.stream}")


async def test_each_setting_of_a_consumer_fits_or_is_refused_at_its_first_use(
    server: NatsServer, store: JetStreamStore
) -> None:
    for number, (settings, said) in enumerate(CONSUMERS):
        queue = f"shop/q{number}"
        names = Names.of("queuebell", queue)
        # The server has some of these in streams alone that are refused themselves.
        retention = "limits" if settings.get("ack_policy") else "workqueue"
        subjects = {"subjects": [names.subject, "shop.>"], "retention": retention}
        code = await made_by_hand(server, names, subjects, filled(settings, names))
        assert code == (said if isinstance(said, int) else None), settings
        if said == FITS:
            assert await goes_through(store, queue), settings
        elif isinstance(said, str):
            store._checked_streams.add(names.stream)
            await store.put(queue, [NewMessage(b"x")])
            uses = (lambda queue=queue: store.receive(queue), lambda queue=queue: store.depth(queue))
            for use in uses[: 1 if said == "paused" else 2]:
                words = f"{names.consumer} of the stream {names.stream} .*{said}"
                with pytest.raises((ConfigurationError, StoreUnavailable), match=words) as refused:
                    await use()
                assert refused.value.code == ("storage_unavailable" if said == "paused" else "unsupported")
            assert (await ask(server, f"STREAM.INFO.{names.stream}"))["state"]["messages"] == 1, settings
        await ask(server, f"STREAM.DELETE.{names.stream}")


@pytest.mark.parametrize("filtered", [False, True])
async def test_a_stream_with_another_consumer_is_refused(
    server: NatsServer, store: JetStreamStore, filtered: bool
) -> None:
    """A work queue has one consumer of a subject; the messages are another's then."""
    other = {"filter_subject": NAMES.subject} if filtered else {}
    await made_by_hand(server, NAMES._replace(consumer="another"), {}, other)
    await store.put(QUEUE, [NewMessage(b"one")])
    with pytest.raises(ConfigurationError, match=f"CREATE.{NAMES.stream}.queuebell .*another consumer") as refused:
        await store.receive(QUEUE, 1, LONG)
    assert refused.value.code == "unsupported"


async def test_a_stream_of_others_that_hears_the_subject_gets_no_message(
    server: NatsServer, store: JetStreamStore
) -> None:
    """Nobody would receive it there: the queue's stream is made first, or was seen, and else the put fails."""
    everything = Names("ORDERS", "queuebell.queue.>", "another")
    await made_by_hand(server, everything, {})
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"CREATE.{NAMES.stream} was rejected .*another stream has"):
            await store.put(QUEUE, [NewMessage(b"one")])
    assert (await ask(server, "STREAM.INFO.ORDERS"))["state"]["messages"] == 0
    store._checked_streams.add(NAMES.stream)  # it was there when it was looked for
    with pytest.raises(StoreError, match=f"{NAMES.stream} is gone, and the stream ORDERS stored the message"):
        await store.put(QUEUE, [NewMessage(b"one")])
    with pytest.raises(ConfigurationError, match="another stream has the subject"):
        await store.put(QUEUE, [NewMessage(b"one")])
