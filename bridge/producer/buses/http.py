"""Triggers by ``POST /v1/triggers`` to a bridge, or to one of several equal bridges."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

import msgspec

from queuebell.bridge.brokers.credential import ApiKey, Credential
from queuebell.bridge.brokers.wire import NotSent, Unanswered
from queuebell.bridge.contract.address import HttpAddress, http_addresses
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.errors import BadInput, BusUnavailable, Closed, KeyUnavailable
from queuebell.bridge.contract.event import CloudQueueWorkDetected, encode_events
from queuebell.bridge.contract.failover import TRY_S, Failover, Outcome, retry_after_s
from queuebell.bridge.queues.http.requests import Limits, Requests
from queuebell.bridge.queues.http.store import problem_in

log = logging.getLogger("queuebell.publisher")

REQUEST_TIMEOUT_S = 10.0
_REFUSALS = frozenset({400, 413, 415})
"""About the content itself, so a retry cannot help; anything else is retried."""
_BETWEEN = frozenset({408, 429, 500, 502, 503, 504})
"""Returned by a proxy for a bridge that is unavailable or busy."""


class HttpBus:
    """Sends triggers to the bridge at ``url``.

    ``http://A:PORT,B:PORT`` are equal bridges: the first that answers is kept until it fails. A trigger goes to one
    after the other until one has marked it: a duplicate costs a receive at most (I7).
    """

    def __init__(self, url: str, *, api_key: ApiKey = None, draw: Draw = random.random) -> None:
        addresses = http_addresses(url, "bridge")
        self._failover = Failover(addresses, draw)
        self._credential = Credential.of(addresses, api_key)
        self._try_s = TRY_S if len(addresses) > 1 else None
        # Several share the time, but each has at least `TRY_S`.
        self._limit_s = max(TRY_S, REQUEST_TIMEOUT_S / len(addresses))
        self._requests = Requests(self._credential)
        self._closed = False

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Send the triggers in one request and wait up to 10 s for the 202. Raises as `Bus.publish` does."""
        if self._closed:
            raise Closed("the bus is closed")
        loop = asyncio.get_running_loop()
        began = loop.time()
        failure: BusUnavailable | None = None
        for where in self._failover.round(began):
            asked = loop.time()
            try:
                outcome, failure, retry_after = await self._post(where, _shortened(events, asked - began))
            except BadInput:
                self._answered(where, loop.time())
                raise
            except asyncio.CancelledError:
                if loop.time() - asked >= TRY_S:
                    self._failover.record(where, Outcome.UNKNOWN, loop.time())
                raise
            if failure is None:
                self._answered(where, loop.time())
                return
            if not self._failover.record(where, outcome, loop.time(), repeatable=True, retry_after=retry_after):
                break
        assert failure is not None
        raise failure

    def _answered(self, where: HttpAddress, now: float) -> None:
        self._failover.record(where, Outcome.ANSWERED, now)
        if (changed := self._failover.changed()) is not None:
            before, after = changed
            log.warning(
                "triggers now go to the bridge at %s; the one at %s does not accept them", after.url, before.url
            )

    async def _post(
        self, where: HttpAddress, events: Sequence[CloudQueueWorkDetected]
    ) -> tuple[Outcome, BusUnavailable | None, float | None]:
        """Send them to one bridge and return the outcome; raises `BadInput` if it rejects the content."""
        try:
            limits = Limits(self._limit_s, self._try_s)
            answer = await self._requests.ask(where, "POST", "/v1/triggers", encode_events(list(events)), limits)
        except KeyUnavailable as error:
            return Outcome.NOT_DONE, BusUnavailable(str(error)), None
        except (NotSent, Unanswered) as error:
            gone = BusUnavailable(f"no bridge answers at {where.url}: {error}")
            gone.__cause__ = error
            return Outcome.UNKNOWN, gone, None
        if answer.status == 202:
            return Outcome.ANSWERED, None, None
        problem = problem_in(answer.body)
        retry_after = retry_after_s(answer.headers.get("retry-after"))
        if not problem.code and answer.status not in _BETWEEN:
            # Not a bridge, so the trigger is not rejected: it is kept until there is one.
            strange = f"the server at {where.url} is not a bridge: it returned status {answer.status}"
            return Outcome.NOT_DONE, BusUnavailable(strange), retry_after
        if answer.status in _REFUSALS:
            raise BadInput(problem.code, problem.detail or f"the bridge rejected it: {answer.status}")
        why = f": {problem.detail}" if problem.detail else ""
        outcome = Outcome.UNKNOWN if answer.status in _BETWEEN or answer.status >= 500 else Outcome.REFUSED
        refusal = f"the bridge at {where.url} returned status {answer.status} {problem.code}".rstrip() + why
        return outcome, BusUnavailable(refusal, problem.code), retry_after

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        self._closed = True
        await self._requests.close()


def _shortened(events: Sequence[CloudQueueWorkDetected], passed_s: float) -> Sequence[CloudQueueWorkDetected]:
    """Subtract the time that has passed from the delays, which count from receipt; none may end early (B2)."""
    passed_ms = int(passed_s * 1000)
    if not passed_ms or not any(event.not_before_ms for event in events):
        return events
    return [
        msgspec.structs.replace(event, not_before_ms=max(0, event.not_before_ms - passed_ms))
        if event.not_before_ms
        else event
        for event in events
    ]
