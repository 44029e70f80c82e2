"""Queue references: what may stand in a subject, a topic, a URL and a file name without any quoting."""

from __future__ import annotations

import pytest

from bridge.contract.errors import BadQueueReference
from bridge.contract.names import is_token, parse_reference, poison_reference, reference, split_reference

LONGEST = "a" * 80


@pytest.mark.parametrize("token", ["a", "Z", "0", "a_-", "0-", LONGEST])
def test_a_token_is_letters_digits_underscores_and_hyphens(token: str) -> None:
    """From 1 to 80 of them, the first a letter or a digit."""
    assert is_token(token)
    assert parse_reference(f"{token}/{token}") == reference(token, token) == f"{token}/{token}"
    assert split_reference(f"{token}/b") == (token, "b")
    assert split_reference(f"b/{token}") == ("b", token)


@pytest.mark.parametrize("token", ["", "_a", "-a", "a.b", "a b", "a\n", "é", "\u0663", "a" * 81, "a/b", "a*", None, 7])
def test_what_is_no_token_makes_no_reference(token: object) -> None:
    """On neither side, and nothing of it is echoed."""
    assert not is_token(token)
    for make in (
        lambda: parse_reference(f"{token}/b" if isinstance(token, str) else token),
        lambda: parse_reference(f"b/{token}" if isinstance(token, str) else token),
        lambda: reference(token, "b"),
        lambda: reference("b", token),
    ):
        with pytest.raises(BadQueueReference) as refusal:
            make()
        assert refusal.value.code == "bad_queue_reference"
        assert not token or repr(token) not in str(refusal.value)


def test_what_a_reference_is_is_said_where_none_was_given() -> None:
    """Its form, the characters, the first of them and the length."""
    with pytest.raises(BadQueueReference) as refusal:
        parse_reference("orders")
    assert str(refusal.value) == (
        "a queue reference is 'account/queue', two tokens of letters, digits, '_' and '-' "
        "that start with a letter or digit, 80 characters each at most"
    )


def test_what_is_no_text_is_no_part_of_a_reference() -> None:
    """An account or a queue that is missing is said to be so."""
    for given in ((None, "b"), ("a", None)):
        with pytest.raises(BadQueueReference, match="both text"):
            reference(*given)


def test_a_poison_queue_has_the_name_of_its_queue_and_more() -> None:
    """Where that still is a name."""
    assert poison_reference("a/b") == "a/b-poison"
    assert poison_reference(f"a/{'b' * 73}").endswith("b-poison")
    with pytest.raises(BadQueueReference):
        poison_reference(f"a/{'b' * 74}")
