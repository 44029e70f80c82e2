"""The producer of a world: it puts and publishes, by the real rules of `Publication` or a trigger at a time."""

from __future__ import annotations

from typing import Any

import msgspec

from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.producer.publication import Publication, Sending
from tests.exploration.options import Step
from tests.exploration.plan import Plan
from tests.exploration.store import Call


class Ids:
    """New ids, one after another."""

    def __init__(self) -> None:
        self._given = 0

    def __call__(self) -> str:
        """Return the next."""
        self._given += 1
        return f"id-{self._given - 1}"


class Publish(msgspec.Struct, eq=False):
    """A request on its way to the bridge, or its acknowledgement on its way back."""

    batch: list[Sending]
    marked: bool = False


class Producer:
    """The part of `World` that makes work."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def begin_producer(self, plan: Plan) -> None:
        """Begin with nothing put."""
        self.triggers: list[tuple[str, float]] = []
        self.early: list[int] = []
        """Puts that were published and are not visible yet: a mutant's."""
        self.publication: Publication | None = None if plan.publication is None else plan.publication("shop", Ids())
        self.publishes: list[Publish] = []

    def publishes_at(self) -> float | None:
        """Return when the producer tries again, if that is later than now."""
        at = None if self.publication is None else self.publication.deadline()
        return at if at is not None and at > self.now else None

    def _producer_steps(self, out: list[Step], faults: bool) -> None:
        out.extend(("appear", number) for number in self.early)
        publication = self.publication
        if publication is None:
            return
        at = publication.deadline()
        if at is not None and at <= self.now:
            out.append(("publish", 0))
        for i, publish in enumerate(self.publishes):
            out.append(("acknowledge" if publish.marked else "arrive", i))
            if faults and self.left["publish_fails"]:
                out.append(("publish_fails", i))

    def _put(self, number: int) -> None:
        message = self.messages[number]
        if self.plan.own:
            call = Call("put", message.queue, messages=[number])
            granted = None if message.delay_s else self.scheduler.embedded.grant(self.now, message.queue, 1)
            if granted is not None:
                call.session, call.granted, call.lease_s = granted
            self.store.calls.append(call)
            return
        if self.plan.publish_first:
            self.early.append(number)
        else:
            self.store.put([number], self.now)
        if self.publication is None:
            self.triggers.append((message.queue, message.delay_s))
            return
        self.publication.add(self.now, self._event(message.queue, message.delay_s))

    def _appear(self, number: int) -> None:
        self.early.remove(number)
        self.store.put([number], self.now)

    def _publish(self, _: int) -> None:
        assert self.publication is not None
        if batch := self.publication.take(self.now):
            self.publishes.append(Publish(batch))

    def _arrive(self, i: int) -> None:
        publish = self.publishes[i]
        publish.marked = True
        for sending in publish.batch:
            self._mark(sending.event)

    def _acknowledge(self, i: int) -> None:
        self.publication.sent(self.publishes.pop(i).batch)

    def _publish_fails(self, i: int) -> None:
        assert self.publication is not None
        publish = self.publishes.pop(i)
        self.publication.failed(publish.batch, self.now, lambda: 0.5)

    def _trigger(self, _: int) -> None:
        queue, delay_s = self.triggers.pop(0)
        self._mark(self._event(queue, delay_s))

    def _event(self, queue: str, delay_s: float) -> CloudQueueWorkDetected:
        account, name = queue.split("/")
        id_ = self.plan.business_id
        return CloudQueueWorkDetected(
            account, name, payload_size=1, not_before_ms=round(delay_s * 1000), id=id_, source=id_ and "shop"
        )

    def _mark(self, event: CloudQueueWorkDetected) -> None:
        self.scheduler.trigger(self.now, event, "test")

    def _putting(self, message: int) -> bool:
        puts = (call.messages for call in self.store.calls if call.kind == "put")
        return message in self.early or any(message in messages for messages in puts)
