"""Which races a story met: counted where they happen, so that a test can say that the stories are worth something."""

from __future__ import annotations

from typing import Any

from bridge.contract.wire import Cover, Hello, ListenerHeartbeat, More, Room, Started, UpFrame, Wake
from tests.exploration.node import Link, Node
from tests.exploration.plan import REACHED


class Races:
    """The part of `World` that counts; it changes nothing."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def before_mark(self, queue: str) -> None:
        """Look at a queue that a trigger is about to mark."""
        debt = self.bell.ledger.find(queue)
        if debt is None or not len(debt.seats):
            REACHED["a trigger while nobody is subscribed"] += 1
            return
        if debt.owner is None:
            return
        REACHED["a mark while owned"] += 1
        owner = debt.seats.get(debt.owner)
        if owner is not None and owner.slot is not None:
            REACHED["a mark merges with an unsent wake"] += 1

    def before_frame(self, link: Link, frame: UpFrame) -> None:
        """Look at a frame that the bridge is about to hear."""
        if isinstance(frame, Hello):
            holder = self.bell.sessions.holder(frame.instance)
            if holder is not None and holder.id != link.number:
                REACHED["a session is replaced by its own instance"] += 1
            if link.life > 1 and any(o.node == link.node and o.life < link.life and o.bridge_open for o in self.links):
                REACHED["a new instance before the old session has ended"] += 1
            return
        queue = getattr(frame, "queue", None)
        debt = None if queue is None else self.bell.ledger.find(queue)
        if debt is None:
            return
        wake_under_way = link.flush or any(isinstance(f, Wake) and f.queue == queue for f in link.down)
        if isinstance(frame, Cover):
            if frame.boot != self.bell.boot:
                REACHED["a cover of another boot"] += 1
            elif debt.dirty and frame.gen < debt.gen:
                REACHED["a cover with an older generation"] += 1
            elif debt.dirty and debt.owner != link.number:
                REACHED["a cover from somebody else than the owner"] += 1
            elif debt.due:
                REACHED["a cover while a due time stands"] += 1
        elif isinstance(frame, More):
            if wake_under_way:
                REACHED["more crosses a mark"] += 1
            if debt.dirty and not any(seat.has_room for seat in debt.seats if seat.session != link.number):
                REACHED["more with no room anywhere"] += 1
            if debt.owner == link.number and self.nodes[link.node].stopping:
                REACHED["a stopping listener hands its debt back"] += 1
            if not debt.dirty:
                REACHED["more on a clean queue"] += 1
        elif isinstance(frame, Room):
            if debt.dirty and debt.owner is None:
                REACHED["room while a debt waits for it"] += 1
            if wake_under_way:
                REACHED["room crosses a wake"] += 1
        elif isinstance(frame, Started):
            if frame.boot != self.bell.boot:
                REACHED["a started of another boot"] += 1
            elif debt.dirty and debt.owner not in (None, link.number):
                REACHED["a started from somebody else than the owner"] += 1
            elif debt.dirty and frame.gen < debt.gen:
                REACHED["a started that knows less than the newest mark"] += 1

    def after_frame(self, link: Link, frame: UpFrame) -> None:
        """Look at what a frame led to."""
        if isinstance(frame, More):
            debt = self.bell.ledger.find(frame.queue)
            if debt is not None and debt.dirty and debt.owner not in (None, link.number):
                REACHED["the cascade: more wakes another"] += 1
        elif isinstance(frame, ListenerHeartbeat):
            for queue, beat in frame.queues.items():
                debt = self.bell.ledger.find(queue)
                if debt is not None and debt.owner == link.number and beat.free == 0 and beat.receiving_ms is None:
                    REACHED["a heartbeat without room from the owner"] += 1

    def before_wake(self, node: Node, frame: Wake) -> None:
        """Look at a listener that is about to hear a wake."""
        for request in self.requests:
            mine = request.node == node.number and request.life == node.life and request.queue == frame.queue
            if mine and request.kind == "receive" and not request.abandoned:
                if request.status in ("answered", "written") and not request.taken:
                    REACHED["a wake between the store's empty answer and its hearing"] += 1
                else:
                    REACHED["a wake while a receive is in flight"] += 1
        controller = node.controllers[frame.queue]
        if node.free(frame.queue, self.plan) <= 0:
            REACHED["a wake without a free slot"] += 1
        if node.stopping:
            REACHED["a wake to a listener that stops"] += 1
        if controller.waits.retry is not None:
            REACHED["a wake while the store is being left alone"] += 1
        if controller.boot == frame.boot and controller.gen >= frame.gen:
            REACHED["a wake with a generation that is known"] += 1

    def before_end(self, link: Link) -> None:
        """Look at what a session that is about to end has taken on."""
        for debt in self.bell.ledger.debts.values():
            if debt.dirty and debt.owner == link.number:
                when = "before it says started" if debt.started_at is None else "after it said started"
                REACHED[f"the owner ends {when}"] += 1

    def before_tick(self) -> None:
        """Look at what is about to become due."""
        for queue, debt in self.bell.ledger.debts.items():
            for reason, times in debt.due.items():
                first = times.next()
                if first is None or first > self.now:
                    continue
                REACHED[f"a mark by time ({reason})"] += 1
                if any(node.alive and node.controllers[queue].receives for node in self.nodes):
                    REACHED["a due time during a drain"] += 1
                if not any(node.alive and node.controllers[queue].available > 0 for node in self.nodes):
                    REACHED["a due time while everybody is full"] += 1
