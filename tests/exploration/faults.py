"""What may go wrong in a world."""

from __future__ import annotations

from typing import Any

from tests.exploration.store import LEASED, Call, Request

# Private: `_ask`, `_give_back`: of this room's own `Node`.


class Faults:
    """The part of `World` that does harm."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    # -- faults ------------------------------------------------------------------------------------------------------

    def _crash(self, number: int) -> None:
        node = self.nodes[number]
        for request in list(self.requests):
            if request.node == number and request.life == node.life:
                request.abandoned = True
        node.crash()

    def _revive(self, number: int) -> None:
        node = self.nodes[number]
        node.begin(self.plan, self.now)
        self._connect(number)

    def _cut(self, i: int) -> None:
        link = self.links[i]
        link.cut = True
        link.up, link.down = [], []

    def _deafen(self, i: int) -> None:
        self.links[i].deaf = True
        self.links[i].down = []

    def _restart(self, _: int) -> None:
        self.boots += 1
        for link in self.links:
            link.bridge_open = link.flush = False
            link.up = []
            link.cut = True
        if self.plan.own:
            self.store.restart()
            for request in list(self.requests):
                if request.abandoned:
                    self.requests.remove(request)
                else:
                    self._break_off(request)
        self.scheduler = self._new_bell()
        if self.plan.own:
            self.store.advance(self.now)
            self._hear_backlogs(self.store.backlogs(self.now, all_queues=True))
            self._drive()

    def _break_off(self, request: Request) -> None:
        """The connection to the store breaks: a receive's outcome is unknown, a settlement is tried again."""
        node = self.nodes[request.node]
        if request.kind == "receive":
            self.requests.remove(request)
            node.failed(request, self.now, self.plan, unknown=True)
        else:
            request.status = "sent"

    def _forget(self, _: int) -> None:
        for work in list(self.scheduler.pending.by_queue.values()):
            self.scheduler.pending.forget(work.queue)

    def _lose(self, i: int) -> None:
        self.links[i].down.pop(0)

    def _lose_up(self, i: int) -> None:
        self.links[i].up.pop(0)

    def _lose_down(self, i: int) -> None:
        self.left["lose_up"] -= 1
        self.links[i].down.pop(0)

    def _error(self, number: int) -> None:
        request = self._request(number)
        self.requests.remove(request)
        self.nodes[request.node].failed(request, self.now, self.plan, unknown=False)

    def _unknown(self, number: int) -> None:
        request = self._request(number)
        self._give_up(request)

    def _give_up(self, request: Request) -> None:
        """A listener ends a call by itself: whether the store carried it out it never learns (L3, L6)."""
        request.abandoned = True
        for message, _ in request.taken:
            self.messages[message].seen += 1
        self.nodes[request.node].failed(request, self.now, self.plan, unknown=True)

    def _hang(self, number: int) -> None:
        self.nodes[number].hung = True

    def _retry(self, what: int) -> None:
        self._finish(what, "retry")

    def _later(self, what: int) -> None:
        self._finish(what, "later")

    def _lapse(self, what: int) -> None:
        node = self.nodes[what // 1000]
        held = next(held for held in node.held if held.token == what % 1000)
        message = self.messages[held.message]
        if message.receipt != held.receipt or message.state != LEASED:
            return
        message.until = self.now
        if self.plan.own:
            self.store.calls.append(Call("refresh", held.queue))
        else:
            self.store.advance(self.now)
        # The renewal that comes too late is refused; that is how the holder learns.
        node._ask(
            "extend", held.queue, self.now, self.plan, token=held.token, message=held.message, receipt=held.receipt
        )

    def _stop(self, number: int) -> None:
        node = self.nodes[number]
        node.stop(self.now, self.plan)
        node._give_back([held for held in node.held if held.running])
