"""What of the Redis store the conformance suite does not ask: addresses, strangers, and the order of things."""

from __future__ import annotations

import random
import socket

import pytest

from bridge.contract.errors import ConfigurationError, QueuebellError, StoreError, StoreFull, StoreUnavailable
from bridge.queues import open_store
from bridge.queues.base import Claim, Depth, Extend, NewMessage, Release, Settlement
from bridge.queues.redis.connections import RedisAddress
from bridge.queues.redis.errors import explain
from bridge.queues.redis.store import RedisStore
from tests.bridge.queues.redis_rig import QUEUE, STREAM, come, pending, server, store
from tests.conformance.leases import LONG, bodies, claim, new
from tests.support.redis import RedisServer
from tests.support.tcp_proxy import TcpProxy

__all__ = ["server", "store"]

KINDS = ("put", "delay", "receive", "receive", "delete", "release", "later", "extend", "come")


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://host/x",
        "redis://host/1/2",
        "redis://host/-1",
        "redis://secret@host?colour=red",
        "redis://:secret@host?prefix=a.b",
        "redis://host?pool_size=0",
        "redis://host?pool_size=101",
        "redis://host?tls_ca=/x",
        "rediss://host?tls_hostname=x",
        "redis://[::1",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    """What cannot be an address is a mistake of the configuration, told without its secrets."""
    with pytest.raises(ConfigurationError) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_options_are_told_with_the_scheme_that_has_them() -> None:
    """Those of TLS need rediss://, and are not named as if redis:// had them."""
    for scheme in ("redis", "rediss"):
        with pytest.raises(ConfigurationError) as refused:
            open_store(f"{scheme}://host?colour=red")
        said = "redis: options of the address are pool_size, prefix, and of rediss:// also tls_ca, tls_cert, tls_key"
        assert str(refused.value) == said
    with pytest.raises(ConfigurationError, match="tls_key are for rediss://"):
        open_store("redis://host?tls_ca=/x")


async def test_a_server_that_is_away_is_told_without_the_period_of_the_client() -> None:
    """Who repeats it goes on with a sentence of its own."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # and nobody listens
        async with RedisStore(f"redis://127.0.0.1:{reserved.getsockname()[1]}") as store:
            with pytest.raises(StoreUnavailable, match="cannot be reached") as away:
                await store.receive(QUEUE)
    assert str(away.value)[-1] != "."


def test_addresses_are_read_and_keep_their_secrets() -> None:
    """Host, port and database make the place; user and password are nowhere to be seen."""
    address = RedisAddress("redis://me:secret@localhost/3")
    assert (address.text, address.place) == ("redis://localhost:6379/3", "redis://127.0.0.1:6379/3")
    assert "secret" not in repr(address)
    one, same, other, third = (
        RedisStore(url).fingerprint(QUEUE)
        for url in ("redis://localhost", "redis://:x@127.0.0.1:6379/0", "redis://localhost/1", "redis://h?prefix=x")
    )
    assert one == same
    assert len({one, other, third}) == 3


def test_all_keys_of_a_queue_are_in_one_slot() -> None:
    """The reference is the hash tag, so that a cluster would keep them together."""
    from redis.crc import key_slot

    keys = RedisStore("redis://host")._keys(QUEUE)
    assert keys[0] == STREAM
    assert len(set(keys)) == 8
    assert {key_slot(key.encode()) for key in keys} == {key_slot(QUEUE.encode())}


def test_no_answer_is_misread() -> None:
    """The server's words, at the front or inside, in whatever class the client raises them."""
    from redis import exceptions

    cases: list[tuple[Exception, type[QueuebellError]]] = [
        (exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), StoreFull),
        (
            exceptions.ResponseError("ERR Error running script (call to f_1): @user_script:3: -OOM command not"),
            StoreFull,
        ),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), StoreUnavailable),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), StoreUnavailable),
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left"), StoreUnavailable),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), StoreUnavailable),
        (exceptions.ResponseError("BUSY Redis is busy running a script."), StoreUnavailable),
        (exceptions.MovedError("1234 127.0.0.1:7000"), ConfigurationError),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), StoreError),
        (exceptions.NoPermissionError("this user has no permissions"), StoreError),
        (exceptions.ResponseError("ERR something else"), StoreError),
    ]
    for error, meaning in cases:
        assert type(explain(error, "redis://host:6379/0", connecting=False)) is meaning, error


@pytest.mark.system
async def test_the_end_of_a_lease_is_no_moment_to_look(store: RedisStore) -> None:
    """Its holder reports it: where nothing is delayed no timer is told, or each message would cost an empty receive."""
    await store.put(QUEUE, [NewMessage(b"x")])
    (message,) = (await store.receive(QUEUE, 32, 30.0)).messages
    while_held = await store.receive(QUEUE, 32, 30.0)
    assert while_held.next_visible_in_ms is not None and while_held.next_delayed_in_ms is None
    await store.put(QUEUE, [NewMessage(b"later", 60_000)])
    told = (await store.receive(QUEUE, 32, 30.0)).next_delayed_in_ms
    assert isinstance(told, int) and 30_000 < told <= 60_000
    await store.settle(QUEUE, Settlement(delete=[claim(message)]))
    told = (await store.receive(QUEUE, 32, 30.0)).next_delayed_in_ms
    assert isinstance(told, int) and 50_000 < told <= 60_000


@pytest.mark.system
class TestStrangers:
    async def test_who_only_adds_has_his_messages_handled(self, server: RedisServer, store: RedisStore) -> None:
        """XADD is all that a producer needs, also before anybody received; an entry without a body is JSON."""
        async with server.stranger() as redis:
            first = await redis.xadd(STREAM, {"body": "order 1"})
            await redis.xadd(STREAM, {"order": "2", "total": "9 €"})
            assert await store.depth(QUEUE) == Depth(2, 0)
            assert await store.queues() == [QUEUE]
            received = await store.receive(QUEUE, 5, LONG)
            assert bodies(received) == [b"order 1", '{"order":"2","total":"9 €"}'.encode()]
            assert received.messages[0].id == first
            assert await pending(redis) == [(message.id, "leased", 1) for message in received.messages]
            settling = await store.settle(QUEUE, Settlement(delete=[claim(message) for message in received.messages]))
            assert [settled.ok for settled in settling.delete] == [True, True]
            assert await redis.xlen(STREAM) == 0
            assert await pending(redis) == []

    async def test_who_only_adds_may_say_headers(self, server: RedisServer, store: RedisStore) -> None:
        """As JSON in a field beside the body; what is none is not read, and a field of the body's own stays there."""
        async with server.stranger() as redis:
            await redis.xadd(STREAM, {"headers": '{"Trace": "x", "bad": "\\n", "no": 7}', "body": "one"})
            for none in ("", "[]", "no JSON", b"\xff", '{"a": "' + "x" * 9000 + '"}'):
                await redis.xadd(STREAM, {"body": "none", "headers": none})
            await redis.xadd(STREAM, {"headers": '{"a": "b"}', "order": "2"})
            one, *none, own = (await store.receive(QUEUE, 9, LONG)).messages
            assert (one.body, one.headers) == (b"one", {"trace": "x"})
            assert [each.headers for each in none] == [{}] * 5
            assert (own.body, own.headers) == (b'{"headers":"{\\"a\\": \\"b\\"}","order":"2"}', {})

    async def test_the_pending_list_tells_the_truth(self, server: RedisServer, store: RedisStore) -> None:
        """Leased, given back and delayed, each in its own name and with its count; what is new is the group's lag."""
        await store.put(QUEUE, new(b"leased", b"back", b"twice"))
        leased, back, twice = (await store.receive(QUEUE, 3, LONG)).messages
        await store.settle(QUEUE, Settlement(release=[Release(m.id, m.pop_receipt) for m in (back, twice)]))
        async with server.stranger() as redis:
            await come(redis, twice.id)
            (again,) = (await store.receive(QUEUE, 1, LONG)).messages
            assert (again.id, again.dequeue_count) == (twice.id, 2)
            (delayed,) = await store.put(QUEUE, new(b"delayed", delay_ms=60_000))
            await store.put(QUEUE, new(b"new", b"new"))
            assert await pending(redis) == [
                (leased.id, "leased", 1),
                (back.id, "waiting", 1),
                (twice.id, "leased", 2),
                (delayed.id, "waiting", 0),
            ]
            (group,) = await redis.xinfo_groups(STREAM)
            assert (group["pending"], group["lag"]) == (4, 2)
        assert await store.depth(QUEUE) == Depth(3, 3)

    async def test_what_a_stranger_read_with_the_group_comes_back(self, server: RedisServer, store: RedisStore) -> None:
        """Who read with the group has half a minute; then the message is given to a worker."""
        await store.put(QUEUE, new(b"one"))
        async with server.stranger() as redis:
            ((_, entries),) = await redis.xreadgroup("queuebell", "somebody", {STREAM: ">"})
            received = await store.receive(QUEUE, 1, LONG)
            assert received.messages == []
            assert received.depth == Depth(0, 1)
            assert received.next_visible_in_ms is not None
            assert 20_000 < received.next_visible_in_ms <= 30_000
            await come(redis, entries[0][0])
            (message,) = (await store.receive(QUEUE, 1, LONG)).messages
            assert (message.body, message.dequeue_count) == (b"one", 2)

    async def test_what_a_stranger_took_away_is_gone(self, server: RedisServer, store: RedisStore) -> None:
        """Deleted or trimmed while leased, nothing of it is given out, and an answer that met it proves nothing."""
        await store.put(QUEUE, new(b"deleted", b"kept"))
        deleted, kept = (await store.receive(QUEUE, 2, LONG)).messages
        async with server.stranger() as redis:
            await redis.xdel(STREAM, deleted.id)
            settling = await store.settle(
                QUEUE, Settlement(extend=[Extend(m.id, m.pop_receipt, LONG) for m in (deleted, kept)])
            )
            assert [settled.code for settled in settling.extend] == ["message_not_found", None]
            await redis.xtrim(STREAM, maxlen=0)
            await come(redis, kept.id)
            received = await store.receive(QUEUE, 5, LONG)
            assert (received.messages, received.blocked) == ([], True)
            received = await store.receive(QUEUE, 5, LONG)
            assert (received.messages, received.depth, received.blocked) == ([], Depth(0, 0), False)
            assert await redis.keys(f"{STREAM}:*") == []

    async def test_what_a_stranger_took_away_hides_nothing(self, server: RedisServer, store: RedisStore) -> None:
        """While more is there, a full batch never says that nothing is visible: that would be a cover (L8)."""
        await store.put(QUEUE, new(b"1", b"2", b"3", b"4", b"5"))
        async with server.stranger() as redis:
            for message in (await store.receive(QUEUE, 3, LONG)).messages:
                await redis.xdel(STREAM, message.id)
        received = await store.receive(QUEUE, 1, LONG)
        assert bodies(received) == [b"4"]
        assert received.depth.visible == 1
        assert bodies(await store.receive(QUEUE, 5, LONG)) == [b"5"]

    @pytest.mark.parametrize("how", ["deleted", "trimmed"])
    async def test_nor_does_it_hide_what_lies_behind_delayed_ones(
        self, how: str, server: RedisServer, store: RedisStore
    ) -> None:
        """As many new ones as are gone, with a delayed one before them, and a batch that is full."""
        await store.put(QUEUE, new(*[b"gone"] * 5))
        gone = (await store.receive(QUEUE, 5, LONG)).messages
        await store.put(QUEUE, new(b"1"))
        await store.put(QUEUE, new(b"delayed", delay_ms=60_000))
        (last,) = await store.put(QUEUE, new(b"2"))
        async with server.stranger() as redis:
            if how == "deleted":
                await redis.xdel(STREAM, *(message.id for message in gone))
            else:
                assert await redis.xtrim(STREAM, maxlen=3, approximate=False) == 5
        received = await store.receive(QUEUE, 1, LONG)
        assert bodies(received) == [b"1"]
        assert received.depth.visible == 1, "a full batch beside a depth of 0 covers what is left (L8)"
        found = await store.depth(QUEUE)
        assert found.visible == 1
        assert [message.id for message in (await store.receive(QUEUE, 5, LONG)).messages] == [last.id]

    @pytest.mark.parametrize("what", ["acknowledged", "destroyed"])
    async def test_without_the_pending_list_nothing_is_lost(
        self, what: str, server: RedisServer, store: RedisStore
    ) -> None:
        """Whoever empties or destroys the group has messages come twice, and none not at all."""
        await store.put(QUEUE, new(b"one", b"two"))
        (one,) = (await store.receive(QUEUE, 1, LONG)).messages
        async with server.stranger() as redis:
            if what == "acknowledged":
                await redis.xack(STREAM, "queuebell", one.id)
            else:
                await redis.xgroup_destroy(STREAM, "queuebell")
            assert bodies(await store.receive(QUEUE, 5, LONG)) == [b"two"]
            await come(redis, one.id)
            received = await store.receive(QUEUE, 5, LONG)
            assert bodies(received) == [b"one"]
            assert await store.depth(QUEUE) == Depth(0, 2)
            assert len(await pending(redis)) == 2

    async def test_without_the_group_and_then_without_the_times_nothing_is_lost(
        self, server: RedisServer, store: RedisStore
    ) -> None:
        """A group made anew has again what was leased and delayed, so that its list alone can bring it back."""
        (leased,) = await store.put(QUEUE, new(b"leased"))
        await store.receive(QUEUE, 1, LONG)
        (delayed,) = await store.put(QUEUE, new(b"delayed", delay_ms=3_600_000))
        await store.put(QUEUE, new(b"new"))
        async with server.stranger() as redis:
            await redis.xgroup_destroy(STREAM, "queuebell")
            assert bodies(await store.receive(QUEUE, 5, LONG)) == [b"new"]
            assert [id_ for id_, *_ in await pending(redis)][:2] == [leased.id, delayed.id]
            await redis.delete(f"{STREAM}:due")
            received = await store.receive(QUEUE, 5, LONG)
            assert (received.messages, received.depth) == ([], Depth(0, 3))
            assert received.next_visible_in_ms is not None
            assert received.next_visible_in_ms <= 30_000
            await come(redis, leased.id, delayed.id)
            assert bodies(await store.receive(QUEUE, 5, LONG)) == [b"leased", b"delayed"]

    @pytest.mark.parametrize("consumer", ["leased", "waiting"])
    async def test_without_a_consumer_nothing_is_lost(
        self, consumer: str, server: RedisServer, store: RedisStore
    ) -> None:
        """What was pending in its name comes at its time, with its count begun anew."""
        (leased,) = await store.put(QUEUE, new(b"leased"))
        await store.receive(QUEUE, 1, LONG)
        (delayed,) = await store.put(QUEUE, new(b"delayed", delay_ms=60_000))
        async with server.stranger() as redis:
            assert await redis.xgroup_delconsumer(STREAM, "queuebell", consumer) == 1
            received = await store.receive(QUEUE, 5, LONG)
            assert (received.messages, received.depth) == ([], Depth(0, 2))
            await come(redis, leased.id, delayed.id)
            assert bodies(await store.receive(QUEUE, 5, LONG)) == [b"leased", b"delayed"]
            assert len(await pending(redis)) == 2

    async def test_a_key_of_another_kind_is_told(self, server: RedisServer, store: RedisStore) -> None:
        """Somebody else's key is neither read nor overwritten."""
        async with server.stranger() as redis:
            await redis.set(STREAM, "mine")
            with pytest.raises(StoreError, match="something else"):
                await store.put(QUEUE, new(b"one"))
            assert await redis.get(STREAM) == "mine"
        assert await store.queues() == []

    async def test_ids_go_on_after_a_clear(self, server: RedisServer, store: RedisStore) -> None:
        """The stream remembers its last id, so that no id comes twice even where the clock is set back."""
        async with server.stranger() as redis:
            await redis.xadd(STREAM, {"body": "late"}, id="9999999999999-5")
            await store.clear(QUEUE)
            (receipt,) = await store.put(QUEUE, new(b"next"))
        assert receipt.id == "9999999999999-6"
        assert bodies(await store.receive(QUEUE, 1, LONG)) == [b"next"]


@pytest.mark.system
class TestOrder:
    async def test_what_comes_back_and_what_is_new_take_turns(self, server: RedisServer, store: RedisStore) -> None:
        """Longest visible first, whether it was delivered before or never."""
        async with server.stranger() as redis:
            for ms in range(1, 6):
                await redis.xadd(STREAM, {"body": str(ms)}, id=f"{ms * 1000}-0")
            first, second, *_ = (await store.receive(QUEUE, 2, LONG)).messages
            await redis.zadd(f"{STREAM}:due", {first.id: 4_500_000, second.id: 3_500_000})
            assert bodies(await store.receive(QUEUE, 3, LONG)) == [b"3", b"2", b"4"]
            assert bodies(await store.receive(QUEUE, 3, LONG)) == [b"1", b"5"]

    async def test_delayed_ones_among_new_ones_are_stepped_over(self, server: RedisServer, store: RedisStore) -> None:
        """They wait for their time wherever the group's cursor is, and keep their counts when it passes them."""
        await store.put(QUEUE, new(b"1"))
        (early,) = await store.put(QUEUE, new(b"early", delay_ms=60_000))
        await store.put(QUEUE, new(b"2"))
        (late,) = await store.put(QUEUE, new(b"late", delay_ms=60_000))
        await store.put(QUEUE, new(b"3", b"4"))
        async with server.stranger() as redis:
            await come(redis, early.id)
            assert bodies(await store.receive(QUEUE, 1, LONG)) == [b"early"]
            await come(redis, early.id)
            assert [(m.body, m.dequeue_count) for m in (await store.receive(QUEUE, 3, LONG)).messages] == [
                (b"early", 2),
                (b"1", 1),
                (b"2", 1),
            ]
            received = await store.receive(QUEUE, 5, LONG)
            assert (bodies(received), received.depth) == ([b"3", b"4"], Depth(0, 6))
            assert (early.id, "leased", 2) in await pending(redis)
            assert (late.id, "waiting", 0) in await pending(redis)
            assert (await store.receive(QUEUE, 5, LONG)).messages == []
            assert await redis.hget(f"{STREAM}:queue", "ahead") is None
            await come(redis, late.id)
            assert [(m.body, m.dequeue_count) for m in (await store.receive(QUEUE, 1, LONG)).messages] == [(b"late", 1)]

    async def test_a_receive_steps_over_so_many_and_says_so(self, store: RedisStore) -> None:
        """Behind a thousand delayed ones may be more: the answer proves nothing, and the next one goes on."""
        await store.put(QUEUE, new(b"first"))
        for _ in range(32):
            await store.put(QUEUE, new(*[b"delayed"] * 32, delay_ms=60_000))
        await store.put(QUEUE, new(b"last"))
        received = await store.receive(QUEUE, 5, LONG)
        assert (bodies(received), received.blocked) == ([b"first"], True)
        received = await store.receive(QUEUE, 5, LONG)
        assert (bodies(received), received.blocked) == ([b"last"], False)
        assert received.depth == Depth(0, 1026)

    @pytest.mark.parametrize("seed", range(4))
    async def test_any_course_of_things_adds_up(self, seed: int, server: RedisServer, store: RedisStore) -> None:
        """Put, delayed, taken, given back, deleted by turns: nothing comes twice, nothing is lost, all is counted."""
        draw = random.Random(seed)
        visible: set[bytes] = set()
        waiting: dict[bytes, Claim] = {}
        held: dict[bytes, Claim] = {}
        await store.create(QUEUE)
        for step in range(300):
            match draw.choice(KINDS):
                case "put":
                    some = [b"%d-%d" % (step, n) for n in range(draw.randint(1, 5))]
                    await store.put(QUEUE, new(*some))
                    visible.update(some)
                case "delay":
                    for body in [b"%d-%d" % (step, n) for n in range(draw.randint(1, 3))]:
                        (receipt,) = await store.put(QUEUE, new(body, delay_ms=3_600_000))
                        waiting[body] = Claim(receipt.id, receipt.pop_receipt)
                case "receive":
                    limit = draw.randint(1, 6)
                    received = await store.receive(QUEUE, limit, 3600.0)
                    assert len(received.messages) == min(limit, len(visible))
                    assert not received.blocked
                    for message in received.messages:
                        visible.remove(message.body)
                        held[message.body] = claim(message)
                    assert received.depth == Depth(len(visible), len(waiting) + len(held))
                case "come" if waiting:
                    body = draw.choice(sorted(waiting))
                    lease = waiting.pop(body)
                    done = await store.settle(QUEUE, Settlement(release=[Release(lease.id, lease.pop_receipt)]))
                    assert done.release[0].ok
                    visible.add(body)
                case what if held:
                    body = draw.choice(sorted(held))
                    lease = held.pop(body)
                    done = await store.settle(QUEUE, self._asked(what, lease))
                    (outcome,) = (*done.delete, *done.release, *done.extend)
                    assert outcome.ok
                    after = Claim(lease.id, outcome.pop_receipt or "")
                    if what == "release":
                        visible.add(body)
                    elif what == "later":
                        waiting[body] = after
                    elif what == "extend":
                        held[body] = after
            assert await store.depth(QUEUE) == Depth(len(visible), len(waiting) + len(held))
            assert {message.body for message in await store.peek(QUEUE)} <= visible
        async with server.stranger() as redis:
            states = [name for _, name, _ in await pending(redis)]
            assert states.count("leased") == len(held)

    @staticmethod
    def _asked(what: str, lease: Claim) -> Settlement:
        match what:
            case "release" | "later":
                after_ms = 0 if what == "release" else 3_600_000
                return Settlement(release=[Release(lease.id, lease.pop_receipt, after_ms)])
            case "extend":
                return Settlement(extend=[Extend(lease.id, lease.pop_receipt, 3600.0)])
        return Settlement(delete=[lease])

    async def test_a_put_may_be_moved_by_its_own_receipt(self, server: RedisServer, store: RedisStore) -> None:
        """Who put a message may have it wait, or lease it, before anybody received it."""
        one, two, _ = await store.put(QUEUE, new(b"one", b"two", b"three"))
        settling = await store.settle(
            QUEUE,
            Settlement(
                release=[Release(two.id, two.pop_receipt, 60_000)], extend=[Extend(one.id, one.pop_receipt, LONG)]
            ),
        )
        assert settling.release[0].ok and settling.extend[0].ok
        received = await store.receive(QUEUE, 5, LONG)
        assert (bodies(received), received.depth) == ([b"three"], Depth(0, 3))
        async with server.stranger() as redis:
            assert [name for _, name, _ in await pending(redis)] == ["leased", "waiting", "leased"]

    async def test_many_that_expire_at_once(self, server: RedisServer, store: RedisStore) -> None:
        """None of them is counted or given out, however many there are."""
        ids = [each.id for _ in range(66) for each in await store.put(QUEUE, new(*[b"old"] * 32, ttl_s=3600))]
        await store.put(QUEUE, new(b"stays"))
        async with server.stranger() as redis:
            await redis.zadd(f"{STREAM}:expires", dict.fromkeys(ids, 1))
            assert await store.depth(QUEUE) == Depth(1, 0)
            assert await redis.xlen(STREAM) == 1
            await redis.zadd(f"{STREAM}:expires", {"1-1": 1})
            assert bodies(await store.receive(QUEUE, 5, LONG)) == [b"stays"]
            assert await redis.zcard(f"{STREAM}:expires") == 0

    async def test_what_expires_before_it_is_visible_is_not_waited_for(
        self, server: RedisServer, store: RedisStore
    ) -> None:
        """Nobody comes back for a message that will be gone by then."""
        await store.put(QUEUE, new(b"never", delay_ms=5_000, ttl_s=1))
        received = await store.receive(QUEUE, 1, LONG)
        assert (received.messages, received.next_visible_in_ms) == ([], None)
        await store.put(QUEUE, new(b"some day", delay_ms=60_000))
        received = await store.receive(QUEUE, 1, LONG)
        assert received.next_visible_in_ms is not None
        assert 50_000 < received.next_visible_in_ms <= 60_000


@pytest.mark.system
class TestIdentity:
    async def test_a_database_says_who_it_is_by_any_address(self, server: RedisServer, store: RedisStore) -> None:
        """C8: other databases and prefixes of one server are others; no queue is made, and nobody's key is touched."""
        mine = await store.identity()
        assert mine is not None
        assert await store.identity() == mine
        async with TcpProxy(server.port) as proxy, RedisStore(f"redis://127.0.0.1:{proxy.port}/0") as alias:
            assert alias.fingerprint(QUEUE) != store.fingerprint(QUEUE)
            assert await alias.identity() == mine
        for other in (server.url(1), server.url(prefix="other")):
            async with RedisStore(other) as another:
                assert await another.identity() not in (None, mine)
        assert await store.queues() == []
        async with server.stranger() as redis:
            await redis.delete("queuebell:identity")
            await redis.hset("queuebell:identity", "some", "body")
        assert await store.identity() is None

    async def test_where_it_cannot_be_asked_that_is_told(self, server: RedisServer, store: RedisStore) -> None:
        """Not that it has no name."""
        await server.kill()
        with pytest.raises(StoreUnavailable):
            await store.identity()
