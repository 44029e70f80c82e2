"""Standard Webhooks v1, checked with the official library (S28)."""

from __future__ import annotations

import base64
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from bridge.http.webhooks.signing import read_secret, sign

OLD = "whsec_" + base64.b64encode(bytes(range(24))).decode()
NEW = "whsec_" + base64.b64encode(bytes(range(64))).decode()
BODY = b'{"test": 2432232314}'


def test_the_official_library_verifies_ours() -> None:
    """And nothing else: another body, id, time or secret is refused."""
    now = int(time.time())
    headers = sign([read_secret(NEW)], "b:1", now, BODY)
    Webhook(NEW).verify(BODY, headers)
    for secret, body, changed in (
        (OLD, BODY, {}),
        (NEW, BODY + b" ", {}),
        (NEW, BODY, {"webhook-id": "b:2"}),
        (NEW, BODY, {"webhook-timestamp": str(now - 1)}),
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, {**headers, **changed})


def test_while_secrets_are_rotated_each_signs() -> None:
    """A receiver with either of them accepts."""
    headers = sign([read_secret(NEW), read_secret(OLD)], "b:1", int(time.time()), BODY)
    assert headers["webhook-signature"].count("v1,") == 2
    for secret in (OLD, NEW):
        Webhook(secret).verify(BODY, headers)


def test_the_example_of_the_specification() -> None:
    """A fixed clock gives a fixed signature."""
    headers = sign(
        [read_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, BODY
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize(
    "text", ["", "whsec_", "whsec_!!!", "whsec_" + "A" * 31, "whsec_" + "A" * 100, "hunter2", "é" * 32]
)
def test_a_secret_has_a_form(text: str) -> None:
    """24 to 64 bytes of base64; the complaint does not repeat it."""
    with pytest.raises(ValueError, match="secret") as caught:
        read_secret(text)
    assert not text or text not in str(caught.value)


def test_the_prefix_and_the_padding_may_be_left_out() -> None:
    """As the official library reads them."""
    assert read_secret(OLD.removeprefix("whsec_")) == read_secret(OLD) == bytes(range(24))
    assert read_secret(NEW.rstrip("=")) == bytes(range(64))


def test_an_id_holds_no_dot() -> None:
    """Two messages could have the same signed text otherwise."""
    with pytest.raises(ValueError, match="dot"):
        sign([bytes(24)], "a.b", 1, b"")


@pytest.mark.parametrize(("length", "good"), [(23, False), (24, True), (25, True), (26, True), (64, True), (65, False)])
def test_a_key_has_24_to_64_bytes(length: int, good: bool) -> None:
    """To the byte, with padding or without, with blanks around or without."""
    key = bytes(range(100, 100 + length))
    text = "whsec_" + base64.b64encode(key).decode()
    for written in (text, text.rstrip("="), f" {text}\n"):
        if good:
            assert read_secret(written) == key
        else:
            with pytest.raises(ValueError, match="base64 of 24 to 64 random bytes"):
                read_secret(written)


@pytest.mark.parametrize("wrong", ["!!!!", "\u00e9\u00e9\u00e9\u00e9", "    ", "A"])
def test_what_is_not_base64_is_told_and_not_skipped(wrong: str) -> None:
    """A character too many anywhere is a mistake of whoever copied it."""
    with pytest.raises(ValueError, match="whsec_ and base64"):
        read_secret(OLD[:10] + wrong + OLD[10:])
