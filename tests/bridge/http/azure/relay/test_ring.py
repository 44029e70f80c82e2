"""Which relayed requests ring the bell, when, and for which queue."""

from __future__ import annotations

import pytest

from bridge.http.azure.relay.ring import Ring, delays_ms, ring_of

WEEK_MS = 604_800_000
PATH = "localhost"
HOST = "acme.queue.localhost"


@pytest.mark.parametrize(
    ("method", "target", "host", "ring"),
    [
        ("POST", "/acme/orders/messages", PATH, Ring("acme", "orders")),
        ("POST", "/acme-secondary/orders/messages/", PATH, Ring("acme", "orders")),
        ("POST", "/orders/messages?VisibilityTimeout=30&messagettl=-1", HOST, Ring("acme", "orders", 30)),
        ("POST", "/%61cme/orders/Messages?visibilitytimeout=0&timeout=5", PATH, Ring("acme", "orders", 0, 5)),
        ("POST", "/orders/messages?visibilitytimeout=x&timeout=999", HOST, Ring("acme", "orders", 0, 30)),
        ("POST", "/orders/messages?visibilitytimeout=999999999999", HOST, Ring("acme", "orders", 0)),
        ("PUT", "/orders/messages/1?popreceipt=a&visibilitytimeout=0", HOST, Ring("acme", "orders")),
        ("PUT", "/orders/messages/1?popreceipt=a&visibilitytimeout=30", HOST, None),
        ("PUT", "/orders/messages/1?popreceipt=a", HOST, None),
        ("PUT", "/orders/messages?visibilitytimeout=0", HOST, None),
        ("PUT", "/orders", HOST, None),
        ("GET", "/orders/messages", HOST, None),
        ("DELETE", "/orders/messages/1?popreceipt=a&visibilitytimeout=0", HOST, None),
        ("POST", "/orders/messages/1", HOST, None),
        ("POST", "/acme/orders/messages/1/2", PATH, None),
        ("POST", "/Not-A-Name/messages", HOST, None),
        ("POST", "/a.b/orders/messages", PATH, None),
        ("POST", "/", PATH, None),
        ("POST", "/%ff/orders/messages", PATH, None),
    ],
)
def test_puts_and_releases_ring(method: str, target: str, host: str, ring: Ring | None) -> None:
    """A put, and an update that makes a message visible at once; nothing else."""
    assert ring_of(method, target, host) == ring


@pytest.mark.parametrize(
    ("status", "code", "delays"),
    [
        (201, None, (0,)),
        (204, None, (0,)),
        (400, "InvalidInput", ()),
        (403, None, ()),
        (404, "QueueNotFound", ()),
        (307, None, ()),
        (503, "ServerBusy", ()),
        (503, None, (0, 31_000)),
        (500, "OperationTimedOut", (0, 31_000)),
        (502, None, (0, 31_000)),
        (408, None, (0, 31_000)),
        (None, None, (0, 31_000)),
    ],
)
def test_what_came_of_a_put(status: int | None, code: str | None, delays: tuple[int, ...]) -> None:
    """Done rings, refused does not, and an unknown outcome rings now and when it can no longer land (P2)."""
    assert delays_ms(Ring("acme", "orders"), status, code) == delays


def test_a_delay_is_rounded_up_by_the_stores_second() -> None:
    """One tick early would be a receive that finds nothing (B2); a week is the most that a trigger can say."""
    assert delays_ms(Ring("acme", "orders", 30), 201, None) == (31_000,)
    assert delays_ms(Ring("acme", "orders", 30, 5), None, None) == (31_000, 36_000)
    assert delays_ms(Ring("acme", "orders", 604_800), 201, None) == (WEEK_MS,)
