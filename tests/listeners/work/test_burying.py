"""Buried messages carry their facts, a supervisor reads them, and what it replays comes where it failed."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import logging
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from queuebell.bridge.contract.burial import Burial, is_burial, read_burial, write_burial
from queuebell.bridge.contract.claim import is_claim, lost_claim, read_claim
from queuebell.bridge.contract.errors import BadInput, StoreUnavailable
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.queues.base import Capabilities, NewMessage, PutReceipt
from queuebell.bridge.storage.blobs.memory import MemoryBlobs
from queuebell.bridge.storage.claim_check import ClaimCheck
from queuebell.listeners import PULL_ONLY, Bury, Listener, Message, Replay
from queuebell.listeners.work.claims import SWEEP_S
from queuebell.listeners.work.invoke import Invoker
from queuebell.listeners.work.retry import Failed
from tests.listeners.rig import POISON, QUEUE, Store, listening, raising, run_until, settled
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import pass_time, simulated

_names = itertools.count()


NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)


BURIAL = Burial(QUEUE, "17", NOON, NOON, "no", 2)


class Small(Store):
    """A store whose bodies are short."""

    limit = 1000

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, body_bytes_max=self.limit)

    async def put(self, queue: str, messages: Sequence[NewMessage]) -> list[PutReceipt]:
        assert all(len(message.body) <= self.limit for message in messages)
        return await super().put(queue, messages)


async def failing(message: Message) -> None:
    raise ValueError(f"this one is bad: {message.text()[:20]}")


async def buried(store: Store, *bodies: bytes, handler: Any = failing, **options: Any) -> list[Burial]:
    """Have a worker bury these, and return the facts."""
    await store.fill(*bodies)
    await run_until(
        listening(store, handler, **{"max_attempts": 2, "name": "worker", **options}), len(bodies), "buried"
    )
    return [burial for body in [m.body for m in await store.peek(POISON)] if (burial := read_burial(body)[0])]


class Supervisor:
    """Does with each message what the test says, and remembers what it saw."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.seen: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.seen.append(message)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome


@pytest.mark.parametrize("wish", [Replay(), Replay(queue="elsewhere/orders"), Replay(after=604_800)])
@simulated
async def test_a_replay_that_cannot_be_leaves_the_message(wish: Replay, caplog: pytest.LogCaptureFixture) -> None:
    """Without a place to go, to another account, or later than the store can: it stays, and the log says why."""
    caplog.set_level(logging.ERROR, "queuebell.listener")
    store = Small() if wish.after else Store()
    queue = "billing/graves"
    await store.fill(b"x", queue=queue)
    if wish.after is not None:
        longest = msgspec.structs.replace(store.capabilities, delay_ms_max=900_000)
        type(store).capabilities = property(lambda self: longest)  # type: ignore[assignment, method-assign]
        wish.queue = "orders"
    await run_until(
        listening(store, Supervisor(wish, wish), queue, max_attempts=1, poison_queue="other"), 1, "retried", queue
    )
    assert await store.bodies(queue) == [] or await store.bodies(queue) == [b"x"]
    depth = await store.depth(queue)
    assert depth.visible + depth.invisible == 1
    assert await store.depth("elsewhere/orders") is None
    assert "cannot be replayed and stays" in caplog.text


class Slow(Store):
    """Carries out a put on ``queue`` at once and answers ``seconds`` later; says when."""

    def __init__(self, queue: str, seconds: float) -> None:
        super().__init__()
        self.carried_out = asyncio.Event()
        self.cut = False
        self._queue, self._seconds = queue, seconds

    async def put(self, queue: str, messages: Sequence[NewMessage]) -> list[PutReceipt]:
        receipts = await super().put(queue, messages)
        if queue == self._queue and self._seconds:
            self.carried_out.set()
            try:
                await pass_time(self._seconds)
            except asyncio.CancelledError:
                self.cut = True
                raise
        return receipts


@pytest.mark.parametrize("at_once", [False, True], ids=["stop", "at once"])
@pytest.mark.parametrize("seconds", [0.5, 2.5, 9.0, 60.0])
@pytest.mark.parametrize("replays", [False, True], ids=["burial", "replay"])
@simulated
async def test_a_stop_in_the_midst_of_a_move_leaves_one(replays: bool, seconds: float, at_once: bool) -> None:
    """The answer is waited for as long as the last settlements are; past that both stand, as after a crash."""
    source, target = (POISON, QUEUE) if replays else (QUEUE, POISON)
    store = Slow(target, seconds)

    async def moves(message: Message) -> None:
        raise Replay() if replays else Bury("no")

    body = write_burial(BURIAL, b"x", 10_000) if replays else b"x"
    assert body is not None
    await store.fill(body, queue=source)
    listener = Listener(store, source, moves, bridge=PULL_ONLY, grace=0.0, handle_signals=False)
    running = asyncio.create_task(listener.run(), name="listener")
    await store.carried_out.wait()
    began = asyncio.get_running_loop().time()
    listener.signalled(2 if at_once else 1)
    await asyncio.wait([running])
    took = asyncio.get_running_loop().time() - began
    heard = seconds < (4.0 if at_once else 11.0)
    assert took <= (seconds if heard else 4.0 if at_once else 11.0) + 0.01
    assert len(await store.peek(target)) == 1
    assert store.cut is not heard
    await pass_time(60)
    assert len(await store.peek(source)) == (0 if heard else 1)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(("move", "handle"))]


@simulated
async def test_a_dead_letter_says_how_its_attempts_ended() -> None:
    """The last 16 of them, and of the last one the class of its exception and the traceback."""
    (facts,) = await buried(Store(), b"x", max_attempts=18)
    assert [(each.attempt, each.reason) for each in facts.history] == [
        (number, "ValueError: this one is bad: x") for number in range(3, 19)
    ]
    assert (facts.attempts, facts.error, facts.failure) == (18, "ValueError", "exhausted")
    assert facts.trace is not None and "in failing\n" in facts.trace
    assert facts.trace.endswith("ValueError: this one is bad: x\n")


@pytest.mark.parametrize("how", ["within", "from", "from None"])
@simulated
async def test_a_burial_by_the_handler_names_its_cause(how: str) -> None:
    """The exception that it came from, or was raised within; not one that the handler hides."""

    async def refuse(message: Message) -> None:
        try:
            int(message.text())
        except ValueError as error:
            if how == "within":
                raise Bury("no number")  # noqa: B904 - as users write it
            raise Bury("no number") from (error if how == "from" else None)

    (facts,) = await buried(Store(), b"x", handler=refuse)
    assert (facts.reason, facts.failure, facts.attempts) == ("no number", "poisoned", 1)
    if how == "from None":
        assert (facts.error, facts.trace) == (None, None)
    else:
        assert facts.error == "ValueError" and facts.trace is not None and "int(message.text())" in facts.trace


@simulated
async def test_a_store_that_refuses_the_facts_gets_the_body() -> None:
    """Whatever it has against them: the message is buried bare, at the first attempt, and that is counted."""
    store = Store()
    put = store.put

    async def picky(queue: str, messages: Sequence[NewMessage]) -> list[PutReceipt]:
        if is_burial(messages[0].body):
            raise BadInput("bad_parameter", "no such text here")
        return await put(queue, messages)

    store.put = picky  # type: ignore[method-assign]
    await store.fill(b"x", b"y")
    async with listening(store, Supervisor(Bury("no"), Bury("no"))) as listener:
        await settled(listener, 2, "buried")
        assert listener.state().queues[QUEUE].burials_bare == 2
    assert [message.body for message in await store.peek(POISON)] == [b"x", b"y"]


@simulated
async def test_a_replay_waits_as_long_as_the_supervisor_says() -> None:
    """So does its trigger."""
    store, bridge, told = Store(), FakeBridge(), list[CloudQueueWorkDetected]()

    async def publish(events: Sequence[CloudQueueWorkDetected]) -> None:
        told.extend(events)

    bridge.publish = publish  # type: ignore[method-assign]
    (facts,) = await buried(store, b"x", max_attempts=1)
    assert facts.error == "ValueError"
    await run_until(listening(store, Supervisor(Replay(after=60)), POISON, bridge=bridge), 1, "replayed", POISON)
    (event,) = told
    assert event.queue == QUEUE and 60_000 <= event.not_before_ms <= 60_010, "by the store's clock"
    assert (await store.depth(QUEUE)).visible == 0
    await pass_time(61)
    assert (await store.depth(QUEUE)).visible == 1


class Aside:
    """A store of short bodies with a blob store beside it."""

    def __init__(self) -> None:
        self.store = Small()
        self.blobs = MemoryBlobs(f"aside-{next(_names)}", clock=asyncio.get_running_loop().time)
        self.check = ClaimCheck(self.blobs)

    async def fill(self, body: bytes) -> None:
        await self.store.put(QUEUE, [await self.check.put_aside(QUEUE, NewMessage(body), Small.limit)])

    async def names(self) -> list[str]:
        return [blob.name for blob in await self.blobs.blobs()]

    def listening(self, handler: Any, queue: str = QUEUE, **options: Any) -> Any:
        return listening(self.store, handler, queue, claim_check=self.check, **options)


@simulated
async def test_a_stop_waits_two_seconds_for_a_blob_that_is_not_deleted() -> None:
    site = Aside()
    await site.fill(b"n" * 2000)
    deleting = asyncio.Event()

    async def delete(*_: object) -> None:
        deleting.set()
        await pass_time(1e6)

    site.blobs.delete = delete  # type: ignore[method-assign]
    async with site.listening(Supervisor()) as listener:
        await settled(listener, 1)
        await deleting.wait()
        began = asyncio.get_running_loop().time()
        await listener.stop()
        assert asyncio.get_running_loop().time() - began <= 2.1


@simulated
async def test_a_burial_unseen_over_a_burial_put_aside_keeps_all_facts() -> None:
    """A replayed message whose facts are in its blob dies unseen: both burials are told, and nothing is left over."""
    site, body = Aside(), b"n" * 900
    await site.fill(body)
    await run_until(site.listening(Supervisor(Bury("first"))), 1, "buried")
    await run_until(site.listening(Supervisor(Replay()), POISON), 1, "replayed", POISON)
    for _ in range(2):
        await site.store.receive(QUEUE, 1, 1.0)
        await pass_time(2)
    await run_until(site.listening(Supervisor(), max_attempts=2), 1, "buried")
    supervisor = Supervisor()
    await run_until(site.listening(supervisor, POISON), 1, queue=POISON)
    (seen,) = supervisor.seen
    assert seen.body == body
    assert (seen.burial.failure, seen.burial.burials) == ("no-outcome", 2)
    assert [one.reason for one in seen.burial.earlier] == ["first"]
    assert await site.names() == []


LARGE = b"order " * 50_000


class Blobs(MemoryBlobs):
    """Blobs on the loop's clock, whose next reads may fail or never answer."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex, clock=asyncio.get_running_loop().time)
        self.reading: list[Any] = []
        self.tries: list[float] = []

    async def get(self, name: str) -> bytes:
        self.tries.append(asyncio.get_running_loop().time())
        if self.reading:
            await self.reading.pop(0)()
        return await super().get(name)

    async def names(self) -> list[str]:
        return [blob.name for blob in await self.blobs()]


class Site:
    def __init__(self) -> None:
        self.store, self.blobs = Store(), Blobs()
        self.check = ClaimCheck(self.blobs)
        self.seen: list[Message] = []

    async def fill(self, *bodies: bytes, queue: str = QUEUE) -> list[bytes]:
        limit = self.store.capabilities.body_bytes_max
        ready = [await self.check.put_aside(queue, NewMessage(body), limit) for body in bodies]
        await self.store.put(queue, ready)
        return [message.body for message in ready]

    async def handle(self, message: Message) -> None:
        self.seen.append(message)

    def listening(self, handler: Any = None, **options: Any) -> Any:
        return listening(self.store, handler or self.handle, claim_check=self.check, **options)


@simulated
async def test_a_body_that_comes_back_after_its_burial_is_found() -> None:
    """The supervisor is told of the claim as text while the body is gone, and replays the whole once it is there."""
    site = Site()
    (claim,) = await site.fill(LARGE)
    name = read_claim(claim).blob
    kept = await site.blobs.get(name)
    await site.blobs.delete(name)

    async def supervise(message: Message) -> None:
        site.seen.append(message)
        raise Replay

    await run_until(site.listening(), 1, "buried")
    async with site.listening(supervise, queue=POISON) as listener:
        await settled(listener, 1, "retried", POISON)
        assert [(message.body, is_claim(message.body)) for message in site.seen] == [(lost_claim(claim), False)]
        await site.blobs.put(name, kept)
        await settled(listener, 1, "replayed", POISON)
    assert site.seen.pop().body == LARGE
    site.seen.clear()
    await run_until(site.listening(), 1)
    assert [message.body for message in site.seen] == [LARGE]
    assert await site.blobs.names() == []


@simulated
async def test_a_claim_that_cannot_be_read_is_buried() -> None:
    """A damaged claim, or a stranger's: nothing is fetched for it."""
    site = Site()
    await site.store.fill(b'queuebell-claim:1 {"blob": "../../etc/passwd"}')
    await run_until(site.listening(), 1, "buried")
    assert site.blobs.tries == []
    assert (await site.store.bodies(POISON))[0].startswith(b"queuebell-claim:1 ")
    (burial,) = await site.store.burials()
    assert "its body was put aside and cannot be read: " in burial.reason


@simulated
async def test_a_listener_that_stops_gives_back_what_it_could_not_fetch() -> None:
    """Nobody waits for the blob store when the listener goes; the message is there for others."""
    site = Site()
    site.blobs.reading = [raising(StoreUnavailable("away"))] * 1000
    await site.fill(LARGE)
    async with site.listening(grace=1.0):
        async with asyncio.timeout(60):
            while len(site.blobs.tries) < 3:
                await asyncio.sleep(0.01)
    depth = await site.store.depth(QUEUE)
    assert depth.visible == 1
    assert len(await site.blobs.names()) == 1


@simulated
async def test_the_sweep_knows_the_poison_queue_that_was_given() -> None:
    """A worker without a claim check buries there as it stands; the sweep of one that has one leaves the body."""
    site, grave = Site(), "billing/graveyard"
    (claim,) = await site.fill(LARGE)
    options = {"poison_queue": grave, "max_attempts": 1}
    await run_until(listening(site.store, site.handle, **options), 1, "buried")
    await pass_time(7 * 86_400)
    async with site.listening(**options):
        await pass_time(1.3 * SWEEP_S)
    assert await site.store.bodies(grave) == [claim]
    assert await site.check.fetch(claim) == LARGE


@simulated
async def test_a_sweep_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A blob store that is away or broken ends no listener, and what broke is told with the queue."""
    site = Site()
    listings = 0

    async def broken(*arguments: Any) -> Any:
        nonlocal listings
        listings += 1
        raise StoreUnavailable("away") if listings % 2 else RuntimeError("defect")

    site.blobs.blobs = broken  # type: ignore[method-assign]
    async with site.listening() as listener:
        await pass_time(10 * SWEEP_S)
        assert listings > 5
        assert f"{QUEUE}: unexpected error while searching for orphaned blobs" in caplog.text
        assert f"{QUEUE}: searching for orphaned blobs failed and is repeated at the next sweep: away" in caplog.text
        await site.store.fill(b"small")
        await settled(listener, 1)


MESSAGE = Message("1", "billing/orders", b"x", 1, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))


def raising_invoke(error: type[BaseException], kind: str) -> Any:
    async def on_loop(message: Message) -> None:
        raise error("odd")

    def in_thread(message: Message) -> None:
        raise error("odd")

    async def on_batch(messages: list[Message]) -> None:
        raise error("odd")

    return {"coroutine": on_loop, "thread": in_thread, "batch": on_batch}[kind]


@pytest.mark.parametrize("kind", ["coroutine", "batch"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_goes_on(error: type[BaseException], kind: str) -> None:
    """To whoever runs the event loop; the messages come back when their leases end."""
    invoker = Invoker(raising_invoke(error, kind), threads=1, timeout=None)
    calling: Any = invoker.many([MESSAGE], lambda _: None) if invoker.batch else invoker.one(MESSAGE, lambda _: None)

    async def step() -> None:
        calling.send(None)

    with pytest.raises(error):
        asyncio.run(step())


@pytest.mark.parametrize("kind", ["coroutine", "thread", "batch"])
@pytest.mark.parametrize("timeout", [None, 600.0])
async def test_a_cancellation_from_within_fails_the_attempt(kind: str, timeout: float | None) -> None:
    """Of all messages of a batch: nobody outside has cancelled anything."""
    invoker = Invoker(raising_invoke(asyncio.CancelledError, kind), threads=1, timeout=timeout)
    try:
        if invoker.batch:
            outcomes = await invoker.many([MESSAGE, MESSAGE], lambda _: None)
        else:
            outcomes = [await invoker.one(MESSAGE, lambda _: None)]
    finally:
        invoker.close()
    assert outcomes == [Failed("the handler was cancelled from within")] * (2 if invoker.batch else 1)
