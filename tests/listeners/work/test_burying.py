"""Buried messages carry their facts, a supervisor reads them, and what it replays comes where it failed."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bridge.contract.burial import MAGIC, Burial, is_burial, read_burial, write_burial
from bridge.contract.claim import is_claim, read_claim
from bridge.contract.errors import BadInput, StoreUnavailable, UnknownOutcome
from bridge.contract.wire import ListenerHeartbeat
from bridge.queues.base import Capabilities, NewMessage, PutReceipt, Settled, Settlement, Settling
from bridge.storage.blobs.memory import MemoryBlobs
from bridge.storage.claim_check import ClaimCheck
from bridge.storage.tables.memory import MemoryTable
from listeners import PULL_ONLY, Bury, Done, Failure, Ledger, Listener, Message, Replay, Retry
from listeners.testing import run_once
from listeners.work.events import ListenerEvents
from tests.listeners.rig import POISON, QUEUE, Store, listening, run_until, settled
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


async def refusing(message: Message) -> None:
    raise ValueError("no")


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


@simulated
async def test_a_burial_tells_what_happened() -> None:
    """Where it failed, when, why, how often, with the traceback and each attempt; and the body is as it was put."""
    store, supervisor = Store(), Supervisor()
    (burial,) = await buried(store, b"seven")
    assert (burial.queue, burial.attempts, burial.failure, burial.burials) == (QUEUE, 2, "exhausted", 1)
    assert (burial.error, burial.listener) == ("ValueError", "worker")
    assert burial.reason == "attempt 2 of 2: ValueError: this one is bad: seven"
    assert burial.trace.startswith("Traceback")
    assert "in failing" in burial.trace
    assert [(one.attempt, one.reason) for one in burial.history] == [
        (1, "ValueError: this one is bad: seven"),
        (2, "ValueError: this one is bad: seven"),
    ]
    assert burial.inserted_at.tzinfo is not None
    await run_until(listening(store, supervisor, POISON), 1, queue=POISON)
    (message,) = supervisor.seen
    assert (message.body, message.text(), message.queue, message.attempt) == (b"seven", "seven", POISON, 1)
    assert message.burial == burial


@simulated
async def test_a_message_leaves_its_queue_after_it_is_on_the_poison_queue() -> None:
    """Whoever dies in between leaves two, never none: the put is answered before the delete is sent."""

    class Noting(Store):
        def __init__(self) -> None:
            super().__init__()
            self.left: list[int] = []

        async def put(self, queue: str, messages: Sequence[NewMessage]) -> list[PutReceipt]:
            if queue == POISON:
                await pass_time(1.0)  # whatever was sent before is done
                self.left.append(sum(len(settlement.delete) for settlement in self.settlements))
            return await super().put(queue, messages)

    store = Noting()
    await buried(store, b"seven")
    assert store.left == [0]
    assert sum(len(settlement.delete) for settlement in store.settlements) == 1


@pytest.mark.parametrize(
    ("error", "options", "failure", "trace"),
    [
        (Bury("unknown"), {}, "poisoned", False),
        (ValueError("x"), {"failures": lambda error: Failure.PERMANENT}, "permanent", True),
        (Retry(0), {}, "exhausted", False),
        (None, {"payload": int}, "undecodable", False),
    ],
)
@simulated
async def test_the_class_of_a_failure_is_told(
    error: Exception | None, options: dict[str, Any], failure: str, trace: bool
) -> None:
    """By its handler's word, by the rule, by attempts, or because there is nothing to handle."""

    async def handle(message: Message) -> None:
        if error is not None:
            raise error

    (burial,) = await buried(Store(), b"{", handler=handle, **options)
    assert burial.failure == failure
    assert (burial.trace is not None) == trace


@simulated
async def test_a_bury_shows_what_it_came_from() -> None:
    """`raise Bury(...) from error` brings that error's traceback along, as does one raised while handling it."""

    async def handle(message: Message) -> None:
        try:
            await failing(message)
        except ValueError as error:
            if message.text() == "from":
                raise Bury("no such customer") from error
            if message.text() == "none":
                raise Bury("no such customer") from None
            raise Bury("no such customer")  # noqa: B904 - as people write it

    first, second, third = await buried(Store(), b"from", b"while", b"none", handler=handle)
    assert {first.error, second.error} == {"ValueError"}
    assert "in failing" in (first.trace or "")
    assert "in failing" in (second.trace or "")
    assert (third.error, third.trace) == (None, None)


@simulated
async def test_a_message_that_nobody_lived_to_judge_says_so() -> None:
    """Handed out more often than allowed: there is no error to show, and the class tells it."""
    store, supervisor = Store(), Supervisor()
    await store.fill(b"x")
    for _ in range(2):
        (message,) = (await store.receive(QUEUE, 1, 1.0)).messages
        await pass_time(2)
    assert message.dequeue_count == 2
    await run_until(listening(store, supervisor, max_attempts=2), 1, "buried")
    (burial,) = await store.burials()
    assert (burial.failure, burial.attempts, burial.error, burial.history) == ("no-outcome", 3, None, ())
    assert supervisor.seen == []


@simulated
async def test_the_wake_that_brought_a_message_is_told() -> None:
    """A trigger's trace context goes with the messages that it brought, and not with those of another wake."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    store, bridge = Store(), FakeBridge()
    async with listening(store, failing, bridge=bridge, max_attempts=1) as listener:
        await bridge.until(ListenerHeartbeat)
        for gen, context in enumerate((trace, None), 1):
            await store.fill(b"x")
            bridge.wake(QUEUE, traceparent=context)
            await settled(listener, gen, "buried")
    assert [burial.traceparent for burial in await store.burials()] == [trace, None]


@simulated
async def test_the_context_of_a_message_goes_before_that_of_its_wake() -> None:
    """A wake may stand for others; what is in the headers is its own, unless it is no context."""
    own, wake = (f"00-{n:032x}-{n:016x}-01" for n in (1, 2))
    store, bridge = Store(), FakeBridge()
    async with listening(store, failing, bridge=bridge, max_attempts=1) as listener:
        await bridge.until(ListenerHeartbeat)
        for gen, context in enumerate((own, "hostile"), 1):
            await store.put(QUEUE, [NewMessage(b"x", headers={"traceparent": context})])
            bridge.wake(QUEUE, traceparent=wake)
            await settled(listener, gen, "buried")
    assert [burial.traceparent for burial in await store.burials()] == [own, wake]


@simulated
async def test_a_replay_goes_back_and_both_burials_are_told() -> None:
    """It is put where it failed, deleted here and counted; buried again it shows both, and how often in all."""
    store, supervisor = Store(), Supervisor(Replay())
    (first,) = await buried(store, b"\x00\xffbytes", handler=refusing)
    async with listening(store, supervisor, POISON) as listener:
        await settled(listener, 1, "replayed", POISON)
        figures = listener.state().queues[POISON]
        assert (figures.handled, figures.retried, figures.buried) == (0, 0, 0)
    assert await store.bodies(POISON) == []
    assert await store.bodies(QUEUE) == [b"\x00\xffbytes"]
    await run_until(listening(store, refusing, max_attempts=1), 1, "buried")
    (burial,) = await store.burials()
    assert burial.burials == 2
    assert [(one.id, one.reason, one.attempts) for one in burial.earlier] == [(first.id, first.reason, 2)]
    assert burial.id != first.id
    assert await store.bodies(POISON) == [b"\x00\xffbytes"]


@simulated
async def test_a_replay_that_succeeds_is_done() -> None:
    """The worker sees the body that was put at first, and the facts beside it; then nothing is left anywhere."""
    store, worker = Store(), Supervisor(Bury("not yet"))
    await store.fill(b"x")
    async with (
        listening(store, worker) as listener,
        listening(store, Supervisor(Replay(after=50)), POISON) as supervisor,
    ):
        await settled(supervisor, 1, "replayed", POISON)
        began = asyncio.get_running_loop().time()
        await settled(listener, 1)
        assert asyncio.get_running_loop().time() - began > 49
    first, second = worker.seen
    assert (first.body, second.body) == (b"x", b"x")
    assert first.burial is None
    assert second.burial.reason == "not yet"
    assert [await store.bodies(queue) for queue in (QUEUE, POISON)] == [[], []]


@simulated
async def test_a_batch_of_a_supervisor_may_replay() -> None:
    """One outcome per message: done, replayed here, replayed there."""
    store = Store()
    await buried(store, b"a", b"b", b"c")

    async def handle(messages: list[Message]) -> list[Any]:
        what = {"a": Done, "b": Replay, "c": Replay(queue="other")}
        return [what[message.text()] for message in messages]

    async with listening(store, handle, POISON) as listener:
        await settled(listener, 2, "replayed", POISON)
        await settled(listener, 1, "handled", POISON)
    assert await store.bodies(QUEUE) == [b"b"]
    assert await store.bodies("billing/other") == [b"c"]


@pytest.mark.parametrize("crash", [UnknownOutcome("no answer"), StoreUnavailable("away")])
@simulated
async def test_a_replay_waits_for_a_store_that_fails(crash: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """It insists; where nobody can tell whether it was put there may be two, and never none."""
    store = Store()
    await buried(store, b"x")
    put, fails = store.put, [crash, crash]

    async def failing_put(queue: str, messages: Sequence[NewMessage]) -> list[PutReceipt]:
        if fails and isinstance(fails[0], UnknownOutcome):
            await put(queue, messages)
        if fails:
            raise fails.pop()
        return await put(queue, messages)

    store.put = failing_put  # type: ignore[method-assign]
    (grave,) = await store.peek(POISON)
    await run_until(listening(store, Supervisor(Replay()), POISON), 1, "replayed", POISON)
    assert len(back := await store.peek(QUEUE)) == (3 if isinstance(crash, UnknownOutcome) else 1)
    assert await store.bodies(POISON) == []
    assert caplog.text.count(f"{POISON}: cannot replay message {grave.id} to {QUEUE} yet: {crash}") == 2
    assert f"message {grave.id} of {POISON} goes back to {QUEUE} as {back[-1].id}" in caplog.text


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
    assert "stays, it cannot be replayed" in caplog.text


@simulated
async def test_a_strangers_burial_is_a_plain_body() -> None:
    """What begins as one and is none reaches the handler as it is, and can be buried and replayed as any."""
    store, worker = Store(), Supervisor(Bury("odd"))
    strange = MAGIC + b"9 {}\nbody"
    await store.fill(strange)
    async with (
        listening(store, worker) as listener,
        listening(store, Supervisor(Replay()), POISON),
    ):
        await settled(listener, 1)
    assert [message.body for message in worker.seen] == [strange, strange]


@simulated
async def test_a_forged_burial_does_not_leave_its_account() -> None:
    """The facts are a stranger's words: a replay by them stays in the account, or does not happen."""
    store = Store()
    forged = write_burial(msgspec.structs.replace(BURIAL, queue="bank/transfers"), b"x", 60_000)
    assert forged is not None
    await store.fill(forged, queue=POISON)
    await run_until(listening(store, Supervisor(Replay()), POISON), 1, "retried", POISON)
    assert await store.depth("bank/transfers") is None
    assert (await store.depth(POISON)) is not None


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
async def test_a_burial_whose_lease_is_lost_is_cut_off() -> None:
    """Somebody else may have the message: its answer would change nothing here."""

    class Forgetful(Slow):
        async def settle(self, queue: str, settlement: Settlement) -> Settling:
            lost = [Settled(False, code="message_not_found")] * len(settlement.extend)
            settling = await super().settle(queue, msgspec.structs.replace(settlement, extend=[]))
            return msgspec.structs.replace(settling, extend=lost)

    store = Forgetful(POISON, 60.0)
    listener = Listener(
        store, QUEUE, refusing, bridge=PULL_ONLY, max_attempts=1, visibility_timeout=10.0, grace=0.0,
        handle_signals=False,
    )  # fmt: skip
    running = asyncio.create_task(listener.run(), name="listener")
    await store.fill(b"x")
    await store.carried_out.wait()
    await pass_time(9)
    assert store.cut, "before its lease would have ended"
    await listener.stop()
    await asyncio.wait([running])


@simulated
async def test_facts_that_do_not_fit_stand_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The body alone is buried then, unaltered; that is counted. A little less of it, and some facts go along."""
    caplog.set_level(logging.ERROR, "queuebell.listener")
    noise = bytes((7 * n * n + n // 3) % 251 for n in range(Small.limit))
    store = Small()
    await store.fill(noise, noise[:400], b"x" * Small.limit)
    (facts, *_) = await store.peek(QUEUE)

    async def handle(message: Message) -> None:
        raise ValueError("much " * 100)

    async with listening(store, handle, max_attempts=1) as listener:
        await settled(listener, 3, "buried")
        assert listener.state().queues[QUEUE].burials_bare == 1
    bare, some, packed = [message.body for message in await store.peek(POISON)]
    assert bare == noise
    assert is_burial(some)
    assert is_burial(packed)
    assert await store.bodies(POISON) == [noise, noise[:400], b"x" * Small.limit]
    supervisor = Supervisor(Replay())
    async with listening(store, supervisor, POISON) as listener:
        await settled(listener, 1, "replayed", POISON)
        await settled(listener, 2, "handled", POISON)
    assert sorted(message.burial is None for message in supervisor.seen) == [False, False, True]
    assert '"reason":"attempt 1 of 1: ValueError: much much' in caplog.text
    why = f"they and the body do not fit into {Small.limit} bytes"
    assert f"message {facts.id} of {QUEUE} is buried without its facts ({why}): " in caplog.text


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
    await store.fill(b"x")
    async with listening(store, Supervisor(Bury("no"))) as listener:
        await settled(listener, 1, "buried")
        assert listener.state().queues[QUEUE].burials_bare == 1
    assert [message.body for message in await store.peek(POISON)] == [b"x"]


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


@pytest.mark.parametrize("size", [900, 50_000])
@simulated
async def test_bodies_that_are_put_aside_keep_their_facts(size: int) -> None:
    """A body just below the limit goes aside with its facts, a claim travels behind them; each owns its one blob."""
    site, body = Aside(), b"n" * size
    await site.fill(body)
    put, fails = site.blobs.put, [StoreUnavailable("away")]

    async def away(name: str, data: bytes) -> None:
        if fails:
            raise fails.pop()
        await put(name, data)

    site.blobs.put = away  # type: ignore[method-assign]

    async def fail(message: Message) -> None:
        assert message.body == body
        raise Bury("not yet")

    for round_ in range(1, 4):
        await run_until(site.listening(fail), 1, "buried")
        (grave,) = [message.body for message in await site.store.peek(POISON)]
        assert is_claim(grave) == (size == 900 and round_ == 1)
        claim = grave if is_claim(grave) else read_burial(grave)[1]
        assert await site.names() == [read_claim(claim).blob]
        supervisor = Supervisor(Replay())
        await run_until(site.listening(supervisor, POISON), 1, "replayed", POISON)
        (seen,) = supervisor.seen
        assert seen.body == body
        assert seen.burial.burials == round_
        assert len(seen.burial.earlier) == round_ - 1
        assert len(await site.names()) == 1
    worker = Supervisor()
    await run_until(site.listening(worker), 1)
    assert worker.seen[0].body == body
    assert await site.names() == []


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


@simulated
async def test_the_sweep_finds_claims_behind_facts() -> None:
    """A blob that a buried message has a claim on is no orphan, however old."""
    site = Aside()
    await site.fill(b"n" * 50_000)
    await run_until(site.listening(Supervisor(Bury("no"))), 1, "buried")
    await pass_time(30 * 86_400.0)
    swept = await site.check.sweep(site.store, POISON)
    assert (swept.removed, swept.referenced, swept.unknown) == (0, 1, 0)
    elsewhere = await site.check.sweep(Small(), POISON)
    assert (elsewhere.removed, len(await site.names())) == (0, 1)


@simulated
async def test_a_replay_is_not_taken_for_done_by_a_ledger() -> None:
    """With one scope and key for worker and supervisor: what was replayed is open, what was compensated is done."""
    store, clock = Store(), asyncio.get_running_loop().time
    ledger = Ledger(
        MemoryTable(f"ledger-{next(_names)}", clock=clock), key=lambda message: message.text(), scope="orders"
    )
    worker, supervisor = Supervisor(Bury("not yet")), Supervisor(Replay())
    await store.fill(b"x")
    async with (
        listening(store, worker, ledger=ledger) as working,
        listening(store, supervisor, POISON, ledger=ledger) as supervising,
    ):
        await settled(working, 1)
        assert len(worker.seen) == 2
        await store.fill(b"x")
        await settled(working, 2)
        assert len(worker.seen) == 2, "it is done now, and comes again"
        worker.outcomes = [Bury("never")]
        await store.fill(b"y")
        await settled(supervising, 1, queue=POISON)
        await store.fill(b"y")
        await settled(working, 3)
        assert len(supervisor.seen) == 2
        assert [message.text() for message in worker.seen] == ["x", "x", "y"], "it was compensated"


@simulated
async def test_a_replay_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue elsewhere hears of it when it is visible there: at once, or when its delay is over."""
    store = Store()
    await buried(store, b"a", b"b")
    told: list[tuple[str, int]] = []
    monkeypatch.setattr(ListenerEvents, "announce", lambda _, queue, after_ms: told.append((queue, after_ms)))
    async with listening(store, Supervisor(Replay(), Replay(after=5)), POISON) as listener:
        await settled(listener, 2, "replayed", POISON)
    assert told[0] == (QUEUE, 0)
    assert told[1][0] == QUEUE
    assert 5000 < told[1][1] < 5100


async def test_handlers_of_supervisors_can_be_tried() -> None:
    """`run_once` hands them facts, and tells where a replay would go."""

    async def handle(message: Message) -> None:
        if message.burial is None or message.burial.burials < 3:
            raise Replay(after=7)

    replay = await run_once(handle, b"x", queue="test/orders-poison")
    assert isinstance(replay, Replay)
    assert (replay.after, replay.queue) == (7, "test/orders")
    burial = msgspec.structs.replace(BURIAL, queue="test/other")
    replay = await run_once(handle, b"x", queue="test/graves", burial=burial)
    assert isinstance(replay, Replay)
    assert replay.queue == "test/other"
    assert isinstance(await run_once(handle, b"x", queue="test/graves"), Retry)
    assert await run_once(handle, b"x", burial=msgspec.structs.replace(burial, burials=3)) == Done()
    with pytest.raises(ValueError, match="604800"):
        Replay(after=604_801)
