"""The views of the page, sent once a second as server-sent events while the page is open.

``GET /v1/watch`` has the list of queues, ``GET /v1/queues/ACCOUNT/QUEUE/watch`` one queue, ``GET /v1/watch/listeners``
the workers, ``GET /v1/watch/bridge`` the bridge itself. Each event is the whole view, so a slow reader that misses some
loses nothing. Its id is the edition of the page: a page that is open during an upgrade reloads itself. Views use only
the bridge's memory: open pages cause no receives or counts of queues.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from queuebell.bridge.access.grants import Principal, Verb
from queuebell.bridge.http.api.event_stream import StreamAnswer, StreamAnswers
from queuebell.bridge.http.api.routes import Routes, only_query_of
from queuebell.bridge.http.api.state import Rows, Subjects
from queuebell.bridge.http.page.assets import edition
from queuebell.bridge.http.server.answer import Answer, Refusal
from queuebell.bridge.http.server.authorizer import Authorizer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.observe.slices import Slices, of
from queuebell.bridge.observe.swallowed import swallowing
from queuebell.bridge.service.state import explain, overview
from queuebell.bridge.service.state.answers import ListenerState
from queuebell.bridge.service.state.overview import Run, Wanted
from queuebell.bridge.service.state.trouble import Troubles

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse

    from queuebell.bridge.service.bridge import Bridge

PERIOD_S: Final = 1.0
SHARE: Final = 0.02
"""Of the event loop's time that views may take: slow views come less often."""
AT_ONCE_S: Final = 0.002
"""After this time the rest of a view waits until other tasks have run: wakes use the same loop."""
NEW_S: Final = 0.02
"""After this time the views of new readers wait for the next round."""

Make = Callable[[Principal | None], Slices[msgspec.Struct]]
"""Makes a view for a principal; None without an access file."""


class Making(NamedTuple):
    """A view that is being made."""

    walk: Slices[bytes]
    readers: list[Watch]
    key: Hashable
    first: bool
    """Whether it is the first view of a new reader."""

    def go_on(self) -> bool:
        """Make a slice of the view; return True after the last, when it has been written."""
        try:
            next(self.walk)
        except StopIteration as made:
            for watch in self.readers:
                if watch.key == self.key:
                    watch.write(made.value)
            return True
        return False


class Watch(StreamAnswer):
    """One reader of a view; readers of equal views have an equal ``key``."""

    def __init__(self, feed: Feed, verb: Verb, queues: frozenset[str], view: Hashable, make: Make) -> None:
        super().__init__(feed, verb, queues)
        self._view = view
        self._make = make
        self._feed = feed

    @property
    def key(self) -> Hashable:
        """Equal for readers of equal views."""
        return self._view, self._principal

    def event(self) -> Slices[bytes]:
        """Make the current view."""
        view = yield from self._make(self._principal)
        return b"id: %b\ndata: %b\n\n" % (edition(), msgspec.json.encode(view))

    @property
    def _principal(self) -> Principal | None:
        # With the current permissions, not those of its start.
        return None if self._permit is None else self._permit.identity.principal

    def _begin(self) -> None:
        self._feed.begin(self)

    def _finish(self) -> None:
        """No-op: `Feed` skips closed readers."""


class Feed(StreamAnswers):
    """All readers of views of one web server."""

    def __init__(
        self,
        bridge: Bridge,
        settings: WebSettings,
        authorizer: Authorizer,
        plain: Sequence[Rows],
        subjects: Sequence[Subjects],
        run_of: Callable[[str], Run | None],
    ) -> None:
        super().__init__(bridge, settings, authorizer)
        self._plain = plain
        self._subjects = subjects
        self._run_of = run_of
        self._timer: asyncio.TimerHandle | None = None
        self._round: dict[Hashable, list[Watch]] = {}
        """Readers of this round whose view is not made yet, by their keys."""
        self._making: deque[Making] = deque()
        """Views that are being made, the first one now."""
        self._spent_s = 0.0
        """Seconds that the current view of a round has taken."""
        self._rests_until = 0.0
        self._begun_s = 0.0
        """Seconds of first views that `SHARE` has not made up for by `_begun_at`."""
        self._begun_at = 0.0

    def add_to(self, routes: Routes) -> None:
        """Add the routes."""
        routes.add("GET", "/v1/watch", Verb.LOOK, self.queues)
        routes.add("GET", "/v1/watch/listeners", Verb.OPERATE, self.listeners)
        routes.add("GET", "/v1/watch/bridge", Verb.OPERATE, self.about)
        routes.add("GET", "/v1/queues/{queue}/watch", Verb.LOOK, self.queue)

    async def queues(self, request: BaseRequest, _: str) -> Answer | StreamResponse:
        """Follow the list of queues."""
        wanted, bridge = _wanted(request, "only"), self._bridge

        def make(reader: Principal | None) -> Slices[msgspec.Struct]:
            view = yield from overview.queues(bridge.scheduler, bridge.now(), wanted, _sight(reader), bridge.history)
            operates = reader is None or reader.may(Verb.OPERATE)
            return msgspec.structs.replace(view, bridge=self._about()) if operates else view

        return self._watch(request, Verb.LOOK, frozenset(), wanted, make)

    async def queue(self, request: BaseRequest, queue: str) -> Answer | StreamResponse:
        """Follow one queue."""
        only_query_of(request)
        return self._watch(request, Verb.LOOK, frozenset({queue}), queue, lambda reader: of(self._one(queue, reader)))

    async def listeners(self, request: BaseRequest, _: str) -> Answer | StreamResponse:
        """Follow the list of listeners."""
        wanted = _wanted(request)

        def make(_: Principal | None) -> Slices[msgspec.Struct]:
            return overview.listeners(self._bridge.scheduler, self._bridge.now(), self._rows(), wanted)

        return self._watch(request, Verb.OPERATE, frozenset(), ("listeners", wanted), make)

    async def about(self, request: BaseRequest, _: str) -> Answer | StreamResponse:
        """Follow the bridge itself."""
        only_query_of(request)
        return self._watch(request, Verb.OPERATE, frozenset(), "bridge", lambda _: of(self._about()))

    def begin(self, watch: Watch) -> None:
        """Send a new reader its first view, and the following ones."""
        began = asyncio.get_running_loop().time()
        self._begun_s = max(0.0, self._begun_s - SHARE * (began - self._begun_at))
        self._begun_at = began
        if self._timer is None:
            self._rests_until = max(self._rests_until, began + PERIOD_S)
        if self._begun_s < NEW_S:  # otherwise with the next round: opening many pages must not delay the bridge
            self._making.appendleft(Making(watch.event(), [watch], watch.key, first=True))
            self._advance()
        self._arm()

    def close(self) -> None:
        """End all streams."""
        super().close()
        if self._timer is not None:
            self._timer.cancel()

    def _watch(
        self, request: BaseRequest, verb: Verb, queues: frozenset[str], view: Hashable, make: Make
    ) -> Answer | StreamResponse:
        instead = self.instead(request)
        return cast("StreamResponse", Watch(self, verb, queues, view, make)) if instead is None else instead

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(loop.time() if self._making else self._rests_until, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._advance()
        if self.open:
            self._arm()
        else:
            self._round.clear()
            self._making.clear()

    def _advance(self) -> None:
        """Make views for at most `AT_ONCE_S`: those of new readers first, then those of a round."""
        loop = asyncio.get_running_loop()
        began = now = loop.time()
        if not self._round and now >= self._rests_until:
            for each in self.open:
                watch = cast(Watch, each)
                self._round.setdefault(watch.key, []).append(watch)
        while True:
            if not self._making:
                if not self._round or now < self._rests_until:
                    break
                key = next(iter(self._round))
                readers = [watch for watch in self._round.pop(key) if watch.writable() and watch.key == key]
                if readers:
                    self._making.append(Making(readers[0].event(), readers, key, first=False))
                else:
                    self._rest(now)
                continue
            making, done = self._making[0], True
            with swallowing("a view of the page"):
                done = making.go_on()
            if done:
                self._making.remove(making)
            took, now = loop.time() - now, loop.time()
            if making.first:
                self._begun_s += took
            else:
                self._spent_s += took
                if done:
                    self._rest(now)
            if now - began >= AT_ONCE_S:
                break

    def _rest(self, now: float) -> None:
        """Pause views until `SHARE` is kept, and rounds for at least `PERIOD_S`."""
        spent, self._spent_s = self._spent_s, 0.0
        self._rests_until = now + max(0.0 if self._round else PERIOD_S, spent / SHARE)

    def _rows(self) -> list[ListenerState]:
        return [row for tell in self._plain for row in tell()]

    def _one(self, queue: str, reader: Principal | None) -> msgspec.Struct:
        bridge, now = self._bridge, self._bridge.now()
        work = bridge.scheduler.pending.find(queue)
        explained = explain.of(bridge, queue)
        if work is None or explained is None:
            return overview.OneQueue(row=None)
        subjects = [subject for tell in self._subjects for subject in tell()]
        explained = explain.plain(explained, self._rows(), subjects)
        most = overview.ROWS
        return overview.OneQueue(
            row=overview.row(
                bridge.scheduler,
                work,
                now,
                Troubles.at(bridge.scheduler, work, now),
                _sight(reader),
                bridge.history,
            ),
            state=bridge.describe(queue, _sight(reader)),
            run=self._run_of(queue),
            explained=msgspec.structs.replace(
                explained, sessions=explained.sessions[:most], subscribers=explained.subscribers[:most]
            ),
            running=overview.running(bridge.scheduler, queue, now),
            buses=dict(work.buses),
            triggered_ms=None if work.triggered_at is None else max(0, round(1000 * (now - work.triggered_at))),
        )

    def _about(self) -> overview.Self:
        bridge = self._bridge
        readiness = bridge.readiness()
        bounds, latency = bridge.metrics.latencies()
        return overview.Self(
            boot=bridge.boot,
            draining=bridge.draining,
            sessions=len(bridge.scheduler.sessions),
            ready=readiness.ready,
            checks=readiness.checks,
            cluster=bridge.cluster(),
            latency=latency,
            bounds=bounds,
            failed_5m=bridge.history.failed() or 0,
        )


def _sight(reader: Principal | None) -> Callable[[str], bool]:
    return lambda queue: reader is None or reader.may(Verb.LOOK, queue)


def _wanted(request: BaseRequest, *more: str) -> Wanted:
    try:
        return msgspec.convert(only_query_of(request, "filter", "sort", "first", *more), Wanted, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal("bad_parameter", f"a parameter is out of range: {_ours(error)}") from None


def _ours(error: msgspec.ValidationError) -> str:
    # Only the path within the message; the rest repeats input.
    return str(error).rpartition("`$.")[2].rstrip("`") or "the query string"
