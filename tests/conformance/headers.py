"""The questions about headers: a part of what every queue store is asked."""

from __future__ import annotations

import pytest

from queuebell.bridge.contract.errors import BadInput, Unsupported
from queuebell.bridge.contract.headers import HEADERS_BYTES_MAX, HEADERS_MAX, bytes_of
from queuebell.bridge.queues.base import Extend, NewMessage, QueueStore, Release, Settlement, once
from tests.conformance.leases import LEASE, LONG, QUEUE, LetPass, claim, take

HOSTILE = {
    "content-type": "text/plain; charset=utf-8",
    "a": "",
    "0.9_-": " spaces at both ends, two  within, and a\ttab\t",
    "markup": "<script>alert('1')</script>&amp;\"\\{}[]%0d%0a",
    "right-to-left": "\u202egnp.exe\u2066\ufeff\u2028\u2029",
    "words": "grün 雪 🛎 \uffff",
    "terminal": "\\x1b[31m {0} %s ${HOME}",
    "n" * 128: "x" * 1000,
}
"""Whatever a header may be, be it meant to break something."""
LARGEST = (
    {"one-line": "x" * (HEADERS_BYTES_MAX - len("one-line"))},
    {f"{number:02}": "ß" * 63 for number in range(HEADERS_MAX)},
    {"unicode": "\u202e" * ((HEADERS_BYTES_MAX - len("unicode")) // 3) + "x"},
)
"""As much as there may be, in one value, in as many headers as there may be, and as dear as JSON can make it."""


class HeadersConformance:
    async def test_headers_travel_with_their_message(self, store: QueueStore) -> None:
        """Each message has its own, whatever stands in them, its body untouched; names come in lower case."""
        if not store.capabilities.headers:
            with pytest.raises(Unsupported, match="nothing was put"):
                await store.put(QUEUE, [NewMessage("one"), NewMessage("two", headers={"a": "b"})])
            await store.put(QUEUE, [NewMessage("three", headers={})])
            assert (await take(store)).body == b"three"
            return
        await store.put(
            QUEUE,
            [NewMessage("none"), NewMessage(b"\xff", headers=HOSTILE), NewMessage("named", headers={"Trace-ID": "X"})],
        )
        wanted = {b"none": {}, b"\xff": HOSTILE, b"named": {"trace-id": "X"}}
        if store.capabilities.peek:
            assert {message.body: message.headers for message in await store.peek(QUEUE)} == wanted
        received = await store.receive(QUEUE, 3, LONG)
        assert {message.body: message.headers for message in received.messages} == wanted

    async def test_headers_stay_until_the_message_is_gone(self, store: QueueStore, let_pass: LetPass) -> None:
        """Given back, lapsed, held longer, or with another body: they are what was put."""
        if not store.capabilities.headers:
            return
        await store.put(QUEUE, [NewMessage("one", headers=HOSTILE)])
        held = await take(store)
        await store.settle(QUEUE, Settlement(release=[Release(held.id, held.pop_receipt)]))
        held = await take(store, LEASE)
        assert held.headers == HOSTILE
        if store.capabilities.own_leases:
            await let_pass(LEASE)
            held = await take(store)
            assert held.headers == HOSTILE
        body = b"other" if store.capabilities.update_body else None
        extend = Extend(held.id, held.pop_receipt, LONG, body)
        extended = (await store.settle(QUEUE, Settlement(extend=[extend]))).extend[0]
        back = Release(held.id, extended.pop_receipt or held.pop_receipt)
        await store.settle(QUEUE, Settlement(release=[back]))
        held = await take(store)
        assert (held.body, held.headers) == (body or b"one", HOSTILE)
        assert (await store.settle(QUEUE, Settlement(delete=[claim(held)]))).delete[0].ok

    async def test_a_delayed_message_keeps_its_headers(self, store: QueueStore, let_pass: LetPass) -> None:
        if not store.capabilities.headers or not store.capabilities.delayed_put:
            return
        await store.put(QUEUE, [NewMessage("later", 50, headers=HOSTILE)])
        await let_pass(0.05)
        assert (await take(store)).headers == HOSTILE

    async def test_a_message_put_once_has_headers(self, store: QueueStore) -> None:
        """They are those of the first put; other ones do not make another message of it, only another body does."""
        if not store.capabilities.headers or not store.capabilities.put_once:
            return
        putter = once(store)
        assert await putter.put_once(QUEUE, "order", NewMessage("one", headers=HOSTILE)) is not None
        assert await putter.put_once(QUEUE, "order", NewMessage("one", headers={"traceparent": "another"})) is None
        assert await putter.put_once(QUEUE, "order", NewMessage("one")) is None
        assert await putter.put_once(QUEUE, "plain", NewMessage("two")) is not None
        received = await store.receive(QUEUE, 3, LONG)
        assert [(one.key, one.headers) for one in received.messages] == [("order", HOSTILE), ("plain", {})]

    async def test_as_many_bytes_of_headers_as_allowed(self, store: QueueStore) -> None:
        """8 KiB beside the longest body; one byte more is refused before anything is put."""
        if not store.capabilities.headers:
            return
        body = b"x" * store.capabilities.body_bytes_max
        for headers in LARGEST:
            name = next(iter(headers))
            assert bytes_of(headers) == HEADERS_BYTES_MAX
            await store.put(QUEUE, [NewMessage(body, headers=headers)])
            held = await take(store)
            # By itself: to show how texts as long as these differ takes minutes.
            same = (held.body, held.headers) == (body, headers)
            assert same
            with pytest.raises(BadInput) as refused:
                await store.put(QUEUE, [NewMessage(body, headers={**headers, name: headers[name] + "x"})])
            assert refused.value.code == "message_too_large"
        assert (await store.receive(QUEUE, 1, LONG)).messages == []
