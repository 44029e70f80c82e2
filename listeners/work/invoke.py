"""Call a handler, on the loop or in a thread and within its time, and turn the result into an outcome.

`Invoker` calls it; `HandlerThreads` are daemon threads for plain functions, so the end of the program waits for none.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import logging
import queue
import threading
import traceback
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from queuebell.bridge.contract.burial import TRACE_MAX, newest
from queuebell.bridge.contract.errors import ENDS_THE_PROCESS, named
from queuebell.bridge.observe import tracing
from queuebell.bridge.observe.tracing import OUTCOME, Tracing, causes
from queuebell.bridge.queues.base import DELAY_MS_MAX, VISIBILITY_S_MAX
from queuebell.listeners.handler import Bury, Done, Kind, Message, Replay, Retry, kind_of, outcomes_of
from queuebell.listeners.work.command import CommandFailed
from queuebell.listeners.work.retry import (
    Classify,
    DeadLetter,
    Failed,
    Failure,
    Outcome,
    ReplayTo,
    Succeeded,
    WantsRetry,
    classify,
    retry_after,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span

OnOverdue = Callable[["concurrent.futures.Future[Any] | asyncio.Task[Any]"], None]

log = logging.getLogger("queuebell.listener")

ENDS_S: Final = 1.0
"""How long a coroutine that was cancelled at its time-out may take to end before its attempt goes on without it."""
_FRAMES: Final = 20
"""The newest frames of each exception that are written down."""
_NOT_THE_HANDLERS: Final = (*ENDS_THE_PROCESS, GeneratorExit)
"""What ends the process or closes this coroutine. One that a handler raises arrives as a `RuntimeError`."""


class Invoker:
    """Calls one handler; ``threads`` at once at most if it is a plain function, none are made for a coroutine.

    ``timeout`` in seconds cancels a coroutine. A thread cannot be cancelled, and a coroutine may go on for more than
    `ENDS_S`: the attempt fails then, but its slot stays taken until the call ends; ``on_overdue`` gets that
    call. ``failures`` returns the class of what the handler raises, ``follows`` describes what comes after a failed
    attempt, ``ends`` returns one word for what happens to a message.
    """

    def __init__(
        self,
        handler: Callable[[Any], object],
        *,
        threads: int,
        timeout: float | None,
        failures: Classify = classify,
        follows: Callable[[Message, Failed], str] | None = None,
        ends: Callable[[Message, Outcome], str] | None = None,
    ) -> None:
        kind = kind_of(handler)
        self.batch = Kind.BATCH in kind
        """Whether the handler takes lists."""
        self._call: Callable[[Any, OnOverdue], Awaitable[object]] = (
            self._on_loop if Kind.ASYNC in kind else self._in_thread
        )
        self._handler = handler
        self.name = _name_of(handler)
        """What the log calls the handler."""
        self._most = threads
        self._timeout = timeout
        self._failures = failures
        self._follows = follows
        self._ends = ends
        self._threads: HandlerThreads | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    async def one(self, message: Message, on_overdue: OnOverdue) -> Outcome:
        """Handle one message. Never raises but `asyncio.CancelledError`, and that only if this task was cancelled."""
        if tracing.on is None:
            return await self._one(message, on_overdue, None)
        with self._span(tracing.on, [message]) as span:
            outcome = await self._one(message, on_overdue, span)
            self._note_outcome(span, [message], [outcome])
            return outcome

    async def many(self, messages: list[Message], on_overdue: OnOverdue) -> list[Outcome]:
        """Handle a batch: one outcome per message, in order. Raises only as `one` does."""
        if tracing.on is None:
            return await self._many(messages, on_overdue, None)
        with self._span(tracing.on, messages) as span:
            outcomes = await self._many(messages, on_overdue, span)
            self._note_outcome(span, messages, outcomes)
            return outcomes

    async def _one(self, message: Message, on_overdue: OnOverdue, span: Span | None) -> Outcome:
        try:
            if self._timeout is None:
                await self._call(message, on_overdue)
            else:
                await self._in_time(message, on_overdue)
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            return Failed("the handler was cancelled from within")
        except _NOT_THE_HANDLERS:
            raise
        except BaseException as error:  # noqa: BLE001 - it is the user's; a task that ended with it would hold the message
            raised = error
        else:
            return Succeeded()
        # Not within the block above: an error of a log handler would have the user's exception as its context.
        _record(span, raised)
        return self._outcome(raised, message)

    async def _many(self, messages: list[Message], on_overdue: OnOverdue, span: Span | None) -> list[Outcome]:
        # A list of the handler's own, which it may sort, or take messages from.
        given = list(messages)
        try:
            result = await self._in_time(given, on_overdue)
            read = outcomes_of(result, len(messages))
            places = {id(message): place for place, message in enumerate(given)}
            if len(places) == len(given) == len(messages) and all(id(message) in places for message in messages):
                # Outcomes are in the order that the list has now.
                read = [read[places[id(message)]] for message in messages]
            # The handler has done the other messages, whatever it said of one.
            return [self._outcome(outcome, message) for outcome, message in zip(read, messages, strict=True)]
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            return [Failed("the handler was cancelled from within")] * len(messages)
        except _NOT_THE_HANDLERS:
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            raised = error
        _record(span, raised)
        return [self._outcome(raised, message) for message in messages]

    def close(self) -> None:
        """Release the threads; those that still run end with their handlers, or with the process."""
        if self._threads is not None:
            self._threads.close()

    @property
    def calls_running(self) -> int:
        """The calls in threads, or that wait for one, and in tasks, including abandoned ones."""
        return len(self._tasks) + (0 if self._threads is None else self._threads.running)

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` is a call of the handler."""
        return task in self._tasks

    def _span(self, on: Tracing, messages: list[Message]) -> AbstractContextManager[Span]:
        first = messages[0]
        followed = [cause for one in messages for cause in causes(one.headers, one.traces, one.id)]
        ids = [message.id for message in messages]
        return on.process(first.queue, followed, ids, first.attempt, first.wake_source, batch=self.batch)

    def _note_outcome(self, span: Span, messages: list[Message], outcomes: list[Outcome]) -> None:
        if self._ends is not None:
            words = {self._ends(message, outcome) for message, outcome in zip(messages, outcomes, strict=True)}
            tracing.note(span, OUTCOME, words.pop() if len(words) == 1 else "mixed")

    def _outcome(self, given: BaseException | Done, message: Message) -> Outcome:
        """Return the outcome of what a handler raised or returned; never raises, whatever the user's exception does."""
        try:
            if isinstance(given, Done | Retry | Bury | Replay):
                try:
                    return _read(given)
                except TypeError as invalid:
                    return self._failed(invalid, message)
            return self._failed(given, message)
        except ENDS_THE_PROCESS:
            raise
        except BaseException as broken:  # noqa: BLE001 - of the user's exception: its text, cause, class or attributes
            name = type(broken).__name__
        reason = "the handler failed with an exception that cannot be read"
        log.warning("message %s of %s, attempt %d: %s", message.id, message.queue, message.attempt, reason)
        return Failed(reason, Failure.UNCLEAR, None, name)

    def _failed(self, error: BaseException, message: Message) -> Failed:
        # A traceback of these shows no line of the user's.
        bare = isinstance(error, HandlerTimeout | CommandFailed)
        trace = None if bare else _trace(error)
        failure = _class_of(error, self._failures)
        failed = Failed(named(error), failure, retry_after(error), type(error).__name__, trace)
        log.warning(
            "message %s of %s, attempt %d: %s%s",
            message.id,
            message.queue,
            message.attempt,
            error if bare else "the handler failed",
            "" if self._follows is None else f"; {self._follows(message, failed)}",
            exc_info=None if bare else error,
        )
        return failed

    async def _in_time(self, argument: object, on_overdue: OnOverdue) -> object:
        if self._timeout is None:
            return await self._call(argument, on_overdue)
        try:
            async with asyncio.timeout(self._timeout) as limit:
                return await self._call(argument, on_overdue)
        except TimeoutError:
            if limit.expired():
                raise HandlerTimeout(self._timeout) from None
            raise

    def _on_loop(self, argument: object, on_overdue: OnOverdue) -> Awaitable[object]:
        call: Any = self._handler(argument)
        return self._awaited(call, on_overdue)

    def _awaited(self, call: Awaitable[object], on_overdue: OnOverdue) -> Awaitable[object]:
        return _Watched(call) if self._timeout is None else self._in_task(call, self._timeout + ENDS_S, on_overdue)

    async def _in_task(self, awaited: Awaitable[object], most: float, on_overdue: OnOverdue) -> object:
        """Await a call that has a time-out, ``most`` seconds long: it may swallow its cancellation and never end."""
        loop = asyncio.get_running_loop()
        call = loop.create_task(_result_of(awaited), name=f"handler[{self.name}]")
        self._tasks.add(call)
        over = _Over(call)

        def ended(_: asyncio.Task[object]) -> None:
            self._tasks.discard(call)
            if not call.cancelled():
                call.exception()  # retrieved, even if abandoned
            over.release()

        call.add_done_callback(ended)
        gives_up = loop.call_later(most, over.release)
        try:
            await over
        finally:
            gives_up.cancel()
        if call.done():
            try:
                return call.result()
            except GeneratorExit as error:
                raise _strayed(error) from error
        on_overdue(call)
        raise TimeoutError

    async def _in_thread(self, argument: object, on_overdue: OnOverdue) -> object:
        if self._threads is None:
            self._threads = HandlerThreads(self._most)
        context = contextvars.copy_context()
        running = self._threads.submit(functools.partial(context.run, _plain, self._handler, argument))
        try:
            (result,) = await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if not running.done():
                on_overdue(running)
            raise
        # A plain callable may still hand back a coroutine (a lambda around one, say).
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError(f"the handler {self.name} returned a generator: nothing of it has run")
        if not inspect.isawaitable(result):
            return result
        return await self._awaited(result, on_overdue)


class _Watched:
    """Awaits a handler, and turns a cancellation that it asked of its own task into an exception.

    A stop cancels the same task and must not count as an attempt; a handler that cancels itself must, or its message
    would come again at once and without end.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Awaitable[object]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, Any, object]:
        task = asyncio.current_task()
        assert task is not None
        steps: Any = self._call.__await__()
        by_itself, error = False, None
        while True:
            before = task.cancelling()
            try:
                waits = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as done:
                return done.value
            except GeneratorExit as raised:
                if isinstance(error, GeneratorExit):
                    raise  # this coroutine is closed
                raise _strayed(raised) from raised
            except asyncio.CancelledError:
                if by_itself or task.cancelling() > before:
                    while task.cancelling():
                        task.uncancel()
                    raise RuntimeError("the handler cancelled itself") from None
                raise
            by_itself = by_itself or task.cancelling() > before
            try:
                yield waits
                error = None
            except BaseException as thrown:  # noqa: BLE001 - it goes to the handler
                error = thrown


class _Over(asyncio.Future[None]):
    """Is done once a call has ended or is given up; a cancellation goes to the call, which has the last word."""

    def __init__(self, call: asyncio.Task[object]) -> None:
        super().__init__()
        self._call = call

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the call; the outcome of one that has just ended counts."""
        self._call.cancel(msg)
        return True

    def release(self) -> None:
        """End the wait."""
        if not self.done():
            self.set_result(None)


async def _result_of(awaited: Awaitable[object]) -> object:
    return await awaited


def _record(span: Span | None, error: BaseException) -> None:
    # A requested retry or replay is not a failure.
    if span is not None and tracing.on is not None and not isinstance(error, Retry | Replay):
        tracing.on.failed(span, error, record=True)


class HandlerTimeout(TimeoutError):
    """A handler ran longer than ``handler_timeout``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no end within handler_timeout of {seconds:g} s")


def _name_of(handler: Callable[[Any], object]) -> str:
    while isinstance(handler, functools.partial):
        handler = handler.func
    named: Any = handler if hasattr(handler, "__qualname__") else type(handler)
    return f"{named.__module__}:{named.__qualname__}"


def _plain(handler: Callable[[Any], object], argument: object) -> tuple[object]:
    try:
        return (handler(argument),)
    except (StopIteration, GeneratorExit) as error:
        raise _strayed(error) from error


def _strayed(error: BaseException) -> RuntimeError:
    """Return what stands for an exception that means something else to whatever awaits the handler."""
    return RuntimeError(f"the handler raised {type(error).__name__}")


def _read(outcome: Done | Retry | Bury | Replay) -> Outcome:
    """Read an outcome. Raises `TypeError` for one whose attributes were set to what its class would refuse."""
    if isinstance(outcome, Retry):
        return WantsRetry(_seconds(outcome, VISIBILITY_S_MAX))
    if isinstance(outcome, Replay):
        queue: object = outcome.queue
        if not (queue is None or isinstance(queue, str)):
            raise TypeError("Replay(queue) is the name of a queue, or None")
        return ReplayTo(_seconds(outcome, DELAY_MS_MAX // 1000) or 0.0, queue)
    if isinstance(outcome, Bury):
        texts: tuple[object, ...] = (outcome.reason, outcome.failure)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("Bury(reason) is text, or an exception")
        # Raised while another exception was handled: that one is the cause that people want to see.
        cause = outcome.__cause__ or (None if outcome.__suppress_context__ else outcome.__context__)
        if cause is not None:
            return DeadLetter(outcome.reason, outcome.failure, type(cause).__name__, _trace(cause))
        return DeadLetter(outcome.reason, outcome.failure)
    return Succeeded()


def _seconds(outcome: Retry | Replay, most: int) -> float | None:
    after: object = outcome.after
    if after is not None and not (isinstance(after, int | float) and 0 <= after <= most):
        raise TypeError(f"{type(outcome).__name__}(after) is from 0 to {most} seconds")
    return cast("float | None", after)


def _trace(error: BaseException) -> str:
    return newest("".join(traceback.format_exception(error, limit=-_FRAMES)), TRACE_MAX)


def _class_of(error: BaseException, failures: Classify) -> Failure:
    try:
        failure: object = failures(error)
    except ENDS_THE_PROCESS:
        raise
    except BaseException:
        log.exception("the `failures` function raised; the error counts as unclear and is retried")
        return Failure.UNCLEAR
    return failure if isinstance(failure, Failure) else Failure.UNCLEAR


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


T = TypeVar("T")

NAME: Final = "queuebell-handler"


class HandlerThreads:
    """Calls functions in threads, ``most`` at once; those beyond wait their turn.

    The threads of `concurrent.futures` are joined when the interpreter ends, so that one handler that hangs would keep
    its process for ever, whatever a listener's ``grace`` is. These are daemons: the listener waits for them within its
    grace, and nothing waits after it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._threads = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Call a function in a thread; its future may be cancelled until it runs."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                self._ended()
                return
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - the future carries it
                self._ended()
                future.set_exception(error)
            else:
                self._ended()
                future.set_result(result)

        with self._lock:
            if self._threads < min(self._pending + 1, self._most):
                # Started before its call is put and counted: where the system refuses a thread, nothing is left behind.
                threading.Thread(target=self._work, name=f"{NAME}_{self._threads + 1}", daemon=True).start()
                self._threads += 1
            self._pending += 1
        self._calls.put(run)
        return future

    @property
    def running(self) -> int:
        """The calls that wait or run."""
        return self._pending

    def close(self) -> None:
        """End each thread after its current call; calls that wait are still made."""
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._calls.put(None)

    def _ended(self) -> None:
        # Before the result is set: its receiver may submit the next call, which finds this thread free.
        with self._lock:
            self._pending -= 1

    def _work(self) -> None:
        while (run := self._calls.get()) is not None:
            run()
            del run  # or what it refers to would live until the next call
