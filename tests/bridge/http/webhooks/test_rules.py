"""Webhooks: which are delivered when, signing (S28), the handshake, and which addresses are allowed."""

from __future__ import annotations

import base64
import ipaddress
import itertools
from typing import Any

import pytest

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.wire import Wake
from queuebell.bridge.http.webhooks.addresses import check_url, refusal, refuse_any, unwrap
from queuebell.bridge.http.webhooks.deliver import sign
from queuebell.bridge.http.webhooks.rules import Deliveries, Outcome, retry_after
from queuebell.bridge.http.webhooks.settings import WEBHOOKS_MAX, WebhookSettings, check_webhooks, name_of, name_of_all

FAILED = Outcome(500)


def wake(gen: int, size: int = 1, trace: str | None = None, age_ms: int = 0) -> Wake:
    return Wake("a/b", "b" * 32, gen, "trigger", size, age_ms, trace)


def attempt(deliveries: Deliveries, outcome: Outcome, now: float, *, waits: bool = False) -> tuple[float, int]:
    """Make the next attempt when it is due, and return when that was and what was sent."""
    deadline = deliveries.deadline()
    assert deadline is not None
    now = max(now, deadline)
    sent = deliveries.begin(now)
    assert deliveries.deadline() is None
    deliveries.ended(now, outcome, waits=waits)
    return now, sent.gen


def test_a_dead_endpoint_costs_a_request_a_minute_however_many_triggers_come() -> None:
    """No amplification: new wakes wait for the pause, they do not start the schedule anew."""
    deliveries = Deliveries(lambda: 0.0)
    now, times = 0.0, []
    for gen in range(3600):
        now = float(gen)
        deliveries.offer(now, wake(gen))
        deadline = deliveries.deadline()
        assert deadline is not None
        if deadline <= now:
            times.append(now)
            assert deliveries.begin(now).gen == gen
            deliveries.ended(now, FAILED, waits=False)
    assert len(times) <= 4 + 3600 / 60
    assert all(late - early >= 60 for early, late in itertools.pairwise(times[5:]))


@pytest.mark.parametrize(("waits", "draw", "at"), [
    (False, 0.0, [0.0, 1.0, 6.0, 21.0, 81.0]),
    (False, 1.0, [0.0, 1.2, 7.2, 25.2, 97.2]),
    (True, 0.0, [0.0, 1.0, 6.0, 21.0, 81.0, 141.0, 201.0]),
])  # fmt: skip
def test_a_failed_wake_is_tried_again_and_for_ever_only_while_work_waits(
    waits: bool, draw: float, at: list[float]
) -> None:
    deliveries = Deliveries(lambda: draw)
    deliveries.offer(0.0, wake(1))
    times = [attempt(deliveries, FAILED, 0.0, waits=waits)[0] for _ in at]
    assert times == pytest.approx(at)
    assert (deliveries.pending is not None, deliveries.dropped) == (waits, 0 if waits else 1)
    assert (deliveries.failures, deliveries.delivered) == (len(at), 0)
    deliveries.offer(300.0, wake(2))
    attempt(deliveries, Outcome(204), 300.0)
    assert (deliveries.failures, deliveries.attempts, deliveries.delivered) == (0, 0, 1)


@pytest.mark.parametrize(("asked", "pause"), [(None, 1.0), (0.5, 1.0), (30.0, 30.0), (99_999.0, 3600.0)])
def test_an_endpoint_may_ask_for_a_longer_pause_of_an_hour_at_most(asked: float | None, pause: float) -> None:
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(0.0, wake(1))
    attempt(deliveries, Outcome(503, retry_after_s=asked), 0.0)
    assert deliveries.deadline() == pause


@pytest.mark.parametrize(("allowed", "apart"), [(None, 0.1), (60.0, 1.0), (0.1, 60.0), (1e6, 0.1)])
def test_s29_an_endpoint_gets_as_many_a_minute_as_it_allows(allowed: float | None, apart: float) -> None:
    deliveries = Deliveries(lambda: 0.0)
    if allowed is not None:
        deliveries.allow(allowed)
    for gen in range(3):
        deliveries.offer(7.0, wake(gen))
        assert attempt(deliveries, Outcome(200), 7.0)[0] == pytest.approx(7.0 + gen * apart)


def test_a_wake_that_waits_is_merged_and_grows_old() -> None:
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(10.0, wake(1, size=2, trace=f"00-{'1' * 32}-{'1' * 16}-01", age_ms=50))
    deliveries.offer(11.0, wake(2, size=3))
    sent = deliveries.begin(11.5)
    assert (sent.gen, sent.size, sent.age_ms, sent.traceparent) == (2, 5, 1550, f"00-{'1' * 32}-{'1' * 16}-01")


def test_s30_gone_is_for_good() -> None:
    """410: nothing more is sent and nothing is kept."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(0.0, wake(1))
    deliveries.begin(0.0)
    deliveries.offer(0.0, wake(2))
    deliveries.ended(0.0, Outcome(410), waits=False)
    deliveries.offer(1.0, wake(3))
    assert (deliveries.disabled, deliveries.pending, deliveries.deadline()) == (True, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("120", 120.0),
        (" 0 ", 0.0),
        ("-1", None),
        ("1e3", None),
        ("soon", None),
        ("9" * 30, None),
        ("Fri, 20 Nov 2026 18:00:30 GMT", 30.0),
        ("Fri, 20 Nov 2026 17:00:00 GMT", 0.0),
        ("Fri, 99 Nov 2026 17:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, seconds: float | None) -> None:
    """RFC 9110 10.2.3; nonsense counts as absent."""
    assert retry_after(text, 1795197600.0) == seconds


KEYS = (b"a" * 24, b"b" * 64)
SECRETS = tuple("whsec_" + base64.b64encode(key).decode() for key in KEYS)


def entry(**changes: Any) -> WebhookSettings:
    """A good entry, but for these."""
    return WebhookSettings(**{"url": "https://example.com/x", "queue": "a/b", "secret": SECRETS[0], **changes})


def test_as_many_as_there_may_be() -> None:
    """A thousand pass in their order, one more is refused."""
    entries = [entry(queue=f"a/q{number}") for number in range(WEBHOOKS_MAX)]
    assert [checked.settings for checked in check_webhooks(entries)] == entries
    with pytest.raises(ConfigurationError, match=r"^webhook: at most 1000$"):
        check_webhooks([*entries, entry()])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"queue": "a"}, "webhook 2: queue: "),
        ({"url": "http://example.com/"}, "webhook 2: url: .*allow_http"),
        ({"url": "https://10.0.0.1/"}, "webhook 2: url: .*not an address"),
        ({"secret": ()}, "webhook 2: secret: at least one"),
        ({"secret": "whsec_AAAA"}, "webhook 2: secret: .*24 to 64"),
    ],
)
def test_an_entry_that_cannot_be_is_named_by_its_number_and_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_webhooks([entry(), entry(**changes)])


def test_what_an_entry_allows_is_taken_as_it_is() -> None:
    plain, private = check_webhooks([
        entry(url="http://example.com:8080/x", allow_http=True, secret=SECRETS),
        entry(url="https://10.0.0.1:9/x", allow_private=True),
    ])  # fmt: skip
    assert (plain.target.host, plain.target.port, plain.target.literal, plain.keys) == (
        "example.com",
        8080,
        False,
        KEYS,
    )
    assert (private.target.host, private.target.port, private.target.literal) == ("10.0.0.1", 9, True)


def test_bridges_with_the_same_webhooks_have_one_name_for_them() -> None:
    one, two = entry(), entry(queue="a/c")
    assert name_of(one) != name_of(two) != name_of(entry(url="https://example.org/x", queue="a/c"))
    assert name_of_all([one, two]) == name_of_all([two, one, one]) != name_of_all([one])
    assert name_of_all([]) is None


def test_an_id_holds_no_dot() -> None:
    """Two messages could have the same signed text otherwise."""
    with pytest.raises(ValueError, match="dot"):
        sign([bytes(24)], "a.b", 1, b"")


_REASONS = {
    "printable ASCII": (
        "https://bücher.example/",
        "https://exam ple.com/",
        "https://example.com\\@evil.example/",
        "https://example.com/\r\nX: y",
        "https://example.com/\x7f",
    ),
    "must begin with https://": ("ftp://example.com/", "file:///etc/passwd", "//example.com/", "example.com", ""),
    "allow_http = true": ("http://example.com/", "http://example.com:443/"),
    "must not contain a user or password": (
        "https://user@example.com/",
        "https://user:pass@example.com/",
        "https://example.com@evil.example/",
    ),
    "must not contain a fragment": ("https://example.com/#x", "https://example.com/#", "https://example.com#x"),
    "one address": ("https://one.example,two.example/", "https://one.example:443,https://two.example/"),
    "must name a host": ("https://", "https:///x", "https://./", "https://exa%6dple.com/", "https://[fe80::1%25eth0]/"),
    "443 or 8443": tuple(f"https://example.com:{port}/" for port in (0, 22, 80, 442, 444, 8080, 8442, 8444, 65535)),
    "(?i)port": ("https://example.com:99999/", "https://example.com:x/"),
    "not an address": (
        "https://127.0.0.1/",
        "https://127.0.0.1./",
        "https://8.8.8.8/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
    ),
    "written in full": (
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0xABCDEF89/",
        "https://0x7f.1/",
        "https://127.0x/",
        "https://0177.0.0.1/",
    ),
}


@pytest.mark.parametrize(("reason", "url"), [(reason, url) for reason, urls in _REASONS.items() for url in urls])
def test_s24_what_cannot_stand_in_the_file(reason: str, url: str) -> None:
    """Schemes, users, fragments, ports, and addresses in every disguise; the complaint says what is wrong."""
    with pytest.raises(ValueError, match=reason):
        check_url(url)


@pytest.mark.parametrize("address", ["", "nonsense", "1.2.3", "%eth0"])
def test_s26_what_is_no_address_is_refused(address: str) -> None:
    assert refusal(address) == refusal(address, allow_private=True) == "it is not an address"


def test_s25_one_bad_answer_refuses_them_all() -> None:
    """A name that also resolves to an address inside is not picked apart."""
    assert refuse_any(["8.8.8.8", "1.1.1.1"]) is None
    for addresses in (["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"]):
        assert refuse_any(addresses) == refusal("127.0.0.1")
        assert refuse_any(addresses, allow_private=True) is None
    assert refuse_any(["127.0.0.1", "::"], allow_private=True) == refusal("::")
    assert "no address" in (refuse_any([]) or "")


@pytest.mark.parametrize(
    ("address", "carried"),
    [
        ("1.2.3.4", []),
        ("2606:4700::102:304", []),
        ("64:ff9b::102:304", ["1.2.3.4"]),
        ("64:ff9b:1::102:304", ["1.2.3.4"]),
        ("64:ff9b:1:102:3:400::", ["1.2.3.4", "2.3.4.0", "3.4.0.0"]),
        ("64:ff9b:1::", []),
        ("::ffff:0:102:304", ["1.2.3.4"]),
        ("::102:304", ["1.2.3.4"]),
        ("::2", ["0.0.0.2"]),
        ("::1", []),
        ("::", []),
        ("2002:102:304:ffff:ffff:ffff:ffff:ffff", ["1.2.3.4"]),
        ("2001:0:102:304:ffff:ffff:fafa:f9f8", ["1.2.3.4", "5.5.6.7"]),
        ("2001:1:102:304::", []),
    ],
)
def test_s26_what_an_address_carries(address: str, carried: list[str]) -> None:
    """Bit by bit, and beside itself: each of them has to be allowed."""
    assert [str(found) for found in unwrap(ipaddress.ip_address(address))] == [address, *carried]


def test_s26_a_mapped_address_is_the_one_it_maps() -> None:
    assert unwrap(ipaddress.ip_address("::ffff:1.2.3.4")) == [ipaddress.IPv4Address("1.2.3.4")]
